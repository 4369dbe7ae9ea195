"""Small float formats that a target's engines lack, computed in bfloat16 and float32.

Inside, a value of such a format is a bfloat16 number, which holds every value of each of them; an
operation whose result may be none is computed in float32 and rounded to the format. Outside it is
a byte, decoded on the way in and encoded on the way out by arithmetic on its bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.arch import get_target
from glia.base.dtype import (
    BF16,
    F4E2M1FN,
    F8E4M3B11FNUZ,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2FNUZ,
    F8E8M0FNU,
    F32,
    U8,
    U16,
    U32,
    DType,
)
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import (
    Bitcast,
    Constant,
    Convert,
    Convolution,
    CustomCall,
    Dot,
    Iota,
    Map,
    Reduce,
    ReducePrecision,
    ReduceWindow,
)
from glia.graph.ops.scalar_regions import monoid
from glia.graph.passes.retype import Retyping, retype
from glia.graph.rules.constructors import (
    apply,
    bitcast,
    convert,
    iota,
    monoid_region,
    select,
    splat_like,
)
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.options import CompileOptions

_LARGEST_EXPONENT = 127  # the bias of bfloat16 and float32
_EXACT = frozenset({"select", "maximum", "minimum", "clamp", "abs", "negate"})


@dataclass(frozen=True)
class _Format:
    """A format of a sign, an exponent and `mantissa` bits; exponent 0 has the subnormal numbers.

    `nan` is the byte of NaN, without sign unless `has_signed_zero` is False; None for a format that
    saturates and has no NaN.
    """

    mantissa: int
    bias: int
    largest: float
    nan: int | None
    has_signed_zero: bool = True
    sign: int = 0x80

    def decode(self, byte: Node) -> Node:
        """The values of bytes, as bfloat16."""
        word = convert(byte, U16)
        size = _and(word, self.sign - 1)
        sign = _shift("shift_left", _and(word, self.sign), 16 - self.sign.bit_length())
        aligned = _shift("shift_left", size, 7 - self.mantissa)
        scaled = _times(bitcast(apply("or", aligned, sign), BF16), _LARGEST_EXPONENT - self.bias)
        if self.nan is None:
            return scaled
        if not self.has_signed_zero:
            return select(_equals(word, self.nan), splat_like(math.nan, scaled), scaled)
        nan = bitcast(apply("or", splat_like(0x7FC0, sign), sign), BF16)
        return select(_equals(size, self.nan), nan, scaled)

    def encode(self, value: Node) -> Node:
        """The bytes of bfloat16 values that the format has."""
        bits = bitcast(value, U16)
        sign = _and(_shift("shift_right_logical", bits, 16 - self.sign.bit_length()), self.sign)
        scaled = _times(apply("abs", value), self.bias - _LARGEST_EXPONENT)
        size = _shift("shift_right_logical", bitcast(scaled, U16), 7 - self.mantissa)
        is_nan = apply("not_equal", value, value)
        if self.has_signed_zero:
            if self.nan is not None:
                size = select(is_nan, splat_like(self.nan, size), size)
            return convert(apply("or", size, sign), U8)
        byte = select(_equals(size, 0), size, apply("or", size, sign))
        return convert(select(is_nan, splat_like(self.nan, byte), byte), U8)

    def round(self, x: Node) -> Node:
        """float32 numbers rounded to nearest even in the format, as bfloat16."""
        least = 1 - self.bias  # the exponent of the least normal number
        size = apply("abs", x)
        normal = ReducePrecision(size, 8, self.mantissa)
        shift = splat_like(2.0 ** (least - self.mantissa + 23), size)
        subnormal = apply("subtract", apply("add", size, shift), shift)
        is_small = apply("less", size, splat_like(2.0**least, size))
        rounded = select(is_small, subnormal, normal)
        beyond = self.largest if self.nan is None else math.nan
        exceeds = apply("greater", rounded, splat_like(self.largest, rounded))
        rounded = select(exceeds, splat_like(beyond, rounded), rounded)
        sign = _and(bitcast(x, U32), 0x80000000)
        result = bitcast(apply("or", bitcast(rounded, U32), sign), F32)
        if self.nan is None:
            result = select(apply("not_equal", x, x), splat_like(-0.0, x), result)
        return convert(result, BF16)

    def is_exact(self, function: str) -> bool:
        """Whether a function of the format's values gives such values."""
        return function in _EXACT


