"""Private names of neuronxcc: packed dtypes; others are NotShipped."""

from neuronxcc.nki._private import private_api

__all__ = ["private_api"]
