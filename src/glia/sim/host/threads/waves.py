"""Instructions that do not depend on each other, for threads to run at once.

A thread that runs a whole instruction shares nothing with the others and waits for none of them
until the wave ends; one call that all threads share begins and ends with waiting, and its packed
operands go from one core's cache to another's. So where some instructions that follow each other
fall apart into chains of about equal length, these run at once. Results are the same: each
instruction computes what it would in program order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Program
from glia.sim.host.overlap import may_touch, tile_span
from glia.sim.host.threads.strips import RowStrip

MOST_UNITS = 24  # of a wave
WAVE_NANOSECONDS = 2_000  # to begin and end one
Unit = Instr | RowStrip


@dataclass(frozen=True)
class Wave:
    """Chains of instructions and strips, the longest first; each is in program order."""

    chains: tuple[tuple[Unit, ...], ...]


@dataclass(frozen=True)
class Duration:
    """Nanoseconds of a unit: in one thread, and by itself in all of them."""

    single: float
    shared: float


class WavePlanner:
    """Divides instructions without loops between them into waves and others."""

    def __init__(
        self,
        program: Program,
        bases: Mapping[str, Tile],
        threads: int,
        duration: Callable[[Unit], Duration | None],
    ) -> None:
        """`duration` is None for what must not be in a wave. `bases` are a `MoveTracer`'s."""
        self._program, self._bases = program, bases
        self._threads, self._duration = threads, duration

    def planned(self, units: Sequence[Unit]) -> Iterator[Unit | Wave]:
        """The units in an order with the same meaning."""
        durations = [self._duration(each) for each in units]
        accesses = [self._accesses(each) for each in units]

        @cache
        def conflict(one: int, other: int) -> bool:
            return self._conflict(accesses[one], accesses[other])

        at = 0
        while at < len(units):
            chains = self._best_chains(at, durations, conflict)
            if not chains:
                yield units[at]
                at += 1
                continue
            yield Wave(tuple(tuple(units[n] for n in chain) for chain in chains))
            at += sum(map(len, chains))

    def _best_chains(
        self,
        first: int,
        durations: Sequence[Duration | None],
        conflict: Callable[[int, int], bool],
    ) -> list[list[int]]:
        """The chains of the wave from a unit on that saves most; none if none does.

        `conflict` says whether two units, the later one first, must stay in order.
        """
        chains: list[list[int]] = []
        best: list[list[int]] = []
        saved, shared = 0.0, 0.0
        for number in range(first, min(first + MOST_UNITS, len(durations))):
            duration = durations[number]
            if duration is None:
                break
            shared += duration.shared
            met = [chain for chain in chains if any(conflict(number, other) for other in chain)]
            chains = [chain for chain in chains if chain not in met]
            chains.append([*sorted(n for chain in met for n in chain), number])
            if len(chains) == 1:
                continue
            single = [sum(_single(durations[n]) for n in chain) for chain in chains]
            gain = shared - self._elapsed(single, shared - saved)
            if gain > saved:
                saved = gain
                order = sorted(range(len(chains)), key=lambda n: -single[n])
                best = [list(chains[n]) for n in order]
        return best

    def _elapsed(self, chains: Sequence[float], most: float) -> float:
        """How long chains take on all threads; something above `most` if they take longer."""
        least = max(*chains, sum(chains) / self._threads) + WAVE_NANOSECONDS
        if least >= most:
            return least
        ends = [0.0] * self._threads
        for each in sorted(chains, reverse=True):
            heapq.heapreplace(ends, ends[0] + each)
        return max(ends) + WAVE_NANOSECONDS

    def _accesses(self, unit: Unit) -> list[_Access]:
        if isinstance(unit, RowStrip):
            return [each for instr in unit.instructions for each in self._accesses_of(instr)]
        return self._accesses_of(unit)

    def _accesses_of(self, instr: Instr) -> list[_Access]:
        found = []
        for name, _, pattern in instr.operands():
            base = self._bases.get(pattern.tile.name)
            tile = base or pattern.tile
            low, high = tile_span(tile, self._program)
            is_written = instr.access(name) != "reads"
            exact = pattern if base is None else None
            found.append(_Access(tile.memory, low, high, is_written, exact))
        return found

    def _conflict(self, some: Sequence[_Access], others: Sequence[_Access]) -> bool:
        """Whether one may write what the other accesses."""
        for one in some:
            for other in others:
                if one.low >= other.high or other.low >= one.high:
                    continue
                if one.memory is not other.memory or not (one.is_written or other.is_written):
                    continue
                if one.pattern is None or other.pattern is None:
                    return True
                if may_touch(one.pattern, other.pattern, self._program):
                    return True
        return False


@dataclass(frozen=True)
class _Access:
    """An operand: the bytes of its tile, and its pattern where that says more."""

    memory: Memory
    low: int
    high: int
    is_written: bool
    pattern: Pattern | None


def _single(duration: Duration | None) -> float:
    return 0.0 if duration is None else duration.single
