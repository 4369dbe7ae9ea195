"""Helpers of the vendor's tests."""

from neuronxcc.nki._private.test import mx_util

__all__ = ["mx_util"]
