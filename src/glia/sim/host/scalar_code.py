"""LLVM instructions for what one iteration computes, in one lane or in a vector of lanes.

Types are NumPy's dtypes by name. bool is one bit in registers and a byte in memory; bfloat16 and
8-bit floats are their bits, which only casts to and from float32 understand. What has no
instructions here raises NotLowered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from llvmlite import ir

Value = Any  # of LLVM


class NotLowered(Exception):
    """There is no machine code for this; the message says for what."""


_FLOATS = {"float16": ir.HalfType(), "float32": ir.FloatType(), "float64": ir.DoubleType()}
_BITS = {"bfloat16": 16, "bool": 1}
WORD = ir.IntType(64)


def is_float(dtype: str) -> bool:
    """Whether arithmetic on the dtype is that of floating point registers."""
    return dtype in _FLOATS


def is_signed(dtype: str) -> bool:
    """Whether it is an integer with a sign."""
    return dtype.startswith("int")


def is_integer(dtype: str) -> bool:
    """Whether it is an integer of whole bytes."""
    return dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


_SIGNED_SMALL_FLOATS = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e3m4")


def is_small_float(dtype: str) -> bool:
    """Whether it is a float of 8 bits, which is read through a table of its 256 values."""
    return dtype.startswith("float8")


def item_bytes(dtype: str) -> int:
    """Bytes of an element in memory."""
    return int(np.dtype(dtype).itemsize)


def register_type(dtype: str) -> Any:
    """The LLVM type of one lane."""
    if dtype in _FLOATS:
        return _FLOATS[dtype]
    if dtype in _BITS:
        return ir.IntType(_BITS[dtype])
    if is_integer(dtype) or is_small_float(dtype):
        return ir.IntType(8 * item_bytes(dtype))
    raise NotLowered(dtype)


def memory_type(dtype: str) -> Any:
    """The LLVM type of one element in memory."""
    return ir.IntType(8) if dtype == "bool" else register_type(dtype)


class Lanes:
    """Writes instructions on `count` lanes at the builder's position."""

    def __init__(self, builder: Any, count: int) -> None:
        self.builder, self.count = builder, count

    def of(self, kind: Any) -> Any:
        """The type of a register with this type in every lane."""
        return kind if self.count == 1 else ir.VectorType(kind, self.count)

    def constant(self, dtype: str, value: Any) -> Value:
        """A number in every lane."""
        kind = register_type(dtype)
        number = float(value) if is_float(dtype) else int(value)
        if not is_float(dtype):
            number &= (1 << kind.width) - 1
        return self.of(kind)(number if self.count == 1 else [kind(number)] * self.count)

    def f32(self, value: float) -> Value:
        """A float32 in every lane."""
        return self.constant("float32", float(np.float32(value)))

    def i32(self, value: int) -> Value:
        """A word of 32 bits in every lane."""
        return self.constant("int32", value)

    def splat(self, value: Value) -> Value:
        """The value of one lane in all of them."""
        if self.count == 1:
            return value
        kind = ir.VectorType(value.type, self.count)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, _i32(0))
        return self.builder.shuffle_vector(
            first, ir.Constant(kind, ir.Undefined), _mask([0] * self.count)
        )

    def call(self, name: str, *arguments: Value) -> Value:
        """An intrinsic whose arguments and result have one type."""
        kind, module = arguments[0].type, self.builder.module
        width = kind.element if self.count > 1 else kind
        several = f"v{self.count}" if self.count > 1 else ""
        full = f"{name}.{several}{width.intrinsic_name}"
        if full not in module.globals:
            ir.Function(module, ir.FunctionType(kind, [kind] * len(arguments)), full)
        return self.builder.call(module.globals[full], arguments)

    def literal(self, dtype: str, data: bytes) -> Value:
        """A constant of the expression, from its bytes."""
        array = np.frombuffer(data, np.uint16 if dtype == "bfloat16" else np.dtype(dtype))
        if is_small_float(dtype):
            array = np.frombuffer(data, np.uint8)
        return self.constant(dtype, array[0])

    def cast(self, source: str, target: str, value: Value) -> Value:
        """The value in another dtype, as NumPy converts it."""
        builder = self.builder
        if source == target:
            return value
        if target == "bool":
            return self._is_not_zero(source, value)
        kind = self.of(register_type(target))
        if source == "bool":
            return builder.uitofp(value, kind) if is_float(target) else self._widened(value, target)
        if "bfloat16" in (source, target):
            return self._cast_bfloat16(source, target, value)
        if is_small_float(source) and target == "float32":
            return self._looked_up(source, value)
        if source == "float32" and is_small_float(target):
            return self._as_small_float(target, value)
        if is_float(source) and is_float(target):
            is_wider = item_bytes(target) > item_bytes(source)
            return (builder.fpext if is_wider else builder.fptrunc)(value, kind)
        if is_integer(source) and is_integer(target):
            if item_bytes(target) < item_bytes(source):
                return builder.trunc(value, kind)
            if item_bytes(target) == item_bytes(source):
                return value
            return (builder.sext if is_signed(source) else builder.zext)(value, kind)
        if is_integer(source) and is_float(target):
            return (builder.sitofp if is_signed(source) else builder.uitofp)(value, kind)
        if is_float(source) and is_integer(target):
            return (builder.fptosi if is_signed(target) else builder.fptoui)(value, kind)
        raise NotLowered(f"{source} as {target}")

    def _widened(self, value: Value, target: str) -> Value:
        if not is_integer(target):
            raise NotLowered(f"bool as {target}")
        return self.builder.zext(value, self.of(register_type(target)))

    def _is_not_zero(self, source: str, value: Value) -> Value:
        if is_float(source):
            return self.builder.fcmp_unordered("!=", value, self.constant(source, 0))
        if is_integer(source):
            return self.builder.icmp_unsigned("!=", value, self.constant(source, 0))
        raise NotLowered(f"{source} as bool")

    def _cast_bfloat16(self, source: str, target: str, value: Value) -> Value:
        builder, word = self.builder, self.of(ir.IntType(32))
        if source == "bfloat16" and target == "float32":
            bits = builder.shl(builder.zext(value, word), self.i32(16))
            return builder.bitcast(bits, self.of(ir.FloatType()))
        if source == "float32":
            bits = builder.bitcast(value, word)
            odd = builder.and_(builder.lshr(bits, self.i32(16)), self.i32(1))
            rounded = builder.add(bits, builder.add(odd, self.i32(0x7FFF)))
            quiet = builder.or_(bits, self.i32(1 << 22))
            is_nan = builder.fcmp_unordered("uno", value, value)
            chosen = builder.select(is_nan, quiet, rounded)
            return builder.trunc(builder.lshr(chosen, self.i32(16)), self.of(ir.IntType(16)))
        raise NotLowered(f"{source} as {target}")

    def _as_small_float(self, target: str, value: Value) -> Value:
        """A float32 as an 8-bit float, rounded to nearest, ties to even, as ml_dtypes does."""
        if target not in _SIGNED_SMALL_FLOATS:
            raise NotLowered(f"float32 as {target}")
        facts = ml_dtypes.finfo(np.dtype(target))  # type: ignore[no-untyped-call]
        beyond, no_number = (
            np.array([np.inf, np.nan], np.float32).astype(np.dtype(target)).view("u1")
        )
        most = int(np.asarray(facts.max, np.dtype(target)).view("u1"))
        builder, word, single = self.builder, self.of(ir.IntType(32)), self.of(ir.FloatType())
        bits = builder.bitcast(value, word)
        sign = builder.and_(builder.lshr(bits, self.i32(24)), self.i32(0x80))
        size = builder.and_(bits, self.i32(0x7FFFFFFF))
        shift = 23 - facts.nmant
        odd = builder.and_(builder.lshr(size, self.i32(shift)), self.i32(1))
        rounded = builder.add(size, builder.add(odd, self.i32((1 << (shift - 1)) - 1)))
        first = (127 + facts.minexp - 1) << facts.nmant
        normal = builder.sub(builder.lshr(rounded, self.i32(shift)), self.i32(first))
        # adding this leaves the steps of subnormals as the last bits
        anchor = np.float32(2.0 ** (facts.minexp - facts.nmant + 23))
        small = builder.fadd(builder.bitcast(size, single), self.f32(float(anchor)))
        small = builder.sub(builder.bitcast(small, word), self.i32(int(anchor.view(np.int32))))
        least = int(np.float32(2.0**facts.minexp).view(np.int32))
        code = builder.select(builder.icmp_signed("<", size, self.i32(least)), small, normal)
        is_beyond = builder.icmp_signed(">", code, self.i32(most))
        code = builder.select(is_beyond, self.i32(int(beyond)), code)
        is_nan = builder.fcmp_unordered("uno", value, value)
        code = builder.select(is_nan, self.i32(int(no_number)), code)
        return builder.trunc(builder.or_(code, sign), self.of(ir.IntType(8)))

    def _looked_up(self, source: str, value: Value) -> Value:
        """float32 of an 8-bit float, from the table of what the host's own conversion gives."""
        module = self.builder.module
        name = f"values.{source}"
        if name not in module.globals:
            floats = np.arange(256, dtype=np.uint8).view(np.dtype(source)).astype(np.float32)
            words = ir.ArrayType(ir.IntType(32), 256)
            table = ir.GlobalVariable(module, words, name)
            table.linkage, table.global_constant = "internal", True
            table.initializer = words(floats.view(np.uint32).tolist())
        builder, table = self.builder, module.globals[name]

        def looked_up(lane: Value) -> Value:
            at = builder.gep(table, [_i32(0), builder.zext(lane, ir.IntType(32))])
            return builder.load(at, typ=ir.IntType(32))

        return builder.bitcast(
            self.by_lane(value, looked_up, ir.IntType(32)), self.of(ir.FloatType())
        )

    def by_lane(self, value: Value, function: Callable[[Value], Value], kind: Any) -> Value:
        """A function of one lane, applied to every lane; its results have this type."""
        if self.count == 1:
            return function(value)
        result = ir.Constant(ir.VectorType(kind, self.count), ir.Undefined)
        for lane in range(self.count):
            found = function(self.builder.extract_element(value, _i32(lane)))
            result = self.builder.insert_element(result, found, _i32(lane))
        return result


