"""The report of a deadlock: which engine waits for which semaphore, barrier or core."""

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
    """No engine can advance; lists the waits, and the engines that signal their semaphores."""


def explain(cores: Sequence[Core]) -> str:
    """A line for every blocked engine, and the cycle of waits if there is one."""
    lines = ["deadlock: no engine can advance"]
    waits_for: dict[str, list[str]] = {}
    for core in cores:
        place = f"core {core.index}: " if len(cores) > 1 else ""
        for engine in core.engines:
            head = core.head(engine)
            if head is None:
                continue
            lines += [f"  {place}{line}" for line in _blocked_engine(cores, core, engine, head)]
            waits_for[place + engine] = [place + name for name in _blockers(core, engine, head)]
        for stream, queue in core.queues.items():
            if queue:
                lines.append(f"  {place}{_missing_participants(cores, core, stream, queue[0])}")
    cycle = _wait_cycle(waits_for)
    if cycle:
        lines.append(f"  cycle: {' waits for '.join(cycle)}")
    return "\n".join(lines)


def _missing_participants(cores: Sequence[Core], core: Core, stream: str, front: Execution) -> str:
    """The cores or ranks that have not arrived at a cross-core instruction."""
    instr: Any = front.instr
    own = core.indices[instr.among]
    beside = "cores" if instr.among == "ranks" else "ranks"
    others = [rank for rank in instr.ranks(own) if rank != own]
    there = {
        other.indices[instr.among]
        for other in cores
        for each in (*map(other.head, other.engines), *(q[0] for q in other.queues.values() if q))
        if each is not None
        and other.indices[beside] == core.indices[beside]
        and each.instr.arrives == "participants"
        and each.instr.topic() == instr.topic()  # type: ignore[attr-defined]
    }
    missing = [f"{instr.among[:-1]} {rank}" for rank in others if rank not in there]
    return f"{stream} waits for {_joined(missing)} to arrive at {front}"


def _blocked_engine(
    cores: Sequence[Core], core: Core, engine: str, head: Execution
) -> Iterator[str]:
    if isinstance(head.instr, Barrier):
        behind = [name for name in core.engines if not _is_at_barrier(core.head(name))]
        yield f"{engine} is at a barrier at which {_joined(behind)} have not arrived"
    elif head.instr.arrives == "participants" and not core.unmet_waits(head):
        yield _missing_participants(cores, core, engine, head)
    for wait, needed in core.unmet_waits(head):
        reached = core.semaphores.get(wait.semaphore, 0)
        yield (
            f"{engine} waits for {wait.semaphore} to reach {needed}, which is at {reached}, "
            f"before {head}"
        )
        yield f"  {_signallers(core, wait)}"


def _signallers(core: Core, wait: Wait) -> str:
    """The instructions that signal a semaphore, and the state of their engines."""
    found: dict[str, str] = {}
    for instr in walk(core.program.body):
        if any(signal.semaphore == wait.semaphore for signal in instr.signals):
            head = core.head(instr.runs_on)
            state = "has finished" if head is None else f"is blocked before {head.instr.mnemonic()}"
            found[instr.runs_on] = f"{instr.mnemonic()} on {instr.runs_on}, which {state}"
    return "it is signalled by " + "; ".join(found.values()) if found else "nothing signals it"


def _blockers(core: Core, engine: str, head: Execution) -> list[str]:
    """The engines that an engine waits for, sorted."""
    if isinstance(head.instr, Barrier):
        return [name for name in core.engines if not _is_at_barrier(core.head(name))]
    wanted = {wait.semaphore for wait, _ in core.unmet_waits(head)}
    return sorted(
        {
            instr.runs_on
            for instr in walk(core.program.body)
            if any(signal.semaphore in wanted for signal in instr.signals)
            and core.head(instr.runs_on) is not None
        }
    )


def _wait_cycle(waits_for: dict[str, list[str]]) -> list[str]:
    """A cycle of the wait-for graph, the first name repeated at the end; empty without one."""
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


def _joined(names: list[str]) -> str:
    return ", ".join(names) or "cores"
