"""Compute 64-bit integers in 32 bits, as `--native-int64 disabled` asks, whatever their values.

A parameter or result of the graph keeps its bytes: it becomes u32 with a last dimension of two (low
word, high word), of which the low word is used, so nothing outside the device has to convert.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import S32, S64, U8, U16, U32, U64, DType, Kind
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Bitcast, Constant, Map
from glia.graph.passes.errors import ConstantTooWide
from glia.graph.passes.retype import Retyping, retype
from glia.graph.rules.constructors import (
    apply,
    bitcast,
    reshape,
    select,
    slice_along,
    splat_like,
    stack,
    take,
)
from glia.graph.rules.control_flow import drop_identity_bitcast, merge_bitcasts
from glia.graph.rules.driver import apply_rules
from glia.graph.rules.inline_regions import inline
from glia.graph.rules.regions import first_operation_on
from glia.options import CompileOptions

log = logging.getLogger(__name__)

_NARROW: Mapping[DType, DType] = {S64: S32, U64: U32}
_WORDS = {8: U8, 16: U16, 32: U32}


def narrow_integers(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without 64-bit integers where `--native-int64 disabled` asks for it.

    Arithmetic wraps at 32 bits; a warning names the first operation. The extreme constants of 64
    bits become those of 32; raises ConstantTooWide for another constant beyond 32 bits.
    """
    if options.native_int64 != "disabled":
        return graph
    if not (first := first_operation_on(_NARROW, graph)):
        return graph
    log.warning(
        "64-bit integers are computed in 32 bits, first in %s; leave out --native-int64 disabled"
        " to keep 64",
        first,
    )
    graph = apply_rules(_split_boundary_words(graph), (drop_identity_bitcast, merge_bitcasts))
    return retype(graph, Retyping(_NARROW, _SPECIAL, lambda p: (p, p), lambda value, _: value))


def _split_boundary_words(graph: Graph) -> Graph:
    """The graph with 64-bit parameters and results as pairs of words, bitcast inside.

    Values that are only passed through, such as the state of a random generator, keep all their
    bits once these bitcasts cancel others.
    """
    parameters: list[Parameter] = []
    image: list[Node] = []
    for old in graph.parameters:
        if old.dtype in _NARROW:
            declared = TensorType(U32, (*old.shape, 2))
            words = Parameter(old.index, declared, old.name, loc=old.loc)
            parameters.append(words)
            image.append(Bitcast(words, old.dtype))
        else:
            parameters.append(old)
            image.append(old)
    results = tuple(
        Bitcast(result, U32) if result.dtype in _NARROW else result
        for result in inline(graph, image)
    )
    return dataclasses.replace(graph, parameters=tuple(parameters), results=results)


def _sign_extend_to_words(value: Node) -> Node:
    """A 32-bit integer as the low and high word of the 64-bit integer of equal value."""
    low = bitcast(value, U32)
    if value.dtype.kind is Kind.UNSIGNED:
        return stack((low, splat_like(0, low)), -1)
    sign = apply("shift_right_arithmetic", value, splat_like(31, value))
    return stack((low, bitcast(sign, U32)), -1)


def _constant(node: Constant, _: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    narrow = dtypes.get(node.dtype)
    if narrow is None:
        return None
    value = np.asarray(node.value)
    wide, small = np.iinfo(value.dtype), np.iinfo(narrow.numpy)
    extreme = (value == wide.min) | (value == wide.max)
    outside = ((value < small.min) | (value > small.max)) & ~extreme
    if outside.any():
        raise ConstantTooWide(dtype=node.dtype, value=int(value[outside].flat[0]), loc=node.loc)
    array = np.array(np.clip(value, small.min, small.max), dtype=narrow.numpy)
    array.flags.writeable = False
    return Constant(array, loc=node.loc)


def _map(node: Map, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    """A function whose value depends on the width; None for others."""
    if node.args[-1].dtype not in dtypes:
        return None
    if node.function == "count_leading_zeros":
        (x,) = operands
        above = apply("add", apply("count_leading_zeros", x), splat_like(32, x))
        if x.dtype is U32:
            return above
        return select(apply("less", x, splat_like(0, x)), splat_like(0, x), above)
    return None


def _bitcast(node: Bitcast, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    """A bitcast to or from 64 bits, whose high word is the sign extension of the low one."""
    (x,) = operands
    if node.to in dtypes and node.x.dtype.bits < 64:
        low = slice_along(x, -1, 0, 32 // node.x.dtype.bits)
        return bitcast(take(low, -1, 0) if node.x.dtype.bits == 32 else low, dtypes[node.to])
    if node.x.dtype in dtypes and node.to.bits < 64:
        words = _sign_extend_to_words(x)
        if node.to.bits == 32:
            return bitcast(words, node.to)
        split = Bitcast(words, _WORDS[node.to.bits])
        shape = (*node.x.shape, 64 // node.to.bits)
        return bitcast(reshape(split, shape), node.to)
    return None


_SPECIAL: dict[type[Node], Any] = {Constant: _constant, Map: _map, Bitcast: _bitcast}
