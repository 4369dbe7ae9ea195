"""Sums that the Scalar Engine takes of a copy that nothing reads: the Vector Engine sums alone."""

from __future__ import annotations

from collections.abc import Iterator

from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import TensorReduce
from glia.isa.kit import Instr
from glia.machine.ir import Program, walk


class UnreadCopies:
    """Which activations of a program could be a sum on another engine.

    `tiles` are those that nothing reads. The sum has to start at 0, and no other instruction may go
    on with it: none does where none in the program takes up what the accumulators hold.
    """

    def __init__(self, program: Program) -> None:
        read = {binding.tile.name for binding in program.outputs}
        written: set[str] = set()
        self.takes_up = False
        for instruction in walk(program.body):
            read.update(pattern.tile.name for pattern in instruction.read_patterns())
            written.update(pattern.tile.name for pattern in instruction.written_patterns())
            self.takes_up = self.takes_up or _takes_up(instruction)
        self.tiles = written - read

    def __contains__(self, instruction: object) -> bool:
        return (
            isinstance(instruction, Activation)
            and not self.takes_up
            and instruction.command == "reset_reduce"
            and instruction.function == "copy"
            and instruction.reduced is not None
            and instruction.scale == 1.0
            and instruction.bias in (None, 0)
            and instruction.dst.tile.name in self.tiles
        )


def _takes_up(instruction: Instr) -> bool:
    """Whether an instruction goes on with, or reads, what accumulators hold before it."""
    command = getattr(instruction, "command", "")
    return command == "reduce" or (
        command == "idle" and getattr(instruction, "reduced", None) is not None
    )


def sums(instruction: Instr) -> Iterator[TensorReduce]:
    """The Vector Engine's sum of what an activation copies."""
    if isinstance(instruction, Activation) and instruction.reduced is not None:
        yield TensorReduce(
            dst=instruction.reduced,
            data=instruction.data,
            op="add",
            axes=len(instruction.data.dims) - 1,
            on="vector",
            loc=instruction.loc,
        )
