"""Which contractions the PE computes in tf32: those of values that are rounded to it."""

from __future__ import annotations

import numpy as np

from glia.graph.ops import Constant
from glia.tile.build.values import (
    DeferredValue,
    MovementValue,
    PadValue,
    RoundedValue,
    ScalarValue,
)

_DROPPED = 0x1FFF  # bits of a float32's mantissa that tf32 has not


def reads_as_tf32(a: DeferredValue, b: DeferredValue) -> bool:
    """Whether both factors are rounded to tf32, or one is and the other needs no rounding."""
    rounded = [_is_rounded(value) for value in (a, b)]
    if not any(rounded):
        return False
    return all(is_so or _is_exact(v) for is_so, v in zip(rounded, (a, b), strict=True))


def _is_rounded(value: DeferredValue) -> bool:
    source = _source(value)
    return isinstance(source, RoundedValue)


def _is_exact(value: DeferredValue) -> bool:
    """Whether the value is a constant that tf32 represents."""
    source = _source(value)
    if isinstance(source, ScalarValue):
        return _fits_tf32(np.float32(source.number))
    return isinstance(source.node, Constant) and _fits_tf32(np.asarray(source.node.value))


def _source(value: DeferredValue) -> DeferredValue:
    """The value whose elements a chain of movement and of padding with zeros gives."""
    while True:
        if isinstance(value, MovementValue):
            value = value.source
        elif isinstance(value, PadValue) and isinstance(value.value, ScalarValue):
            if value.value.number:
                return value
            value = value.source
        else:
            return value


def _fits_tf32(array: np.ndarray | np.float32) -> bool:
    words = np.ascontiguousarray(array)
    if words.dtype != np.float32:
        return False
    return bool(np.all((words.view(np.uint32) & _DROPPED == 0) | np.isnan(words)))
