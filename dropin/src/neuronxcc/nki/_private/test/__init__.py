"""Helpers of the vendor's tests; each says that it is missing."""

from neuronxcc.nki._private.test import mx_util

__all__ = ["mx_util"]
