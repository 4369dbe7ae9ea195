"""Nests over the same rows that run block by block, so that what is between them stays in SBUF."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from glia.arch.instances import get_target
from glia.base.errors import Misfit
from glia.options import CompileOptions
from glia.tile.contraction import PARTITIONS, are_uniform
from glia.tile.group_legal import (
    GroupedNest,
    why_illegal_together,
    why_not_on_chip,
)
from glia.tile.ir import (
    Group,
    Nest,
    Program,
    Schedule,
    Statement,
    accessed_buffers,
    control_buffers,
    schedules_in_groups,
)
from glia.tile.model_families import FAMILIES
from glia.tile.nest_rewriting import with_blocks
from glia.tile.passes.choose_layouts import choose_layouts
from glia.tile.passes.group_plan import GOOD_BLOCK_BYTES, Chain, GroupPlan, products_in_rows
from glia.tile.passes.schedule import NestScheduler
from glia.tile.passes.skip_masked_blocks import kept_share
from glia.tile.row_search import row_axes

HOIST_SHARE = 0.2  # of SBUF, for one load that all iterations of a group read
LEAST_SAVED_BYTES = 256 * 1024  # of HBM traffic
LEAST_MOVED_BYTES = 4 * 1024 * 1024  # by a nest that is a group of its own
MOST_MEMBERS = 24
MOST_AFTER = 2  # nests among those of a group that have to come after it
MOST_INSTRUCTIONS = 128  # in an iteration with products: of more, too few iterations overlap
MOST_OF_ONE = 1024  # where iterations that do not overlap are worth their traffic


def group_nests(program: Program, options: CompileOptions) -> Program:
    """Group consecutive nests where that saves traffic with HBM and their rows fit on chip."""
    finder = _Finder(program, options)
    body = finder.block(program.body)
    return replace(program, body=body, groups=tuple(finder.found))


def drop_groups(
    program: Program, options: CompileOptions, error: Exception, attempt: int
) -> Program | None:
    """The program without the groups that cannot be emitted; None when there are none of those.

    Of the nests of one with products, those between the products are grouped.
    """
    misfits = error.choices if isinstance(error, Misfit) else {}
    dropped = [each for each in program.groups if each.name in misfits]
    if not dropped:
        return None
    groups = [each for each in program.groups if each.name not in misfits]
    schedules = schedules_in_groups(replace(program, groups=tuple(dropped)))
    names = {
        member.nest
        for group in dropped
        for _, member in group.members()
        if any(schedules[each.nest].engine == "tensor" for _, each in group.members())
    }
    finder = _Finder(program, options, frozenset(names))
    finder.count = len(program.groups)
    finder.block(program.body)
    groups += finder.found
    notes = tuple(
        f"the nests of {group.name} run one by one: {misfits[group.name]}"
        for group in program.groups
        if group.name in misfits
    )
    return replace(program, groups=tuple(groups), notes=(*program.notes, *notes))


def ungroup(
    program: Program, options: CompileOptions, error: Exception, attempt: int
) -> Program | None:
    """The program without groups, whose blocks do not fit beside each other; None without any."""
    if not program.groups:
        return None
    note = f"the nests of {len(program.groups)} groups run one by one, to fit on chip"
    return replace(program, groups=(), notes=(*program.notes, note))


class _Finder:
    """Finds the groups of a program, or without products those of the nests that are `among`."""

    def __init__(
        self, program: Program, options: CompileOptions, among: frozenset[str] | None = None
    ) -> None:
        self.arch = arch = get_target(options.target).arch
        self.program = program
        self.among = among
        self.layouts = choose_layouts(program, options).layouts  # resident without any groups
        self.scheduler = NestScheduler(program, arch, FAMILIES[options.model_type])
        self.sbuf_bytes = arch.sbuf_usable_bytes_per_partition
        self.count = 0
        self.found: list[Group] = []
        self.known_bytes: dict[tuple[str, str], int] = {}  # of the temporaries of nests
        self.users: dict[str, set[str]] = {name: {""} for name in control_buffers(program.body)}
        for nest in program.nests():
            for name in accessed_buffers(nest):
                self.users.setdefault(name, set()).add(nest.name)

    def block(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """A block whose groups, and those of the blocks inside of it, are entered in `found`.

        Nests that a group does not need to wait for come before it.
        """
        result: list[Statement] = []
        run: list[Nest] = []
        for statement in body:
            if isinstance(statement, Nest) and self._is_eligible(statement):
                run.append(statement)
                continue
            result += self._run(run)
            run = []
            result.append(with_blocks(statement, self.block))
        return (*result, *self._run(run))

    def _is_eligible(self, nest: Nest) -> bool:
        schedule = self.program.schedules[nest.name]
        is_plain = not nest.target.dynamic and not nest.target.combine
        is_direct = all(map(are_uniform, nest.loads))
        if schedule.engine == "tensor":
            is_guarded = any(load.guards for load in nest.loads)
            return self.among is None and is_plain and is_direct and not is_guarded
        is_asked = self.among is None or nest.name in self.among
        return is_asked and is_plain and is_direct and bool(schedule.partition)

    def _run(self, run: Sequence[Nest]) -> list[Nest]:
        """Nests that follow each other, in groups that save the most, or are as long as can be."""
        search = _RunSearch(run, self._best, self._is_product)
        result: list[Nest] = []
        at = 0
        while at < len(run):
            cut = search.cut(at)
            if cut > at:
                result += self._run(run[at:cut])
                at = cut
            best = search.group_at(at)
            if best is None:
                result.append(run[at])
                at += 1
                continue
            name = f"rows.{self.count}"
            self.count += 1
            result += self._run(best.before)
            result += best.chain.nests
            self.found.append(replace(best.found.group, name=name))
            at += best.length
            if best.after:
                return result + self._run([*best.after, *run[at:]])
        return result

    def _best(self, run: Sequence[Nest]) -> _Candidate | None:
        """The group that saves the most, of those that begin with the first nest of a run."""
        best: _Candidate | None = None
        chains, ended_by = self._chains(run)
        for chain, before, after in reversed(chains):
            found = self._group(chain)
            has_products = self._has_products(chain)
            last = chain.nests[-1].name
            if isinstance(found, str):
                ended_by = f"{last}: {found}"
            else:
                group = replace(found.group, ended_by=ended_by)
                found = replace(found, group=group)
                candidate = _Candidate(found, chain, before, after, has_products)
                if best is None or candidate.is_better_than(best):
                    best = candidate
                ended_by = f"{last}: a group with it saves less"
            if best and not has_products and best.found.largest_bytes <= GOOD_BLOCK_BYTES:
                break
        return best

    def _chains(
        self, nests: Sequence[Nest]
    ) -> tuple[list[tuple[Chain, list[Nest], list[Nest]]], str]:
        """The chains that begin with the first nest, of one nest and more, and why none is longer.

        With each the nests in between that have nothing to do with those before them, and those
        that have, but not with any after them in the chain.
        """
        first = nests[0]
        axes = tuple((axis.name,) for axis in row_axes(first) if axis.extent > 1)
        chain = Chain((first,), axes)
        before: list[Nest] = []
        after: list[Nest] = []
        found: list[tuple[Chain, list[Nest], list[Nest]]] = [(chain, [], [])]
        for nest in nests[1:]:
            longer = chain.extended(nest) if self._may_precede(nest, after) else None
            if longer is not None and _rows(longer) >= _rows(chain):
                chain = longer
                found.append((chain, [*before], [*after]))
            elif not self._has_products(chain):
                return found, f"{nest.name}: it has no rows in common"
            elif self._may_precede(nest, (*chain.nests, *after)):
                before.append(nest)
            elif len(after) < MOST_AFTER:
                after.append(nest)
            else:
                return found, f"{nest.name}: it has no rows in common, nor has what comes before it"
        return found, ""

    def _may_precede(self, nest: Nest, others: Sequence[Nest]) -> bool:
        """Whether a nest that follows others may as well come before them."""
        sources = dict(self.program.aliases)
        own = {sources.get(name, name) for name in accessed_buffers(nest)}
        target = sources.get(nest.target.buffer, nest.target.buffer)
        for other in others:
            written = sources.get(other.target.buffer, other.target.buffer)
            touched = {sources.get(name, name) for name in accessed_buffers(other)}
            if written in own or target in touched:
                return False
        return True

    # --- one group --------------------------------------------------------------------------------

    def _group(self, chain: Chain) -> _SavingGroup | str:
        """The group of a chain; where it is illegal, too large or without gain, why."""
        if not self._pays(chain):
            return "it would save little traffic with HBM"
        reason = "no axis that all have in common can be on the partitions"
        for rows in sorted(range(len(chain.shared)), key=lambda s: -self._votes(chain, s)):
            products = products_in_rows(chain, rows, self.scheduler, self.program.schedules)
            lanes = min(PARTITIONS, chain.extent(rows))
            is_full = lanes == _rows(chain)
            if products is None or (products and not is_full) or lanes <= _rows(chain) // 4:
                continue
            found = self._in_rows(chain, rows, products)
            if isinstance(found, _SavingGroup):
                return found
            reason = found
        return reason

    def _in_rows(
        self, chain: Chain, rows: int, products: Mapping[str, Schedule]
    ) -> _SavingGroup | str:
        """The group of a chain with a shared axis on the partitions, or why there is none."""
        plan = GroupPlan(
            chain, rows, self.program.buffers, products, self.sbuf_bytes, self.known_bytes
        )
        if not plan.lines_up():
            return "rows lie in another dimension, or in another part, of a buffer"
        overlaps = plan.choose_blocks(2 if products else 1)
        if not overlaps and not (products and plan.choose_blocks(1)):
            return "a block of all does not fit SBUF"
        if plan.is_too_small():
            return "a block has but a few elements in each partition"
        saved = self._saved_bytes(chain) + (self._overlapped_bytes(chain) if overlaps else 0)
        saved -= plan.reloaded_bytes() if products else 0
        loop = plan.loop()
        if loop is None:
            return "all is one block"
        if products and saved < LEAST_SAVED_BYTES:
            return "operands would be read so often that little traffic with HBM is saved"
        overlaps &= not products or plan.instructions() <= MOST_INSTRUCTIONS
        if not overlaps and plan.instructions() > MOST_OF_ONE:
            return "an iteration has too many instructions"
        group = Group("rows", loop)
        nests = {nest.name: nest for nest in chain.nests}
        grouped = [GroupedNest(nests[m.nest], around, m.axes) for around, m in group.members()]
        on_chip = self._on_chip(plan.on_chip, grouped)
        group = replace(group, on_chip=on_chip)
        if not overlaps and not self._outweighs(chain, group):
            return "iterations do not overlap, which costs more than traffic with HBM"
        illegal = why_illegal_together(grouped, on_chip, self.program)
        return illegal or _SavingGroup(saved, plan.largest_bytes(), group)

    def _outweighs(self, chain: Chain, group: Group) -> bool:
        """Whether a group takes less, one thing at a time, than DMA for what it saves.

        That is what its products exchange with all others, which could be a group without them.
        """
        products = [nest for nest in chain.nests if self._is_product(nest)]
        exchanged = set[str]().union(*map(accessed_buffers, products)) & {*group.on_chip}
        saved = sum(2 * self.program.buffers[name].bytes for name in exchanged)
        share = kept_share(self.program, group, chain.nests)
        return saved / self._dma_bytes_per_ns > sum(self._busy_ns(chain)) * share

    def _busy_ns(self, chain: Chain) -> tuple[float, float]:
        """About how long the PE, and other engines, have to work for a chain."""
        tensor_ns = vector_ns = 0.0
        for nest in chain.nests:
            rows = math.prod(nest.extents.values()) / PARTITIONS
            if self._is_product(nest):
                tensor_ns += self.arch.cycles_to_ns("tensor", rows / PARTITIONS)
                rows = math.prod(axis.extent for axis in nest.parallel_axes) / PARTITIONS
            vector_ns += self.arch.cycles_to_ns("vector", rows)
        return tensor_ns, vector_ns

    def _overlapped_bytes(self, chain: Chain) -> int:
        """What DMA moves while the PE works for some nests of a chain and other engines for others.

        Nests that run one by one wait for each other, wherever their buffers are.
        """
        others = tuple(nest for nest in chain.nests if not self._is_product(nest))
        if not others or not self._has_products(chain):
            return 0
        tensor_ns, _ = self._busy_ns(chain)
        _, vector_ns = self._busy_ns(replace(chain, nests=others))
        return int(min(tensor_ns, vector_ns) * self._dma_bytes_per_ns)

    @property
    def _dma_bytes_per_ns(self) -> float:
        return self.arch.dma_bytes_per_ns * self.arch.dma_engines

    def _is_product(self, nest: Nest) -> bool:
        return self.program.schedules[nest.name].engine == "tensor"

    def _on_chip(self, names: Sequence[str], grouped: Sequence[GroupedNest]) -> tuple[str, ...]:
        """Of buffers that could stay on chip, those that nests read, or write pieces of as a whole.

        What no nest of the group reads is stored at once instead of piece by piece.
        """
        read = {load.buffer for each in grouped for load in each.nest.loads}
        return tuple(
            name
            for name in names
            if name in read or not why_not_on_chip(name, grouped, self.program)
        )

    def _has_products(self, chain: Chain) -> bool:
        return any(map(self._is_product, chain.nests))

    def _votes(self, chain: Chain, position: int) -> int:
        """How many nests have a shared axis on their partitions, times the rows that it fills."""
        schedules = self.program.schedules
        axes = zip(chain.nests, chain.shared[position], strict=True)
        votes = sum(schedules[nest.name].partition == axis for nest, axis in axes)
        return (1 + votes) * min(PARTITIONS, chain.extent(position))

    def _pays(self, chain: Chain) -> bool:
        """Whether a group saves traffic; one nest gains by overlap where it moves much."""
        if len(chain.nests) > 1:
            saved = self._saved_bytes(chain) + self._overlapped_bytes(chain)
            return saved >= LEAST_SAVED_BYTES
        if self._has_products(chain):
            return False
        names = accessed_buffers(chain.nests[0]) - set(self.layouts)
        return sum(self.program.buffers[name].bytes for name in names) >= LEAST_MOVED_BYTES

    def _saved_bytes(self, chain: Chain) -> int:
        """The traffic with HBM that the nests have one by one, and not together."""
        names = {nest.name for nest in chain.nests}
        written = {nest.target.buffer for nest in chain.nests}
        readers = Counter(
            name for nest in chain.nests for name in {load.buffer for load in nest.loads}
        )
        saved = 0
        for name in (written | readers.keys()) - self.layouts.keys():
            buffer = self.program.buffers[name]
            if name in written:
                is_internal = self.users[name] <= names and buffer.role == "temporary"
                saved += buffer.bytes * (readers[name] + is_internal)
            else:
                saved += buffer.bytes * max(0, readers[name] - 1)
        return saved


@dataclass(frozen=True)
class _SavingGroup:
    """A group, the bytes that it saves, and what a partition holds of one buffer at most."""

    saved_bytes: int
    largest_bytes: int
    group: Group


@dataclass(frozen=True)
class _Candidate:
    """A group that was found, its nests, and those in between that move out of it."""

    found: _SavingGroup
    chain: Chain
    before: list[Nest]
    after: list[Nest]
    has_products: bool

    def is_better_than(self, longer: _Candidate) -> bool:
        """Whether it is to be taken and not one with more nests.

        Of nests without products that is one that saves about as much with smaller tiles, as it
        has an axis in common that the longer one does not: then more iterations overlap.
        """
        found, other = self.found, longer.found
        if self.has_products:
            return found.saved_bytes > other.saved_bytes
        is_smaller = found.largest_bytes <= GOOD_BLOCK_BYTES < other.largest_bytes
        return is_smaller and found.saved_bytes > other.saved_bytes - LEAST_SAVED_BYTES

    @property
    def length(self) -> int:
        """How many nests of the run it takes."""
        return len(self.before) + len(self.chain.nests) + len(self.after)


class _RunSearch:
    """Where groups of a run begin.

    One that begins at a product within the group that would be taken may save more than this one.
    """

    def __init__(
        self,
        run: Sequence[Nest],
        best: Callable[[Sequence[Nest]], _Candidate | None],
        is_product: Callable[[Nest], bool],
    ) -> None:
        self.run = run
        self.best = best
        self.is_product = is_product
        self._known: dict[tuple[int, int], _Candidate | None] = {}

    def group_at(self, start: int, stop: int | None = None) -> _Candidate | None:
        """The best group that begins at a place of the run, and ends before another."""
        end = min(len(self.run) if stop is None else stop, start + MOST_MEMBERS)
        if (start, end) not in self._known:
            self._known[start, end] = self.best(self.run[start:end])
        return self._known[start, end]

    def cut(self, start: int) -> int:
        """The place from `start` on where a group has to begin, so that most is saved."""
        found = self.group_at(start)
        if found is None or not found.has_products:
            return start
        inside = range(start + 1, start + found.length)
        places = [start, *(place for place in inside if self.is_product(self.run[place]))]
        groups = [(place, self.group_at(place)) for place in places]
        end = max(place + group.length for place, group in groups if group)

        def saved(place: int) -> int:
            return self._saved(start, place) + self._saved(place, end, may_exceed=True)

        return max(places, key=lambda place: (saved(place), -place))

    def _saved(self, start: int, stop: int, *, may_exceed: bool = False) -> int:
        """What groups save that begin in a part of the run one after the other, and end in it."""
        saved = 0
        while start < stop:
            found = self.group_at(start, None if may_exceed else stop)
            saved += found.found.saved_bytes if found else 0
            start += found.length if found else 1
        return saved


def _rows(chain: Chain) -> int:
    """The partitions that some shared axis can fill."""
    return max(min(PARTITIONS, chain.extent(s)) for s in range(len(chain.shared)))
