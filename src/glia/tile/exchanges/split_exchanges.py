"""Exchanges that all work waits for travel in parts, each beside the work on the others.

Where ranks exchange what a nest makes, and rows of the result are all that each following nest
needs for rows of its own, everything from that nest to where rows meet again runs in parts: the
first rows travel while others are computed. So does what comes before that nest, as far back as its
rows need no others: the queries of attention, and its scores. Weights are read by each part.

Shares say which part of the rows each part has. While the first part travels before any work, and
the last one after all of it, engines wait: where both do, small ones at the ends hide more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from glia.arch.instances import get_target
from glia.base.affine import Affine
from glia.options import CompileOptions
from glia.tile.boxes import Box
from glia.tile.cores.divide import moved
from glia.tile.estimated_time import estimated_ns
from glia.tile.exchanges.parts import part_name
from glia.tile.exchanges.start_exchanges import is_sent
from glia.tile.ir import (
    Exchange,
    Load,
    Nest,
    Program,
    Statement,
    Store,
    accessed_buffers,
    ordered_axes,
)
from glia.tile.nest_rewriting import rename_buffer, within_values

Shares = tuple[Fraction, ...]  # of the rows, by part; together they are 1

HALVES: Shares = (Fraction(1, 2),) * 2
"""More parts hide more, and their products of fewer rows take longer than that saves."""
LEAST_ROWS = 64  # of a part whose time is not known


def split_exchanges(
    program: Program, options: CompileOptions, shares: Shares = HALVES, least_rows: int = LEAST_ROWS
) -> Program:
    """The program with exchanges of much data in parts of at least so many rows."""
    for name in [each.name for each in program.body if isinstance(each, Exchange)]:
        found = _Region(program, options, name, shares, least_rows)
        if found.grow():
            program = found.split()
    return program


def begins_with_exchange(program: Program, options: CompileOptions) -> bool:
    """Whether the first exchange that can run in parts takes longer than its part of the work
    before it.
    """
    arch = get_target(options.target).arch
    for position, each in enumerate(program.body):
        if isinstance(each, Exchange):
            found = _Region(program, options, each.name, HALVES, 1)
            if found.grow():
                before = [s for s in program.body[:position] if s.name in found.axes]
                work_ns = sum(estimated_ns(s, program.buffers, arch) for s in before)
                return work_ns < estimated_ns(each, program.buffers, arch)
    return False


@dataclass
class _Region:
    """The statements around one exchange that can run in parts.

    `axes` has the axis that is divided, by nest, `dims` the dimension, by buffer.
    """

    program: Program
    options: CompileOptions
    name: str
    shares: Shares
    least_rows: int
    axes: dict[str, str] = field(default_factory=dict)
    exchanges: set[str] = field(default_factory=set)
    dims: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.aliased = {name for pair in self.program.aliases for name in pair}
        self.users: dict[str, list[Statement]] = {}
        for statement in self.program.body:
            for name in accessed_buffers(statement):
                self.users.setdefault(name, []).append(statement)

    def grow(self) -> bool:
        """Find what runs in parts; whether it is worth it."""
        at = next((s for s in self.program.body if s.name == self.name), None)
        if not isinstance(at, Exchange) or not self._is_worth(at):
            return False
        (given,) = at.inputs
        for dimension, extent in enumerate(self.program.buffers[given].shape):
            rows = [share * extent for share in self.shares]
            if (
                all(each.denominator == 1 and each % self.least_rows == 0 for each in rows)
                and _is_by_element(at, dimension)
                and self._is_made_in_parts(given, dimension)
            ):
                (maker,) = [s for s in self.users[given] if isinstance(s, Nest)]
                self.axes = {maker.name: _axis(maker.target, dimension)}
                self.exchanges, self.dims = set(), {given: dimension}
                if self._follow_exchange(at, dimension) and self._is_closed():
                    self._grow_back(maker)
                    return True
        return False

    def _grow_back(self, nest: Nest) -> None:
        """Add the nests that make what a nest reads, and so on, where nothing else reads it."""
        for name in dict.fromkeys(load.buffer for load in nest.loads):
            maker = self._maker_of_rows(name)
            if maker is not None:
                self._grow_back(maker)

    def _maker_of_rows(self, name: str) -> Nest | None:
        """The nest that makes a temporary, added; None where it is not made and read by rows."""
        makers = [s for s in self.users[name] if _makes(s, name)]
        readers = [s for s in self.users[name] if not _makes(s, name)]
        if self.program.buffers[name].role != "temporary" or name in self.aliased:
            return None
        if len(makers) != 1 or not isinstance(makers[0], Nest) or makers[0].name in self.axes:
            return None
        for dimension in range(len(self.program.buffers[name].shape)):
            axis = _axis_of(makers[0], [makers[0].target], dimension)
            if axis and all(self._reads_rows(each, name, dimension) for each in readers):
                self.axes[makers[0].name] = axis
                self.dims[name] = dimension
                return makers[0]
        return None

    def _reads_rows(self, reader: Statement, name: str, dimension: int) -> bool:
        """Whether a statement runs in parts, each of which reads rows of its own of a buffer."""
        axis = self.axes.get(reader.name, "") if isinstance(reader, Nest) else ""
        return bool(axis) and self._axis_read(reader, name, dimension) == axis  # type: ignore[arg-type]

    def _is_closed(self) -> bool:
        """Whether what the exchanges send and get is all accessed in parts."""
        found = [each for each in self.program.body if each.name in self.exchanges]
        names = {name for each in found for name in accessed_buffers(each)}
        return all(name in self.dims and self._is_inside(name) for name in names)

    def _is_worth(self, exchange: Exchange) -> bool:
        """Whether its bytes take longer than what each exchange of one tensor takes at least."""
        if not is_sent(exchange) or len(exchange.inputs) != 1:
            return False
        arch = get_target(self.options.target).arch
        buffers = self.program.buffers
        tiny = {n: replace(buffers[n], shape=()) for n in (*exchange.inputs, *exchange.outputs)}
        fixed_ns = estimated_ns(exchange, tiny, arch)
        return estimated_ns(exchange, buffers, arch) >= len(HALVES) * fixed_ns

    def _is_made_in_parts(self, name: str, dimension: int) -> bool:
        """Whether one nest makes a temporary, for an exchange alone, row by row."""
        users = self.users[name]
        makers = [s for s in users if isinstance(s, Nest) and s.target.buffer == name]
        is_own = self.program.buffers[name].role == "temporary" and len(users) == 2
        return (
            is_own and len(makers) == 1 and bool(_axis_of(makers[0], [makers[0].target], dimension))
        )

    def _follow_exchange(self, exchange: Exchange, dimension: int) -> bool:
        """Add an exchange, and what reads its rows; False where something needs all of them."""
        (made,) = exchange.outputs
        readers = [s for s in self.users[made] if s is not exchange]
        if self.program.buffers[made].role != "temporary" or not all(
            isinstance(s, Nest) and self._axis_read(s, made, dimension) for s in readers
        ):
            return False
        self.exchanges.add(exchange.name)
        self.dims[made] = dimension
        return all(self._follow(made, dimension))

    def _follow(self, name: str, dimension: int) -> list[bool]:
        """Add the nests that read rows of a buffer for rows of their own, and so on."""
        done = []
        for statement in self.users[name]:
            if isinstance(statement, Exchange) and statement.name not in self.exchanges:
                is_reader = (name,) == statement.inputs and _is_by_element(statement, dimension)
                if is_reader and self._is_made_in_parts(name, dimension):
                    self._follow_exchange(statement, dimension)
            if not isinstance(statement, Nest) or statement.target.buffer == name:
                continue
            axis = self._axis_read(statement, name, dimension)
            if statement.name in self.axes:
                done.append(self.axes[statement.name] == axis)
            elif axis:
                done += self._add(statement, axis)
        return done

    def _add(self, nest: Nest, axis: str) -> list[bool]:
        """Add a nest; what it makes is in parts where they lie along one dimension."""
        target = nest.target
        whole = [d for d, index in enumerate(target.index) if axis in index.variables]
        if len(whole) != 1 or _axis(target, whole[0]) != axis or target.buffer in self.aliased:
            return []
        makers = [s for s in self.users[target.buffer] if _makes(s, target.buffer)]
        if len(makers) != 1:
            return []
        self.axes[nest.name] = axis
        self.dims[target.buffer] = whole[0]
        return self._follow(target.buffer, whole[0])

    def _axis_read(self, nest: Nest, name: str, dimension: int) -> str:
        """The axis that counts the rows of all loads of a buffer; "" for none."""
        return _axis_of(nest, [load for load in nest.loads if load.buffer == name], dimension)

    # --- the program ------------------------------------------------------------------------------

    def split(self) -> Program:
        """The program with the region in parts."""
        own = {name: d for name, d in self.dims.items() if self._is_inside(name)}
        buffers = {n: b for n, b in self.program.buffers.items() if n not in own}
        for name, dimension in own.items():
            for part in range(len(self.shares)):
                shape = [*self.program.buffers[name].shape]
                first, end = self._rows(shape[dimension], part)
                shape[dimension] = end - first
                made = replace(
                    self.program.buffers[name], name=part_name(name, part), shape=(*shape,)
                )
                buffers[made.name] = made
        body: list[Statement] = []
        for statement in self.program.body:
            if statement.name in self.axes or statement.name in self.exchanges:
                body += [self._part(statement, part, own) for part in range(len(self.shares))]
            else:
                body.append(statement)
        return replace(self.program, buffers=buffers, body=(*body,))

    def _is_inside(self, name: str) -> bool:
        """Whether only what runs in parts accesses a buffer."""
        inside = self.axes.keys() | self.exchanges
        is_own = self.program.buffers[name].role == "temporary"
        return is_own and all(
            s.name in inside and (not isinstance(s, Nest) or self._is_by_rows(s, name))
            for s in self.users[name]
        )

    def _is_by_rows(self, nest: Nest, name: str) -> bool:
        every: list[Load | Store] = [*nest.loads, nest.target]
        accesses = [access for access in every if access.buffer == name]
        return _axis_of(nest, accesses, self.dims[name]) == self.axes[nest.name]

    def _part(self, statement: Statement, part: int, own: dict[str, int]) -> Statement:
        """One part of a statement."""
        if isinstance(statement, Nest):
            axis = self.axes[statement.name]
            nest = within_values(statement, axis, *self._rows(statement.extents[axis], part))
            kept = {n: self._box(n, part) for n in own if n in accessed_buffers(statement)}
            statement = moved(nest, kept, self.program.buffers)
        for name in own.keys() & accessed_buffers(statement):
            statement = rename_buffer(statement, name, part_name(name, part))
        return replace(statement, name=part_name(statement.name, part))

    def _rows(self, extent: int, part: int) -> tuple[int, int]:
        """The first row of a part, and the end of its rows."""
        return int(sum(self.shares[:part]) * extent), int(sum(self.shares[: part + 1]) * extent)

    def _box(self, name: str, part: int) -> Box:
        buffer, dimension = self.program.buffers[name], self.dims[name]
        return tuple(
            self._rows(extent, part) if d == dimension else (0, extent)
            for d, extent in enumerate(buffer.shape)
        )


def _is_by_element(exchange: Exchange, dimension: int) -> bool:
    """Whether parts along a dimension are exchanged as the whole is."""
    return exchange.kind == "all-reduce" or (exchange.kind == "all-to-all" and dimension > 0)


def _makes(statement: Statement, name: str) -> bool:
    """Whether a statement is not merely a reader of a buffer."""
    if isinstance(statement, Nest):
        return statement.target.buffer == name
    return not isinstance(statement, Exchange) or name in statement.outputs


def _axis(access: Load | Store, dimension: int) -> str:
    """The axis that alone, as it is, counts a dimension of an access; "" for none."""
    index = access.index[dimension]
    is_plain = len(index.terms) == 1 and index == Affine.of(index.terms[0][0])
    is_moved = any(offset.dimension == dimension for offset in access.dynamic)
    return index.terms[0][0] if is_plain and not is_moved else ""


def _axis_of(nest: Nest, accesses: Sequence[Load | Store], dimension: int) -> str:
    """The parallel axis that counts a dimension of all accesses, all of it; "" for none."""
    found = {_axis(access, dimension) for access in accesses}
    axis = found.pop() if len(found) == 1 else ""
    is_free = axis in {each.name for each in nest.parallel_axes} and axis not in ordered_axes(nest)
    return axis if is_free and not nest.target.combine and not nest.target.dynamic else ""
