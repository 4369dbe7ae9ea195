"""Names of the vendor's own: dtypes; others say that they are missing."""

from neuronxcc.nki._private import private_api

__all__ = ["private_api"]
