"""Whether what a simulated kernel keeps on chip at one time fits: placement by when tiles are used.

A compiled kernel gets addresses before it runs. A simulated one gives every tile memory of its own,
and asks at its end whether there would have been addresses, in the words of placement.
"""

from __future__ import annotations

from typing import Any

from glia.arch import Arch
from glia.base.loc import UNKNOWN, Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.passes.lifetimes import Life
from glia.machine.passes.place import ON_CHIP_ALIGNMENT, Space, full, on_chip_spaces

_OPERANDS: dict[type[Instr], tuple[str, ...]] = {}  # names of the operands


class Use:
    """Which instructions, by number, use a tile first and last; -1 while none has."""

    __slots__ = ("first", "last", "loc")

    def __init__(self) -> None:
        self.first = self.last = -1
        self.loc: Loc = UNKNOWN


class Room:
    """The on-chip tiles of one core, and when they are used."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._tiles: dict[str, tuple[Tile, Use, int | None]] = {}
        self._bytes = dict.fromkeys((Memory.SBUF, Memory.PSUM), 0)
        self._has_addresses = False
        self._instructions = 0

    def add(self, tile: Tile, use: Use, address: int | None) -> None:
        """A tile is made, at an address of its own or not; its contents are not kept."""
        if tile.memory in self._bytes:
            plain = Tile(tile.name, tile.memory, tile.dtype, tile.partitions, tile.elements)
            self._tiles[tile.name] = plain, use, address
            units = -(-tile.bytes_per_partition // ON_CHIP_ALIGNMENT)
            self._bytes[tile.memory] += units * ON_CHIP_ALIGNMENT
            self._has_addresses |= address is not None

    def note(self, instr: Instr) -> None:
        """An instruction uses its operands."""
        number = self._instructions = self._instructions + 1
        given, kind = instr.__dict__, instr.__class__
        names = _OPERANDS.get(kind)
        if names is None:
            names = _OPERANDS[kind] = tuple(kind.operand_declarations)
        for name in names:
            value = given[name]
            for pattern in value if value.__class__ is tuple else (value,):
                if pattern.__class__ is Pattern:
                    tile: Any = pattern.tile  # all tiles of a simulation have a `use`
                    use: Use = tile.use
                    use.last = number
                    if use.first < 0:
                        use.first, use.loc = number, instr.loc

    def require(self) -> None:
        """OnChipMemoryFull when the tiles that are used at one time do not fit."""
        spaces = on_chip_spaces(self._arch)
        is_little = all(n <= spaces[memory].capacity // 2 for memory, n in self._bytes.items())
        if is_little and not self._has_addresses:
            return
        used = [each for each in self._tiles.values() if each[1].first >= 0]
        for tile, _, address in used:
            if address is not None:
                spaces[tile.memory].reserve(address, tile)
        for tile, use, address in sorted(used, key=lambda each: (each[1].first, each[0].name)):
            space: Space = spaces[tile.memory]
            if address is None and space.place(tile, Life(use.first, use.last)) is None:
                raise full(space, tile, use.loc)
