"""Names that NumPy 2 has dropped and MXNet 1.9.1 takes from it, put back before MXNet loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# What NumPy's own notes of releases 1.20, 1.24 and 2.0 give as replacement
_RENAMED: Mapping[str, Any] = {
    "int": int, "float": float, "float_": np.float64,
    "Inf": np.inf, "NaN": np.nan, "NAN": np.nan, "PINF": np.inf, "NINF": -np.inf,
    "PZERO": 0.0, "NZERO": -0.0,
    "alltrue": np.all, "sometrue": np.any, "product": np.prod, "cumproduct": np.cumprod,
    "round_": np.round, "in1d": np.isin, "trapz": np.trapezoid, "row_stack": np.vstack,
}  # fmt: skip

# Financial functions, which MXNet lists among its own: there are none to call
_REMOVED = ("mirr", "npv", "pmt", "ppmt", "pv", "rate")


def _sorted_along_first(a: Any) -> np.ndarray:
    """What `numpy.msort` returned."""
    return np.sort(a, axis=0)


def restore_names() -> None:
    """Put back the names; those that NumPy has stay what they are."""
    others = {"msort": _sorted_along_first, **dict.fromkeys(_REMOVED)}
    for name, value in {**_RENAMED, **others}.items():
        if name not in vars(np):
            setattr(np, name, value)
