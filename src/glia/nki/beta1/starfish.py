"""What callers of kernels take from `neuronxcc.starfish`: dtypes of the host, and `vnc`."""

from __future__ import annotations

from typing import Any

import numpy as np

from glia.nki.beta1.creation import nc
from glia.nki.beta1.dtypes import bfloat16, float8_e4m3, float8_e5m2, static_cast

vnc = nc


def as_native_type(dtype: Any) -> np.dtype[Any]:
    """A dtype as NumPy's."""
    return np.dtype(dtype)


__all__ = ["as_native_type", "bfloat16", "float8_e4m3", "float8_e5m2", "static_cast", "vnc"]
