"""What callers of kernels take from `neuronxcc.starfish`: dtypes of the host, `vnc`, `allclose`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from glia.nki.beta1.api.creation import nc
from glia.nki.beta1.tensors.dtypes import bfloat16, float8_e4m3, float8_e5m2, static_cast

vnc = nc


def as_native_type(dtype: Any) -> np.dtype[Any]:
    """A dtype as NumPy's."""
    return np.dtype(dtype)


def allclose(
    actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-8, *,
    equal_nan: bool = False, verbose: int = 0,
) -> bool:  # fmt: skip
    """Whether arrays of any dtypes agree as numpy.allclose has it; `verbose` prints how far."""
    found, wanted = (np.asarray(each).astype(np.float64) for each in (actual, expected))
    agree = bool(np.allclose(found, wanted, rtol=rtol, atol=atol, equal_nan=equal_nan))
    if verbose and found.size:
        sys.stdout.write(f"greatest difference {np.abs(found - wanted).max():.6g}\n")
    return agree


__all__ = [
    "allclose", "as_native_type", "bfloat16", "float8_e4m3", "float8_e5m2", "static_cast", "vnc",
]  # fmt: skip
