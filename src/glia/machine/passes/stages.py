"""Stages of a loop's body, so that one iteration begins while others go on.

Engines run their instructions in order. Where a loop's body is the whole of an iteration, an engine
that ends an iteration waits for the first results of the next. So the body is cut into stages by
the time at which its operands allow an instruction to start: in each step the loop does the first
stage of one iteration, the second of the one before, and so on. Every tile that an instruction of
another stage accesses has a copy for each iteration that has begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate

from glia.base.affine import Affine
from glia.isa.instructions.dma import Transfer
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Tile
from glia.machine.instruction_rewriting import substitute_instruction
from glia.machine.ir import Loop
from glia.machine.passes.on_chip_space import ON_CHIP_ALIGNMENT, round_up
from glia.machine.passes.schedule import Scheduler, Task

MOST_STAGES = 4
REPETITIONS = 4  # of a loop's body, after which its iterations follow each other evenly


@dataclass(frozen=True)
class Stages:
    """The stage of each instruction, the tiles that instructions of several stages access.

    `copy_bytes` is what an iteration's own tiles take, per partition of SBUF.
    """

    of: tuple[int, ...]
    count: int
    crossing: frozenset[str]
    copy_bytes: int


def find_stages(
    body: Sequence[Instr], private: Set[str], tiles: dict[str, Tile], scheduler: Scheduler
) -> list[Stages]:
    """Ways to cut a body whose iterations share no tile but those in `private`, most stages first.

    The last is one stage. What iterations share and one of them writes is accessed in one stage,
    and so is a tile of PSUM, which has no room for those of several iterations.
    """
    tasks = scheduler.tasks(body)
    starts = _earliest_starts(tasks)
    end = max(starts) + 1
    on_chip = {name for name in private if tiles[name].memory is not Memory.PSUM}
    shared = _shared_accesses(body, on_chip)
    found = []
    for count in range(MOST_STAGES if _may_interleave(body) else 1, 0, -1):
        stages = [min(count - 1, int(start * count / end)) for start in starts]
        _unify(stages, shared, tasks)
        if max(stages) == count - 1:
            uses = _uses(body, private)
            crossing = frozenset(
                name for name, at in uses.items() if len({stages[position] for position in at}) > 1
            )
            copy_bytes = _copy_bytes(len(body), uses, crossing, tiles)
            found.append(Stages(tuple(stages), count, crossing, copy_bytes))
    return found


def _may_interleave(body: Sequence[Instr]) -> bool:
    """Whether instructions of another iteration may come between any two of a body."""
    return not any(
        each.uses_registers
        or any(access in ("reads", "updates") for _, _, access in each.states_touched())
        for each in body
    )


def _earliest_starts(tasks: Sequence[Task]) -> list[float]:
    """When each task can start, with engines enough, in nanoseconds."""
    starts = [0.0] * len(tasks)
    for task in tasks:
        end = starts[task.position] + min(task.durations) + task.latency
        for successor in task.successors:
            starts[successor] = max(starts[successor], end)
    return starts


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


def _unify(stages: list[int], shared: Sequence[Sequence[int]], tasks: Sequence[Task]) -> None:
    """Move instructions to later stages until shared accesses and dependences allow the cut."""
    is_stable = False
    while not is_stable:
        before = list(stages)
        for positions in shared:
            latest = max(stages[position] for position in positions)
            for position in positions:
                stages[position] = latest
        for task in tasks:
            for successor in task.successors:
                stages[successor] = max(stages[successor], stages[task.position])
        is_stable = before == stages


def _uses(body: Sequence[Instr], private: Set[str]) -> dict[str, list[int]]:
    """By private tile, the instructions that access it, in order."""
    uses: dict[str, list[int]] = {}
    for position, instruction in enumerate(body):
        for pattern in instruction.patterns():
            if pattern.tile.name in private:
                uses.setdefault(pattern.tile.name, []).append(position)
    return uses


def _copy_bytes(
    length: int, uses: Mapping[str, Sequence[int]], crossing: Set[str], tiles: Mapping[str, Tile]
) -> int:
    """Bytes of tiles that live across stages, and the most of others that are live at once."""
    held, changes = 0, [0] * (length + 1)
    for name, positions in uses.items():
        if tiles[name].memory is not Memory.SBUF:
            continue
        needed = round_up(tiles[name].bytes_per_partition, ON_CHIP_ALIGNMENT)
        if name in crossing:
            held += needed
        else:
            changes[positions[0]] += needed
            changes[positions[-1] + 1] -= needed
    return held + max(accumulate(changes))


def interval_ns(loop: Loop, scheduler: Scheduler) -> float:
    """The time from one iteration of a loop to the next, once it is under way; an estimate.

    The body is ordered and run a few times, each engine and all of DMA doing one thing at a time.
    """
    ordered = scheduler.run([each for each in loop.body if isinstance(each, Instr)])
    runs = [
        substitute_instruction(each, {}, {loop.variable: Affine((), run)})
        for run in range(REPETITIONS)
        for each in ordered
    ]
    tasks = scheduler.tasks(runs)
    free_ns: dict[str, float] = {}
    ends = [0.0]
    for task in tasks:
        stream = "dma" if isinstance(task.instruction, Transfer) else task.streams[0]
        end = max(free_ns.get(stream, 0.0), task.ready_ns) + task.durations[0]
        free_ns[stream] = end
        for successor in task.successors:
            after = tasks[successor]
            after.ready_ns = max(after.ready_ns, end + task.latency)
        if task.position % len(ordered) == len(ordered) - 1:
            ends.append(max(free_ns.values()))
    return ends[-1] - ends[-2]
