"""Nests over the same rows that run block by block, so that what is between them stays in SBUF."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.base.affine import Affine
from glia.base.errors import Misfit
from glia.options import CompileOptions
from glia.tile.contraction import PARTITIONS, row_dim
from glia.tile.group_legal import GroupedNest, accesses, data_loads, why_illegal_together
from glia.tile.ir import (
    Branch,
    Group,
    Layout,
    Load,
    Member,
    Nest,
    Program,
    Schedule,
    SharedLoop,
    Statement,
    While,
    accessed_buffers,
    control_buffers,
)
from glia.tile.passes.choose_layouts import choose_layouts
from glia.tile.passes.schedule import temporary_bytes

HOIST_SHARE = 0.2  # of SBUF, for one load that all iterations of a group read
GROUP_SHARE = 0.8  # of SBUF, for the tiles of all iterations of a group that overlap
MOST_COPIES = 4
GOOD_BLOCK_BYTES = 16 * 1024  # of the largest buffer, per partition and iteration
WORKING_BYTES = 32 * 1024  # per partition, for the temporaries of one nest
LEAST_SAVED_BYTES = 256 * 1024  # of HBM traffic
LEAST_MOVED_BYTES = 4 * 1024 * 1024  # by a nest that is a group of its own
MOST_MEMBERS = 24


def group_nests(program: Program, options: CompileOptions) -> Program:
    """Group consecutive nests where that saves traffic with HBM and their rows fit on chip."""
    arch = get_target(options.target).arch
    finder = _Finder(program, arch, choose_layouts(program, options).layouts)
    return replace(program, groups=tuple(finder.groups(program.body)))


def drop_groups(
    program: Program, options: CompileOptions, error: Exception, attempt: int
) -> Program | None:
    """The program without the groups that cannot be emitted; None when there are none of those."""
    misfits = error.choices if isinstance(error, Misfit) else {}
    groups = tuple(each for each in program.groups if each.name not in misfits)
    if len(groups) == len(program.groups):
        return None
    notes = tuple(
        f"the nests of {group.name} run one by one: {misfits[group.name]}"
        for group in program.groups
        if group.name in misfits
    )
    return replace(program, groups=groups, notes=(*program.notes, *notes))


@dataclass(frozen=True)
class _Chain:
    """Nests that have axes in common: each of `shared` is one axis of every nest."""

    nests: tuple[Nest, ...]
    shared: tuple[tuple[str, ...], ...]

    def extent(self, position: int) -> int:
        return self.nests[0].extents[self.shared[position][0]]

    def extended(self, nest: Nest) -> _Chain | None:
        """The chain with one more nest; None where they have no axis in common."""
        kept: list[tuple[str, ...]] = []
        for axes in self.shared:
            axis = self._counterpart(axes, nest)
            if axis and all(axis != other[-1] for other in kept):
                kept.append((*axes, axis))
        return _Chain((*self.nests, nest), tuple(kept)) if kept else None

    def _counterpart(self, axes: tuple[str, ...], nest: Nest) -> str:
        """The axis of a nest that indexes what the chain writes or reads as these axes do."""
        parallel = {axis.name: axis.extent for axis in nest.parallel_axes}
        loads = data_loads(nest)
        found: set[str] = set()
        for writes in (True, False):
            for member, axis in zip(self.nests, axes, strict=True):
                accesses = [member.target] if writes else data_loads(member)
                for access in accesses:
                    for load in (*loads, *(() if writes else (nest.target,))):
                        if load.buffer == access.buffer:
                            found |= _same_place(access.index, load.index, axis)
            if found:
                break
        extent = self.nests[0].extents[axes[0]]
        return next(iter(found)) if len(found) == 1 and parallel.get(min(found)) == extent else ""


def _same_place(here: Sequence[Affine], there: Sequence[Affine], axis: str) -> set[str]:
    """The axes of another index where the first has `axis` alone."""
    found = set()
    for one, other in zip(here, there, strict=True):
        if one == Affine.of(axis):
            found.add(other.terms[0][0] if other.terms and not other.constant else "")
    return found


class _Finder:
    """Finds the groups of a program; `layouts` has what would be resident without any."""

    def __init__(self, program: Program, arch: Arch, layouts: Mapping[str, Layout]) -> None:
        self.program = program
        self.layouts = layouts
        self.sbuf_bytes = arch.sbuf_usable_bytes_per_partition
        self.count = 0
        self.users: dict[str, set[str]] = {name: {""} for name in control_buffers(program.body)}
        for nest in program.nests():
            for name in accessed_buffers(nest):
                self.users.setdefault(name, set()).add(nest.name)

    def groups(self, body: Sequence[Statement]) -> Iterator[Group]:
        """The groups of a block and of the blocks inside of it."""
        run: list[Nest] = []
        for statement in body:
            if isinstance(statement, Nest) and self._is_eligible(statement):
                run.append(statement)
                continue
            yield from self._groups_of_run(run)
            run = []
            if isinstance(statement, While):
                yield from self.groups(statement.condition)
                yield from self.groups(statement.body)
            elif isinstance(statement, Branch):
                for arm in statement.arms:
                    yield from self.groups(arm)
        yield from self._groups_of_run(run)

    def _is_eligible(self, nest: Nest) -> bool:
        schedule = self.program.schedules[nest.name]
        is_plain = not nest.target.dynamic and not nest.target.combine
        is_direct = not any(load.dynamic for load in data_loads(nest))
        return schedule.engine == "vector" and is_plain and is_direct and bool(schedule.partition)

    def _groups_of_run(self, run: Sequence[Nest]) -> Iterator[Group]:
        """Groups of nests that follow each other, each as long as it can be."""
        start = 0
        while start < len(run):
            chains = self._chains(run[start : start + MOST_MEMBERS])
            group = next(filter(None, map(self._group, reversed(chains))), None)
            if group is None:
                start += 1
                continue
            yield group
            start += sum(1 for _ in group.members())

    def _chains(self, nests: Sequence[Nest]) -> list[_Chain]:
        """The chains that begin with the first nest, of one nest and more."""
        first = nests[0]
        axes = tuple((axis.name,) for axis in first.parallel_axes if axis.extent > 1)
        chain = _Chain((first,), axes)
        found = [chain]
        for nest in nests[1:]:
            longer = chain.extended(nest)
            if longer is None or _rows(longer) < _rows(chain):
                break
            chain = longer
            found.append(chain)
        return found

    # --- one group --------------------------------------------------------------------------------

    def _group(self, chain: _Chain) -> Group | None:
        """The group of a chain, or None where it is illegal, does not fit or does not pay."""
        on_chip = self._on_chip(chain)
        if on_chip is None or not self._pays(chain):
            return None
        for rows in sorted(range(len(chain.shared)), key=lambda s: -self._votes(chain, s)):
            plan = _Plan(self, chain, rows, on_chip)
            if not plan.lines_up():
                continue
            blocks = plan.choose_blocks()
            if blocks is None:
                continue
            loop = plan.loop(blocks)
            if loop is None:
                continue
            name = f"rows.{self.count}"
            group = Group(name, loop, on_chip)
            nests = {nest.name: nest for nest in chain.nests}
            grouped = [GroupedNest(nests[m.nest], around, m.axes) for around, m in group.members()]
            if not why_illegal_together(grouped, on_chip, self.program):
                self.count += 1
                return group
        return None

    def _votes(self, chain: _Chain, position: int) -> int:
        """How many nests have a shared axis on their partitions, times the rows that it fills."""
        schedules = self.program.schedules
        axes = zip(chain.nests, chain.shared[position], strict=True)
        votes = sum(schedules[nest.name].partition == axis for nest, axis in axes)
        return (1 + votes) * min(PARTITIONS, chain.extent(position))

    def _on_chip(self, chain: _Chain) -> tuple[str, ...] | None:
        """The buffers that one nest writes and others read; None where several write such a one."""
        written = Counter(nest.target.buffer for nest in chain.nests)
        read = {load.buffer for nest in chain.nests for load in data_loads(nest)}
        found = tuple(name for name in written if name in read)
        return found if all(written[name] == 1 for name in found) else None

    def _pays(self, chain: _Chain) -> bool:
        """Whether a group saves traffic; one nest gains by overlap where it moves much."""
        if len(chain.nests) > 1:
            return self._saved_bytes(chain) >= LEAST_SAVED_BYTES
        names = accessed_buffers(chain.nests[0]) - set(self.layouts)
        return sum(self.program.buffers[name].bytes for name in names) >= LEAST_MOVED_BYTES

    def _saved_bytes(self, chain: _Chain) -> int:
        """The traffic with HBM that the nests have one by one, and not together."""
        names = {nest.name for nest in chain.nests}
        written = {nest.target.buffer for nest in chain.nests}
        saved = 0
        for name, users in self.users.items():
            buffer = self.program.buffers[name]
            if name in self.layouts or not users & names:
                continue
            readers = sum(
                any(load.buffer == name for load in data_loads(nest)) for nest in chain.nests
            )
            if name in written:
                is_internal = users <= names and buffer.role == "temporary"
                saved += buffer.bytes * (readers + is_internal)
            else:
                saved += buffer.bytes * max(0, readers - 1)
        return saved


def _rows(chain: _Chain) -> int:
    """The partitions that some shared axis can fill."""
    return max(min(PARTITIONS, chain.extent(s)) for s in range(len(chain.shared)))


class _Plan:
    """The blocks, loops and schedules of a chain with one shared axis on the partitions."""

    def __init__(self, finder: _Finder, chain: _Chain, rows: int, on_chip: Sequence[str]) -> None:
        self.finder = finder
        self.chain = chain
        self.rows = rows
        self.on_chip = on_chip
        self.buffers = finder.program.buffers

    def lines_up(self) -> bool:
        """Whether every buffer that the nests touch has a dimension for the rows, or none of them.

        Where that is the innermost one, DMA would move single elements.
        """
        for nest, axis in zip(self.chain.nests, self.chain.shared[self.rows], strict=True):
            for access in accesses(nest):
                if not any(each.coefficient(axis) for each in access.index):
                    continue
                dimension = row_dim(access.index, axis)
                shape = self.buffers[access.buffer].shape
                is_innermost = math.prod(shape[dimension + 1 :]) == 1 < math.prod(shape[:dimension])
                if dimension < 0 or (is_innermost and access.buffer not in self.on_chip):
                    return False
        return True

    def choose_blocks(self) -> dict[int, int] | None:
        """The block of each shared axis; None where not even the smallest ones fit on chip."""
        extents = {s: self.chain.extent(s) for s in range(len(self.chain.shared))}
        blocks = dict.fromkeys(extents, 1)
        blocks[self.rows] = min(PARTITIONS, extents[self.rows])
        capacity = int(self.finder.sbuf_bytes * GROUP_SHARE)
        own, _, fixed = self._bytes(blocks)
        if own + fixed > capacity:
            return None
        for position in reversed([s for s in extents if s != self.rows]):
            for block in _divisors(extents[position]):
                wider = {**blocks, position: block}
                own, largest, fixed = self._bytes(wider)
                if 2 * own + fixed > capacity or largest > GOOD_BLOCK_BYTES:
                    break
                blocks = wider
            if blocks[position] < extents[position]:
                break
        return blocks

    def _extents_in_block(self, blocks: Mapping[int, int], number: int) -> dict[str, int]:
        """The extents of a nest's axes in one iteration."""
        nest = self.chain.nests[number]
        own = {axes[number]: blocks[s] for s, axes in enumerate(self.chain.shared)}
        return {name: own.get(name, extent) for name, extent in nest.extents.items()}

    def _bytes(self, blocks: Mapping[int, int]) -> tuple[int, int, int]:
        """(bytes per partition of the tiles of an iteration, of the largest, of what all share)."""
        boxes: dict[tuple[str, tuple[int, ...]], tuple[int, bool]] = {}
        temporaries = 0
        for number, nest in enumerate(self.chain.nests):
            within = self._extents_in_block(blocks, number)
            axis = self.chain.shared[self.rows][number]
            looped = [name for name, n in within.items() if n < nest.extents[name]]
            for access in accesses(nest):
                spans = _spans(access.index, within, axis)
                if len(access.index) and not (isinstance(access, Load) and access.guards):
                    key = access.buffer, spans
                else:
                    key = f"{access.buffer} of {nest.name}", spans
                moves = any(each.coefficient(a) for each in access.index for a in looped)
                boxes[key] = math.prod(spans) * self.buffers[access.buffer].dtype.bytes, moves
            swept = math.prod(n for name, n in within.items() if name != axis)
            working = swept * temporary_bytes(nest, axis)
            temporaries = max(temporaries, min(working, WORKING_BYTES))
        moving = [held for held, moves in boxes.values() if moves]
        fixed = sum(held for held, moves in boxes.values() if not moves)
        return sum(moving) + temporaries, max(moving, default=0), fixed

    def loop(self, blocks: Mapping[int, int]) -> SharedLoop | None:
        """The shared loops, the longest innermost, with the nests in it; None without any."""
        trips = {s: -(-self.chain.extent(s) // block) for s, block in blocks.items()}
        order = sorted((s for s in trips if trips[s] > 1), key=lambda s: trips[s])
        if not order:
            return None
        copies = min(MOST_COPIES, trips[order[-1]])
        body: tuple[SharedLoop | Member, ...] = tuple(
            Member(
                nest.name,
                tuple(self.chain.shared[s][number] for s in order),
                self._schedule(blocks, number),
            )
            for number, nest in enumerate(self.chain.nests)
        )
        for s in reversed(order):
            body = (SharedLoop(self.chain.extent(s), blocks[s], body, copies),)
            copies = 1
        (loop,) = body
        assert isinstance(loop, SharedLoop)
        return loop

    def _schedule(self, blocks: Mapping[int, int], number: int) -> Schedule:
        """The schedule of a nest in one iteration: instructions sweep all of it, if they can."""
        nest = self.chain.nests[number]
        rows = self.chain.shared[self.rows][number]
        within = self._extents_in_block(blocks, number)
        swept = [axis.name for axis in (*nest.parallel_axes, *nest.reduced_axes)]
        tiles = {name: within[name] for name in swept}
        most = max(1, WORKING_BYTES // max(1, temporary_bytes(nest, rows)))
        for name in swept:
            if name == rows:
                continue
            elements = math.prod(n for other, n in tiles.items() if other != rows)
            if elements > most:
                tiles[name] = max(1, tiles[name] * most // elements)
        order = tuple(name for name in swept if tiles[name] < within[name])
        return Schedule("vector", rows, tiles, order)


def _spans(index: Sequence[Affine], within: Mapping[str, int], rows: str) -> tuple[int, ...]:
    """The number of values of each dimension that one partition holds of an access."""
    found = []
    for each in index:
        low, high = each.bounds({**within, rows: 1})
        found.append(high - low + 1)
    return tuple(found)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
