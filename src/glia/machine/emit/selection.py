"""Instruction selection: cover a scalar expression with instructions at one point of a nest.

Instructions declare the expressions they compute (`isa.form`); selection finds the cover of least
cost. Subexpressions with several uses are computed once, which cuts the expression into trees; the
cheapest cover of a tree follows from the covers of its operands, by dynamic programming.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from glia.base.dtype import BF16, F32, S32, U32, DType
from glia.base.errors import InternalError
from glia.isa.instructions.gpsimd import Iota
from glia.isa.instructions.vector import Memset, TensorCopy
from glia.isa.instructions.vector_statistics import TensorTensorScan
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, row_major
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.emit.box import storage_dtype
from glia.machine.emit.covering import (
    InstructionCosts,
    Match,
    build_instruction,
    has_smooth_function,
    is_smooth,
    mask_matches,
    matches,
    strip_widening,
)
from glia.machine.emit.layout import (
    Point,
    bases,
    drop_replication,
    fold_dims,
    partition_scalar,
    tile_pattern,
)
from glia.machine.emit.monoids import REDUCE_OPS, identity
from glia.tile.affine_predicates import factor_after_first
from glia.tile.ir import SCANS, Accumulator, Apply, Expr, Index, Literal, Load, Scan

Value = Pattern | float | int


def free_axes(
    expression: Expr, axes: Sequence[str], memo: dict[int, frozenset[str]]
) -> frozenset[str]:
    """Which of `axes` the value of an expression depends on."""
    found = memo.get(id(expression))
    if found is not None:
        return found
    names: set[str] = set()
    if isinstance(expression, Scan):
        names.add(expression.axis)
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


def has_cover(expression: Expr) -> TypeGuard[Apply]:
    """Whether selection chooses the instruction that computes an expression."""
    is_apply = isinstance(expression, Apply) and not isinstance(expression, Scan)
    return is_apply and not is_view(expression)


def is_view(expression: Expr) -> TypeGuard[Apply]:
    """Whether an expression reinterprets its argument's bits under a dtype of equal width."""
    if not isinstance(expression, Apply):
        return False
    among_words = {expression.dtype, expression.args[0].dtype} == {S32, U32}
    return expression.function == "bitcast" or (expression.function == "convert" and among_words)


@dataclass(frozen=True)
class Cover:
    """A way to compute an expression: the root instruction, its engine, the cost of the whole tree.

    `operands` are the expressions to compute first, by operand; with `copies_from_psum` those in
    PSUM are copied to SBUF.
    """

    match: Match
    engine: str
    nanoseconds: float
    operands: Mapping[str, Expr | float | int]
    copies_from_psum: bool = False


