"""Blocks of rows and columns that a mask makes constant are left out of groups.

A group computes rows by blocks. Where an affine predicate keeps an interval of columns only, as a
causal mask, a window or padding does, and a reduction over the others would add nothing, its rows
are divided into ranges, and each has the nests of the group with the columns that its rows keep. Of
these the predicate is not asked where it always holds.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from glia.base.affine import Affine
from glia.base.errors import Misfit
from glia.graph.ops.scalar_regions import identity
from glia.options import CompileOptions
from glia.tile.affine_predicates import masked
from glia.tile.contraction import PARTITIONS
from glia.tile.group_legal import why_illegal
from glia.tile.ir import (
    Apply,
    Axis,
    Buffer,
    Expr,
    Group,
    Load,
    Member,
    Nest,
    Program,
    Schedule,
    SharedLoop,
    Statement,
    buffers_across_groups,
)
from glia.tile.masked_columns import (
    MASKED,
    KeptColumns,
    kept_columns,
    masked_number,
    number_elsewhere,
    parts,
)
from glia.tile.nest_rewriting import (
    NO_NAMES,
    map_leaves,
    substitute_axes,
    with_replacements,
)

MOST_RANGES = 16  # of the rows of a group, each with instructions of its own
LEAST_BLOCKS = 4  # of a range that is in no loop, if there are more: fewer do not overlap
WORTH_SHARE = 0.9  # of all columns of all rows: with more, nothing is gained
NOTE = (
    "what a mask by affine conditions hides is not computed; where the mask is a number of "
    f"{MASKED:.0e} or less, it stands for minus infinity"
)


def skip_masked_blocks(program: Program, options: CompileOptions) -> Program:
    """The program with what masks make constant left out of groups, where nothing depends on it."""
    is_divided = False
    for group in program.groups:
        found = None if group.is_whole else _GroupInRanges(program, group).divided()
        if found is not None:
            program, is_divided = found, True
    is_new = is_divided and NOTE not in program.notes
    return replace(program, notes=(*program.notes, NOTE)) if is_new else program


def kept_share(program: Program, group: Group, nests: Iterable[Nest]) -> float:
    """The part of its columns that a group of nests computes once divided, as the only group."""
    share = _GroupInRanges(replace(program, groups=(group,)), group, nests).share()
    return share if share <= WORTH_SHARE else 1.0


def keep_masked_blocks(
    program: Program, options: CompileOptions, error: Exception, attempt: int
) -> Program | None:
    """The program in whose groups that cannot be emitted nothing is left out; None without any."""
    misfits = error.choices if isinstance(error, Misfit) else {}
    groups = list(program.groups)
    for position, group in enumerate(program.groups):
        is_blamed = not group.is_whole and any(_is_of(name, group) for name in misfits)
        if is_blamed and _GroupInRanges(program, group).divided() is not None:
            groups[position] = replace(group, is_whole=True)
    return replace(program, groups=tuple(groups)) if tuple(groups) != program.groups else None


@dataclass(frozen=True)
class _Columns:
    """A nest's axis over masked columns, and which of the buffers it reads or writes have them."""

    axis: str
    dims: Mapping[str, int]  # by buffer, the dimension of the columns


@dataclass(frozen=True)
class _Range:
    """Rows first .. last - 1, the columns that any of them keeps, and those that all keep."""

    first: int
    last: int
    some: tuple[int, int]
    every: tuple[int, int]


@dataclass
class _Mask:
    """The nest of a group with a mask, its choices by it, and the columns that it keeps."""

    nest: Nest
    choices: list[Apply]
    numbers: dict[int, float]
    row: str
    column: str
    kept: KeptColumns
    values: dict[int, Expr] = field(default_factory=dict)  # what is chosen where it is kept