def _i32(value: int) -> Value:
    return ir.IntType(32)(value)


def _mask(lanes: list[int]) -> Value:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), [_i32(lane) for lane in lanes])


def transposed(builder: Any, rows: Sequence[Value]) -> list[Value]:
    """The columns of as many vectors as each has lanes, a power of two.

    In each step pairs of vectors exchange blocks of lanes: of half a vector, a quarter and so on.
    """
    count, vectors = len(rows), list(rows)
    size = count // 2
    while size:
        masks = [_exchange(count, size, is_upper) for is_upper in (False, True)]
        for first in range(count):
            if not first & size:
                pair = vectors[first], vectors[first + size]
                vectors[first], vectors[first + size] = (
                    builder.shuffle_vector(*pair, mask) for mask in masks
                )
        size //= 2
    return vectors


def _exchange(count: int, size: int, is_upper: bool) -> Value:
    """The lower or the upper blocks of two vectors, taking turns."""
    lanes = [
        (lane + count - size if lane & size else lane) + (size if is_upper else 0)
        for lane in range(count)
    ]
    return _mask(lanes)


def folded(
    builder: Any, vector: Value, count: int, combine: Callable[[Lanes, list[Value]], Value]
) -> Value:
    """One lane made of all of a vector, a power of two: halves onto each other."""
    while count > 1:
        count //= 2
        halves = [_lanes_of(builder, vector, first, count) for first in (0, count)]
        vector = combine(Lanes(builder, count), halves)
    return vector


def _lanes_of(builder: Any, vector: Value, first: int, count: int) -> Value:
    if count == 1:
        return builder.extract_element(vector, _i32(first))
    lanes = _mask([first + lane for lane in range(count)])
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), lanes)
