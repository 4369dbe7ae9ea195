"""Addresses on chip by live interval: next-fit, and first-fit where next-fit finds no gap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from glia.arch import Arch
from glia.base.errors import CompileError
from glia.base.loc import UNKNOWN, Loc
from glia.isa.operand import Memory, Tile, usable_bytes_per_partition
from glia.machine.ir import Program
from glia.machine.passes.lifetimes import Lifetime

ON_CHIP_ALIGNMENT = 32
ON_CHIP = (Memory.SBUF, Memory.PSUM)
DISTANCES = (64, 256, 1024)  # instructions, from where a tile finds no gap
SHOWN_TILES = 5  # in the error
LineOf = Callable[[str], Loc]  # of a tile, by its name
Placeable = Sequence[tuple[Tile, Lifetime]]  # in the order of their first use
FOREVER = 1 << 62  # a position after every instruction
Entry = tuple[int, int, int, str]  # start, end (bytes), last use, tile


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


@dataclass(frozen=True)
class FixedTile:
    """A tile with an address, and when nothing else may have its bytes: always unless given."""

    tile: Tile
    address: int
    first: int = 0  # positions, as in a lifetime
    last: int = FOREVER

    @property
    def entry(self) -> Entry:
        """What it takes of its memory."""
        end = self.address + self.tile.bytes_per_partition
        return self.address, end, self.last, self.tile.name


@dataclass
class OnChipSpace:
    """The allocator of one on-chip memory; tiles come in order of their first use.

    `fixed` are those with an address, in that order too.

    Next-fit, so that addresses are reused late and engines rarely wait, or first-fit for the tiles
    in `first_fit`, which leaves fewer gaps.
    """

    memory: Memory
    capacity: int
    bank: int = 0  # a tile must not cross a multiple of this; 0 for no banks
    first_fit: Container[str] = ()
    fixed: Sequence[FixedTile] = ()
    active: list[Entry] = field(default_factory=list)  # in order
    begun: int = 0  # how many of `fixed` are, or have been, in `active`
    cursor: int = 0

    def place(self, tile: Tile, lifetime: Lifetime) -> int | UnplacedTile:
        """The address of a tile."""
        self.active = [entry for entry in self.active if entry[2] >= lifetime.first]
        later = self._begin_fixed(lifetime)
        bytes_needed = round_up(tile.bytes_per_partition, ON_CHIP_ALIGNMENT)
        is_next_fit = tile.name not in self.first_fit
        taken = sorted([*self.active, *later]) if later else self.active
        address = self._find_gap(taken, bytes_needed, self.cursor if is_next_fit else 0)
        if address is None:
            address = self._find_gap(taken, bytes_needed, 0)
        if address is None:
            live = {name: end - start for start, end, _, name in taken}
            return UnplacedTile(tile, self.capacity, live)
        insort(self.active, (address, address + bytes_needed, lifetime.last, tile.name))
        if is_next_fit:
            self.cursor = address + bytes_needed
        return address

    def _begin_fixed(self, lifetime: Lifetime) -> list[Entry]:
        """Enter the fixed tiles that have begun; returns those that begin within a lifetime."""
        fixed = self.fixed
        while self.begun < len(fixed) and fixed[self.begun].first <= lifetime.first:
            if fixed[self.begun].last >= lifetime.first:
                insort(self.active, fixed[self.begun].entry)
            self.begun += 1
        end = bisect_right(fixed, lifetime.last, lo=self.begun, key=lambda each: each.first)
        return [each.entry for each in fixed[self.begun : end]]

    def _find_gap(self, taken: Sequence[Entry], bytes_needed: int, start: int) -> int | None:
        candidate = self._fit_in_bank(start, bytes_needed)
        for low, high, *_ in taken:
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
    fixed: Sequence[FixedTile],
    capacities: Mapping[Memory, int],
    arch: Arch,
) -> tuple[dict[str, int], list[UnplacedTile]]:
    """The address of every tile, around those with a fixed one; and the tiles without a gap.

    A tile that finds no gap is left out, and those after it are placed as if it were not there, so
    that one call finds every place where the program needs too much.
    """
    ordered = sorted(tiles, key=lambda each: (each[1].first, each[0].name))
    addresses: dict[str, int] = {}
    overflows: list[UnplacedTile] = []
    for memory in ON_CHIP:
        bank = arch.psum_bank_bytes if memory is Memory.PSUM else 0
        reserved = sorted(
            (each for each in fixed if each.tile.memory is memory), key=lambda each: each.first
        )
        space = OnChipSpace(memory, capacities[memory], bank, fixed=reserved)
        found, failed = _place_all(space, [each for each in ordered if each[0].memory is memory])
        addresses |= found
        overflows += failed
    return {t.name: addresses[t.name] for t, _ in ordered if t.name in addresses}, overflows


def _place_all(space: OnChipSpace, tiles: Placeable) -> tuple[dict[str, int], list[UnplacedTile]]:
    """The addresses of one memory's tiles in order, and those without a gap.

    Where all fit first-fit, but not next-fit, as few are placed so as are enough.
    """

    def place(first_fit: Container[str]) -> tuple[dict[str, int], list[UnplacedTile]]:
        own = replace(space, first_fit=first_fit, active=[])
        found = [(tile.name, own.place(tile, lifetime)) for tile, lifetime in tiles]
        addresses = {name: each for name, each in found if isinstance(each, int)}
        return addresses, [each for _, each in found if isinstance(each, UnplacedTile)]

    addresses, failed = place(())
    if not failed:
        return addresses, failed
    tightest = place({tile.name for tile, _ in tiles})
    if tightest[1]:
        return tightest
    first_fit: set[str] = set()
    for distance in DISTANCES:
        first_fit |= _crowded_tiles(failed, tiles, distance)
        addresses, failed = place(first_fit)
        if not failed:
            return addresses, failed
    return tightest


def _crowded_tiles(failed: Sequence[UnplacedTile], tiles: Placeable, distance: int) -> set[str]:
    """The tiles that are live where others found no gap, and those first used near there."""
    names = {name for each in failed for name in (each.tile.name, *each.live)}
    missing = {each.tile.name for each in failed}
    firsts = sorted(lifetime.first for tile, lifetime in tiles if tile.name in missing)
    for tile, lifetime in tiles:
        after = bisect_left(firsts, lifetime.first - distance)
        if after < len(firsts) and firsts[after] <= lifetime.first + distance:
            names.add(tile.name)
    return names


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
