"""Reference functions of AWS's tests."""

from neuronxcc.nki._private.test import mx_util

__all__ = ["mx_util"]
