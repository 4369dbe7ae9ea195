"""Operations on each element by itself: constants, scalar functions, conversions, iota."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from glia.base.dtype import DType, Kind, float_limits, from_numpy
from glia.graph import scalar
from glia.graph.ir import Node, TensorType, Type, op
from glia.graph.type_rules import require, require_one_shape, tensor

Array = np.ndarray[Any, Any]


@op
class Constant(Node):
    """A literal tensor. The array is referenced, never printed."""

    value: np.ndarray  # read-only
    opcode: ClassVar[str] = "constant"

    def infer(self) -> Type:
        if not isinstance(self.value, np.ndarray):
            raise TypeError(f"a constant holds an array, not {type(self.value).__name__}")
        return TensorType(from_numpy(self.value.dtype), self.value.shape)

    def compute(self) -> Array:
        return self.value

    def __repr__(self) -> str:
        return "<constant>"


@op
class Map(Node):
    """Apply a scalar function (`graph.scalar.FUNCTIONS`) element by element; no broadcasting."""

    function: str
    args: tuple[Node, ...]
    opcode: ClassVar[str] = "map"

    def infer(self) -> Type:
        require(self.function in scalar.FUNCTIONS, f"no scalar function is named {self.function!r}")
        shape = require_one_shape(self.args, self.function)
        dtypes = [arg.dtype for arg in self.args]
        return TensorType(scalar.FUNCTIONS[self.function].result_dtype(dtypes), shape)

    def compute(self, *arrays: Array) -> Array:
        return scalar.FUNCTIONS[self.function].compute(*arrays)


@op
class Convert(Node):
    """Convert every element to another dtype (floats round to nearest even, to ints truncate)."""

    x: Node
    to: DType
    opcode: ClassVar[str] = "convert"

    def infer(self) -> Type:
        return TensorType(self.to, tensor(self.x).shape)

    def compute(self, x: Array) -> Array:
        return scalar.convert(x, self.to)


@op
class Bitcast(Node):
    """Reinterpret the bits as another dtype; a width change adds or removes the last dimension."""

    x: Node
    to: DType
    opcode: ClassVar[str] = "bitcast"
    keeps_float32: ClassVar[bool] = True

    def infer(self) -> Type:
        source = tensor(self.x)
        shape, wide, narrow = source.shape, source.dtype.bits, self.to.bits
        if wide > narrow:
            return TensorType(self.to, (*shape, wide // narrow))
        if wide < narrow:
            ratio = narrow // wide
            fits = bool(shape) and shape[-1] == ratio
            require(fits, f"{source} to {self.to} needs a last dimension of {ratio}")
            shape = shape[:-1]
        return TensorType(self.to, shape)

    def compute(self, x: Array) -> Array:
        assert isinstance(self.type, TensorType)
        x = np.ascontiguousarray(x).reshape(x.shape)
        source_bits, result = from_numpy(x.dtype).bits, np.empty(self.type.shape, self.to.numpy)
        if not result.size:
            return result
        if source_bits == self.to.bits:
            return x.view(self.to.numpy)
        data: Array = x.view(np.uint8).reshape(-1)
        if source_bits < 8:
            data = _join_parts(data, source_bits)
        if self.to.bits < 8:
            parts = _split_bytes(data, self.to.bits)
            data = scalar.wrap(parts, self.to.bits, signed=self.to.kind is Kind.SIGNED)
        return data.view(self.to.numpy).reshape(result.shape)


def _join_parts(data: Array, bits: int) -> Array:
    """Bytes of parts of `bits` each, the first lowest."""
    parts = data.reshape(-1, 8 // bits) & np.uint8((1 << bits) - 1)
    joined: Array = np.bitwise_or.reduce(parts << np.arange(0, 8, bits, dtype=np.uint8), axis=-1)
    return joined


def _split_bytes(data: Array, bits: int) -> Array:
    """Each byte's parts of `bits`, the lowest first, as bytes."""
    parts: Array = data[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)
    return (parts & np.uint8((1 << bits) - 1)).reshape(-1)


@op
class ReducePrecision(Node):
    """Round floats to a format with these exponent and mantissa bits, keeping the dtype."""

    x: Node
    exponent_bits: int
    mantissa_bits: int
    opcode: ClassVar[str] = "reduce_precision"

    def infer(self) -> Type:
        source = tensor(self.x)
        require(source.dtype.is_float, f"reduce_precision needs floats, not {source}")
        bits = (self.exponent_bits, self.mantissa_bits)
        require(bits[0] >= 1 and bits[1] >= 0, f"exponent and mantissa bits {bits} are too few")
        return source

    def compute(self, x: Array) -> Array:
        if x.dtype.itemsize == 1:
            return self.compute(x.astype(np.float32)).astype(x.dtype)
        form = float_limits(x.dtype)
        bits = np.ascontiguousarray(x).reshape(x.shape).view(f"u{x.dtype.itemsize}")
        bits = _round_mantissa(bits, form.nmant - self.mantissa_bits)
        exponent_bits = x.dtype.itemsize * 8 - 1 - form.nmant
        if self.exponent_bits < exponent_bits:
            bits = _limit_exponent(bits, form.nmant, exponent_bits, self.exponent_bits)
        return np.where(x != x, x, bits.view(x.dtype))


def _round_mantissa(bits: Array, dropped: int) -> Array:
    """Round to nearest even at bit `dropped`."""
    if dropped <= 0:
        return bits
    one = bits.dtype.type(1)
    last = (bits >> bits.dtype.type(dropped)) & one
    half = bits.dtype.type((1 << (dropped - 1)) - 1)
    keep = bits.dtype.type(~((1 << dropped) - 1) & np.iinfo(bits.dtype).max)
    rounded: Array = (bits + half + last) & keep
    return rounded


def _limit_exponent(bits: Array, mantissa: int, exponent: int, wanted: int) -> Array:
    """Overflow to infinity and flush to zero what `wanted` exponent bits cannot hold."""
    kind = bits.dtype.type
    bias, reach = (1 << (exponent - 1)) - 1, (1 << (wanted - 1)) - 1
    mask = ((1 << exponent) - 1) << mantissa
    sign = bits & kind(1 << (exponent + mantissa))
    found = bits & kind(mask)
    bits = np.where(found > kind((bias + reach) << mantissa), sign | kind(mask), bits)
    return np.where(found <= kind((bias - reach) << mantissa), sign, bits)


@op
class Iota(Node):
    """Count 0, 1, 2, ... along one dimension."""

    result: TensorType
    dimension: int
    opcode: ClassVar[str] = "iota"
    keeps_float32: ClassVar[bool] = True

    def infer(self) -> Type:
        rank = len(self.result.shape)
        require(0 <= self.dimension < rank, f"iota along {self.dimension} of rank {rank}")
        return self.result

    def compute(self) -> Array:
        shape = self.result.shape
        counts = scalar.convert(np.arange(shape[self.dimension]), self.result.dtype)
        aligned = counts.reshape([-1 if d == self.dimension else 1 for d in range(len(shape))])
        return np.broadcast_to(aligned, shape)
