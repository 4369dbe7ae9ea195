"""Forms of calls that earlier releases of the current generation had, and the present one's.

A function that has such forms asks `rewritten`, which warns where it finds one. Forms are told
apart by keywords and by the types of arguments, so that a call in its present form stays as it is.
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
Call = tuple[Values, Keywords]

BUFFERS = {region.value: region for region in MemoryRegion} | {"hbm": MemoryRegion.private_hbm}


class PartitionDim(int):
    """An extent that nl.par_dim marks as the partitions."""


def par_dim(extent: int) -> PartitionDim:
    """The extent, in the shape of a tensor the one of the partitions: the first."""
    return PartitionDim(extent)


@dataclass(frozen=True)
class Form:
    """What a call may have been; `rewrite` gives the present form, None where it is already."""

    rewrite: Callable[[Values, Keywords], Call | None]
    advice: str


def rewritten(function: str, args: Values, kwargs: Keywords) -> Call | None:
    """The call in its present form, with a KernelAdvice; None where it has no other."""
    call: Call | None = None
    for form in FORMS.get(function, ()):
        found = form.rewrite(args, kwargs)
        if found is not None:
            call = args, kwargs = found
            advise(f"{function}: {form.advice}", caller())
    return call


def earlier_forms(name: str) -> Callable[[Function], Function]:
    """Let a function take its earlier forms, known by this name."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            owner, given = (args[:1], args[1:]) if name.startswith("NkiTensor.") else ((), args)
            given, kwargs = rewritten(name, given, kwargs) or (given, kwargs)
            return function(*owner, *given, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


# --- the kinds of change -------------------------------------------------------------------------


def _renamed(old: str, new: str) -> Form:
    def rewrite(args: Values, kwargs: Keywords) -> Call | None:
        if old not in kwargs:
            return None
        return args, {new if name == old else name: value for name, value in kwargs.items()}

    return Form(rewrite, f"{old}= is called {new}= since NKI 0.3")


def _without(name: str, reason: str) -> Form:
    """A keyword that changes nothing."""

    def rewrite(args: Values, kwargs: Keywords) -> Call | None:
        if name not in kwargs:
            return None
        return args, {each: value for each, value in kwargs.items() if each != name}

    return Form(rewrite, f"{name}= is gone: {reason}")


def _converted(name: str, position: int, convert: Callable[[Any], Any], advice: str) -> Form:
    """One argument, wherever it stands, given as something else; None for what stays as it is."""

    def rewrite(args: Values, kwargs: Keywords) -> Call | None:
        if name in kwargs:
            value = convert(kwargs[name])
            return None if value is None else (args, {**kwargs, name: value})
        if len(args) <= position:
            return None
        value = convert(args[position])
        return None if value is None else ((*args[:position], value, *args[position + 1 :]), kwargs)

    return Form(rewrite, advice)


def _reordered(earlier: str, is_earlier: Callable[[Keywords, Keywords], bool], advice: str) -> Form:
    """Parameters that stood in this order before.

    `is_earlier` tells by what those by position would be in it, and by the keywords.
    """
    names = earlier.split()

    def rewrite(args: Values, kwargs: Keywords) -> Call | None:
        if len(args) > len(names):
            return None
        given = dict(zip(names, args, strict=False))
        if given.keys() & kwargs.keys() or not is_earlier(given, kwargs):
            return None
        return (), given | kwargs

    return Form(rewrite, advice)


def _region(default: MemoryRegion | None) -> Callable[[Any], MemoryRegion | None]:
    """A buffer by its name; None stood for the default."""

    def convert(value: Any) -> MemoryRegion | None:
        if value is None:
            return default
        return BUFFERS.get(value) if isinstance(value, str) else None

    return convert


def _buffer(position: int, default: MemoryRegion | None = MemoryRegion.sbuf) -> Form:
    advice = "buffers are members of nl.MemoryRegion since NKI 0.3 (give nl.sbuf, nl.psum, ...)"
    return _converted("buffer", position, _region(default), advice)


def _as_dtype(args: Values, kwargs: Keywords) -> Call | None:
    """A constant with a dtype as the constant of that dtype."""
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
    """The present form has the multiplier third and the tile fourth."""
    if "channel_multiplier" in given:
        return isinstance(given["channel_multiplier"], int | np.integer)
    return "offset" in given and "channel_multiplier" in kwargs


def _has_scales_third(given: Keywords, kwargs: Keywords) -> bool:
    """The present form has the operator third."""
    return "scales" in given and (
        isinstance(given["scales"], list | tuple)
        or "reduce_op" in kwargs
        or operator_name(given.get("reduce_op")) is not None
    )


def _double_row(value: Any) -> matmul_perf_mode | None:
    names = ("double_row", "double_row_gen3")
    return matmul_perf_mode.double_row if value in names else None


_LAZY = _without(
    "lazy_initialization", "the first product overwrites what nl.zeros and nl.full wrote"
)
_SCALES = "stationary_scale moving_scale"
_PRODUCT = "is_stationary_onezero is_moving_onezero is_transpose"
_DIRECTION = "loops are unrolled, and run in program order"

FORMS: dict[str, tuple[Form, ...]] = {
    "nki.isa.register_move": (_renamed("imm", "src"),),
    "NkiTensor.reshape": (_renamed("new_shape", "shape"),),
    "nki.isa.affine_select": (
        _reordered(
            "dst pattern offset channel_multiplier on_true_tile on_false_value cmp_op",
            _has_offset_third, "offset= is last since NKI 0.3, and 0 unless given",
        ),
    ),
    "nki.isa.dma_compute": (
        _reordered(
            "dst srcs scales reduce_op", _has_scales_third,
            "reduce_op= comes before scales= since NKI 0.3",
        ),
    ),
    "nki.isa.nc_matmul": (
        _reordered(
            f"dst stationary moving {_PRODUCT} tile_position tile_size perf_mode",
            lambda given, _: isinstance(given.get("tile_position"), tuple | list),
            "accumulate= comes before tile_position= since NKI 0.3",
        ),
        _converted("perf_mode", 9, _double_row, "perf_mode= is a nki.isa.matmul_perf_mode"),
    ),
    "nki.isa.nc_matmul_mx": (
        _reordered(
            f"dst stationary moving {_SCALES} accumulate tile_position tile_size",
            lambda given, _: isinstance(given.get("accumulate"), bool),
            "accumulate= comes after tile_position= and tile_size=",
        ),
    ),
    "nl.ndarray": (_buffer(2),),
    "nl.zeros": (_buffer(2), _LAZY),
    "nl.ones": (_buffer(2),),
    "nl.full": (_buffer(3), _LAZY),
    "nl.rand": (_buffer(2),),
    "nl.zeros_like": (_buffer(2, None),),
    "nl.empty_like": (_buffer(2, None),),
    "nl.shared_constant": (Form(_as_dtype, "give the constant the dtype that its tensor has"),),
    "nl.sequential_range": (
        _without("directives", _DIRECTION), _without("body_no_reorder", _DIRECTION),
    ),
    "nl.affine_range": (_without("precise_schedule", _DIRECTION),),
}  # fmt: skip
