"""Why no engine can go on: who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from glia.isa.instructions.sync import Barrier
from glia.isa.operand import Wait
from glia.machine.ir import walk
from glia.sim.order.concurrent_core import Core
from glia.sim.order.execution import Execution
from glia.sim.policy import ExecutionFault


class Deadlock(ExecutionFault):
    """No engine can go on; says who waits for what, and who could have signalled it."""


def explain(cores: Sequence[Core]) -> str:
    """A line for every engine that is held up, and the ring in which they wait if there is one."""
    lines = ["deadlock: no engine can go on"]
    waits_for: dict[str, list[str]] = {}
    for core in cores:
        place = f"core {core.index}: " if len(cores) > 1 else ""
        for engine in core.engines:
            head = core.head(engine)
            if head is None:
                continue
            lines += [f"  {place}{line}" for line in _held_up(cores, core, engine, head)]
            waits_for[place + engine] = [place + name for name in _blockers(core, engine, head)]
        for stream, queue in core.queues.items():
            if queue:
                lines.append(f"  {place}{_missing(cores, core, stream, queue[0])}")
    ring = _ring(waits_for)
    if ring:
        lines.append(f"  in a ring: {' waits for '.join(ring)}")
    return "\n".join(lines)


def _missing(cores: Sequence[Core], core: Core, stream: str, front: Execution) -> str:
    """Who does not come to a meeting."""
    instr: Any = front.instr
    own = core.numbers[instr.among]
    others = [rank for rank in instr.ranks(own) if rank != own]
    there = {
        other.numbers[instr.among]
        for other in cores
        for each in (*map(other.head, other.engines), *(q[0] for q in other.queues.values() if q))
        if each is not None
        and each.instr.arrives == "participants"
        and each.instr.topic() == instr.topic()  # type: ignore[attr-defined]
    }
    missing = [f"{instr.among[:-1]} {rank}" for rank in others if rank not in there]
    return f"{stream} waits for {_listed(missing)} to come to {front}"


def _held_up(cores: Sequence[Core], core: Core, engine: str, head: Execution) -> Iterator[str]:
    if isinstance(head.instr, Barrier):
        behind = [name for name in core.engines if not _is_at_barrier(core.head(name))]
        yield f"{engine} is at a barrier, to which {_listed(behind)} do not come"
    elif head.instr.arrives == "participants" and not core.unmet(head):
        yield _missing(cores, core, engine, head)
    for wait, needed in core.unmet(head):
        reached = core.semaphores.get(wait.semaphore, 0)
        yield (
            f"{engine} waits for {wait.semaphore} to reach {needed}, which is at {reached}, "
            f"before {head}"
        )
        yield f"  {_signallers(core, wait)}"


def _signallers(core: Core, wait: Wait) -> str:
    """Who signals a semaphore, and what keeps them from it."""
    found: dict[str, str] = {}
    for instr in walk(core.program.body):
        if any(signal.semaphore == wait.semaphore for signal in instr.signals):
            head = core.head(instr.runs_on)
            state = (
                "has nothing left to do"
                if head is None
                else f"is held up before {head.instr.mnemonic()}"
            )
            found[instr.runs_on] = f"{instr.mnemonic()} on {instr.runs_on}, which {state}"
    return "it is signalled by " + "; ".join(found.values()) if found else "nothing signals it"


def _blockers(core: Core, engine: str, head: Execution) -> list[str]:
    """The engines that an engine waits for."""
    if isinstance(head.instr, Barrier):
        return [name for name in core.engines if not _is_at_barrier(core.head(name))]
    wanted = {wait.semaphore for wait, _ in core.unmet(head)}
    return sorted(
        {
            instr.runs_on
            for instr in walk(core.program.body)
            if any(signal.semaphore in wanted for signal in instr.signals)
            and core.head(instr.runs_on) is not None
        }
    )


def _ring(waits_for: dict[str, list[str]]) -> list[str]:
    """Names that wait for each other, the first again at the end; empty without a ring."""
    for start in waits_for:
        path = [start]
        while path[-1] in waits_for and waits_for[path[-1]]:
            following = waits_for[path[-1]][0]
            if following in path:
                return [*path[path.index(following) :], following]
            path.append(following)
    return []


def _is_at_barrier(head: Execution | None) -> bool:
    return head is not None and isinstance(head.instr, Barrier)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "cores"