class _PowersOfTwo(_Format):
    """A byte that is an exponent: no sign, no zero, no infinity."""

    def decode(self, byte: Node) -> Node:
        word = convert(byte, U16)
        bits = _shift("shift_left", word, 7)
        bits = select(_equals(word, 0), splat_like(0x40, word), bits)
        return bitcast(select(_equals(word, 0xFF), splat_like(0x7FC0, word), bits), BF16)

    def encode(self, value: Node) -> Node:
        exponent = _shift("shift_right_logical", bitcast(value, U16), 7)
        is_nan = apply("not_equal", value, value)
        return convert(select(is_nan, splat_like(0xFF, exponent), exponent), U8)

    def round(self, x: Node) -> Node:
        """The nearest power of two, the greater of two; NaN for what is not positive and finite."""
        bits = bitcast(x, U32)
        rounded = _and(apply("add", bits, splat_like(0x400000, bits)), 0x7F800000)
        is_least = apply("less", bits, splat_like(0x400001, bits))
        power = bitcast(select(is_least, splat_like(0x400000, bits), rounded), F32)
        is_positive = apply("greater", x, splat_like(0, x))
        is_finite = apply("less", power, splat_like(math.inf, power))
        nan = splat_like(math.nan, power)
        return convert(select(apply("and", is_positive, is_finite), power, nan), BF16)

    def is_exact(self, function: str) -> bool:
        return function in _EXACT - {"negate"}


_FORMATS: Mapping[DType, _Format] = {
    F8E4M3FN: _Format(mantissa=3, bias=7, largest=448, nan=0x7F),
    F8E4M3FNUZ: _Format(3, 8, 240, 0x80, has_signed_zero=False),
    F8E4M3B11FNUZ: _Format(3, 11, 30, 0x80, has_signed_zero=False),
    F8E5M2FNUZ: _Format(2, 16, 57344, 0x80, has_signed_zero=False),
    F4E2M1FN: _Format(1, 1, 6, None, sign=0x8),
    F8E8M0FNU: _PowersOfTwo(0, 127, 2.0**127, 0xFF, has_signed_zero=False),
}


