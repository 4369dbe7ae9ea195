"""Where several engines signal one semaphore: every order of small programs is gone through."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from glia.isa.kit import Instr
from glia.machine import ProgramBuilder
from glia.machine.ir import Program
from glia.sim.order.concurrent import Race, run_concurrently, streams_of

ENGINES = ("vector", "gpsimd", "scalar")
State = tuple[tuple[int, bool], ...]  # of each engine: how many are complete, whether one runs


def random_program(rng: random.Random) -> Program:
    """Copies between three tiles; each may wait for all before it, or for some other count."""
    b = ProgramBuilder("random")
    tiles = [b.sbuf((4, 4), name=f"t{i}", at=64 * i) for i in range(3)]
    for number in range(rng.randint(4, 6)):
        waits = {"done": number if rng.random() < 0.7 else rng.randint(0, number)}
        signals = {"done": 1}
        if rng.random() < 0.2:
            waits = {"done": number - 1} if number else {}
        b.tensor_copy(
            rng.choice(tiles), rng.choice(tiles),
            on=rng.choice(ENGINES), waits=waits, signals=signals,
        )  # fmt: skip
    return b.finish(synchronise=False)


def conflict(first: Instr, second: Instr) -> bool:
    """Whether two copies on different engines meet in a tile that one of them writes."""
    if first.runs_on == second.runs_on:
        return False
    reads = [{p.tile.name for p in i.read_patterns()} for i in (first, second)]
    writes = [{p.tile.name for p in i.written_patterns()} for i in (first, second)]
    return bool(writes[0] & (reads[1] | writes[1]) or reads[0] & writes[1])


def can_race(program: Program) -> bool:
    """Whether some order lets an instruction start before one that must precede it is complete."""
    instrs = list(program.instructions())
    queues = [[k for k, i in enumerate(instrs) if i.runs_on == engine] for engine in ENGINES]
    pairs = [(a, b) for b in range(len(instrs)) for a in range(b) if conflict(instrs[a], instrs[b])]
    start: State = tuple((0, False) for _ in ENGINES)
    seen, left = {start}, [start]
    while left:
        state = left.pop()
        done = {k for (count, _), queue in zip(state, queues, strict=True) for k in queue[:count]}
        counts = Counter({"done": len(done)})
        for position, ((count, is_running), queue) in enumerate(zip(state, queues, strict=True)):
            if is_running:
                following = (count + 1, False)
            elif count < len(queue):
                number = queue[count]
                waits = instrs[number].waits
                if any(counts[w.semaphore] < w.value.constant for w in waits):
                    continue
                if any(b == number and a not in done for a, b in pairs):
                    return True
                following = (count, True)
            else:
                continue
            new = (*state[:position], following, *state[position + 1 :])
            if new not in seen:
                seen.add(new)
                left.append(new)
    return False


def sees_race(program: Program) -> bool:
    """Whether one of the runs that keep back each stream in turn sees a race."""
    for seed in range(len(streams_of(program))):
        try:
            run_concurrently(program, {}, seed=seed)
        except Race:
            return True
    return False


@pytest.mark.parametrize("group", range(6))
def test_runs_that_keep_back_each_stream_see_what_every_order_shows(group: int) -> None:
    rng = random.Random(group)
    verdicts = Counter()
    for _ in range(40):
        program = random_program(rng)
        expected = can_race(program)
        assert sees_race(program) is expected
        verdicts[expected] += 1
    assert min(verdicts[True], verdicts[False]) >= 5
