"""Tiles on chip that show bytes which they did not write themselves.

Tiles may share bytes: one after the other, where each is written before it is read, or on purpose,
so that what one writes is read through another. In the second case no write may be left out or go
elsewhere.
"""

from __future__ import annotations

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, reach
from glia.machine.byte_owners import ByteOwners
from glia.machine.ir import Block, Loop, Program, blocks, walk

BEHIND_ALL = 1 << 40  # bytes, more than any memory on chip has


def exposed_tiles(program: Program) -> list[Tile]:
    """The tiles that are read, perhaps, where not all their bytes are of their own last writes."""
    found = _Ownership(program)
    found.block(program.body)
    return list(found.exposed.values())


class _Ownership:
    """One walk in program order: which tile each byte of a partition was last written through."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._owners = {memory: ByteOwners() for memory in Memory}
        self._unplaced: dict[str, int] = {}  # where tiles without an address are, apart from all
        self._trips: dict[str, int] = {}
        self.exposed: dict[str, Tile] = {}

    def block(self, body: Block) -> None:
        """Walk a block, and the body of a loop once more: as the iterations after the first."""
        for statement in body:
            if isinstance(statement, Instr):
                self._instruction(statement, "")
                continue
            if isinstance(statement, Loop):
                self._trips[statement.variable] = max(1, statement.trips)
            for inner in blocks(statement):
                self.block(inner)
            variable = statement.variable if isinstance(statement, Loop) else ""
            for instr in walk((statement,)):
                self._instruction(instr, variable)

    def _instruction(self, instr: Instr, variable: str) -> None:
        """`variable` is of a loop in a later iteration, "" where none need be in one."""
        operands = [each for each in instr.operands() if each[2].memory is not Memory.HBM]
        for name, _, pattern in operands:
            if self._is_read(instr, name, variable):
                self._read(pattern)
        for name, _, pattern in operands:
            if instr.access(name) != "reads":
                tile, start, end = self._place(pattern)
                self._owners[tile.memory].claim(start, end, tile.name)

    def _place(self, pattern: Pattern) -> tuple[Tile, int, int]:
        """A pattern's tile, and from where to where in a partition its bytes lie, gaps included."""
        tile = pattern.tile
        address = self._program.addresses.get(tile.name, self._unplaced.get(tile.name))
        if address is None:
            address = self._unplaced[tile.name] = BEHIND_ALL + len(self._unplaced) * BEHIND_ALL
        variables = pattern.offset.variables
        if not set(variables) <= self._trips.keys():
            return tile, address, address + tile.bytes_per_partition
        width = pattern.dtype.bytes
        low, high = reach(pattern.dims[1:])
        least, greatest = pattern.offset.bounds(self._trips)
        return tile, address + (least + low) * width, address + (greatest + high + 1) * width

    def _is_read(self, instr: Instr, name: str, variable: str) -> bool:
        """Whether an operand's earlier elements are used."""
        if instr.access(name) == "writes" or instr.may_be_fresh(name):
            return False
        if name not in instr.read_when:
            return True
        condition = instr.read_condition(name)
        return condition.is_constant or variable in condition.variables

    def _read(self, pattern: Pattern) -> None:
        tile, start, end = self._place(pattern)
        if not self._owners[tile.memory].is_owner(start, end, tile.name):
            self.exposed[tile.name] = tile
