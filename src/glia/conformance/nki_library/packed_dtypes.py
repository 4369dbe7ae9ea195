"""The suite's own code for arrays of packed dtypes, given those of glia.

It knows them by the text of their NumPy dtypes, which are types of their own in AWS's package and
structured dtypes here.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from glia.nki.names.dtypes import DTYPES, dtype_name


def lend_packed_dtypes() -> None:
    """Let the suite compare and quantise arrays of packed dtypes, if it is one that does."""
    _wrap("test.utils.output_validator", "OutputValidator", "_compare_outputs", _unpacking)
    _wrap("nkilib_src.nkilib.core.utils.mx_torch_common", "", "quantize_to_mx", _naming)


def _wrap(module: str, owner: str, name: str, wrapped: Callable[[Any], Any]) -> None:
    if importlib.util.find_spec(module.rpartition(".")[0]) is None:
        return
    if importlib.util.find_spec(module) is not None:
        found = importlib.import_module(module)
        place = getattr(found, owner) if owner else found
        setattr(place, name, wrapped(getattr(place, name)))


def _unpacking(compare: Callable[..., Any]) -> Callable[..., Any]:
    """Compare the values of packed elements, as the suite does with its own dtypes."""
    cast = importlib.import_module("neuron_dtypes").static_cast

    def unpacked(outputs: dict[str, Any]) -> dict[str, Any]:
        return {
            name: cast(each, np.float32) if _is_packed(getattr(each, "dtype", None)) else each
            for name, each in outputs.items()
        }

    def compared(self: Any, actual: dict[str, Any], golden: dict[str, Any], *rest: Any,
                 **options: Any) -> Any:  # fmt: skip
        return compare(self, unpacked(actual), unpacked(golden), *rest, **options)

    return compared


def _naming(quantize: Callable[..., Any]) -> Callable[..., Any]:
    """Quantise to a dtype given as NumPy's."""

    def named(data: Any, out_x4_dtype: Any) -> Any:
        return quantize(data, dtype_name(out_x4_dtype) or out_x4_dtype)

    return named


def _is_packed(dtype: Any) -> bool:
    name = dtype_name(dtype) if dtype is not None else None
    return name is not None and DTYPES[name].packs is not None
