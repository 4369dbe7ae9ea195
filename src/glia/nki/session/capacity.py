"""Whether the on-chip tiles of a simulated kernel fit: placement by their live intervals.

A compiled kernel is placed before it runs. A simulated one gives every tile memory of its own, and
at its end checks that placement would have found addresses, with placement's error. A kernel that
does not fit as written may fit in another order: what reads PSUM could be executed as soon as its
operands are there, which is that order's place of it here.
"""

from __future__ import annotations

from typing import Any

from glia.arch import Arch
from glia.base.fast_objects import fields_of
from glia.base.loc import UNKNOWN, Loc
from glia.isa.instructions.vector import Memset
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.passes.lifetimes import Lifetime
from glia.machine.passes.on_chip_space import (
    ON_CHIP_ALIGNMENT,
    FixedTile,
    UnplacedTile,
    assign_addresses,
    memory_full,
    on_chip_capacities,
)

_OPERANDS: dict[type[Instr], tuple[str, ...]] = {}  # names of the operands


class UseInterval:
    """The numbers of the first and last instruction that use a tile; -1 while none has.

    `needed` is the first that is no fill: fills may wait for it. `is_read_first` where the first
    reads the tile, which has what was written to another at its address. `early` is the same in the
    order in which PSUM is read early; `written` and `touched` are the last places there.
    """

    __slots__ = (
        "early_first", "early_last", "early_needed", "first", "is_read_first", "last", "loc",
        "needed", "touched", "written",
    )  # fmt: skip

    def __init__(self) -> None:
        self.first = self.last = self.needed = -1
        self.early_first = self.early_last = self.early_needed = self.written = self.touched = -1
        self.is_read_first = False
        self.loc: Loc = UNKNOWN

    def begin_early(self, number: int) -> None:
        """Take over the uses before an instruction, if that is the first to be followed."""
        if self.touched < 0 and self.first < number:
            self.early_first, self.early_needed = self.first, self.needed
            self.early_last = self.touched = self.written = number - 1

    def enter_early(self, place: int, *, writes: bool) -> None:
        """A use at a place of the order in which PSUM is read early."""
        if self.early_first < 0 or place < self.early_first:
            self.early_first = place
        self.early_last = self.touched = max(self.touched, place)
        if writes:
            self.written = max(self.written, place)
        if self.early_needed < 0 <= self.needed:
            self.early_needed = place

    def lifetime(self, *, is_early: bool, waits: bool) -> Lifetime:
        """When the tile is live; fills may wait."""
        first, needed, last = self.first, self.needed, self.last
        if is_early and self.early_first >= 0:
            first, needed, last = self.early_first, self.early_needed, self.early_last
        return Lifetime(max(first, needed) if waits else first, last)


class OnChipUsage:
    """The on-chip tiles of one core and the intervals of their use."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._tiles: dict[str, tuple[Tile, UseInterval, int | None]] = {}
        self._bytes = dict.fromkeys((Memory.SBUF, Memory.PSUM), 0)
        self._has_addresses = False
        self._may_overflow = False  # PSUM, if nothing ends before the last instruction
        self._instructions = 0

    def add(self, tile: Tile, use: UseInterval, address: int | None) -> None:
        """Add a tile, with the kernel's address if it has one; its memory is not referenced."""
        if tile.memory in self._bytes:
            plain = Tile(tile.name, tile.memory, tile.dtype, tile.partitions, tile.elements)
            self._tiles[tile.name] = plain, use, address
            units = -(-tile.bytes_per_partition // ON_CHIP_ALIGNMENT)
            self._bytes[tile.memory] += units * ON_CHIP_ALIGNMENT
            self._has_addresses |= address is not None
            if tile.memory is Memory.PSUM:
                self._may_overflow = self._bytes[tile.memory] > self._arch.psum_bytes_per_partition

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
        if self._may_overflow:
            self._enter_early(instr, number)

    @staticmethod
    def _enter_early(instr: Instr, number: int) -> None:
        """Extend the intervals of the order in which PSUM is read early."""
        uses: list[tuple[UseInterval, bool]] = []
        reads_psum = False
        for name, _, pattern in instr.operands():
            tile: Any = pattern.tile
            writes = instr.access(name) != "reads"
            reads_psum |= tile.memory is Memory.PSUM and not writes
            uses.append((tile.interval, writes))
            tile.interval.begin_early(number)
        early = number
        if reads_psum and not instr.states and not isinstance(instr, CrossCoreInstr):
            early = max(use.touched if writes else use.written for use, writes in uses)
        for use, writes in uses:
            use.enter_early(early, writes=writes)

    def require_fit(self, *, may_move: bool) -> None:
        """OnChipMemoryFull when the tiles live at one time do not fit, in no order tried here.

        As written, and with what tiles at addresses leave when they are not live; where
        instructions may move also when fills wait, and when PSUM is read early too.
        """
        capacities = on_chip_capacities(self._arch)
        is_little = all(n <= capacities[memory] // 2 for memory, n in self._bytes.items())
        if is_little and not self._has_addresses:
            return
        overflows = self._overflows(always=True)
        orders = [(False, False), *([(False, True), (True, True)] if may_move else [])]
        if overflows and all(self._overflows(is_early=e, waits=w) for e, w in orders):
            raise memory_full(overflows, lambda name: self._tiles[name][1].loc)

    def _overflows(
        self, *, always: bool = False, is_early: bool = False, waits: bool = False
    ) -> list[UnplacedTile]:
        """The tiles that find no place; those with addresses have them `always`, or while live."""
        used = [each for each in self._tiles.values() if each[1].first >= 0]
        free = [
            (tile, use.lifetime(is_early=is_early, waits=waits))
            for tile, use, place in used
            if place is None
        ]
        fixed = []
        for tile, use, place in used:
            if place is not None:
                life = use.lifetime(is_early=is_early, waits=False)
                is_whole = always or use.is_read_first
                fixed.append(
                    FixedTile(tile, place)
                    if is_whole
                    else FixedTile(tile, place, life.first, life.last)
                )
        return assign_addresses(free, fixed, on_chip_capacities(self._arch), self._arch)[1]