class _GroupInRanges:
    """Divides the rows of one group into ranges."""

    def __init__(self, program: Program, group: Group, nests: Iterable[Nest] = ()) -> None:
        self.program = program
        self.group = group
        names = {member.nest for _, member in group.members()}
        self.nests = {each.name: each for each in nests or program.nests() if each.name in names}
        self.members = [(loops, member) for loops, member in group.members()]

    @cached_property
    def outside(self) -> frozenset[str]:
        """The buffers that others than nests of the group access."""
        return buffers_across_groups(self.program)

    def divided(self) -> Program | None:
        """The program with the group in ranges; None where that gains nothing."""
        found = self.ranges()
        if found is None or self.share() > WORTH_SHARE:
            return None
        return self._built(*found)

    def share(self) -> float:
        """The part of all columns of all rows that ranges leave."""
        found = self.ranges()
        if found is None:
            return 1.0
        mask, _, ranges = found
        left = sum((each.last - each.first) * (each.some[1] - each.some[0]) for each in ranges)
        return left / (self.members[0][0][-1].extent * mask.kept.columns)

    def ranges(self) -> tuple[_Mask, dict[str, _Columns], list[_Range]] | None:
        """(the mask, by nest the masked columns, ranges of rows); None where none can be."""
        loops = self.members[0][0]
        if any(around != loops for around, _ in self.members) or loops[-1].block != PARTITIONS:
            return None
        mask = next((m for _, each in self.members if (m := self._mask(each))), None)
        columns = None if mask is None else self._columns(mask)
        if mask is None or columns is None:
            return None
        return mask, columns, self._ranges(mask, loops[-1])

    def _mask(self, member: Member) -> _Mask | None:
        """What a nest masks along one of its axes, if anything."""
        nest, row = self.nests[member.nest], member.axes[-1]
        extents = nest.extents
        found: _Mask | None = None
        for part in [*parts(nest.finish), *parts(nest.body)]:
            choice = masked(part, extents)
            if choice is None:
                continue
            conditions, value, number = choice
            axes = {a for each in conditions for a in each.difference.variables} - {row}
            if len(axes) != 1 or (found is not None and axes != {found.column}):
                continue
            (column,) = axes
            kept = kept_columns(conditions, row, column, extents[row], extents[column])
            if kept is None or found is not None:
                continue
            found = _Mask(nest, [part], {id(part): masked_number(number)}, row, column, kept)
            found.values[id(part)] = value
        parallel = {axis.name for axis in nest.parallel_axes}
        return found if found is not None and found.column in parallel else None

    # --- what depends on masked columns -----------------------------------------------------------

    def _columns(self, mask: _Mask) -> dict[str, _Columns] | None:
        """By nest, its axis over the masked columns.

        None where some result depends on what the mask puts there.
        """
        found: dict[str, _Columns] = {}
        numbers: dict[str, float] = {}
        dims: dict[str, int] = {}
        for _, member in self.members:
            nest = self.nests[member.nest]
            axis = mask.column if nest is mask.nest else self._axis(nest, member, dims)
            if axis is None:
                return None
            if not axis:
                continue
            inner = mask.numbers if nest is mask.nest else {}
            value = number_elsewhere(nest.body, inner, numbers)
            reduction, target = nest.reduction, nest.target
            found[nest.name] = _Columns(axis, dict(dims))
            if reduction is not None and axis in reduction.axes:
                if value != identity(reduction.function, reduction.dtype):
                    return None
                continue
            if reduction is not None or nest.finish is not None:
                value = number_elsewhere(nest.finish, inner, numbers) if nest.finish else None
            named = [d for d, e in enumerate(target.index) if e.coefficient(axis)]
            is_plain = len(named) == 1 and target.index[named[0]] == Affine.of(axis)
            if value is None or not is_plain or not self._is_internal(target.buffer):
                return None
            numbers[target.buffer], dims[target.buffer] = value, named[0]
            found[nest.name] = _Columns(axis, dict(dims))
        return found

    def _axis(self, nest: Nest, member: Member, dims: Mapping[str, int]) -> str | None:
        """The axis of a nest over masked columns, "" without any; None where it is no whole axis.

        Its rows have to be those of the group.
        """
        axes = set()
        for load in nest.loads:
            if load.buffer not in dims:
                continue
            index = load.index[dims[load.buffer]]
            if len(index.terms) != 1 or index != Affine.of(index.terms[0][0]) or load.guards:
                return None
            axes.add(index.terms[0][0])
        if len(axes) > 1:
            return None
        return min(axes, default="")

    def _is_internal(self, name: str) -> bool:
        return name in self.group.on_chip and name not in self.outside

    # --- ranges -----------------------------------------------------------------------------------

    def _ranges(self, mask: _Mask, loop: SharedLoop) -> list[_Range]:
        """Ranges of rows, as many blocks each, those of equal columns together."""
        blocks = -(-loop.extent // loop.block)
        is_in_loop = len(self.members[0][0]) > 1
        least = 1 if is_in_loop or blocks < 2 * LEAST_BLOCKS else LEAST_BLOCKS
        rows = max(least, -(-blocks // MOST_RANGES)) * loop.block
        found: list[_Range] = []
        for first in range(0, loop.extent, rows):
            last = min(first + rows, loop.extent)
            low, high = mask.kept.some(first, last)
            some = low // PARTITIONS * PARTITIONS, min(_up(high), mask.kept.columns)
            low, high = mask.kept.every(first, last)
            every = _up(low), high if high == mask.kept.columns else high // PARTITIONS * PARTITIONS
            each = _Range(first, last, some, every if every[0] < every[1] else (some[0], some[0]))
            if found and (found[-1].some, found[-1].every) == (each.some, each.every):
                each = replace(each, first=found.pop().first)
            found.append(each)
        return found

    # --- the program ------------------------------------------------------------------------------

    def _built(
        self, mask: _Mask, columns: Mapping[str, _Columns], ranges: Sequence[_Range]
    ) -> Program | None:
        """The program with ranges in place of the group, the one with most columns first."""
        rows = self._row_dims()
        if rows is None:
            return None
        widest = sorted(ranges, key=lambda each: each.some[0] - each.some[1])
        built = [
            _RangeBuilder(self, mask, columns, rows, each, number)
            for number, each in enumerate(widest)
        ]
        for each in built:
            each.build()
        nests = [nest for each in built for nest in each.nests]
        origins = {n: origin for each in built for n, origin in each.origins.items()}
        buffers = {n: b for n, b in self.program.buffers.items() if n not in rows}
        schedules = {n: s for n, s in self.program.schedules.items() if n not in self.nests}
        for each in built:
            buffers |= each.buffers
        for nest in nests:
            own = self.program.schedules[origins[nest.name]]
            schedules[nest.name] = _fitted(own, nest.extents)
        groups: list[Group] = []
        for group in self.program.groups:
            groups += self._groups(built) if group is self.group else [group]
        body = _replaced(self.program.body, self.nests, nests)
        found = replace(
            self.program, body=body, buffers=buffers, schedules=schedules, groups=tuple(groups)
        )
        if any(why_illegal(group, found) for group in groups if group not in self.program.groups):
            return None
        return found

    def _row_dims(self) -> dict[str, int] | None:
        """By buffer of the group alone, the dimension of the rows; None where one has none."""
        found: dict[str, int] = {}
        for _, member in self.members:
            row = Affine.of(member.axes[-1])
            target = self.nests[member.nest].target
            if self._is_internal(target.buffer):
                if row not in target.index:
                    return None
                found[target.buffer] = target.index.index(row)
        for _, member in self.members:
            for access in self.nests[member.nest].accesses:
                dim = found.get(access.buffer)
                if dim is not None and access.index[dim] != Affine.of(member.axes[-1]):
                    return None
        return found

    def _groups(self, built: Sequence[_RangeBuilder]) -> list[Group]:
        """The ranges inside of the outer loops, each a group of its own where there are none."""
        *outer, inner = self.members[0][0]
        loops = tuple(
            replace(inner, extent=each.extent, body=tuple(each.members)) for each in built
        )
        on_chip = [tuple(map(each.own_name, self.group.on_chip)) for each in built]
        if not outer:
            return [
                Group(f"{self.group.name}.{number}", loop, names)
                for number, (loop, names) in enumerate(zip(loops, on_chip, strict=True))
            ]
        for loop in reversed(outer):
            loops = (replace(loop, body=loops),)
        return [replace(self.group, loop=loops[0], on_chip=sum(on_chip, ()))]


class _RangeBuilder:
    """Builds the nests and members of a group for one range of rows."""

    def __init__(
        self,
        group: _GroupInRanges,
        mask: _Mask,
        columns: Mapping[str, _Columns],
        row_dims: Mapping[str, int],
        rows: _Range,
        number: int,
    ) -> None:
        self.group = group
        self.mask = mask
        self.columns = columns
        self.row_dims = row_dims
        self.rows = rows
        self.number = number
        self.extent = rows.last - rows.first
        self.nests: list[Nest] = []
        self.members: list[Member] = []
        self.buffers: dict[str, Buffer] = {}
        self.origins: dict[str, str] = {}

    def own_name(self, name: str) -> str:
        """The name of a buffer for these rows."""
        return f"{name}.r{self.number}" if name in self.row_dims else name

    def build(self) -> None:
        """Add all nests, in order."""
        for _, member in self.group.members:
            nest = self.group.nests[member.nest]
            if nest is not self.mask.nest:
                self._add(nest, member, self.rows.some, f"r{self.number}")
                continue
            low, high = self.rows.some
            first, last = self.rows.every
            kept = self._without_choice(nest)
            spans = ((nest, low, first), (kept, first, last), (nest, last, high))
            for part, (chosen, start, end) in enumerate(spans):
                if start < end:
                    self._add(chosen, member, (start, end), f"r{self.number}.{part}")

    def _without_choice(self, nest: Nest) -> Nest:
        """The nest with what is chosen where the mask holds."""
        body = _with_parts(nest.body, self.mask.values)
        return replace(
            nest, body=body, finish=nest.finish and _with_parts(nest.finish, self.mask.values)
        )

    def _add(self, nest: Nest, member: Member, span: tuple[int, int], suffix: str) -> None:
        """Add a nest over the rows of the range and over some of the columns."""
        row, columns = member.axes[-1], self.columns.get(member.nest)
        extents = {**nest.extents, row: self.extent}
        moved = {row: Affine.of(row) + self.rows.first}
        if columns is not None:
            extents[columns.axis] = span[1] - span[0]
            moved[columns.axis] = Affine.of(columns.axis) + span[0]
        found = substitute_axes(nest, moved, NO_NAMES)
        for name in {access.buffer for access in nest.accesses} & self.row_dims.keys():
            found = self._with_own_buffer(found, name, columns)
        axes = tuple(Axis(axis.name, extents[axis.name]) for axis in nest.axes)
        found = replace(found, name=f"{nest.name}.{suffix}", axes=axes)
        self.nests.append(found)
        self.origins[found.name] = nest.name
        fitted = _fitted(member.schedule, extents)
        self.members.append(replace(member, nest=found.name, schedule=fitted))

    def _with_own_buffer(self, nest: Nest, name: str, columns: _Columns | None) -> Nest:
        """The nest accessing what the range has of a buffer."""
        start = {self.row_dims[name]: self.rows.first}
        shape = list(self.group.program.buffers[name].shape)
        shape[self.row_dims[name]] = self.extent
        if columns is not None and name in columns.dims:
            low, high = self.rows.some
            start[columns.dims[name]] = low
            shape[columns.dims[name]] = high - low
        own = self.own_name(name)
        if nest.target.buffer == name:
            self.buffers[own] = replace(
                self.group.program.buffers[name], name=own, shape=tuple(shape)
            )

        def shifted(index: Sequence[Affine]) -> tuple[Affine, ...]:
            return tuple(e - start.get(d, 0) for d, e in enumerate(index))

        def change(leaf: Expr) -> Expr:
            if not isinstance(leaf, Load) or leaf.buffer != name:
                return leaf
            return replace(leaf, buffer=own, index=shifted(leaf.index))

        target = nest.target
        if target.buffer == name:
            target = replace(target, buffer=own, index=shifted(target.index))
        finish = nest.finish and map_leaves(nest.finish, change)
        return replace(nest, body=map_leaves(nest.body, change), finish=finish, target=target)


def _is_of(name: str, group: Group) -> bool:
    """Whether a group of this name is a group, or ranges of its rows."""
    return name == group.name or name.startswith(f"{group.name}.")


def _up(column: int) -> int:
    return -(-column // PARTITIONS) * PARTITIONS


def _fitted(schedule: Schedule, extents: Mapping[str, int]) -> Schedule:
    """A schedule for smaller extents."""
    tiles = {axis: min(tile, extents[axis]) for axis, tile in schedule.tiles.items()}
    order = tuple(axis for axis in schedule.order if tiles.get(axis, extents[axis]) < extents[axis])
    return replace(schedule, tiles=tiles, order=order)


def _with_parts(expression: Expr, values: Mapping[int, Expr]) -> Expr:
    """The expression with parts, by id, replaced."""
    done: dict[int, Expr] = {}

    def visit(part: Expr) -> Expr:
        if id(part) in values:
            return visit(values[id(part)])
        if not isinstance(part, Apply):
            return part
        if id(part) not in done:
            done[id(part)] = replace(part, args=tuple(map(visit, part.args)))
        return done[id(part)]

    return visit(expression)


def _replaced(
    body: tuple[Statement, ...], names: Container[str], nests: Sequence[Nest]
) -> tuple[Statement, ...]:
    """The statements with nests in place of the first of those that are named."""
    waiting = iter([nests])
    return with_replacements(
        body, lambda each: next(waiting, ()) if each.name in names else (each,)
    )
