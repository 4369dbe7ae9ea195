"""Instruction selection: cover a scalar expression with instructions at one point of a nest.

Which instructions compute what is declared beside them (`isa.form`); here each expression gets the
cover of least cost. Parts that are used more than once are computed once and cut the expression
into trees; each tree's cheapest cover follows from those of its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from glia.base.dtype import F32, S32, U32, DType
from glia.base.errors import InternalError
from glia.isa.instructions.gpsimd import Iota
from glia.isa.instructions.vector import Memset, TensorCopy
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, row_major
from glia.machine.emit.block_builder import Builder
from glia.machine.emit.box import storage
from glia.machine.emit.covering import Match, Prices, matches, without_widening
from glia.machine.emit.layout import (
    Point,
    bases,
    fold_together,
    partition_scalar,
    swept_once,
    tile_pattern,
)
from glia.tile.ir import Accumulator, Apply, Expr, Index, Literal, Load

Value = Pattern | float | int


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


def is_view(expression: Expr) -> bool:
    """Whether an expression is another expression's bits under another dtype of equal width."""
    if not isinstance(expression, Apply):
        return False
    among_words = {expression.dtype, expression.args[0].dtype} == {S32, U32}
    return expression.function == "bitcast" or (expression.function == "convert" and among_words)


@dataclass(frozen=True)
class Plan:
    """The cheapest way to compute an expression: the instruction, its engine and total cost.

    `operands` are the expressions to compute first, by operand; `leaves_psum` says that those in
    PSUM are copied to SBUF.
    """

    match: Match
    engine: str
    nanoseconds: float
    operands: Mapping[str, Expr | float | int]
    leaves_psum: bool = False


