"""The report of a race: two conflicting accesses that nothing orders, and the missing wait."""

from __future__ import annotations

from dataclasses import dataclass

from glia.isa.operand import Tile
from glia.machine.text import print_instruction
from glia.sim.byte_tags import address_text
from glia.sim.order.execution import Execution
from glia.sim.policy import ExecutionFault


@dataclass(frozen=True)
class Place:
    """The location of a conflict: bytes and partitions of a tile's memory, or a register."""

    shared: Tile | str
    bytes: tuple[int, int] = (0, 0)
    partitions: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        if isinstance(self.shared, str):
            return f"register {self.shared}"
        return address_text(self.shared, self.bytes, self.partitions)


class Race(ExecutionFault):
    """Two conflicting accesses that no wait, queue or barrier orders.

    `first` precedes `second` in program order (between cores: in the order of the run); `place` is
    the shared location, `fix` the missing wait.
    """

    def __init__(
        self, first: Execution, second: Execution, place: Place, verbs: tuple[str, str], fix: str
    ) -> None:
        self.first = first
        self.second = second
        self.place = place
        self.fix = fix
        self.rank = second.number, -first.number
        lines = [f"race: unordered accesses to {place}"]
        for execution, doing in zip((first, second), verbs, strict=True):
            core = f"core {execution.core}, " if first.core != second.core else ""
            lines.append(f"  {core}{execution.where} {doing} it: {execution}")
        super().__init__(
            "\n".join([*lines, f"  fix: {fix}"]),
            instruction=print_instruction(second.instr),
            loc=second.instr.loc,
        )


class UnsetRegister(ExecutionFault):
    """An engine used a register that neither it nor, before a barrier, another engine has set."""


def missing_wait(first: Execution, second: Execution) -> str:
    """The wait or barrier that would order two executions."""
    one, other = first.instr.mnemonic(), second.instr.mnemonic()
    if first.core != second.core:
        return "put a core_barrier between them"
    if not first.targets:
        wait = f"let {one} signal a semaphore on completion, and {other} wait for it"
        if first.stream == second.stream:
            wait += "; transfers of one queue overlap"
        return wait
    semaphore, needed = next(iter(first.targets.items()))
    waited = second.waited.get(semaphore)
    if waited is None:
        return f"let {other} wait for {semaphore} to reach {needed}, its count after {one}"
    if waited >= needed:
        return f"let only the stream of {one} signal {semaphore}: its count is ambiguous"
    return f"let {other} wait for {semaphore} to reach {needed}, not {waited}"


def register_fix(register: str) -> str:
    """The fix for a register that engines share without a barrier."""
    return (
        f"set {register} on the engine that uses it, or put a barrier between the set and the use"
    )
