"""Factors of an operand that do not vary along the sum of a product are applied to the sum.

    sum over k of (x[m, k] * s[m]) * y[k, n]  =  s[m] * sum over k of x[m, k] * y[k, n]

Division by the sum of a softmax, or multiplication by a norm's reciprocal root, then costs nothing
beside what follows the product, and reads no operand once more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from glia.base.affine import Affine
from glia.base.dtype import BF16, F32, DType
from glia.options import CompileOptions
from glia.tile.contraction import contraction_operands
from glia.tile.ir import (
    Accumulator,
    Apply,
    Buffer,
    Expr,
    Literal,
    Load,
    Nest,
    Program,
    Statement,
    Store,
    accessed_buffers,
    control_buffers,
    loads,
)
from glia.tile.nest_rewriting import (
    axes_in,
    axis_values,
    map_leaves,
    substitute,
    with_blocks,
    with_total,
)

WIDE_RANGE = (F32, BF16)  # types with the range of float32: a factor does not decide what fits
MOST_RESULTS = 4  # for each element of the operand: a factor is applied to as many


@dataclass(frozen=True)
class _Factors:
    """An expression as a product over a product."""

    over: tuple[Expr, ...]
    under: tuple[Expr, ...] = ()

    def __mul__(self, other: _Factors) -> _Factors:
        return _Factors(self.over + other.over, self.under + other.under)

    def inverse(self) -> _Factors:
        """One over it."""
        return _Factors(self.under, self.over)

    def those(self, is_chosen: Callable[[Expr], bool]) -> _Factors:
        """Only the factors that are chosen."""
        return _Factors(tuple(filter(is_chosen, self.over)), tuple(filter(is_chosen, self.under)))

    def product(self) -> Expr:
        """The expression, in float32 where there is more than one factor."""
        if len(self.over) == 1 and not self.under:
            return self.over[0]
        value: Expr = _converted(self.over[0], F32) if self.over else Literal(1.0, F32)
        for each in self.over[1:]:
            value = Apply("multiply", (value, _converted(each, F32)), F32)
        for each in self.under:
            value = Apply("divide", (value, _converted(each, F32)), F32)
        return value


def defer_factors(program: Program, options: CompileOptions | None = None) -> Program:
    """Apply factors of operands to sums of products, where that is the same but for rounding."""
    readers, writers = Counter[str](), Counter[str]()
    for nest in program.nests():
        readers.update(load.buffer for load in nest.loads)
        writers[nest.target.buffer] += 1
    fixed = {*program.outputs, *control_buffers(program.body)}
    fixed.update(name for pair in program.aliases for name in pair)
    may_change = {
        name
        for name, buffer in program.buffers.items()
        if buffer.role == "temporary" and name not in fixed
        if readers[name] == 1 and writers[name] == 1
    }
    deferrer = _Deferrer(may_change)
    body = deferrer.block(program.body)
    used = {name for statement in body for name in accessed_buffers(statement)}
    buffers = {n: b for n, b in program.buffers.items() if n in used or n not in may_change}
    return replace(program, body=body, buffers=buffers | deferrer.made)


class _Deferrer:
    """Defers factors in blocks; `made` are the buffers of factors that have to be computed."""

    def __init__(self, may_change: set[str]) -> None:
        self.may_change = may_change
        self.made: dict[str, Buffer] = {}

    def block(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """The statements of a block with factors deferred, in inner blocks as well."""
        found: list[Statement] = []
        for statement in body:
            statement = with_blocks(statement, self.block)
            if isinstance(statement, Nest):
                for load in contraction_operands(statement) or ():
                    statement = self._defer(statement, load, found)
            found.append(statement)
        return tuple(found)

    def _defer(self, reader: Nest, load: Load, before: list[Statement]) -> Nest:
        """A nest after those `before`; factors of one operand that can wait leave them."""
        places = (
            at
            for at, each in enumerate(before)
            if isinstance(each, Nest) and each.target.buffer == load.buffer
        )
        position = next(places, -1)
        if position < 0 or load.buffer not in self.may_change or load.guards:
            return reader
        producer = before[position]
        assert isinstance(producer, Nest)
        split = _split(producer, reader, load)
        if split is None:
            return reader
        kept, moved, values = split
        written = {name for each in before[position:] for name in _touched(each)}
        if isinstance(kept, Load) and kept.buffer not in written and not kept.guards:
            del before[position]
            direct = substitute(kept, values)
            body = map_leaves(reader.body, lambda each: direct if each == load else each)
            reader = replace(reader, body=body)
        else:
            before[position] = replace(producer, body=kept)
        if not isinstance(moved, Load) or moved.buffer in written:
            nest = self._nest_of(moved, producer)
            before.insert(position, nest)
            moved = Load(nest.target.buffer, F32, nest.target.index)
        factor = _converted(substitute(moved, values), F32)
        total = Apply("multiply", (Accumulator(F32), factor), F32)
        return replace(reader, finish=with_total(reader.finish, total))

    def _nest_of(self, factor: Expr, producer: Nest) -> Nest:
        """A nest that computes a factor once, for the axes that it depends on."""
        name = f"{producer.name}.factor"
        used = axes_in(factor)
        axes = tuple(axis for axis in producer.axes if axis.name in used)
        self.made[name] = Buffer(name, F32, tuple(axis.extent for axis in axes))
        target = Store(name, tuple(Affine.of(axis.name) for axis in axes))
        return Nest(name, axes, _converted(factor, F32), target, loc=producer.loc)


def _touched(statement: Statement) -> set[str]:
    """The buffers that a nest writes, or anything else accesses."""
    if isinstance(statement, Nest):
        return {statement.target.buffer}
    return accessed_buffers(statement)


def _split(producer: Nest, reader: Nest, load: Load) -> tuple[Expr, Expr, dict[str, Affine]] | None:
    """(body without the factors that can wait, their product, axes of the producer for a reader).

    None where no factor can.
    """
    target, swept = producer.target, reader.reduction
    is_map = producer.reduction is None and not target.dynamic and not target.combine
    if swept is None or swept.dtype is not F32 or not is_map or producer.finish is not None:
        return None
    if load.dtype not in WIDE_RANGE or producer.body.dtype is not load.dtype:
        return None
    results = math.prod(axis.extent for axis in reader.parallel_axes)
    is_cheap = results <= MOST_RESULTS * math.prod(producer.extents.values())
    values = axis_values(producer, load)
    if values is None or not is_cheap:
        return None
    fixed = {a for a, at in values.items() if not set(at.variables) & set(swept.axes)}
    factors = _factors(producer.body)

    def may_wait(factor: Expr) -> bool:
        return axes_in(factor) <= fixed and not any(part.dynamic for part in loads(factor))

    moved = factors.those(may_wait)
    kept = factors.those(lambda factor: not may_wait(factor))
    if not kept.over or not any(True for each in (*moved.over, *moved.under) for _ in loads(each)):
        return None
    body = kept.product()
    return _converted(body, load.dtype), moved.product(), values


def _factors(expression: Expr) -> _Factors:
    """An expression taken apart at products, quotients and roundings within the same range."""
    if isinstance(expression, Apply) and expression.dtype in WIDE_RANGE:
        args = expression.args
        if all(each.dtype in WIDE_RANGE for each in args):
            if expression.function == "multiply":
                return _factors(args[0]) * _factors(args[1])
            if expression.function == "divide":
                return _factors(args[0]) * _factors(args[1]).inverse()
            if expression.function == "convert":
                inner = _factors(args[0])
                return inner if len(inner.over) + len(inner.under) > 1 else _Factors((expression,))
    return _Factors((expression,))


def _converted(expression: Expr, dtype: DType) -> Expr:
    """The expression in a dtype."""
    return expression if expression.dtype is dtype else Apply("convert", (expression,), dtype)