def expand_small_floats(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without the float formats of a byte or less that the target's engines lack.

    Parameters and results keep their bytes.
    """
    core = get_target(options.target).arch
    native = {F8E4M3FN} if core.capabilities.has_microscaling_dtypes else set()
    dtypes = {dtype: BF16 for dtype in _FORMATS if dtype not in native}
    kinds = (kind for node in all_nodes(graph) for kind in tensor_types(node.type))
    if not any(kind.dtype in dtypes for kind in kinds):
        return graph
    return retype(graph, Retyping(dtypes, _SPECIAL, _enter(dtypes), _leave(dtypes)))


def _enter(dtypes: Mapping[DType, DType]) -> Any:
    def enter(parameter: Parameter) -> tuple[Parameter, Node]:
        if parameter.dtype not in dtypes:
            return parameter, parameter
        declared = TensorType(U8, parameter.shape)
        new = Parameter(parameter.index, declared, parameter.name, loc=parameter.loc)
        return new, _FORMATS[parameter.dtype].decode(new)

    return enter


def _leave(dtypes: Mapping[DType, DType]) -> Any:
    def leave(value: Node, outside: DType) -> Node:
        return _FORMATS[outside].encode(value) if outside in dtypes else value

    return leave


def _and(x: Node, mask: int) -> Node:
    return apply("and", x, splat_like(mask, x))


def _shift(function: str, x: Node, amount: int) -> Node:
    return apply(function, x, splat_like(amount, x)) if amount else x


def _equals(x: Node, value: int) -> Node:
    return apply("equal", x, splat_like(value, x))


def _times(x: Node, exponent: int) -> Node:
    """x times a power of two, exactly."""
    return apply("multiply", x, splat_like(2.0**exponent, x))


def _wide(node: Node, operand: Node, dtypes: Mapping[DType, DType]) -> Node:
    """The image of an operand, in float32 where it was a small float."""
    return convert(operand, F32) if node.dtype in dtypes else operand


def _wide_operands(
    node: Node, operands: Sequence[Node], dtypes: Mapping[DType, DType]
) -> list[Node]:
    pairs = zip(node.operands, operands, strict=True)
    return [_wide(old, new, dtypes) for old, new in pairs]


def _constant(node: Constant, _: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    if node.dtype not in dtypes:
        return None
    array = np.array(node.value).astype(BF16.numpy)
    array.flags.writeable = False
    return Constant(array, loc=node.loc)


def _map(node: Map, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    if node.dtype not in dtypes or _FORMATS[node.dtype].is_exact(node.function):
        return None
    wide = apply(node.function, *_wide_operands(node, operands, dtypes))
    return _FORMATS[node.dtype].round(wide)


def _convert(node: Convert, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    if node.to not in dtypes or node.x.dtype is node.to:
        return None
    return _FORMATS[node.to].round(convert(operands[0], F32))


def _bitcast(node: Bitcast, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    source, to = node.x.dtype, node.to
    if source not in dtypes and to not in dtypes:
        return None
    bits = _FORMATS[source].encode(operands[0]) if source in dtypes else operands[0]
    if to not in dtypes:
        return bitcast(bits, to)
    return _FORMATS[to].decode(bitcast(bits, U8))


def _iota(node: Iota, _: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    if node.dtype not in dtypes:
        return None
    return _FORMATS[node.dtype].round(iota(F32, node.shape, node.dimension))


def _precision(
    node: ReducePrecision, operands: Sequence[Node], dtypes: Mapping[DType, DType]
) -> Node | None:
    if node.dtype not in dtypes:
        return None
    wide = node.with_operands(_wide_operands(node, operands, dtypes))
    return _FORMATS[node.dtype].round(wide)


def _contraction(
    node: Dot | Convolution, operands: Sequence[Node], dtypes: Mapping[DType, DType]
) -> Node | None:
    if node.result_dtype not in dtypes:
        return None
    wide = dataclasses.replace(node.with_operands(operands), result_dtype=F32)  # type: ignore
    return _FORMATS[node.result_dtype].round(wide)


def _reduction(
    node: Reduce | ReduceWindow, operands: Sequence[Node], dtypes: Mapping[DType, DType]
) -> Node | None:
    """Sums and products round once; what any other region gives is rounded at every step."""
    function = monoid(node.body)
    if function not in ("add", "multiply") or node.dtype not in dtypes:
        return None
    wide = node.with_operands(_wide_operands(node, operands, dtypes))
    body = monoid_region(function, F32)
    return _FORMATS[node.dtype].round(dataclasses.replace(wide, body=body))  # type: ignore


def _custom_call(
    node: CustomCall, operands: Sequence[Node], dtypes: Mapping[DType, DType]
) -> Node | None:
    """A call keeps the types that its target was written for."""
    if isinstance(node.type, TensorType) and node.dtype in dtypes:
        call = node.with_operands(_as_declared(node, operands, dtypes))
        return _FORMATS[node.dtype].decode(bitcast(call, U8))
    if any(
        kind.dtype in dtypes for operand in node.operands for kind in tensor_types(operand.type)
    ):
        return node.with_operands(_as_declared(node, operands, dtypes))
    return None


def _as_declared(node: Node, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> list[Node]:
    return [
        bitcast(_FORMATS[old.dtype].encode(new), old.dtype) if old.dtype in dtypes else new
        for old, new in zip(node.operands, operands, strict=True)
    ]


_SPECIAL: dict[type[Node], Any] = {
    Bitcast: _bitcast,
    Constant: _constant,
    Convert: _convert,
    Convolution: _contraction,
    CustomCall: _custom_call,
    Dot: _contraction,
    Iota: _iota,
    Map: _map,
    Reduce: _reduction,
    ReducePrecision: _precision,
    ReduceWindow: _reduction,
}
