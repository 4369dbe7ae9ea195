"""Analyses that rules share: constant values, uniform tensors, dimension bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from glia.base.dtype import PRED, DType, Kind, float_limits
from glia.graph.ir import Node, TensorType
from glia.graph.ops import Broadcast, Constant, Reshape


def uniform(node: Node) -> np.ndarray[Any, Any] | None:
    """The one value of every element as a 0-d array, when it is known and there is one."""
    while isinstance(node, Broadcast | Reshape):
        node = node.x
    if isinstance(node, Constant) and np.asarray(node.value).size == 1:
        return np.asarray(node.value).reshape(())
    return None


def is_uniform(node: Node, value: Any) -> bool:
    """Whether every element is known to be `value`, the sign of zero included."""
    found = uniform(node)
    if found is None:
        return False
    wanted = np.asarray(value).astype(found.dtype)
    return same_bits(found, wanted)


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays hold the same bytes."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def integer(node: Node) -> int | None:
    """The value of a known integer or pred scalar."""
    found = uniform(node)
    return None if found is None or found.dtype.kind not in "iub" else int(found)


def integers(nodes: Sequence[Node]) -> tuple[int, ...] | None:
    """The values of known integer scalars; None when one is not known."""
    found = [integer(node) for node in nodes]
    return None if None in found else tuple(value for value in found if value is not None)


def is_empty(node: Node) -> bool:
    """Whether the node is a tensor without elements."""
    return isinstance(node.type, TensorType) and 0 in node.shape


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """The extents other than 1."""
    return tuple(extent for extent in shape if extent != 1)


def holds_exactly(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide` (NaN and infinities included)."""
    if narrow is wide:
        return True
    if narrow is PRED:
        return not wide.is_complex
    if wide is PRED or narrow.is_complex or wide.is_complex:
        return False
    if narrow.is_integer:
        return magnitude_bits(narrow) <= magnitude_bits(wide) and _sign_fits(wide, narrow)
    return wide.is_float and _float_fits(wide, narrow)


def magnitude_bits(dtype: DType) -> int:
    """The most bits every magnitude of which the dtype holds."""
    if dtype.is_float:
        finite = float_limits(dtype.numpy)
        return min(finite.nmant + 1, int(finite.maxexp))
    return dtype.bits - (dtype.kind is Kind.SIGNED)


def _sign_fits(wide: DType, narrow: DType) -> bool:
    return narrow.kind is Kind.UNSIGNED or wide.kind is not Kind.UNSIGNED


def _float_fits(wide: DType, narrow: DType) -> bool:
    if wide.bits < 16 or narrow.bits >= wide.bits:
        return False
    big, small = float_limits(wide.numpy), float_limits(narrow.numpy)
    least = int(small.minexp) - int(small.nmant) >= int(big.minexp) - int(big.nmant)
    return bool(big.nmant >= small.nmant and big.maxexp >= small.maxexp and least)


def invert(permutation: Sequence[int]) -> tuple[int, ...]:
    """The inverse permutation."""
    result = [0] * len(permutation)
    for position, source in enumerate(permutation):
        result[source] = position
    return tuple(result)


def is_increasing(values: Sequence[int]) -> bool:
    """Whether each value is greater than the one before."""
    return all(a < b for a, b in pairwise(values))


def values_at(values: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The values at the positions `order`."""
    return tuple(values[i] for i in order)
