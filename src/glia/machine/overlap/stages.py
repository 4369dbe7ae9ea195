"""Stages of a loop's body, so that one iteration begins while others go on.

Engines run their instructions in order. Where a loop's body is the whole of an iteration, an engine
that ends an iteration waits for the first results of the next. So the body is cut into stages by
the time at which its operands allow an instruction to start: in each step the loop does the first
stage of one iteration, the second of the one before, and so on. A tile that several stages access
has as many copies as iterations use it at once, or more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Tile
from glia.machine.passes.on_chip_space import ON_CHIP_ALIGNMENT, round_up
from glia.machine.passes.schedule import Scheduler

MOST_STAGES = 5


@dataclass(frozen=True)
class Stages:
    """The stage of each instruction of a body, and what its own tiles take of SBUF.

    `spans` is by own tile the number of stages from its first access to its last, `tile_bytes` what
    one copy of it takes per partition. `within_bytes` is the most that those which one stage
    accesses take at once.
    """

    of: tuple[int, ...]
    count: int
    spans: Mapping[str, int]
    tile_bytes: Mapping[str, int]
    within_bytes: int

    @property
    def crossing(self) -> frozenset[str]:
        """The tiles that several stages access."""
        return frozenset(name for name, span in self.spans.items() if span)


def find_stages(
    body: Sequence[Instr], private: Set[str], tiles: Mapping[str, Tile], scheduler: Scheduler
) -> list[Stages]:
    """Ways to cut a body whose iterations share no tile but those in `private`.

    The first is one stage, the last has the most. What iterations share and one of them writes is
    accessed in one stage, and so is a tile of PSUM, which has no room for those of several
    iterations.
    """
    graph = scheduler.graph(body)
    starts, successors = graph.earliest_starts(), graph.successors()
    end = max(starts) + 1
    on_chip = {name for name in private if tiles[name].memory is not Memory.PSUM}
    shared = _shared_accesses(body, on_chip)
    found = []
    for count in range(1, 1 + (MOST_STAGES if _may_interleave(body) else 1)):
        stages = [min(count - 1, int(start * count / end)) for start in starts]
        _unify(stages, shared, successors)
        if max(stages) == count - 1:
            found.append(_stages(stages, _uses(body, private), tiles))
    return found


def _may_interleave(body: Sequence[Instr]) -> bool:
    """Whether instructions of another iteration may come between any two of a body."""
    return not any(
        each.uses_registers
        or any(access in ("reads", "updates") for _, _, access in each.states_touched())
        for each in body
    )


def _shared_accesses(body: Sequence[Instr], private: Set[str]) -> list[list[int]]:
    """By tile that iterations share and write: the instructions that access it."""
    accesses: dict[str, list[int]] = {}
    written: set[str] = set()
    for position, instruction in enumerate(body):
        for pattern in instruction.patterns():
            if pattern.tile.name not in private:
                accesses.setdefault(pattern.tile.name, []).append(position)
        written |= {pattern.tile.name for pattern in instruction.written_patterns()}
    return [positions for name, positions in accesses.items() if name in written]


def _unify(
    stages: list[int], shared: Sequence[Sequence[int]], successors: Sequence[Sequence[int]]
) -> None:
    """Move instructions to later stages until shared accesses and dependences allow the cut."""
    is_stable = False
    while not is_stable:
        before = list(stages)
        for positions in shared:
            latest = max(stages[position] for position in positions)
            for position in positions:
                stages[position] = latest
        for node, after in enumerate(successors):
            for other in after:
                stages[other] = max(stages[other], stages[node])
        is_stable = before == stages


def _uses(body: Sequence[Instr], private: Set[str]) -> dict[str, list[int]]:
    """By private tile, the instructions that access it, in order."""
    uses: dict[str, list[int]] = {}
    for position, instruction in enumerate(body):
        for pattern in instruction.patterns():
            if pattern.tile.name in private:
                uses.setdefault(pattern.tile.name, []).append(position)
    return uses


def _stages(
    of: Sequence[int], uses: Mapping[str, Sequence[int]], tiles: Mapping[str, Tile]
) -> Stages:
    """The cut with what it needs of SBUF, from the instructions that use each tile."""
    spans, tile_bytes = dict[str, int](), dict[str, int]()
    changes = [0] * (len(of) + 1)
    for name, positions in uses.items():
        at = [of[position] for position in positions]
        in_sbuf = tiles[name].memory is Memory.SBUF
        needed = round_up(tiles[name].bytes_per_partition, ON_CHIP_ALIGNMENT) if in_sbuf else 0
        spans[name], tile_bytes[name] = max(at) - min(at), needed
        if not spans[name]:
            changes[positions[0]] += needed
            changes[positions[-1] + 1] -= needed
    return Stages(tuple(of), max(of) + 1, spans, tile_bytes, max(accumulate(changes)))
