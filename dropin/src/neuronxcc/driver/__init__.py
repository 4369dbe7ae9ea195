"""The command line of the compiler."""

from neuronxcc.driver import CommandDriver

__all__ = ["CommandDriver"]
