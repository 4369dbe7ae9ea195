"""What a run of instructions holds of an on-chip memory while it is ordered."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Container, Sequence

from glia.arch import Arch
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.machine.passes.on_chip_space import occupied_bytes


class MemoryPressure:
    """The tiles of one memory that are live, first access to last, as a run is ordered.

    Those in `held` are live throughout.
    """

    def __init__(
        self,
        instructions: Sequence[Instr],
        memory: Memory,
        capacity: float,
        arch: Arch,
        placed: Container[str],
        held: Container[str] = (),
    ) -> None:
        self.capacity = capacity
        self.tiles = [_tiles(each, memory, arch, placed) for each in instructions]
        self.largest = max((sum(tiles.values()) for tiles in self.tiles), default=0)
        self.added_bytes = [sum(tiles.values()) for tiles in self.tiles]  # by what is not yet live
        self.remaining_uses = Counter(name for tiles in self.tiles for name in tiles)
        self.users: dict[str, list[int]] = defaultdict(list)
        for position, tiles in enumerate(self.tiles):
            for name in tiles:
                self.users[name].append(position)
        self.live: dict[str, int] = {}
        self.live_bytes = 0  # per partition, of what is live
        for tiles in self.tiles:
            for name, bytes_used in tiles.items():
                if name in held and name not in self.live:
                    self._allocate(name, bytes_used)
        self.remaining_uses.update(self.live.keys())  # one use that never comes

    def copy(self) -> MemoryPressure:
        """The same state, to order a run from it once more."""
        found = copy.copy(self)
        found.added_bytes = [*self.added_bytes]
        found.remaining_uses = self.remaining_uses.copy()
        found.live = dict(self.live)
        return found

    def most_live_in_order(self) -> int:
        """The bytes per partition that are live at most in the order given."""
        live = most = self.live_bytes
        for position, tiles in enumerate(self.tiles):
            passing = [name for name in tiles if name not in self.live]
            live += sum(tiles[name] for name in passing if self.users[name][0] == position)
            most = max(most, live)
            live -= sum(tiles[name] for name in passing if self.users[name][-1] == position)
        return most

    def may_overflow(self) -> bool:
        """Whether some instruction's tiles might not fit beside the live ones."""
        return self.live_bytes + self.largest > self.capacity

    def has_capacity(self, position: int) -> bool:
        """Whether the tiles that become live at a position fit beside the live ones."""
        added_bytes = self.added_bytes[position]
        return not added_bytes or self.live_bytes + added_bytes <= self.capacity

    def issue(self, position: int) -> None:
        """Update the live tiles: allocate those first accessed here, free those last accessed."""
        for name, bytes_used in self.tiles[position].items():
            if name not in self.live:
                self._allocate(name, bytes_used)
            self.remaining_uses[name] -= 1
            if not self.remaining_uses[name]:
                self.live_bytes -= self.live.pop(name)

    def _allocate(self, name: str, bytes_used: int) -> None:
        self.live[name] = bytes_used
        self.live_bytes += bytes_used
        for user in self.users[name]:
            self.added_bytes[user] -= bytes_used


def _tiles(
    instruction: Instr, memory: Memory, arch: Arch, placed: Container[str]
) -> dict[str, int]:
    """The tiles of a memory that an instruction accesses, with their bytes."""
    tiles = (pattern.tile for pattern in instruction.patterns())
    return {
        tile.name: occupied_bytes(tile, arch)
        for tile in tiles
        if tile.memory is memory and tile.name not in placed
    }
