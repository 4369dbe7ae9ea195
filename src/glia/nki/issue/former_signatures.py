"""Signatures of earlier releases of the current generation, and their present forms.

`upgrade_call` rewrites a call to the present signature, with a warning. Earlier calls are
recognised by keywords and by the types of arguments, so that present ones stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from glia.nki.names.dtypes import DTYPES, dtype_name
from glia.nki.names.enums import MemoryRegion, matmul_perf_mode
from glia.nki.names.language_errors import advise
from glia.nki.names.operators import operator_name
from glia.nki.session.session import caller

Function = TypeVar("Function", bound=Callable[..., Any])
Values = tuple[Any, ...]
Keywords = dict[str, Any]
CallArguments = tuple[Values, Keywords]

BUFFERS = {region.value: region for region in MemoryRegion} | {"hbm": MemoryRegion.private_hbm}


class PartitionDim(int):
    """An extent that nl.par_dim marks as the partitions."""


def par_dim(extent: int) -> PartitionDim:
    """Mark an extent of a shape as the partition dimension, which must be the first."""
    return PartitionDim(extent)


@dataclass(frozen=True)
class SignatureChange:
    """A change of a signature; `rewrite` upgrades a call, None where it needs no upgrade."""

    rewrite: Callable[[Values, Keywords], CallArguments | None]
    advice: str


def upgrade_call(function: str, args: Values, kwargs: Keywords) -> CallArguments | None:
    """The call for the present signature, with a KernelAdvice; None where it needs no upgrade."""
    call: CallArguments | None = None
    for change in SIGNATURE_CHANGES.get(function, ()):
        found = change.rewrite(args, kwargs)
        if found is not None:
            call = args, kwargs = found
            advise(f"{function}: {change.advice}", caller())
    return call


def accepts_earlier_signatures(name: str) -> Callable[[Function], Function]:
    """Decorate a function to take calls of its earlier signatures; `name` is its full name."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            owner, given = (args[:1], args[1:]) if name.startswith("NkiTensor.") else ((), args)
            given, kwargs = upgrade_call(name, given, kwargs) or (given, kwargs)
            return function(*owner, *given, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


# --- kinds of changes ----------------------------------------------------------------------------


def _renamed_keyword(old: str, new: str) -> SignatureChange:
    def rewrite(args: Values, kwargs: Keywords) -> CallArguments | None:
        if old not in kwargs:
            return None
        return args, {new if name == old else name: value for name, value in kwargs.items()}

    return SignatureChange(rewrite, f"{old}= is called {new}= since NKI 0.3")


def _dropped_keyword(name: str, reason: str) -> SignatureChange:
    """A keyword without effect, which is dropped."""

    def rewrite(args: Values, kwargs: Keywords) -> CallArguments | None:
        if name not in kwargs:
            return None
        return args, {each: value for each, value in kwargs.items() if each != name}

    return SignatureChange(rewrite, f"{name}= is gone: {reason}")


def _converted_argument(
    name: str, position: int, convert: Callable[[Any], Any], advice: str
) -> SignatureChange:
    """One argument, by position or keyword, converted; `convert` gives None to keep it."""

    def rewrite(args: Values, kwargs: Keywords) -> CallArguments | None:
        if name in kwargs:
            value = convert(kwargs[name])
            return None if value is None else (args, {**kwargs, name: value})
        if len(args) <= position:
            return None
        value = convert(args[position])
        return None if value is None else ((*args[:position], value, *args[position + 1 :]), kwargs)

    return SignatureChange(rewrite, advice)


def _reordered_parameters(
    earlier: str, is_earlier: Callable[[Keywords, Keywords], bool], advice: str
) -> SignatureChange:
    """Parameters that had this order before.

    `is_earlier` recognises it by the positional arguments, bound in this order, and the keywords.
    """
    names = earlier.split()

    def rewrite(args: Values, kwargs: Keywords) -> CallArguments | None:
        if len(args) > len(names):
            return None
        given = dict(zip(names, args, strict=False))
        if given.keys() & kwargs.keys() or not is_earlier(given, kwargs):
            return None
        return (), given | kwargs

    return SignatureChange(rewrite, advice)


def _region(default: MemoryRegion | None) -> Callable[[Any], MemoryRegion | None]:
    """A conversion of buffer names to regions; None meant the default."""

    def convert(value: Any) -> MemoryRegion | None:
        if value is None:
            return default
        return BUFFERS.get(value) if isinstance(value, str) else None

    return convert


def _buffer_by_name(
    position: int, default: MemoryRegion | None = MemoryRegion.sbuf
) -> SignatureChange:
    advice = "buffers are members of nl.MemoryRegion since NKI 0.3 (give nl.sbuf, nl.psum, ...)"
    return _converted_argument("buffer", position, _region(default), advice)


def _as_dtype(args: Values, kwargs: Keywords) -> CallArguments | None:
    """Convert shared_constant(constant, dtype) to the constant cast to that dtype."""
    given = dict(zip(("constant", "dtype"), args, strict=False)) | kwargs
    constant, dtype = given.get("constant"), given.get("dtype")
    if len(args) > 2 or given.keys() != {"constant", "dtype"}:
        return None
    if dtype is None:
        return (constant,), {}
    name = dtype_name(dtype)
    if name is None or not isinstance(constant, np.ndarray):
        return None
    return (constant.astype(DTYPES[name].numpy),), {}


def _has_offset_third(given: Keywords, kwargs: Keywords) -> bool:
    """Recognise affine_select with offset third: now the multiplier is third, the tile fourth."""
    if "channel_multiplier" in given:
        return isinstance(given["channel_multiplier"], int | np.integer)
    return "offset" in given and "channel_multiplier" in kwargs


def _has_scales_third(given: Keywords, kwargs: Keywords) -> bool:
    """Recognise dma_compute with scales third: now the operator is third."""
    return "scales" in given and (
        isinstance(given["scales"], list | tuple)
        or "reduce_op" in kwargs
        or operator_name(given.get("reduce_op")) is not None
    )


def _double_row(value: Any) -> matmul_perf_mode | None:
    names = ("double_row", "double_row_gen3")
    return matmul_perf_mode.double_row if value in names else None


_LAZY = _dropped_keyword(
    "lazy_initialization", "the first product overwrites what nl.zeros and nl.full wrote"
)
_SCALES = "stationary_scale moving_scale"
_PRODUCT = "is_stationary_onezero is_moving_onezero is_transpose"
_DIRECTION = "loops are unrolled, and run in program order"

SIGNATURE_CHANGES: dict[str, tuple[SignatureChange, ...]] = {
    "nki.isa.register_move": (_renamed_keyword("imm", "src"),),
    "NkiTensor.reshape": (_renamed_keyword("new_shape", "shape"),),
    "nki.isa.affine_select": (
        _reordered_parameters(
            "dst pattern offset channel_multiplier on_true_tile on_false_value cmp_op",
            _has_offset_third, "offset= is last since NKI 0.3, and 0 unless given",
        ),
    ),
    "nki.isa.dma_compute": (
        _reordered_parameters(
            "dst srcs scales reduce_op", _has_scales_third,
            "reduce_op= comes before scales= since NKI 0.3",
        ),
    ),
    "nki.isa.nc_matmul": (
        _reordered_parameters(
            f"dst stationary moving {_PRODUCT} tile_position tile_size perf_mode",
            lambda given, _: isinstance(given.get("tile_position"), tuple | list),
            "accumulate= comes before tile_position= since NKI 0.3",
        ),
        _converted_argument(
            "perf_mode", 9, _double_row, "perf_mode= is a nki.isa.matmul_perf_mode"
        ),
    ),
    "nki.isa.nc_matmul_mx": (
        _reordered_parameters(
            f"dst stationary moving {_SCALES} accumulate tile_position tile_size",
            lambda given, _: isinstance(given.get("accumulate"), bool),
            "accumulate= comes after tile_position= and tile_size=",
        ),
    ),
    "nl.ndarray": (_buffer_by_name(2),),
    "nl.zeros": (_buffer_by_name(2), _LAZY),
    "nl.ones": (_buffer_by_name(2),),
    "nl.full": (_buffer_by_name(3), _LAZY),
    "nl.rand": (_buffer_by_name(2),),
    "nl.zeros_like": (_buffer_by_name(2, None),),
    "nl.empty_like": (_buffer_by_name(2, None),),
    "nl.shared_constant": (
        SignatureChange(_as_dtype, "give the constant the dtype that its tensor has"),
    ),
    "nl.sequential_range": (
        _dropped_keyword("directives", _DIRECTION), _dropped_keyword("body_no_reorder", _DIRECTION),
    ),
    "nl.affine_range": (_dropped_keyword("precise_schedule", _DIRECTION),),
}  # fmt: skip
