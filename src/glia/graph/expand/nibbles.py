"""Integers of two and four bits computed in eight, one per byte; results wrap at their width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import S2, S4, S8, U2, U4, U8, DType, Kind, integer_limits
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Bitcast, Constant, Convert, Iota, Map
from glia.graph.passes.retype import Retyping, retype
from glia.graph.rules.constructors import apply, bitcast, convert, splat_like
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.options import CompileOptions

_WIDE: Mapping[DType, DType] = {S2: S8, S4: S8, U2: U8, U4: U8}
_WRAPPING = frozenset({"add", "subtract", "multiply", "divide", "negate", "not", "power", "abs",
                       "square", "shift_left"})  # fmt: skip


def widen_nibbles(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without s2, u2, s4 and u4; parameters and results keep their bytes."""
    kinds = (kind for node in all_nodes(graph) for kind in tensor_types(node.type))
    if not any(kind.dtype in _WIDE for kind in kinds):
        return graph
    return retype(graph, Retyping(_WIDE, _SPECIAL, _enter, _leave))


def _enter(parameter: Parameter) -> tuple[Parameter, Node]:
    wide = _WIDE.get(parameter.dtype)
    if wide is None:
        return parameter, parameter
    declared = TensorType(wide, parameter.shape)
    new = Parameter(parameter.index, declared, parameter.name, loc=parameter.loc)
    return new, _wrap(new, parameter.dtype)


def _leave(value: Node, outside: DType) -> Node:
    """A result with the upper bits of each byte cleared, as the host holds narrow integers."""
    if outside not in (S2, S4):
        return value
    return bitcast(_low_bits(bitcast(value, U8), outside), S8)


def _low_bits(x: Node, narrow: DType) -> Node:
    """Bytes without the bits above those of a narrow type."""
    return apply("and", x, splat_like((1 << narrow.bits) - 1, x))


def _wrap(x: Node, narrow: DType) -> Node:
    """The low bits of bytes as a narrow type has them, with their sign."""
    if x.dtype.kind is Kind.UNSIGNED:
        return _low_bits(x, narrow)
    above = splat_like(8 - narrow.bits, x)
    return apply("shift_right_arithmetic", apply("shift_left", x, above), above)


def _constant(node: Constant, _: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    if node.dtype not in dtypes:
        return None
    array = np.array(node.value).astype(dtypes[node.dtype].numpy)
    array.flags.writeable = False
    return Constant(array, loc=node.loc)


def _map(node: Map, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    """A function whose result can exceed its type or depends on the width; None for others."""
    narrow = node.args[-1].dtype
    if narrow not in dtypes:
        return None
    result = node.with_operands(operands)
    if node.function == "shift_right_arithmetic" and operands[0].dtype is U8:
        x, amount = (bitcast(operand, S8) for operand in operands)
        return _wrap(bitcast(apply(node.function, _wrap(x, narrow), amount), U8), narrow)
    if node.function in _WRAPPING:
        return _wrap(result, narrow)
    if node.function in ("shift_right_logical", "popcount", "count_leading_zeros"):
        return _apply_to_bits(node.function, operands, narrow)
    return None


def _apply_to_bits(function: str, operands: Sequence[Node], narrow: DType) -> Node:
    """A function applied to the bits of a narrow type, zero-extended to a byte."""
    first, *rest = operands
    found = apply(function, _low_bits(first, narrow), *rest)
    if function == "count_leading_zeros":
        found = apply("subtract", found, splat_like(8 - narrow.bits, found))
    return _wrap(found, narrow)


def _convert(node: Convert, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    """To a narrow type integers wrap and floats saturate, as bytes do: a float may lack a limit."""
    if node.to not in dtypes:
        return None
    (x,) = operands
    byte = convert(x, dtypes[node.to])
    if not x.dtype.is_float:
        return _wrap(byte, node.to)
    limits = integer_limits(node.to.numpy)
    return apply(
        "clamp", splat_like(int(limits.min), byte), byte, splat_like(int(limits.max), byte)
    )


def _bitcast(node: Bitcast, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    (x,) = operands
    is_narrow = node.to in dtypes and node.x.dtype in dtypes
    return _wrap(bitcast(x, dtypes[node.to]), node.to) if is_narrow else None


def _iota(node: Iota, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    if node.dtype not in dtypes:
        return None
    return _wrap(Iota(TensorType(dtypes[node.dtype], node.shape), node.dimension), node.dtype)


_SPECIAL: dict[type[Node], Any] = {
    Constant: _constant,
    Map: _map,
    Convert: _convert,
    Bitcast: _bitcast,
    Iota: _iota,
}
