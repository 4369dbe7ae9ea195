"""Names of `neuronxcc.starfish` that public code imports: host dtypes, `vnc`, `allclose`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from glia.nki.beta1.api.creation import nc
from glia.nki.beta1.tensors.dtypes import bfloat16, float8_e4m3, float8_e5m2, static_cast

vnc = nc


def as_native_type(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype of a dtype."""
    native: np.dtype[Any] = np.dtype(dtype)
    return native


def allclose(
    actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-8, *,
    equal_nan: bool = False, verbose: int = 0,
) -> bool:  # fmt: skip
    """numpy.allclose of arrays of any dtypes; `verbose` prints the greatest difference."""
    found, wanted = (np.asarray(each).astype(np.float64) for each in (actual, expected))
    agree = bool(np.allclose(found, wanted, rtol=rtol, atol=atol, equal_nan=equal_nan))
    if verbose and found.size:
        sys.stdout.write(f"greatest difference {np.abs(found - wanted).max():.6g}\n")
    return agree


__all__ = [
    "allclose", "as_native_type", "bfloat16", "float8_e4m3", "float8_e5m2", "static_cast", "vnc",
]  # fmt: skip