class Selector:
    """Emits the instructions that compute expressions at one point.

    `read` gives the pattern of a load at the point; `accumulator` is what `Accumulator` stands for.
    """

    def __init__(
        self,
        builder: Builder,
        prices: Prices,
        point: Point,
        read: Callable[[Load, Point], Pattern],
        accumulator: Pattern | None = None,
    ) -> None:
        self.builder = builder
        self.prices = prices
        self.point = point
        self.read = read
        self.accumulator = accumulator
        self._values: dict[int, tuple[Expr, Value]] = {}
        self._axes: dict[int, frozenset[str]] = {}
        self._uses: dict[int, int] = {}
        self._plans: dict[int, tuple[Expr, Plan]] = {}
        self._derived: dict[tuple[int, str], tuple[Expr, Expr]] = {}

    # --- values ---------------------------------------------------------------------------------

    def axes_of(self, expression: Expr) -> tuple[str, ...]:
        """The free axes an expression varies along, in the point's order."""
        found = free_axes(expression, self.point.free, self._axes)
        return tuple(axis for axis in self.point.free if axis in found)

    def value(self, expression: Expr) -> Value:
        """A pattern over the whole point (replicated where it does not vary), or a number."""
        if isinstance(expression, Literal):
            return expression.value
        self._count_uses(expression)
        self._materialise((expression,))
        return self._values[id(expression)][1]

    def pattern(self, expression: Expr) -> Pattern:
        """Like `value`, with numbers put into a tile."""
        if isinstance(expression, Literal):
            self._materialise((expression,))
            value = self._values[id(expression)][1]
        else:
            value = self.value(expression)
        assert isinstance(value, Pattern)
        return value

    def store(self, expression: Expr, dst: Pattern) -> None:
        """Compute an expression straight into `dst`, which covers the whole point."""
        self._count_uses(expression)
        if self._is_open(expression) and not is_view(expression):
            axes = self.axes_of(expression)
            if all(a in axes or self.point.env[a].extent == 1 for a in self.point.free):
                self._apply(self._plan_into(expression, dst), dst)
                return
        self.store_value(self.value(expression), dst)

    def store_value(self, value: Value, dst: Pattern) -> None:
        """Copy an already computed value to a tile, once per element it varies over."""
        target = swept_once(dst)
        if isinstance(value, Pattern):
            self._emit(TensorCopy, "vector", dst=target, src=value)
        else:
            self._emit(Memset, "vector", dst=target, value=value)

    def temporary(self, dtype: DType, axes: Sequence[str], stem: str = "t") -> Pattern:
        """A new SBUF tile over some of the free axes, as a pattern over the whole point."""
        elements = self._elements(axes)
        tile = self.builder.tile(stem, Memory.SBUF, storage(dtype), self.point.partitions, elements)
        return tile_pattern(tile, self.point, axes)

    def _elements(self, axes: Sequence[str]) -> int:
        return math.prod(self.point.extents(axes))

    # --- what is computed, and once -------------------------------------------------------------

    def _count_uses(self, root: Expr) -> None:
        """Count how often each part of an expression is used, each part's own parts once."""
        stack = [root]
        while stack:
            part = stack.pop()
            self._uses[id(part)] = self._uses.get(id(part), 0) + 1
            if self._uses[id(part)] == 1 and isinstance(part, Apply):
                stack.extend(part.args)

    def _is_open(self, expression: Expr) -> bool:
        """Whether an expression is a function still to be computed."""
        return isinstance(expression, Apply) and id(expression) not in self._values

    def _absorbs(self, expression: Expr) -> bool:
        """Whether a function may become part of the instruction that uses it."""
        return self._is_open(expression) and self._uses.get(id(expression), 0) <= 1

    def _materialise(self, roots: Sequence[Expr]) -> None:
        """Compute expressions and all that their plans need, operands first."""
        waiting = list(roots)
        while waiting:
            expression = waiting[-1]
            missing = [e for e in self._needed(expression) if id(e) not in self._values]
            if id(expression) in self._values or not missing:
                waiting.pop()
                if id(expression) not in self._values:
                    self._values[id(expression)] = (expression, self._compute(expression))
            else:
                waiting.extend(reversed(missing))

    def _needed(self, expression: Expr) -> list[Expr]:
        """The expressions whose values an expression's own computation reads."""
        if not self._is_open(expression):
            return []
        if is_view(expression):
            return [expression.args[0]]  # type: ignore[union-attr]
        return self._inputs(self._plan(expression))

    @staticmethod
    def _inputs(plan: Plan) -> list[Expr]:
        given = (operand for name, operand in plan.operands.items() if name != "dst")
        return [operand for operand in given if not isinstance(operand, int | float)]

    def _compute(self, expression: Expr) -> Pattern:
        if isinstance(expression, Load):
            return self.read(expression, self.point)
        if isinstance(expression, Accumulator):
            assert self.accumulator is not None
            return self.accumulator
        if isinstance(expression, Index):
            return self._iota(expression)
        if isinstance(expression, Literal):
            return self._constant(expression)
        if is_view(expression):
            return self._viewed(self._values[id(expression.args[0])][1], expression.dtype)
        dst = self.temporary(expression.dtype, self.axes_of(expression))
        self._apply(self._plan(expression), swept_once(dst))
        return dst

    @staticmethod
    def _viewed(value: Value, dtype: DType) -> Pattern:
        assert isinstance(value, Pattern)
        return replace(value, dtype=storage(dtype))

    def _constant(self, literal: Literal) -> Pattern:
        pattern = self.temporary(literal.dtype, (), "constant")
        self._emit(Memset, "vector", dst=partition_scalar(pattern), value=literal.value)
        return pattern

    def _iota(self, expression: Index) -> Pattern:
        axes = self.axes_of(expression)
        dst = self.temporary(S32, axes, "iota")
        offset = expression.expression.substitute(bases(self.point.env))
        steps = tuple(expression.expression.coefficient(a) for a in axes) or (0,)
        count = tuple(self.point.env[a].extent for a in axes) or (1,)
        target = replace(dst, dims=(dst.dims[0], *row_major(count)))
        along_rows = expression.expression.coefficient(self.point.partition)
        self._emit(
            Iota, "gpsimd", dst=target, offset=offset, channel_multiplier=along_rows, steps=steps
        )
        if expression.dtype in (S32, U32):  # arithmetic on both kinds at once is not exact
            return replace(dst, dtype=expression.dtype)
        cast = self.temporary(expression.dtype, axes)
        self._emit(TensorCopy, "vector", dst=swept_once(cast), src=dst)
        return cast

    # --- the cheapest cover ---------------------------------------------------------------------

    def _plan(self, expression: Expr) -> Plan:
        """The cheapest plan to compute a function into a tile of its own."""
        if id(expression) not in self._plans:
            for part in self._unplanned(expression):
                plan = self._plan_into(part, swept_once(self._expected(part)))
                self._plans[id(part)] = (part, plan)
        return self._plans[id(expression)][1]

    def _unplanned(self, root: Expr) -> Iterator[Apply]:
        """The functions below `root` that have no plan yet, arguments first."""
        waiting: list[tuple[Expr, bool]] = [(root, False)]
        seen: set[int] = set()
        while waiting:
            part, is_ready = waiting.pop()
            if is_ready:
                if not is_view(part):
                    yield part  # type: ignore[misc]
            elif self._is_open(part) and id(part) not in self._plans and id(part) not in seen:
                seen.add(id(part))
                waiting.append((part, True))
                waiting.extend((a, False) for a in part.args)  # type: ignore[union-attr]

    def _plan_into(self, expression: Expr, dst: Pattern) -> Plan:
        assert isinstance(expression, Apply)
        best: Plan | None = None
        for match in matches(expression, self._absorbs):
            for plan in self._candidates(match, dst):
                if best is None or plan.nanoseconds < best.nanoseconds:
                    best = plan
        if best is None:
            dtypes = ", ".join(str(a.dtype) for a in expression.args)
            raise InternalError(f"no instruction computes {expression.function} on {dtypes}")
        return best

    def _candidates(self, match: Match, dst: Pattern) -> Iterator[Plan]:
        """The match with numbers in the instruction, else in tiles; else with PSUM left."""
        for immediates, leaves_psum in ((True, False), (False, False), (True, True)):
            operands = self._operands(match, immediates)
            if operands is None:
                return
            patterns = self._patterns(match, operands, dst, leaves_psum)
            found = self.prices.cheapest(match, patterns)
            if found is not None:
                total = found[0] + self._cost_of_operands(match, operands, leaves_psum)
                yield Plan(match, found[1], total, operands, leaves_psum)
                return

    def _operands(self, match: Match, immediates: bool) -> dict[str, Expr | float | int] | None:
        """What each operand is given; None when one cannot be a column that has to be one."""
        operands: dict[str, Expr | float | int] = {}
        for name, expression in match.operands.items():
            declared = match.instruction.operand_declarations[name]
            is_number = isinstance(expression, Literal) and declared.allows_immediate
            if is_number and immediates:
                sign = -1 if name in match.negated else 1
                operands[name] = sign * expression.value  # type: ignore[union-attr]
            elif declared.is_column:
                if self.axes_of(expression):
                    return None
                operands[name] = self._column(expression, name in match.negated)
            else:
                operands[name] = expression if declared.is_raw else without_widening(expression)
        return operands

    def _column(self, expression: Expr, is_negated: bool) -> Expr:
        """A column as instructions take it: float32 unless its bits matter; maybe its negative."""
        if expression.dtype.is_float and expression.dtype is not F32:
            widen = lambda e: Apply("convert", (e,), F32)  # noqa: E731
            expression = self._derive(expression, "widened", widen)
        if not is_negated:
            return expression
        minus = Literal(-1.0, F32)
        return self._derive(expression, "negated", lambda e: Apply("multiply", (e, minus), F32))

    def _derive(self, expression: Expr, how: str, make: Callable[[Expr], Expr]) -> Expr:
        """The same derived expression for the same one every time."""
        key = id(expression), how
        if key not in self._derived:
            derived = make(expression)
            self._derived[key] = (expression, derived)
            self._uses[id(derived)] = 2  # kept as a value, for all that use it
        return self._derived[key][1]

    def _patterns(
        self,
        match: Match,
        operands: Mapping[str, Expr | float | int],
        dst: Pattern,
        leaves_psum: bool,
    ) -> dict[str, object]:
        """The operands as the instruction will have them, with tiles still to be made."""
        result: dict[str, object] = {"dst": dst}
        for name, operand in operands.items():
            if name == "dst":
                continue
            value = operand
            if not isinstance(operand, int | float):
                value = self._expected(operand)
                if leaves_psum and value.memory is Memory.PSUM:
                    value = tile_pattern(_unnamed(value.dtype, 1, 1), self.point, self.point.free)
                if match.instruction.operand_declarations[name].is_column:
                    value = partition_scalar(value)
            result[name] = value
        return self._fitted(match.instruction, result)

    def _expected(self, expression: Expr) -> Pattern:
        """The pattern an expression's value has, or will have once it is computed."""
        known = self._values.get(id(expression))
        if known is not None:
            assert isinstance(known[1], Pattern)
            return known[1]
        if isinstance(expression, Load | Accumulator):
            self._materialise((expression,))
            return self._expected(expression)
        if is_view(expression):
            return self._viewed(self._expected(expression.args[0]), expression.dtype)
        axes = () if isinstance(expression, Literal) else self.axes_of(expression)
        tile = _unnamed(storage(expression.dtype), self.point.partitions, self._elements(axes))
        return tile_pattern(tile, self.point, axes)

    def _cost_of_operands(
        self, match: Match, operands: Mapping[str, Expr | float | int], leaves_psum: bool
    ) -> float:
        """What the operands that serve only this instruction cost, and those to be moved."""
        total = 0.0
        for name, operand in operands.items():
            if isinstance(operand, int | float):
                continue
            total += self._cost(operand)
            expected = self._expected(operand)
            is_moved = leaves_psum and expected.memory is Memory.PSUM
            if is_moved or (name == "dst" and not self._absorbs(operand)):
                total += self._copy_cost(expected)
        return total

    def _cost(self, expression: Expr) -> float:
        while is_view(expression):
            expression = expression.args[0]  # type: ignore[union-attr]
        if isinstance(expression, Literal):
            return self._copy_cost(self._expected(expression))
        is_shared = self._uses.get(id(expression), 0) > 1 and not self._is_derived(expression)
        if not self._is_open(expression) or is_shared:
            return 0.0
        return self._plan(expression).nanoseconds

    def _is_derived(self, expression: Expr) -> bool:
        return any(derived is expression for _, derived in self._derived.values())

    def _copy_cost(self, pattern: Pattern) -> float:
        arch = self.prices.arch
        own = swept_once(pattern)
        cycles = TensorCopy(dst=replace(own, tile=_unnamed(own.dtype, 1, 1)), src=own).cycles(arch)
        return cycles / arch.clocks_ghz["vector"]

    # --- emission -------------------------------------------------------------------------------

    def _apply(self, plan: Plan, dst: Pattern) -> None:
        """Emit a plan's instruction; what it reads is computed first."""
        inputs = self._inputs(plan)
        self._materialise(inputs)
        values = {id(e): self._values[id(e)][1] for e in inputs}
        if plan.leaves_psum:
            values = {key: self._in_sbuf(value) for key, value in values.items()}
        target = self._started(plan, dst, list(values.values()))
        operands: dict[str, object] = {"dst": target}
        for name, operand in plan.operands.items():
            if name == "dst":
                continue
            value = operand if isinstance(operand, int | float) else values[id(operand)]
            declared = plan.match.instruction.operand_declarations[name]
            is_column = declared.is_column and isinstance(value, Pattern)
            operands[name] = partition_scalar(value) if is_column else value
        self._emit(plan.match.instruction, plan.engine, **operands, **plan.match.attributes)
        if target is not dst:
            self._emit(TensorCopy, "vector", dst=dst, src=target)

    def _started(self, plan: Plan, dst: Pattern, values: Sequence[Value]) -> Pattern:
        """Where an instruction that changes its destination finds what it starts from."""
        if "dst" not in plan.operands:
            return dst
        start = plan.operands["dst"]
        read = [value.tile for value in values if isinstance(value, Pattern)]
        target = dst
        if any(tile is dst.tile for tile in read) or self._reads_tile(start, dst.tile):
            target = self.temporary(plan.match.steps[0].dtype, self.point.free)
        if isinstance(start, int | float):
            self.store_value(start, target)
        elif isinstance(start, Literal):
            self.store_value(start.value, target)
        else:
            self.store(start, target)
        return target

    def _reads_tile(self, expression: Expr | float | int, tile: Tile) -> bool:
        """Whether computing an expression reads a tile, at whatever place."""
        waiting, seen = [expression], set()
        while waiting:
            part = waiting.pop()
            if isinstance(part, int | float) or id(part) in seen:
                continue
            seen.add(id(part))
            known = self._values.get(id(part))
            if known is not None or isinstance(part, Load | Accumulator):
                value = self._expected(part)
                if value.tile is tile:
                    return True
            elif isinstance(part, Apply):
                waiting.extend(part.args)
        return False

    def _in_sbuf(self, value: Value) -> Value:
        """The value, copied when it lies in PSUM."""
        if not isinstance(value, Pattern) or value.memory is Memory.SBUF:
            return value
        copy = self.temporary(value.dtype, self.point.free)
        self._emit(TensorCopy, "vector", dst=copy, src=value)
        return copy

    def _emit(self, kind: type[Instr], engine: str, **operands: object) -> None:
        """Emit one instruction with its tensor operands folded together."""
        fitted = self._fitted(kind, operands)
        self.builder.emit(kind(on=engine, loc=self.builder.loc, **fitted))

    def _fitted(self, kind: type[Instr], operands: Mapping[str, object]) -> dict[str, object]:
        """The operands with tensors in the shape of the destination, dimensions folded together."""
        names = [
            n for n, v in operands.items()
            if isinstance(v, Pattern) and not kind.operand_declarations[n].is_column
        ]  # fmt: skip
        full = self._aligned([operands[n] for n in names])
        if kind is not Iota:
            full = fold_together(full)
        return {**operands, **dict(zip(names, full, strict=True))}

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


def _unnamed(dtype: DType, partitions: int, elements: int) -> Tile:
    """A tile that is not made yet."""
    return Tile("", Memory.SBUF, dtype, partitions, elements)
