"""Whether the on-chip tiles of a simulated kernel fit: placement by their live intervals.

A compiled kernel is placed before it runs. A simulated one gives every tile memory of its own, and
at its end checks that placement would have found addresses, with placement's error.
"""

from __future__ import annotations

from typing import Any

from glia.arch import Arch
from glia.base.fast_objects import fields_of
from glia.base.loc import UNKNOWN, Loc
from glia.isa.instructions.vector import Memset
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.passes.lifetimes import Lifetime
from glia.machine.passes.on_chip_space import (
    ON_CHIP_ALIGNMENT,
    FixedTile,
    assign_addresses,
    memory_full,
    on_chip_capacities,
)

_OPERANDS: dict[type[Instr], tuple[str, ...]] = {}  # names of the operands


class UseInterval:
    """The numbers of the first and last instruction that use a tile; -1 while none has.

    `needed` is the first that is no fill: fills may wait for it. `is_read_first` where the first
    reads the tile, which has what was written to another at its address.
    """

    __slots__ = ("first", "is_read_first", "last", "loc", "needed")

    def __init__(self) -> None:
        self.first = self.last = self.needed = -1
        self.is_read_first = False
        self.loc: Loc = UNKNOWN


class OnChipUsage:
    """The on-chip tiles of one core and the intervals of their use."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._tiles: dict[str, tuple[Tile, UseInterval, int | None]] = {}
        self._bytes = dict.fromkeys((Memory.SBUF, Memory.PSUM), 0)
        self._has_addresses = False
        self._instructions = 0

    def add(self, tile: Tile, use: UseInterval, address: int | None) -> None:
        """Add a tile, with the kernel's address if it has one; its memory is not referenced."""
        if tile.memory in self._bytes:
            plain = Tile(tile.name, tile.memory, tile.dtype, tile.partitions, tile.elements)
            self._tiles[tile.name] = plain, use, address
            units = -(-tile.bytes_per_partition // ON_CHIP_ALIGNMENT)
            self._bytes[tile.memory] += units * ON_CHIP_ALIGNMENT
            self._has_addresses |= address is not None

    def record(self, instr: Instr) -> None:
        """Extend the intervals of an instruction's operands."""
        number = self._instructions = self._instructions + 1
        given, kind = fields_of(instr), instr.__class__
        names = _OPERANDS.get(kind)
        if names is None:
            names = _OPERANDS[kind] = tuple(kind.operand_declarations)
        for name in names:
            value = given[name]
            for pattern in value if value.__class__ is tuple else (value,):
                if pattern.__class__ is Pattern:
                    tile: Any = pattern.tile  # a BackedTile, as all tiles of a simulation are
                    use: UseInterval = tile.interval
                    use.last = number
                    if use.first < 0:
                        use.first, use.loc = number, instr.loc
                        use.is_read_first = instr.access(name) != "writes"
                    if use.needed < 0 and kind is not Memset:
                        use.needed = number

    def require_fit(self, *, moves_fills: bool) -> None:
        """OnChipMemoryFull when the tiles live at one time do not fit, nor when fills wait."""
        capacities = on_chip_capacities(self._arch)
        is_little = all(n <= capacities[memory] // 2 for memory, n in self._bytes.items())
        if is_little and not self._has_addresses:
            return
        used = [each for each in self._tiles.values() if each[1].first >= 0]
        free = [(tile, use) for tile, use, place in used if place is None]
        lives = [(tile, Lifetime(use.first, use.last)) for tile, use in free]
        placed = [(tile, use, place) for tile, use, place in used if place is not None]
        fixed = [FixedTile(tile, place) for tile, _, place in placed]
        overflows = assign_addresses(lives, fixed, capacities, self._arch)[1]
        if overflows and fixed:
            fixed = [
                FixedTile(tile, place)
                if use.is_read_first
                else FixedTile(tile, place, use.first, use.last)
                for tile, use, place in placed
            ]
            overflows = assign_addresses(lives, fixed, capacities, self._arch)[1]
        if overflows and moves_fills:
            later = [(tile, Lifetime(max(use.first, use.needed), use.last)) for tile, use in free]
            if not assign_addresses(later, fixed, capacities, self._arch)[1]:
                return
        if overflows:
            raise memory_full(overflows, lambda name: self._tiles[name][1].loc)