class Selector:
    """Emits the instructions that compute expressions at one point.

    `read` gives the pattern of a load at the point; `accumulator` is what `Accumulator` stands for,
    `states` has the columns, by scan, that take its last states from one point to the next;
    `extents` are those of the nest's axes.
    """

    def __init__(
        self,
        builder: BlockBuilder,
        costs: InstructionCosts,
        point: Point,
        read: Callable[[Load, Point], Pattern],
        accumulator: Pattern | None = None,
        states: Mapping[Scan, Pattern] | None = None,
        extents: Mapping[str, int] | None = None,
    ) -> None:
        self.extents = extents or {}
        self.states = states or {}
        self.builder = builder
        self.costs = costs
        self.point = point
        self.read = read
        self.accumulator = accumulator
        self._values: dict[int, tuple[Expr, Value]] = {}
        self._axes: dict[int, frozenset[str]] = {}
        self._uses: dict[int, int] = {}
        self._covers: dict[int, tuple[Expr, Cover]] = {}
        self._derived_expressions: dict[tuple[int, str], tuple[Expr, Expr]] = {}

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
        """Like `value`; a number is materialised in a tile."""
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
        is_new = id(expression) not in self._values
        if isinstance(expression, Scan) and dst.dtype is F32 and is_new:
            for argument in self._scan_operands(expression):
                self._materialise((argument,))
            self._scan(expression, dst)
            return
        if self._is_uncomputed(expression) and has_cover(expression):
            axes = self.axes_of(expression)
            if all(a in axes or self.point.env[a].extent == 1 for a in self.point.free):
                self._apply(self._cover_into(expression, dst), dst)
                return
        self.store_value(self.value(expression), dst)

    def store_value(self, value: Value, dst: Pattern) -> None:
        """Copy a value to a tile; where `dst` is replicated, each element is written once."""
        target = drop_replication(dst)
        if isinstance(value, Pattern):
            self._emit(TensorCopy, "vector", dst=target, src=value)
        else:
            self._emit(Memset, "vector", dst=target, value=value)

    def reduce_with(
        self, expression: Expr, kind: type[Instr], most_ns: float, **fields: object
    ) -> bool:
        """Compute an expression by an instruction of a class, for the sake of other `fields`.

        Its values are not kept. False, with nothing emitted, where there is no such instruction, or
        only ones that add more than `most_ns` to the cost of the expression.
        """
        self._count_uses(expression)
        if not self._is_uncomputed(expression) or not has_cover(expression):
            return False
        axes = self.axes_of(expression)
        if any(a not in axes and self.point.env[a].extent > 1 for a in self.point.free):
            return False
        tile = _placeholder_tile(BF16, self.point.partitions, self._elements(axes))
        cover = self._cheapest_cover(expression, tile_pattern(tile, self.point, axes), kind)
        if cover is None or cover.nanoseconds > self._cover(expression).nanoseconds + most_ns:
            return False
        self._apply(cover, self.temporary(BF16, axes, "unused"), **fields)
        return True

    def temporary(self, dtype: DType, axes: Sequence[str], stem: str = "t") -> Pattern:
        """A new SBUF tile over some of the free axes, as a pattern over the whole point."""
        elements = self._elements(axes)
        tile = self.builder.tile(
            stem, Memory.SBUF, storage_dtype(dtype), self.point.partitions, elements
        )
        return tile_pattern(tile, self.point, axes)

    def _elements(self, axes: Sequence[str]) -> int:
        return math.prod(self.point.extents(axes))

    # --- evaluation order -----------------------------------------------------------------------

    def _count_uses(self, root: Expr) -> None:
        """Count the uses of each subexpression in the expression's directed acyclic graph."""
        stack = [root]
        while stack:
            part = stack.pop()
            self._uses[id(part)] = self._uses.get(id(part), 0) + 1
            if self._uses[id(part)] == 1 and isinstance(part, Apply):
                stack.extend(part.args)

    def _is_uncomputed(self, expression: Expr) -> TypeGuard[Apply]:
        """Whether an expression is a function that has no value yet."""
        return isinstance(expression, Apply) and id(expression) not in self._values

    def _can_absorb(self, expression: Expr) -> TypeGuard[Apply]:
        """Whether a function may be fused into the instruction that uses it: its only user."""
        return self._is_uncomputed(expression) and self._uses.get(id(expression), 0) <= 1

    def _materialise(self, roots: Sequence[Expr]) -> None:
        """Compute expressions and their dependencies, operands first."""
        waiting = list(roots)
        while waiting:
            expression = waiting[-1]
            missing = [e for e in self._dependencies(expression) if id(e) not in self._values]
            if id(expression) in self._values or not missing:
                waiting.pop()
                if id(expression) not in self._values:
                    self._values[id(expression)] = (expression, self._compute(expression))
            else:
                waiting.extend(reversed(missing))

    def _dependencies(self, expression: Expr) -> list[Expr]:
        """The expressions whose values the instruction of an expression reads."""
        if not self._is_uncomputed(expression):
            return []
        if isinstance(expression, Scan):
            return list(self._scan_operands(expression))
        if not has_cover(expression):
            return list(expression.args)
        return self._operand_expressions(self._cover(expression))

    @staticmethod
    def _operand_expressions(cover: Cover) -> list[Expr]:
        given = (operand for name, operand in cover.operands.items() if name != "dst")
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
            return self._reinterpret(self._values[id(expression.args[0])][1], expression.dtype)
        dst = self.temporary(expression.dtype, self.axes_of(expression))
        if isinstance(expression, Scan):
            self._scan(expression, dst)
        else:
            self._apply(self._cover(expression), drop_replication(dst))
        return dst

    def _scan_operands(self, scan: Scan) -> tuple[Expr, Expr]:
        """The factor and the term of a recurrence; the first factor may be any where it is 0."""
        factor, term = scan.args
        inner = factor_after_first(scan) if scan not in self.states else None
        return inner or factor, term

    def _scan(self, scan: Scan, dst: Pattern) -> None:
        """Run a recurrence along its axis, one instruction for each of the other positions."""
        monoid = SCANS[scan.function]
        operands = self._scan_operands(scan)
        factor, term = (self._values[id(each)][1] for each in operands)
        assert isinstance(factor, Pattern) and isinstance(term, Pattern)
        along = 1 + self.point.free.index(scan.axis)
        state = self.states.get(scan)
        with contextlib.ExitStack() as loops:
            offsets = {
                position: loops.enter_context(self.builder.loop(count))
                for position, (step, count) in enumerate(dst.dims)
                if position not in (0, along) and step and count > 1
            }

            def row(pattern: Pattern, first: int, count: int) -> Pattern:
                step = pattern.dims[along][0]
                offset = pattern.offset + first * step
                for position, index in offsets.items():
                    offset = offset + index * pattern.dims[position][0]
                return replace(pattern, offset=offset, dims=(pattern.dims[0], (step, count)))

            count, first = dst.dims[along][1], 0
            column = None if state is None else row(state, 0, 1)
            if operands[0] is not scan.args[0]:
                column, first = row(dst, 0, 1), 1
                self._emit(TensorCopy, "vector", dst=column, src=row(term, 0, 1))
            rest = [row(each, first, count - first) for each in (dst, factor, term)]
            self._emit(
                TensorTensorScan, "vector", dst=rest[0], data0=rest[1], data1=rest[2],
                op0="multiply", op1=REDUCE_OPS[monoid],
                initial=identity(monoid, F32) if column is None else column,
            )  # fmt: skip
            if state is not None:
                self._emit(TensorCopy, "vector", dst=row(state, 0, 1), src=row(dst, count - 1, 1))

    @staticmethod
    def _reinterpret(value: Value, dtype: DType) -> Pattern:
        assert isinstance(value, Pattern)
        return replace(value, dtype=storage_dtype(dtype))

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
        self._emit(TensorCopy, "vector", dst=drop_replication(cast), src=dst)
        return cast

    # --- the cheapest cover ---------------------------------------------------------------------

    def _cover(self, expression: Expr) -> Cover:
        """The cheapest cover of a function that is computed into a new tile."""
        if id(expression) not in self._covers:
            for part in self._uncovered(expression):
                cover = self._cover_into(part, drop_replication(self._result_pattern(part)))
                self._covers[id(part)] = (part, cover)
        return self._covers[id(expression)][1]

    def _uncovered(self, root: Expr) -> Iterator[Apply]:
        """The functions below `root` that have no cover yet, arguments first."""
        waiting: list[tuple[Expr, bool]] = [(root, False)]
        seen: set[int] = set()
        while waiting:
            part, is_ready = waiting.pop()
            if is_ready:
                if has_cover(part):
                    yield part
            elif (
                self._is_uncomputed(part) and id(part) not in self._covers and id(part) not in seen
            ):
                seen.add(id(part))
                waiting.append((part, True))
                waiting.extend((a, False) for a in part.args)

    def _cover_into(self, expression: Expr, dst: Pattern) -> Cover:
        assert isinstance(expression, Apply)
        best = self._cheapest_cover(expression, dst)
        if best is None:
            dtypes = ", ".join(str(a.dtype) for a in expression.args)
            raise InternalError(f"no instruction computes {expression.function} on {dtypes}")
        return best

    def _cheapest_cover(
        self, expression: Apply, dst: Pattern, kind: type[Instr] = Instr
    ) -> Cover | None:
        """The cheapest cover whose instruction is of a class, if there is one."""
        best: Cover | None = None
        for match in self._matches(expression):
            if not issubclass(match.instruction, kind):
                continue
            for cover in self._candidates(match, dst):
                if best is None or cover.nanoseconds < best.nanoseconds:
                    best = cover
        return best

    def _matches(self, expression: Apply) -> Iterator[Match]:
        """Every way to compute an expression with one instruction of its operands' values."""
        yield from matches(expression, self._can_absorb)
        inner = expression.args[0]
        if expression.function == "select" or self._can_absorb(inner):
            axes = self.axes_of(expression)
            yield from mask_matches(expression, axes, self.point, self.extents, self._derive)

    def _candidates(self, match: Match, dst: Pattern) -> Iterator[Cover]:
        """The first legal cover of a match, if any.

        Tried in turn: numbers as immediates; numbers in tiles; operands copied from PSUM to SBUF.
        """
        for immediates, copies_from_psum in ((True, False), (False, False), (True, True)):
            operands = self._operands(match, immediates)
            if operands is None:
                return
            patterns = self._patterns(match, operands, dst, copies_from_psum)
            found = self.costs.cheapest(match, patterns)
            if found is not None:
                total = found[0] + self._cost_of_operands(match, operands, copies_from_psum)
                yield Cover(match, found[1], total, operands, copies_from_psum)
                return

    def _operands(self, match: Match, immediates: bool) -> dict[str, Expr | float | int] | None:
        """The expression or number of each operand; None when one must be a column and is not."""
        operands: dict[str, Expr | float | int] = {}
        for name, expression in match.operands.items():
            declared = match.instruction.operand_declarations[name]
            if isinstance(expression, Literal) and declared.allows_immediate and immediates:
                sign = -1 if name in match.negated else 1
                operands[name] = sign * expression.value
            elif declared.is_column:
                if self.axes_of(expression):
                    return None
                operands[name] = self._column(expression, name in match.negated)
            else:
                operands[name] = expression if declared.is_raw else self._source(match, expression)
        return operands

    def _source(self, match: Match, expression: Expr) -> Expr:
        """What an operand is read from: conversions that take an instruction are left out."""
        source = strip_widening(expression)
        if not self._can_absorb(source) or source.function != "convert" or source.dtype is not BF16:
            return source
        inner = source.args[0]
        is_there = isinstance(inner, Accumulator | Load) and inner.dtype is F32
        widens = isinstance(inner, Accumulator) and has_smooth_function(match.steps[-1])
        return inner if is_there and (widens or is_smooth(match.steps[-1])) else source

    def _column(self, expression: Expr, is_negated: bool) -> Expr:
        """A column operand: floats widened to float32, negated with `is_negated`."""
        if expression.dtype.is_float and expression.dtype is not F32:
            widen = lambda e: Apply("convert", (e,), F32)  # noqa: E731
            expression = self._derive(expression, "widened", widen)
        if not is_negated:
            return expression
        minus = Literal(-1.0, F32)
        return self._derive(expression, "negated", lambda e: Apply("multiply", (e, minus), F32))

    def _derive(self, expression: Expr, how: str, make: Callable[[Expr], Expr]) -> Expr:
        """The expression that `make` derives, memoised by (expression, `how`)."""
        key = id(expression), how
        if key not in self._derived_expressions:
            derived = make(expression)
            self._derived_expressions[key] = (expression, derived)
            self._uses[id(derived)] = 2  # kept as a value, for all that use it
        return self._derived_expressions[key][1]

    def _patterns(
        self,
        match: Match,
        operands: Mapping[str, Expr | float | int],
        dst: Pattern,
        copies_from_psum: bool,
    ) -> dict[str, object]:
        """The instruction's operands, with placeholder tiles for values not yet computed."""
        result: dict[str, object] = {"dst": dst}
        for name, operand in operands.items():
            if name == "dst":
                continue
            if isinstance(operand, int | float):
                result[name] = operand
                continue
            value = self._result_pattern(operand)
            if copies_from_psum and value.memory is Memory.PSUM:
                tile = _placeholder_tile(value.dtype, 1, 1)
                value = tile_pattern(tile, self.point, self.point.free)
            is_column = match.instruction.operand_declarations[name].is_column
            result[name] = partition_scalar(value) if is_column else value
        return self._fit_operands(match.instruction, result)

    def placeholder(self, expression: Expr) -> Pattern:
        """A pattern like that of an expression's value, whether or not it is computed yet."""
        return self._result_pattern(expression)

    def _result_pattern(self, expression: Expr) -> Pattern:
        """The pattern of an expression's value, with a placeholder tile until it is computed."""
        known = self._values.get(id(expression))
        if known is not None:
            assert isinstance(known[1], Pattern)
            return known[1]
        if isinstance(expression, Load | Accumulator):
            self._materialise((expression,))
            return self._result_pattern(expression)
        if is_view(expression):
            return self._reinterpret(self._result_pattern(expression.args[0]), expression.dtype)
        axes = () if isinstance(expression, Literal) else self.axes_of(expression)
        tile = _placeholder_tile(
            storage_dtype(expression.dtype), self.point.partitions, self._elements(axes)
        )
        return tile_pattern(tile, self.point, axes)

    def _cost_of_operands(
        self, match: Match, operands: Mapping[str, Expr | float | int], copies_from_psum: bool
    ) -> float:
        """Nanoseconds to compute the operands of which this is the only use, and to copy them."""
        total = 0.0
        for name, operand in operands.items():
            if isinstance(operand, int | float):
                continue
            total += self._cost(operand)
            result = self._result_pattern(operand)
            is_moved = copies_from_psum and result.memory is Memory.PSUM
            if is_moved or (name == "dst" and not self._can_absorb(operand)):
                total += self._copy_cost(result)
        return total

    def _cost(self, expression: Expr) -> float:
        while is_view(expression):
            expression = expression.args[0]
        if isinstance(expression, Literal):
            return self._copy_cost(self._result_pattern(expression))
        if isinstance(expression, Scan):
            return sum(self._cost(argument) for argument in expression.args)
        is_shared = self._uses.get(id(expression), 0) > 1 and not self._is_derived(expression)
        if not self._is_uncomputed(expression) or is_shared:
            return 0.0
        return self._cover(expression).nanoseconds

    def _is_derived(self, expression: Expr) -> bool:
        return any(derived is expression for _, derived in self._derived_expressions.values())

    def _copy_cost(self, pattern: Pattern) -> float:
        arch = self.costs.arch
        own = drop_replication(pattern)
        cycles = TensorCopy(
            dst=replace(own, tile=_placeholder_tile(own.dtype, 1, 1)), src=own
        ).cycles(arch)
        return cycles / arch.clocks_ghz["vector"]

    # --- emission -------------------------------------------------------------------------------

    def _apply(self, cover: Cover, dst: Pattern, **extra: object) -> None:
        """Compute a cover's operands, then emit its instruction, with `extra` fields."""
        inputs = self._operand_expressions(cover)
        self._materialise(inputs)
        values = {id(e): self._values[id(e)][1] for e in inputs}
        if cover.copies_from_psum:
            values = {key: self._copy_to_sbuf(value) for key, value in values.items()}
        target = self._initialise_destination(cover, dst, list(values.values()))
        operands: dict[str, object] = {"dst": target}
        for name, operand in cover.operands.items():
            if name == "dst":
                continue
            value = operand if isinstance(operand, int | float) else values[id(operand)]
            declared = cover.match.instruction.operand_declarations[name]
            if declared.is_column and isinstance(value, Pattern):
                value = partition_scalar(value)
            operands[name] = value
        attributes = {**cover.match.attributes, **extra}
        self._emit(cover.match.instruction, cover.engine, **operands, **attributes)
        if target is not dst:
            self._emit(TensorCopy, "vector", dst=dst, src=target)

    def _initialise_destination(
        self, cover: Cover, dst: Pattern, values: Sequence[Value]
    ) -> Pattern:
        """The tile that an instruction updates in place, holding its initial value."""
        if "dst" not in cover.operands:
            return dst
        start = cover.operands["dst"]
        read = [value.tile for value in values if isinstance(value, Pattern)]
        target = dst
        if any(tile is dst.tile for tile in read) or self._reads_tile(start, dst.tile):
            target = self.temporary(cover.match.steps[0].dtype, self.point.free)
        if isinstance(start, int | float):
            self.store_value(start, target)
        elif isinstance(start, Literal):
            self.store_value(start.value, target)
        else:
            self.store(start, target)
        return target

    def _reads_tile(self, expression: Expr | float | int, tile: Tile) -> bool:
        """Whether computing an expression reads any part of a tile."""
        waiting, seen = [expression], set()
        while waiting:
            part = waiting.pop()
            if isinstance(part, int | float) or id(part) in seen:
                continue
            seen.add(id(part))
            known = self._values.get(id(part))
            if known is not None or isinstance(part, Load | Accumulator):
                value = self._result_pattern(part)
                if value.tile is tile:
                    return True
            elif isinstance(part, Apply):
                waiting.extend(part.args)
        return False

    def _copy_to_sbuf(self, value: Value) -> Value:
        """The value, copied to SBUF when it is in PSUM."""
        if not isinstance(value, Pattern) or value.memory is Memory.SBUF:
            return value
        copy = self.temporary(value.dtype, self.point.free)
        self._emit(TensorCopy, "vector", dst=copy, src=value)
        return copy

    def _emit(self, kind: type[Instr], engine: str, **operands: object) -> None:
        """Emit one instruction, with the free dimensions of its operands folded."""
        fitted = self._fit_operands(kind, operands)
        self.builder.emit(build_instruction(kind, engine, fitted, self.builder.loc))

    def _fit_operands(self, kind: type[Instr], operands: Mapping[str, object]) -> dict[str, object]:
        """The operands, tensors broadcast to the destination's shape, free dimensions folded."""
        names = [
            n for n, v in operands.items()
            if isinstance(v, Pattern) and not kind.operand_declarations[n].is_column
        ]  # fmt: skip
        patterns = [operand for n in names if isinstance(operand := operands[n], Pattern)]
        full: Sequence[Pattern] = self._align_to_destination(patterns)
        if kind is not Iota:
            full = fold_dims(full)
        return {**operands, **dict(zip(names, full, strict=True))}

    @staticmethod
    def _align_to_destination(patterns: Sequence[Pattern]) -> list[Pattern]:
        """Broadcast every operand to the free dimensions of the destination, the first of them."""
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


def _placeholder_tile(dtype: DType, partitions: int, elements: int) -> Tile:
    """A nameless tile that stands for one not allocated yet."""
    return Tile("", Memory.SBUF, dtype, partitions, elements)
