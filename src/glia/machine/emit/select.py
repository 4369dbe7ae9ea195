"""Instruction selection: cover a scalar expression with instructions at one point of a nest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from glia.base.dtype import F32, PRED, S32, U32, DType
from glia.base.errors import InternalError
from glia.isa.gpsimd import Iota
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.isa.scalar import Activation
from glia.isa.vector import (
    Memset,
    Reciprocal,
    ScalarTensorTensor,
    TensorCopy,
    TensorCopyPredicated,
    TensorScalar,
    TensorTensor,
)
from glia.machine.emit.box import storage
from glia.machine.emit.builder import Builder
from glia.machine.emit.space import (
    Point,
    bases,
    fold_together,
    is_partition_scalar,
    partition_scalar,
    tile_pattern,
)
from glia.tile.ir import Accumulator, Apply, Expr, Index, Literal, Load

Value = Pattern | float | int

ARITHMETIC = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "maximum": "maximum",
    "minimum": "minimum", "power": "power", "equal": "equal", "not_equal": "not_equal",
    "less": "less", "less_equal": "less_equal", "greater": "greater",
    "greater_equal": "greater_equal",
}  # fmt: skip
BITWISE = {
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "shift_left": "left_shift",
    "shift_right_logical": "right_shift", "shift_right_arithmetic": "arithmetic_right_shift",
}  # fmt: skip
ACTIVATIONS = {
    "exp": "exp", "log": "log", "tanh": "tanh", "logistic": "sigmoid", "erf": "erf", "sin": "sin",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "sign": "sign", "abs": "abs", "square": "square",
}  # fmt: skip


def free_axes(expression: Expr, axes: Sequence[str], memo: dict[int, frozenset[str]]) -> frozenset:
    """Which of `axes` the value of an expression depends on."""
    found = memo.get(id(expression))
    if found is not None:
        return found
    names: set[str] = set()
    if isinstance(expression, Load):
        for position in expression.index:
            names.update(position.variables)
        for guard in expression.guards:
            names.update(guard.expression.variables)
        for offset in expression.dynamic:
            names |= free_axes(offset.load, axes, memo)
    elif isinstance(expression, Index):
        names.update(expression.expression.variables)
    elif isinstance(expression, Apply):
        for argument in expression.args:
            names |= free_axes(argument, axes, memo)
    elif isinstance(expression, Accumulator):
        names.update(axes)
    memo[id(expression)] = frozenset(names & set(axes))
    return memo[id(expression)]


class Selector:
    """Emits the instructions that compute expressions at one point.

    `read` gives the pattern of a load at the point; `accumulator` is what `Accumulator` stands for.
    """

    def __init__(
        self,
        builder: Builder,
        point: Point,
        read: Callable[[Load, Point], Pattern],
        accumulator: Pattern | None = None,
    ) -> None:
        self.builder = builder
        self.point = point
        self.read = read
        self.accumulator = accumulator
        self._values: dict[int, tuple[Expr, Value]] = {}
        self._axes: dict[int, frozenset[str]] = {}

    # --- values ---------------------------------------------------------------------------------

    def axes_of(self, expression: Expr) -> tuple[str, ...]:
        """The free axes an expression varies along, in the point's order."""
        found = free_axes(expression, self.point.free, self._axes)
        return tuple(axis for axis in self.point.free if axis in found)

    def value(self, expression: Expr) -> Value:
        """A pattern over the whole point (replicated where it does not vary), or a number."""
        if isinstance(expression, Literal):
            return expression.value
        known = self._values.get(id(expression))
        if known is None:
            known = (expression, self._compute(expression))
            self._values[id(expression)] = known
        return known[1]

    def pattern(self, expression: Expr) -> Pattern:
        """Like `value`, with numbers put into a tile."""
        value = self.value(expression)
        return value if isinstance(value, Pattern) else self._constant(value, expression.dtype)

    def store(self, expression: Expr, dst: Pattern) -> None:
        """Compute an expression straight into `dst`, which covers the whole point."""
        if isinstance(expression, Apply) and id(expression) not in self._values:
            axes = self.axes_of(expression)
            if all(a in axes or self.point.env[a].extent == 1 for a in self.point.free):
                self._apply(expression, dst)
                return
        value = self.value(expression)
        if isinstance(value, Pattern):
            self._copy(dst, value)
        else:
            self._emit(Memset, "vector", dst=dst, value=value)

    def store_value(self, value: Value, dst: Pattern) -> None:
        """Copy an already computed value to a tile, once per element it varies over."""
        target = self._own(dst)
        if isinstance(value, Pattern):
            self._copy(target, value)
        else:
            self._emit(Memset, "vector", dst=target, value=value)

    def temporary(self, dtype: DType, axes: Sequence[str], stem: str = "t") -> Pattern:
        """A new SBUF tile over some of the free axes, as a pattern over the whole point."""
        elements = 1
        for axis in axes:
            elements *= self.point.env[axis].extent
        tile = self.builder.tile(stem, Memory.SBUF, storage(dtype), self.point.partitions, elements)
        return tile_pattern(tile, self.point, axes)

    def _constant(self, value: float | int, dtype: DType) -> Pattern:
        pattern = self.temporary(dtype, (), "constant")
        self._emit(Memset, "vector", dst=partition_scalar(pattern), value=value)
        return pattern

    def _compute(self, expression: Expr) -> Value:
        if isinstance(expression, Load):
            return self.read(expression, self.point)
        if isinstance(expression, Accumulator):
            assert self.accumulator is not None
            return self.accumulator
        if isinstance(expression, Index):
            return self._iota(expression)
        dst = self.temporary(expression.dtype, self.axes_of(expression))
        self._apply(expression, self._own(dst))
        return dst

    def _own(self, dst: Pattern) -> Pattern:
        """The pattern that covers each element of a replicated tile once."""
        dims = tuple((1, 1) if s == 0 and i else (s, n) for i, (s, n) in enumerate(dst.dims))
        return replace(dst, dims=dims)

    def _iota(self, expression: Index) -> Pattern:
        axes = self.axes_of(expression)
        dst = self.temporary(S32, axes, "iota")
        offset = expression.expression.substitute(bases(self.point.env))
        steps = tuple(expression.expression.coefficient(a) for a in axes) or (0,)
        count = tuple(self.point.env[a].extent for a in axes) or (1,)
        dims, stride = [], 1
        for extent in reversed(count):
            dims.append((stride, extent))
            stride *= extent
        target = replace(dst, dims=(dst.dims[0], *reversed(dims)))
        along_rows = expression.expression.coefficient(self.point.partition)
        self._emit(
            Iota, "gpsimd", dst=target, offset=offset, channel_multiplier=along_rows, steps=steps
        )
        if expression.dtype in (S32, U32):  # arithmetic on both kinds at once is not exact
            return replace(dst, dtype=expression.dtype)
        cast = self.temporary(expression.dtype, axes)
        self._copy(self._own(cast), dst)
        return cast

    # --- one function ---------------------------------------------------------------------------

    def _apply(self, expression: Apply, dst: Pattern) -> None:
        function, args = expression.function, expression.args
        if function == "select":
            self._select(dst, args)
        elif function in ("convert", "bitcast"):
            self._convert(dst, args[0], function)
        elif function in BITWISE:
            self._bitwise(dst, function, args)
        elif function == "not":
            all_ones = 1 if args[0].dtype is PRED else -1 if args[0].dtype is S32 else 0xFFFFFFFF
            x = self.pattern(args[0])
            self._scalar_op(dst, x, "bitwise_xor", all_ones)
        elif function in ACTIVATIONS and args[0].dtype.is_float:
            self._activation(dst, ACTIVATIONS[function], args[0])
        elif function == "reciprocal":
            x = self.pattern(args[0])
            self._emit(Reciprocal, "vector", dst=dst, data=x)
        elif function in ("negate", "abs"):
            self._sign_op(dst, function, args[0])
        elif function in ARITHMETIC:
            self._arithmetic(dst, function, args)
        else:
            raise InternalError(f"no instruction computes {function} on {args[0].dtype}")

    def _sign_op(self, dst: Pattern, function: str, x: Expr) -> None:
        zero = Literal(0, x.dtype)
        negative = Apply("subtract", (zero, x), x.dtype)
        if function == "abs":
            self._arithmetic(dst, "maximum", (x, negative))
        elif x.dtype.is_float:
            self._scalar_op(dst, self.pattern(x), "multiply", -1.0)
        else:
            self._arithmetic(dst, "subtract", (zero, x))

    def _arithmetic(self, dst: Pattern, function: str, args: Sequence[Expr]) -> None:
        op = ARITHMETIC[function]
        if args[0].dtype.is_integer:
            self._integer_arithmetic(dst, op, [self.pattern(x) for x in args])
            return
        a, b = (self._fused_operand(x) for x in args)
        if self._is_scalar(b) and not isinstance(a, tuple):
            if isinstance(a, Pattern):
                self._scalar_op(dst, a, op, b)
                return
            a = self._constant(a, args[0].dtype)
            self._scalar_op(dst, a, op, b)
        elif self._is_scalar(a) and isinstance(b, Pattern):
            self._scalar_op(dst, b, op, a, reverse=True)
        elif self._is_scalar(b) and isinstance(a, tuple):
            self._two_scalar_ops(dst, a, op, b, reverse=False)
        elif self._is_scalar(a) and isinstance(b, tuple):
            self._two_scalar_ops(dst, b, op, a, reverse=True)
        elif isinstance(a, tuple):
            self._scalar_tensor_tensor(dst, a, op, self._plain(b, args[1]), reverse=False)
        elif isinstance(b, tuple):
            self._scalar_tensor_tensor(dst, b, op, self._plain(a, args[0]), reverse=True)
        else:
            self._tensor_tensor(dst, op, a, b)

    def _integer_arithmetic(self, dst: Pattern, op: str, args: Sequence[Pattern]) -> None:
        """Exact on GpSimd; narrow results wrap, so they are the low bits of a wide one."""
        a, b = args
        if dst.dtype.bits < 32 and op in ("add", "subtract", "multiply"):
            axes = [a for a, (_, n) in zip(self.point.free, dst.dims[1:], strict=False) if n > 1]
            wide = self.temporary(S32, axes)
            self._emit(TensorTensor, "gpsimd", dst=self._own(wide), data1=a, data2=b, op=op)
            self._copy(dst, low_bits(wide, dst.dtype))
        else:
            self._emit(TensorTensor, "gpsimd", dst=dst, data1=a, data2=b, op=op)

    def _tensor_tensor(self, dst: Pattern, op: str, a: Pattern, b: Pattern) -> None:
        if a.memory is Memory.PSUM and b.memory is Memory.PSUM:
            a = self._to_sbuf(a)
        engine = "gpsimd" if op == "power" else "vector"
        if engine == "gpsimd":
            a, b = self._to_sbuf(a), self._to_sbuf(b)
        self._emit(TensorTensor, engine, dst=dst, data1=a, data2=b, op=op)

    def _to_sbuf(self, x: Pattern) -> Pattern:
        if x.memory is Memory.SBUF:
            return x
        copy = self.temporary(x.dtype, self.point.free)
        self._copy(copy, x)
        return copy

    def _fused_operand(self, expression: Expr) -> Value | tuple[Pattern, str, Value, bool]:
        """An operand's value, or (data, op, scalar, reversed) when a scalar op can be fused."""
        if id(expression) in self._values or not isinstance(expression, Apply):
            return self.value(expression)
        if expression.function not in ("add", "subtract", "multiply", "maximum", "minimum"):
            return self.value(expression)
        if expression.dtype is not F32 or len(self.axes_of(expression)) == 0:
            return self.value(expression)
        for data, scalar, is_reversed in ((0, 1, False), (1, 0, True)):
            if self.axes_of(expression.args[scalar]) == () and self.axes_of(expression.args[data]):
                x = self.pattern(expression.args[data])
                value = self._scalar(self.value(expression.args[scalar]))
                return x, ARITHMETIC[expression.function], value, is_reversed
        return self.value(expression)

    def _plain(self, operand: Value | tuple, expression: Expr) -> Pattern:
        """An operand that has to be a pattern after all."""
        return self.pattern(expression) if not isinstance(operand, Pattern) else operand

    def _is_scalar(self, operand: Value | tuple) -> bool:
        if isinstance(operand, tuple):
            return False
        return not isinstance(operand, Pattern) or (
            is_partition_scalar(operand) and operand.memory is Memory.SBUF
        )

    def _scalar(self, value: Value) -> Value:
        return partition_scalar(value) if isinstance(value, Pattern) else value

    def _scalar_op(
        self, dst: Pattern, data: Pattern, op: str, scalar: Value, *, reverse: bool = False
    ) -> None:
        engine = "gpsimd" if op == "power" else "vector"
        data = self._to_sbuf(data) if engine == "gpsimd" else data
        self._emit(
            TensorScalar, engine, dst=dst, data=data, op0=op, operand0=self._scalar(scalar),
            reverse0=reverse,
        )  # fmt: skip

    def _two_scalar_ops(
        self, dst: Pattern, inner: tuple, op: str, scalar: Value, *, reverse: bool
    ) -> None:
        data, op0, operand0, reverse0 = inner
        if op == "power":
            middle = self.temporary(F32, self.point.free)
            self._scalar_op(middle, data, op0, operand0, reverse=reverse0)
            self._scalar_op(dst, middle, op, scalar, reverse=reverse)
            return
        self._emit(
            TensorScalar, "vector", dst=dst, data=data, op0=op0, operand0=operand0,
            reverse0=reverse0, op1=op, operand1=self._scalar(scalar), reverse1=reverse,
        )  # fmt: skip

    def _scalar_tensor_tensor(
        self, dst: Pattern, inner: tuple, op: str, other: Pattern, *, reverse: bool
    ) -> None:
        data, op0, operand0, reverse0 = inner
        if (data.memory is Memory.PSUM and other.memory is Memory.PSUM) or op == "power":
            middle = self.temporary(F32, self.point.free)
            self._scalar_op(middle, data, op0, operand0, reverse=reverse0)
            pair = (other, middle) if reverse else (middle, other)
            self._tensor_tensor(dst, op, *pair)
            return
        self._emit(
            ScalarTensorTensor, "vector", dst=dst, data=data, op0=op0, operand0=operand0,
            reverse0=reverse0, op1=op, operand1=other, reverse1=reverse,
        )  # fmt: skip

    def _bitwise(self, dst: Pattern, function: str, args: Sequence[Expr]) -> None:
        a, b = self.pattern(args[0]), self.value(args[1])
        op = BITWISE[function]
        if isinstance(b, Pattern):
            self._emit(TensorTensor, "vector", dst=dst, data1=a, data2=b, op=op)
        else:
            self._scalar_op(dst, a, op, int(b))

    def _select(self, dst: Pattern, args: Sequence[Expr]) -> None:
        predicate = self.pattern(args[0])
        on_true = self.pattern(args[1])
        on_false = self.value(args[2])
        if dst.memory is Memory.SBUF and not self._may_alias(dst, (predicate, on_true)):
            target = dst
        else:
            target = self.temporary(args[1].dtype, self.point.free)
        if isinstance(on_false, Pattern):
            self._copy(target, on_false)
        else:
            self._emit(Memset, "vector", dst=target, value=on_false)
        self._emit(TensorCopyPredicated, "vector", dst=target, src=on_true, predicate=predicate)
        if target is not dst:
            self._copy(dst, target)

    @staticmethod
    def _may_alias(dst: Pattern, others: Sequence[Pattern]) -> bool:
        return any(dst.tile is other.tile for other in others)

    def _activation(self, dst: Pattern, function: str, argument: Expr) -> None:
        """f(scale * x + bias): take a scalar product and sum along."""
        bias: Value = 0.0
        scale: Value = 1.0
        x = argument
        x, bias = self._peel(x, "add", 0.0)
        x, scale = self._peel(x, "multiply", 1.0)
        data = self.pattern(x)
        self._emit(
            Activation, "scalar", dst=dst, data=data, function=function, bias=bias, scale=scale
        )

    def _peel(self, expression: Expr, function: str, default: float) -> tuple[Expr, Value]:
        """(x, s) when expression is function(x, s) with s constant along the free axes."""
        is_fusable = (
            isinstance(expression, Apply)
            and expression.function == function
            and expression.dtype is F32
            and id(expression) not in self._values
            and self.axes_of(expression) != ()
        )
        if is_fusable:
            for x, s in (expression.args, expression.args[::-1]):
                if self.axes_of(s) == () and s.dtype is F32:
                    value = self._scalar(self.value(s))
                    if not isinstance(value, Pattern) or value.memory is Memory.SBUF:
                        return x, value
        return expression, default

    def _convert(self, dst: Pattern, argument: Expr, function: str) -> None:
        x = self.pattern(argument)
        if function == "bitcast" or {argument.dtype, dst.dtype} == {S32, U32}:
            x = replace(x, dtype=storage(dst.dtype))
        elif argument.dtype.is_integer and dst.dtype.bits < argument.dtype.bits:
            x = low_bits(x, dst.dtype)
        self._copy(dst, x)

    def _copy(self, dst: Pattern, src: Pattern) -> None:
        self._emit(TensorCopy, "vector", dst=dst, src=src)

    # --- emission -------------------------------------------------------------------------------

    def _emit(self, kind: type[Instr], engine: str, **operands: object) -> None:
        """Emit one instruction with its tensor operands folded together."""
        names = [
            n for n, v in operands.items()
            if isinstance(v, Pattern) and not kind.operand_declarations[n].is_column
        ]  # fmt: skip
        full = self._aligned([operands[n] for n in names])
        if kind is not Iota:
            full = fold_together(full)
        operands |= dict(zip(names, full, strict=True))
        self.builder.emit(kind(on=engine, loc=self.builder.loc, **operands))

    @staticmethod
    def _aligned(patterns: list) -> list[Pattern]:
        """Give every operand the free dimensions of the destination, the first in the list."""
        dst = patterns[0]
        result = [dst]
        for pattern in patterns[1:]:
            if len(pattern.dims) == len(dst.dims):
                dims = tuple(
                    (step if count == want else 0, want)
                    for (step, count), (_, want) in zip(pattern.dims, dst.dims, strict=True)
                )
            else:
                dims = (pattern.dims[0], *((0, want) for _, want in dst.dims[1:]))
            result.append(replace(pattern, dims=dims))
        return result


def low_bits(pattern: Pattern, dtype: DType) -> Pattern:
    """The least significant bytes of every element as a narrower dtype; memory is little-endian."""
    ratio = pattern.dtype.bytes // dtype.bytes
    dims = (pattern.dims[0], *((step * ratio, count) for step, count in pattern.dims[1:]))
    return replace(pattern, dtype=dtype, dims=dims, offset=pattern.offset * ratio)
