"""What is said when two accesses are in no order."""

from __future__ import annotations

from dataclasses import dataclass

from glia.isa.operand import Tile
from glia.machine.text import print_instruction
from glia.sim.byte_tags import place_text
from glia.sim.order.execution import Execution
from glia.sim.policy import ExecutionFault


@dataclass(frozen=True)
class Place:
    """What two accesses have in common: bytes and partitions of a tile's memory, or a register."""

    shared: Tile | str
    bytes: tuple[int, int] = (0, 0)
    partitions: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        if isinstance(self.shared, str):
            return f"register {self.shared}"
        return place_text(self.shared, self.bytes, self.partitions)


class Race(ExecutionFault):
    """Two instructions touch the same memory, and nothing but luck puts them in program order.

    `first` comes before `second` in program order (between cores: was seen first); `place` is what
    they share, `cure` the wait that is missing.
    """

    def __init__(
        self, first: Execution, second: Execution, place: Place, does: tuple[str, str], cure: str
    ) -> None:
        self.first = first
        self.second = second
        self.place = place
        self.cure = cure
        self.rank = second.number, -first.number
        lines = [f"race: nothing orders two accesses to {place}"]
        for execution, doing in zip((first, second), does, strict=True):
            lines.append(f"  {execution.where} {doing} it: {execution}")
        super().__init__(
            "\n".join([*lines, f"  cure: {cure}"]),
            instruction=print_instruction(second.instr),
            loc=second.instr.loc,
        )


class UnsetRegister(ExecutionFault):
    """An engine used a register that it has not set, and that no engine set before they met."""


def missing_wait(first: Execution, second: Execution) -> str:
    """The wait that would put two executions in order."""
    one, other = first.instr.mnemonic(), second.instr.mnemonic()
    if first.core != second.core:
        return "let the cores meet in between, at a core_barrier"
    if not first.targets:
        wait = f"let {one} signal a semaphore on completion, and {other} wait for it"
        if first.stream == second.stream:
            wait += "; transfers of one queue overlap"
        return wait
    semaphore, needed = next(iter(first.targets.items()))
    waited = second.waited.get(semaphore)
    if waited is None:
        return f"let {other} wait for {semaphore} to reach {needed}, to which {one} brings it"
    if waited >= needed:
        return (
            f"let no other stream than that of {one} signal {semaphore}: a count cannot tell them"
        )
    return f"let {other} wait for {semaphore} to reach {needed}, not {waited}"


def unordered_register(register: str) -> str:
    """The cure for a register that engines share without meeting."""
    return f"set {register} on the engine that uses it, or let all engines meet at a barrier"
