"""Addresses on chip by live interval: next-fit, and first-fit where next-fit finds no gap."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from glia.arch import Arch
from glia.base.errors import CompileError
from glia.base.loc import UNKNOWN, Loc
from glia.isa.operand import Memory, Tile, usable_bytes_per_partition
from glia.machine.ir import Program
from glia.machine.passes.lifetimes import Lifetime

ON_CHIP_ALIGNMENT = 32
ON_CHIP = (Memory.SBUF, Memory.PSUM)
SHOWN_TILES = 5  # in the error
LineOf = Callable[[str], Loc]  # of a tile, by its name
FOREVER = 1 << 62  # a position after every instruction


class OnChipMemoryFull(CompileError):
    """The tiles that are live at one point of the program exceed the capacity of SBUF or PSUM.

    Cause: a kernel whose author keeps too many tiles live, or fixed their addresses. (What glia
    makes of a model is compiled again with smaller tiles and fewer of them until it fits; tiles of
    NKI Beta 1 without addresses are spilled, but for those that one instruction or one loop on the
    device needs together, and sums of products that are not complete.)
    Fix: the message lists the largest tiles that are live, and the lines that write them first:
    finish with those, or copy them to HBM, before more are written.
    Example: a kernel that loads eight tiles of a quarter of SBUF each before it uses the first.
    """

    code = "GLIA301"
    message = (
        "{memory} is full: tile {tile} needs {bytes} bytes per partition of {capacity}, of which "
        "live tiles hold {held}{largest}"
    )
    help = (
        "make these tiles smaller, or finish with them (or copy them to HBM) before {tile} is "
        "written; or take a target with a larger {memory}"
    )


@dataclass(frozen=True)
class UnplacedTile:
    """A tile for which there is no gap, and the bytes per partition of those that are live then."""

    tile: Tile
    capacity: int
    live: Mapping[str, int]

    @property
    def live_bytes(self) -> int:
        """Bytes per partition of all that are live."""
        return sum(self.live.values())


def occupied_bytes(tile: Tile, arch: Arch) -> int:
    """The bytes of a partition that a tile takes; whole banks of PSUM where it is a large one."""
    size = round_up(tile.bytes_per_partition, ON_CHIP_ALIGNMENT)
    bank = arch.psum_bank_bytes
    return round_up(size, bank) if tile.memory is Memory.PSUM and 2 * size > bank else size


@dataclass
class OnChipSpace:
    """The allocator of one on-chip memory; tiles come in order of their first use.

    Next-fit, so that addresses are reused late and engines rarely wait, or first-fit, which leaves
    fewer gaps.
    """

    memory: Memory
    capacity: int
    bank: int = 0  # a tile must not cross a multiple of this; 0 for no banks
    is_next_fit: bool = True
    # (start, end, last use, tile), in order
    active: list[tuple[int, int, int, str]] = field(default_factory=list)
    cursor: int = 0

    def place(self, tile: Tile, lifetime: Lifetime) -> int | UnplacedTile:
        """The address of a tile."""
        self.active = [entry for entry in self.active if entry[2] >= lifetime.first]
        bytes_needed = round_up(tile.bytes_per_partition, ON_CHIP_ALIGNMENT)
        address = self._find_gap(bytes_needed, self.cursor)
        if address is None:
            address = self._find_gap(bytes_needed, 0)
        if address is None:
            live = {name: end - start for start, end, _, name in self.active}
            return UnplacedTile(tile, self.capacity, live)
        insort(self.active, (address, address + bytes_needed, lifetime.last, tile.name))
        if self.is_next_fit:
            self.cursor = address + bytes_needed
        return address

    def reserve(self, address: int, tile: Tile) -> None:
        """Reserve the bytes of a tile with a fixed address for the whole program."""
        insort(self.active, (address, address + tile.bytes_per_partition, FOREVER, tile.name))

    def _find_gap(self, bytes_needed: int, start: int) -> int | None:
        candidate = self._fit_in_bank(start, bytes_needed)
        for low, high, *_ in self.active:
            if high <= candidate:
                continue
            if low >= candidate + bytes_needed:
                break
            candidate = self._fit_in_bank(high, bytes_needed)
        return candidate if candidate + bytes_needed <= self.capacity else None

    def _fit_in_bank(self, address: int, bytes_needed: int) -> int:
        if self.bank and address // self.bank != (address + bytes_needed - 1) // self.bank:
            return round_up(address, self.bank)
        return address


def assign_addresses(
    tiles: Iterable[tuple[Tile, Lifetime]],
    fixed: Iterable[tuple[Tile, int]],
    capacities: Mapping[Memory, int],
    arch: Arch,
) -> tuple[dict[str, int], list[UnplacedTile]]:
    """The address of every tile, around those with a fixed one; and the tiles without a gap.

    A tile that finds no gap is left out, and those after it are placed as if it were not there, so
    that one call finds every place where the program needs too much.
    """
    ordered = sorted(tiles, key=lambda each: (each[1].first, each[0].name))
    reserved = [*fixed]
    addresses: dict[str, int] = {}
    overflows: list[UnplacedTile] = []
    for memory in ON_CHIP:
        own = [each for each in ordered if each[0].memory is memory]
        for is_next_fit in (True, False):
            bank = arch.psum_bank_bytes if memory is Memory.PSUM else 0
            space = OnChipSpace(memory, capacities[memory], bank, is_next_fit)
            for tile, address in reserved:
                if tile.memory is memory:
                    space.reserve(address, tile)
            found = [(tile, space.place(tile, lifetime)) for tile, lifetime in own]
            failed = [place for _, place in found if isinstance(place, UnplacedTile)]
            if not failed:
                break
        addresses |= {tile.name: place for tile, place in found if isinstance(place, int)}
        overflows += failed
    return {t.name: addresses[t.name] for t, _ in ordered if t.name in addresses}, overflows


def on_chip_capacities(arch: Arch) -> dict[Memory, int]:
    """Usable bytes of a partition of each memory on chip."""
    return {memory: usable_bytes_per_partition(memory, arch) for memory in ON_CHIP}


def memory_full(overflows: list[UnplacedTile], line_of: LineOf) -> OnChipMemoryFull:
    """The error for tiles that do not fit, which names the first, and the largest live with it.

    `line_of` gives the source line that uses a tile first. The fact `live` is the set of all tiles
    that are live where memory does not suffice.
    """
    first = overflows[0]
    largest = sorted(first.live.items(), key=lambda each: -each[1])[:SHOWN_TILES]
    return OnChipMemoryFull(
        memory=first.tile.memory.value,
        tile=first.tile.name,
        bytes=first.tile.bytes_per_partition,
        capacity=first.capacity,
        held=first.live_bytes,
        largest="".join(_live_line(name, held, line_of(name)) for name, held in largest),
        live=frozenset(name for each in overflows for name in (each.tile.name, *each.live)),
        loc=line_of(first.tile.name),
    )


def first_lines(program: Program) -> LineOf:
    """The source line of the first instruction that uses a tile."""
    lines: dict[str, Loc] = {}
    for instruction in program.instructions():
        for pattern in instruction.patterns():
            lines.setdefault(pattern.tile.name, instruction.loc)
    return lambda name: lines.get(name, UNKNOWN)


def _live_line(name: str, held: int, loc: Loc) -> str:
    return f"\n  live: {name}, {held} bytes" + (f", from {loc}" if str(loc) else "")


def round_up(value: int, unit: int) -> int:
    """The least multiple of `unit` that is not below `value`."""
    return -(-value // unit) * unit
