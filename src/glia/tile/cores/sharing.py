"""How two cores share the statements of a program: by rough times of parts, and of barriers.

Each nest is halved along an axis, computed by one core alone, or by each core for itself; branches,
kernels and exchanges between ranks run on the first core, and so do loops that are not counted: see
`counted_loops`. A barrier stands wherever a core accesses what the other one has written since the
last one, or writes what it has read. The choice is a local search from several beginnings: along
the first axes (rows, batches, heads), along the last ones (columns), all by one core, and by each
core for itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from glia.arch import Arch
from glia.tile.boxes import Box, overlap
from glia.tile.cores.counted_loops import CountedLoop, Item, positions, shared_order
from glia.tile.dependences import accesses_of, written_buffers
from glia.tile.estimated_time import estimated_ns
from glia.tile.ir import Exchange, Nest, Program, Statement, accessed_buffers
from glia.tile.nest_rewriting import with_decided_guards, within_values
from glia.tile.row_search import row_axes

ALONE = ""  # the first core runs the statement
BOTH = "*"  # each core computes it for itself
CORES = 2
SWEEPS = 8  # of the local search, at most
# Times a transfer's latency, that a barrier takes: a store, a load, and engines that run empty and
# fill up again; BERT's layers of 128 rows pause for 5 to 6 us at each on Trn2
MEETING = 5
NEAR = 1.05  # times what nests take at least without barriers: no other beginning is tried
NO_CHANGES: Mapping[int, str] = {}
MOST_TOGETHER = 48  # nests whose choices change at one time


@dataclass(frozen=True)
class Access:
    """What one core reads or writes of a buffer."""

    core: int
    is_write: bool
    box: Box

    def conflicts(self, other: Access) -> bool:
        """Whether two cores touch an element that one of them changes."""
        is_changed = self.is_write or other.is_write
        return self.core != other.core and is_changed and overlap(self.box, other.box)


@dataclass(frozen=True)
class _View:
    """A statement under one choice: its time, and the accesses to each buffer that cores share."""

    ns: float
    accesses: Mapping[str, list[Access]]


Meetings = frozenset[int]  # the positions of statements before which cores meet


@dataclass
class _SearchState:
    """Where a search is: its meetings by buffer, how many there are where, the time in all."""

    meetings: dict[str, Meetings]
    counts: Counter[int] = field(init=False)
    ns: float = 0.0

    def __post_init__(self) -> None:
        self.counts = Counter(position for found in self.meetings.values() for position in found)

    def change(self, tried: Mapping[str, Meetings]) -> None:
        """Let some buffers have other meetings."""
        for name, found in tried.items():
            before = self.meetings[name]
            if found is not before:
                for position in before:
                    self.counts[position] -= 1
                for position in found:
                    self.counts[position] += 1
        self.meetings |= tried


def parts(statement: Statement, choice: str) -> tuple[Statement | None, ...]:
    """What each core runs of a statement."""
    if choice == ALONE:
        return (statement, *(None,) * (CORES - 1))
    assert isinstance(statement, Nest), "only nests run on several cores"
    return (statement,) * CORES if choice == BOTH else _halves(statement, choice)


def _halves(nest: Nest, choice: str) -> tuple[Nest, ...]:
    """A nest for each core's values of an axis."""
    whole = nest.extents[choice]
    cuts = [whole * core // CORES for core in range(CORES + 1)]
    return tuple(
        with_decided_guards(within_values(nest, choice, low, high))
        for low, high in itertools.pairwise(cuts)
    )


@dataclass
class Sharing:
    """The statements of a program, in loops that both cores run too; a choice for each by position.

    `order` has their positions, and the loops around them.
    """

    program: Program
    arch: Arch
    chosen: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.root = dict(self.program.aliases)
        shared = shared_order(self.program)
        self.body, self.order, self._counting = shared.statements, shared.order, shared.counting
        self._times = shared.times
        self._orders: dict[str, tuple[Item, ...]] = {}  # of the users of a buffer
        self._meetings_of: dict[tuple[str, ...], Meetings] = {}  # a buffer, choices of its users
        self._views: dict[tuple[int, str], _View | None] = {}
        self._names: dict[int, set[str]] = {}
        self.writers: dict[str, list[int]] = {}
        self.users: dict[str, list[int]] = {}
        for position, statement in enumerate(self.body):
            for name in sorted({self._root(each) for each in written_buffers(statement)}):
                self.writers.setdefault(name, []).append(position)
            for name in self._touched(position):
                self.users.setdefault(name, []).append(position)
        self.barrier_ns = MEETING * (self.arch.dma_start_ns + self.arch.dma_completion_ns)
        self._conflicts: dict[tuple[str, int, str, int, str], bool] = {}
        self.choices = [self._choices(position) for position in range(len(self.body))]
        self.chosen = self._wherever_allowed(ALONE)

    @property
    def alone_ns(self) -> float:
        """What one core takes for everything."""
        return sum(self._view(n, ALONE).ns for n in range(len(self.body)))

    def search(self) -> float:
        """Choose; the estimated time with barriers."""
        numbered = enumerate(self.choices)
        least = sum(min(self._view(n, each).ns for each in choices) for n, choices in numbered)
        best: tuple[float, list[str]] | None = None
        for beginning in self._beginnings():
            self.chosen = beginning
            found = self._descend()
            if best is None or found < best[0]:
                best = found, self.chosen
            if found <= NEAR * least:
                break
        assert best is not None
        self.chosen = best[1]
        return best[0]

    def barriers(self) -> dict[int, list[str]]:
        """By position of a statement, the buffers at which cores meet before it."""
        found: dict[int, list[str]] = {}
        for name in self.writers:
            for position in sorted(self._meetings(name)):
                found.setdefault(position, []).append(name)
        return found

    def is_counting(self, position: int) -> bool:
        """Whether a nest counts the iterations of a loop, which each core does for itself."""
        return position in self._counting

    # --- the search -------------------------------------------------------------------------------

    def _beginnings(self) -> Iterator[list[str]]:
        """All along their first axes, and the last; by one core; by each core for itself."""
        axes = [[c for c in choices if c not in (ALONE, BOTH)] for choices in self.choices]
        alone = self._wherever_allowed(ALONE)
        first = [each[0] if each else other for each, other in zip(axes, alone, strict=True)]
        yield first
        yield [each[-1] if each else other for each, other in zip(axes, alone, strict=True)]
        yield alone
        pairs = zip(self.choices, first, strict=True)
        yield [BOTH if BOTH in choices else axis for choices, axis in pairs]

    def _wherever_allowed(self, choice: str) -> list[str]:
        """A choice for every statement that has it; the only one of what counts iterations."""
        return [choice if choice in choices else choices[0] for choices in self.choices]

    def _descend(self) -> float:
        """Change choices while that takes less, one by one or those that fit together; the time."""
        state = _SearchState({name: self._meetings(name) for name in self.writers})
        state.ns = sum(self._view(n, c).ns for n, c in enumerate(self.chosen))
        state.ns += self._barriers_ns(state, state.counts)
        for sweep in range(SWEEPS):
            before = state.ns
            order = range(len(self.body))
            for position in order if sweep % 2 == 0 else reversed(order):
                for choice in self.choices[position]:
                    self._attempt({position: choice}, state)
                    if choice == BOTH:
                        self._attempt(self._upstream(position), state)
                    elif choice != ALONE:
                        self._attempt(self._fitting(position, choice), state)
            if state.ns >= before:
                break
        return state.ns

    def _fitting(self, position: int, choice: str) -> dict[int, str]:
        """A choice, and other ones for the nests around that would have to meet because of it."""
        found = {position: choice}
        waiting = [position]
        while waiting and len(found) < MOST_TOGETHER:
            here = waiting.pop(0)
            for name in self._view(here, found[here]).accesses:
                if name not in self.writers or self._is_made_by_each(name, found):
                    continue
                for other in self.users[name]:
                    if other in found:
                        continue
                    tries = [self.chosen[other], *self.choices[other]]
                    fits = (t for t in tries if self._fits(name, here, found[here], other, t))
                    if (tried := next(fits, "")) != self.chosen[other]:
                        found[other] = tried
                        waiting.append(other)
        return found

    def _is_made_by_each(self, name: str, changes: Mapping[int, str] = NO_CHANGES) -> bool:
        """Whether each core computes a buffer for itself, if some choices are others."""
        return any(changes.get(n, self.chosen[n]) == BOTH for n in self.writers[name])

    def _fits(self, name: str, here: int, mine: str, other: int, choice: str) -> bool:
        """Whether a nest under a choice need not meet another one under its own at a buffer."""
        if choice in (ALONE, BOTH) and choice != self.chosen[other]:
            return False
        return not self._is_conflict(name, here, mine, other, choice)

    def _is_conflict(self, name: str, here: int, choice: str, other: int, theirs: str) -> bool:
        """Whether one core touches what the other changes of a buffer, in two statements."""
        key = (name, here, choice, other, theirs)
        if key not in self._conflicts:
            accesses = self._view(other, theirs).accesses.get(name, ())
            mine = self._view(here, choice).accesses.get(name, ())
            self._conflicts[key] = any(a.conflicts(b) for a in mine for b in accesses)
        return self._conflicts[key]

    def _upstream(self, position: int) -> dict[int, str]:
        """Each core for itself, in a nest and in those that make what it reads."""
        found = {position: BOTH}
        waiting = [position]
        while waiting and len(found) < MOST_TOGETHER:
            for name in sorted(self._touched(waiting.pop(0))):
                for writer in self.writers.get(name, ()):
                    if writer not in found and BOTH in self.choices[writer]:
                        found[writer] = BOTH
                        waiting.append(writer)
        return found

    def _attempt(self, changes: Mapping[int, str], state: _SearchState) -> None:
        """Make changes where that takes less."""
        kept = {n: self.chosen[n] for n, choice in changes.items() if self.chosen[n] != choice}
        if not kept:
            return
        names = {name for n in kept for name in self._touched(n) if name in self.writers}
        ns = state.ns
        for n in kept:
            self.chosen[n] = changes[n]
            ns += self._view(n, changes[n]).ns - self._view(n, kept[n]).ns
        tried = {name: self._meetings(name) for name in sorted(names)}
        before = {name: state.meetings[name] for name in tried}
        places = {
            position
            for name, found in tried.items()
            if found is not before[name]
            for position in (*found, *before[name])
        }
        ns -= self._barriers_ns(state, places)
        state.change(tried)
        ns += self._barriers_ns(state, places)
        if ns < state.ns:
            state.ns = ns
        else:
            state.change(before)
            for n, choice in kept.items():
                self.chosen[n] = choice

    def _barriers_ns(self, state: _SearchState, places: Iterable[int]) -> float:
        """The time of barriers before some statements."""
        return self.barrier_ns * sum(self._times[n] for n in places if state.counts[n] > 0)

    # --- facts ------------------------------------------------------------------------------------

    def _root(self, name: str) -> str:
        return self.root.get(name, name)

    def _touched(self, position: int) -> set[str]:
        """The buffers that a nest accesses, of those in one place one."""
        if position not in self._names:
            names = accessed_buffers(self.body[position])
            self._names[position] = {self._root(name) for name in names}
        return self._names[position]

    def _choices(self, position: int) -> list[str]:
        """What may be chosen: for nests axes in order, alone, and both where it is its own."""
        nest = self.body[position]
        if position in self._counting:
            return [BOTH]
        if not isinstance(nest, Nest):
            return [ALONE]
        axes = [axis.name for axis in row_axes(nest) if axis.extent >= CORES]
        found = [name for name in axes if self._find_view(position, name) is not None]
        target = self._root(nest.target.buffer)
        is_own = self.program.buffers[target].role == "temporary"
        both = [BOTH] if is_own and self.writers[target] == [position] else []
        return [*found, ALONE, *both]

    def _view(self, position: int, choice: str) -> _View:
        found = self._find_view(position, choice)
        assert found is not None, "only what can be chosen is looked at"
        return found

    def _find_view(self, position: int, choice: str) -> _View | None:
        """A nest under a choice; None where its parts touch what each other changes."""
        key = (position, choice)
        if key not in self._views:
            self._views[key] = self._make_view(position, choice)
        return self._views[key]

    def _make_view(self, position: int, choice: str) -> _View | None:
        buffers = self.program.buffers
        own = parts(self.body[position], choice)
        accesses: dict[str, list[Access]] = {}
        for core, part in enumerate(own):
            if part is None:
                continue
            for name, is_write, box in accesses_of(part, self.program):
                if not (is_write and choice == BOTH):
                    self._enter(accesses, name, core, is_write, box)
        if any(a.conflicts(b) for each in accesses.values() for a in each for b in each):
            return None
        if isinstance(self.body[position], Exchange):
            return _View(0.0, accesses)  # it travels beside the work
        ns = max(estimated_ns(part, buffers, self.arch) for part in own if part)
        return _View(ns * self._times[position], accesses)

    def _enter(
        self,
        accesses: dict[str, list[Access]],
        name: str,
        core: int,
        is_write: bool,
        box: Box | None,
    ) -> None:
        """Enter an access to a buffer, to all of it where the box in its place is not known."""
        root = self._root(name)
        shape = self.program.buffers[root].shape
        if box is None or shape != self.program.buffers[name].shape:
            box = tuple((0, extent) for extent in shape)
        accesses.setdefault(root, []).append(Access(core, is_write, box))

    def _meetings(self, name: str) -> Meetings:
        """The positions of the statements before which cores must meet at a buffer."""
        chosen = self.chosen
        key = (name, *(chosen[user] for user in self.users[name]))
        if key not in self._meetings_of:
            found: set[int] = set()
            if not self._is_made_by_each(name):
                if name not in self._orders:
                    self._orders[name] = tuple(positions(self.order, set(self.users[name])))
                self._enter_barriers(self._orders[name], name, [], found)
            self._meetings_of[key] = frozenset(found)
        return self._meetings_of[key]

    def _enter_barriers(
        self, order: Iterable[Item], name: str, since: list[int], found: set[int]
    ) -> list[int]:
        """Enter where cores must meet, after statements `since` they last have; those at the end.

        A loop comes after itself: it is gone through until no meeting is added.
        """
        for item in order:
            if isinstance(item, CountedLoop):
                count = -1
                while len(found) > count:
                    count = len(found)
                    for _ in range(2):
                        since = self._enter_barriers(item.body, name, since, found)
                continue
            if item in found or self._must_meet(name, item, since):
                found.add(item)
                since = [item]
            elif item not in since:
                since = [*since, item]
        return since

    def _must_meet(self, name: str, here: int, since: Iterable[int]) -> bool:
        """Whether a statement touches what another core changes in some others, or changes it."""
        choice = self.chosen[here]
        return any(self._is_conflict(name, here, choice, n, self.chosen[n]) for n in since)
