"""Scalar expressions as operator terms, and the table of expansions for missing functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from glia.base.dtype import F32, PRED, S32, U32, DType, Kind
from glia.base.errors import InternalError
from glia.isa import INSTRUCTIONS
from glia.isa.alu import COMPARISONS
from glia.isa.form import family_of
from glia.tile.evaluate import apply as apply_to_arrays
from glia.tile.expand.value_bounds import Bounds, value_bounds
from glia.tile.ir import Apply, Expr, Literal

_OVERFLOWING = frozenset(("add", "subtract", "multiply"))  # engines saturate narrow integers
_NEEDS_RANGE_REDUCTION = frozenset(
    ("sin",)
)  # engines compute it on -pi..pi only: its equation reduces the argument

Equation = Callable[..., "Term"]
EQUATIONS: dict[tuple[str, str], Equation] = {}
_ANY_WIDTH: set[tuple[str, str]] = set()


def equation(
    function: str, family: str, *, any_width: bool = False
) -> Callable[[Equation], Equation]:
    """Register the decorated function as the expansion of `function` on a family of dtypes.

    Families are "float", "integer" and "pred". It takes one Term per operand; unless `any_width`,
    floats arrive as f32, integers with 32 bits.
    """

    def enter(meaning: Equation) -> Equation:
        EQUATIONS[function, family] = meaning
        if any_width:
            _ANY_WIDTH.add((function, family))
        return meaning

    return enter


def is_direct(function: str, operand: DType) -> bool:
    """Whether some instruction computes the function on operands of this dtype."""
    family = family_of(operand)
    if family == "integer" and operand.bits < 32 and function in _OVERFLOWING:
        return False
    if function in _NEEDS_RANGE_REDUCTION:
        return False
    return function == "bitcast" or (function, family) in _instruction_functions()


@cache
def _instruction_functions() -> frozenset[tuple[str, str]]:
    """Every (function, family) at the root of a form of some instruction."""
    return frozenset(
        pair
        for instruction in INSTRUCTIONS.values()
        for form in instruction.forms
        for pair in form.computes.functions()
    )


class TermBuilder:
    """Builds expressions of functions that engines have; equal expressions are one object.

    `is_whole` says whether an expression has a value of its own for every element of a large
    result: a whole tile takes time that a column of a tile does not. `bounds` says what the values
    of a float expression lie between.
    """

    def __init__(
        self,
        is_whole: Callable[[Expr], bool] = lambda _: False,
        bounds: Callable[[Expr], Bounds] = value_bounds,
    ) -> None:
        self.is_whole = is_whole
        self.bounds = bounds
        self._known: dict[tuple[object, ...], Expr] = {}

    def intern(self, expression: Expr) -> Expr:
        """The first expression equal to this one whose arguments are interned."""
        if isinstance(expression, Apply):
            key: tuple[object, ...] = (
                expression.function, tuple(map(id, expression.args)), expression.dtype,
                getattr(expression, "axis", ""),
            )  # fmt: skip
        else:
            key = (type(expression), repr(expression))
        return self._known.setdefault(key, expression)

    def term(self, expression: Expr) -> Term:
        """An expression to write equations with."""
        return Term(self.intern(expression), self)

    def literal(self, value: float | int, dtype: DType) -> Term:
        """A constant, rounded to the dtype."""
        return self._number(np.asarray(value).astype(dtype.numpy), dtype)

    def _number(self, value: np.ndarray, dtype: DType) -> Term:
        number = value.item() if dtype.is_float else int(value.item())
        return self.term(Literal(number, dtype))

    def apply(self, function: str, args: tuple[Term, ...], dtype: DType) -> Term:
        """The function of operands, expanded when no engine has it."""
        operand = args[-1].dtype
        if function == "convert":
            return self._convert(args[0], dtype)
        if function == "reduce_precision":
            return EQUATIONS[function, "float"](*args, dtype)
        if is_direct(function, operand):
            return self.direct(function, args, dtype)
        family = family_of(operand)
        meaning = EQUATIONS.get((function, family))
        if meaning is None:
            raise InternalError(f"no equation expands {function} on {operand}")
        if (function, family) not in _ANY_WIDTH:
            args = tuple(arg.widened() for arg in args)
        result = meaning(*args)
        return result if result.dtype is dtype else self._convert(result, dtype)

    def direct(self, function: str, args: tuple[Term, ...], dtype: DType) -> Term:
        """The function itself, or its value when every operand is a constant."""
        parts = tuple(arg.expression for arg in args)
        numbers = [part for part in parts if isinstance(part, Literal)]
        whole = Apply(function, parts, dtype)
        if len(numbers) < len(parts):
            return self.term(whole)
        with np.errstate(all="ignore"):
            arrays = [np.asarray(part.value).astype(part.dtype.numpy) for part in numbers]
            return self._number(apply_to_arrays(whole, arrays), dtype)

    def _convert(self, x: Term, dtype: DType) -> Term:
        if x.dtype is dtype:
            return x
        if dtype is PRED:
            return x.apply("not_equal", x.of(0))
        if x.dtype.is_float and dtype.is_integer:
            return self.direct("convert", (x.widened().apply("truncate"),), dtype)
        if x.dtype.is_integer and dtype.is_integer:
            return EQUATIONS["convert", "integer"](x, dtype)
        return self.direct("convert", (x,), dtype)


@dataclass(frozen=True, eq=False)
class Term:
    """A scalar expression with Python's arithmetic operators; numbers take its dtype."""

    expression: Expr
    builder: TermBuilder

    @property
    def dtype(self) -> DType:
        return self.expression.dtype

    def of(self, value: float | int) -> Term:
        """A constant of this term's dtype."""
        return self.builder.literal(value, self.dtype)

    def apply(self, function: str, *others: Term | float | int) -> Term:
        """A function of this term and others; comparisons give pred."""
        args = (self, *(x if isinstance(x, Term) else self.of(x) for x in others))
        dtype = PRED if function in COMPARISONS else args[-1].dtype
        return self.builder.apply(function, args, dtype)

    def widened(self) -> Term:
        """The same value in f32, or in 32 bits for integers."""
        if self.dtype.is_float:
            return self.to(F32)
        if self.dtype is PRED or self.dtype.bits == 32:
            return self
        return self.to(S32 if self.dtype.kind is Kind.SIGNED else U32)

    def to(self, dtype: DType) -> Term:
        """Converted to another dtype."""
        return self.builder.apply("convert", (self,), dtype)

    def bits(self, dtype: DType) -> Term:
        """The same bits as another dtype of equal width."""
        if self.dtype is dtype:
            return self
        return self.builder.direct("bitcast", (self,), dtype)

    def where(self, chosen: Term | float | int, other: Term | float | int) -> Term:
        """`chosen` where this pred holds, else `other`; one of them is a Term."""
        if not isinstance(chosen, Term):
            assert isinstance(other, Term)
            chosen = other.of(chosen)
        if not isinstance(other, Term):
            other = chosen.of(other)
        return self.builder.apply("select", (self, chosen, other), chosen.dtype)

    def __add__(self, other: Term | float | int) -> Term:
        return self.apply("add", other)

    def __sub__(self, other: Term | float | int) -> Term:
        return self.apply("subtract", other)

    def __mul__(self, other: Term | float | int) -> Term:
        return self.apply("multiply", other)

    def __rsub__(self, other: float | int) -> Term:
        return self.of(other).apply("subtract", self)

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Term | float | int) -> Term:
        return self.apply("divide", other)

    def __neg__(self) -> Term:
        return self.apply("negate")

    def __abs__(self) -> Term:
        return self.apply("abs")

    def __and__(self, other: Term | int) -> Term:
        return self.apply("and", other)

    def __or__(self, other: Term | int) -> Term:
        return self.apply("or", other)

    def __xor__(self, other: Term | int) -> Term:
        return self.apply("xor", other)

    def __invert__(self) -> Term:
        return self.apply("not")

    def __lshift__(self, count: Term | int) -> Term:
        return self.apply("shift_left", count)

    def __rshift__(self, count: Term | int) -> Term:
        """Shift right; signed integers keep their sign."""
        signed = self.dtype.kind is Kind.SIGNED
        return self.apply("shift_right_arithmetic" if signed else "shift_right_logical", count)

    def __lt__(self, other: Term | float | int) -> Term:
        return self.apply("less", other)

    def __le__(self, other: Term | float | int) -> Term:
        return self.apply("less_equal", other)

    def __gt__(self, other: Term | float | int) -> Term:
        return self.apply("greater", other)

    def __ge__(self, other: Term | float | int) -> Term:
        return self.apply("greater_equal", other)

    def equals(self, other: Term | float | int) -> Term:
        """Whether two values are equal."""
        return self.apply("equal", other)
