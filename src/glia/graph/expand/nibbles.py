"""4-bit integers computed in 8 bits, one per byte; results wrap at 4 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import S4, S8, U4, U8, DType, Kind
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Bitcast, Constant, Convert, Iota, Map
from glia.graph.passes.retype import Retyping, retype
from glia.graph.rules.constructors import apply, bitcast, convert, splat_like
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.options import CompileOptions

_WIDE: Mapping[DType, DType] = {S4: S8, U4: U8}
_WRAPPING = frozenset({"add", "subtract", "multiply", "divide", "negate", "not", "power", "abs",
                       "square", "shift_left"})  # fmt: skip


def widen_nibbles(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without s4 and u4; parameters and results keep their bytes."""
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
    return new, _wrap_to_nibble(new)


def _leave(value: Node, outside: DType) -> Node:
    """A result with the upper four bits of each byte cleared, as the host holds 4-bit integers."""
    if outside is not S4:
        return value
    bits = bitcast(value, U8)
    return bitcast(apply("and", bits, splat_like(15, bits)), S8)


def _wrap_to_nibble(x: Node) -> Node:
    """The low four bits of bytes, with their sign."""
    if x.dtype.kind is Kind.UNSIGNED:
        return apply("and", x, splat_like(15, x))
    four = splat_like(4, x)
    return apply("shift_right_arithmetic", apply("shift_left", x, four), four)


def _constant(node: Constant, _: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    if node.dtype not in dtypes:
        return None
    array = np.array(node.value).astype(dtypes[node.dtype].numpy)
    array.flags.writeable = False
    return Constant(array, loc=node.loc)


def _map(node: Map, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    """A function whose result can exceed four bits or depends on the width; None for others."""
    if node.args[-1].dtype not in dtypes:
        return None
    result = node.with_operands(operands)
    if node.function == "shift_right_arithmetic" and operands[0].dtype is U8:
        x, amount = (bitcast(operand, S8) for operand in operands)
        return _wrap_to_nibble(bitcast(apply(node.function, _wrap_to_nibble(x), amount), U8))
    if node.function in _WRAPPING:
        return _wrap_to_nibble(result)
    if node.function in ("shift_right_logical", "popcount", "count_leading_zeros"):
        return _apply_to_bits(node.function, operands)
    return None


def _apply_to_bits(function: str, operands: Sequence[Node]) -> Node:
    """A function applied to the four bits zero-extended to a byte."""
    first, *rest = operands
    bits = apply("and", first, splat_like(15, first))
    found = apply(function, bits, *rest)
    if function == "count_leading_zeros":
        found = apply("subtract", found, splat_like(4, found))
    return _wrap_to_nibble(found)


def _convert(node: Convert, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    """To four bits integers wrap and floats saturate."""
    if node.to not in dtypes:
        return None
    (x,) = operands
    wide = dtypes[node.to]
    if not x.dtype.is_float:
        return _wrap_to_nibble(convert(x, wide))
    low, high = (-8, 7) if node.to is S4 else (0, 15)
    inside = apply("clamp", splat_like(low, x), x, splat_like(high, x))
    return convert(inside, wide)


def _bitcast(node: Bitcast, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    (x,) = operands
    is_nibble = node.to in dtypes and node.x.dtype in dtypes
    return _wrap_to_nibble(bitcast(x, dtypes[node.to])) if is_nibble else None


def _iota(node: Iota, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    if node.dtype not in dtypes:
        return None
    return _wrap_to_nibble(Iota(TensorType(dtypes[node.dtype], node.shape), node.dimension))


_SPECIAL: dict[type[Node], Any] = {
    Constant: _constant,
    Map: _map,
    Convert: _convert,
    Bitcast: _bitcast,
    Iota: _iota,
}
