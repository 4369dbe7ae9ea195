"""Placement: addresses by lifetime.

On chip tiles get addresses one after the other, in HBM all temporaries together. What the outside
or another core accesses keeps its bytes throughout the program.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.base.errors import CompileError
from glia.base.loc import UNKNOWN, Loc
from glia.isa.operand import Memory, Tile
from glia.machine.columns.update import share_columns
from glia.machine.ir import Program
from glia.machine.passes.lifetimes import Lifetime, find_lifetimes
from glia.machine.passes.pack_intervals import Block, pack
from glia.machine.scratchpad import temporaries_in_hbm

HBM_ALIGNMENT = 512
ON_CHIP_ALIGNMENT = 32
FOREVER = 1 << 62  # a position after every instruction


class OnChipMemoryFull(CompileError):
    """The tiles that are live at one point of the program exceed the capacity of SBUF or PSUM.

    Cause: a nest whose smallest tiles do not fit beside the tiles that stay on chip, or a kernel
    with too many live tiles.
    Fix: lower the tensor's innermost extent or split the operation; in a kernel copy tiles to HBM,
    or finish with them, before more are written.
    Example: a row-wise reduction over a single row of many millions of elements.
    """

    code = "GLIA301"
    message = (
        "{memory} is full: tile {tile} needs {bytes} bytes per partition of {capacity}, of which "
        "live tiles hold {held}"
    )
    help = "use smaller tiles or fewer live tiles, or a target with a larger {memory}"


class DeviceMemoryFull(CompileError):
    """The tensors of the program exceed the core's share of HBM.

    Cause: inputs, outputs, constants and intermediates that do not stay in SBUF exceed the memory.
    Fix: use smaller tensors or a narrower dtype, or a target with more memory.
    Example: broadcasting a scalar to f32[80000000000].
    """

    code = "NCC_EOOM001"
    message = (
        "the program needs {total} bytes of HBM on {target}, which has {capacity} for a core: "
        "{external} of inputs and outputs, {constants} of constants, "
        "{intermediate} of intermediates"
    )
    help = "use smaller tensors or a narrower dtype, or a target with more memory"


@dataclass
class OnChipSpace:
    """The allocator of one on-chip memory; tiles come in order of their first use."""

    memory: Memory
    capacity: int
    bank: int = 0  # a tile must not cross a multiple of this; 0 for no banks
    # (start, end, last use), in order
    active: list[tuple[int, int, int]] = field(default_factory=list)
    cursor: int = 0
    peak: int = 0

    def place(self, tile: Tile, lifetime: Lifetime) -> int | None:
        """The address of a tile, or None where none is free.

        Allocation is next-fit, so that addresses are reused late and engines rarely wait.
        """
        self.active = [entry for entry in self.active if entry[2] >= lifetime.first]
        bytes_needed = _round_up(tile.bytes_per_partition, ON_CHIP_ALIGNMENT)
        address = self._find_gap(bytes_needed, self.cursor)
        if address is None:
            address = self._find_gap(bytes_needed, 0)
        if address is None:
            return None
        insort(self.active, (address, address + bytes_needed, lifetime.last))
        self.cursor = address + bytes_needed
        self.peak = max(self.peak, self.cursor)
        return address

    def reserve(self, address: int, tile: Tile) -> None:
        """Reserve the bytes of a tile with a fixed address for the whole program."""
        insort(self.active, (address, address + tile.bytes_per_partition, FOREVER))

    def _find_gap(self, bytes_needed: int, start: int) -> int | None:
        candidate = self._fit_in_bank(start, bytes_needed)
        for low, high, _ in self.active:
            if high <= candidate:
                continue
            if low >= candidate + bytes_needed:
                break
            candidate = self._fit_in_bank(high, bytes_needed)
        return candidate if candidate + bytes_needed <= self.capacity else None

    def _fit_in_bank(self, address: int, bytes_needed: int) -> int:
        if self.bank and address // self.bank != (address + bytes_needed - 1) // self.bank:
            return _round_up(address, self.bank)
        return address


def place(
    program: Program, options: object = None, *, shared: Collection[str] = (), hbm_start: int = 0
) -> Program:
    """Give every tile an address; a tile that has one keeps it, reserved for the whole program.

    `shared` names tiles of HBM that other cores access too; addresses in HBM are given from
    `hbm_start` on. OnChipMemoryFull when the tiles live at one time exceed SBUF or PSUM.
    """
    arch = get_target(program.target).arch
    lifetimes = find_lifetimes(program)
    spaces = on_chip_spaces(arch)
    addresses = dict(program.addresses)
    for name, address in addresses.items():
        tile = program.tiles[name]
        if tile.memory in spaces:
            spaces[tile.memory].reserve(address, tile)
    for name, lifetime in sorted(lifetimes.items(), key=lambda item: (item[1].first, item[0])):
        tile = program.tiles[name]
        if name not in addresses:
            found = spaces[tile.memory].place(tile, lifetime)
            if found is None:
                raise memory_full(spaces[tile.memory], tile, _first_use(program, tile))
            addresses[name] = found
    addresses |= _place_in_hbm(program, shared, hbm_start)
    used = {n: t for n, t in program.tiles.items() if n in addresses}
    return share_columns(replace(program, tiles=used, addresses=addresses), program)


def on_chip_spaces(arch: Arch) -> dict[Memory, OnChipSpace]:
    """Empty allocators for the usable parts of SBUF and PSUM."""
    psum = OnChipSpace(Memory.PSUM, arch.psum_banks * arch.psum_bank_bytes, arch.psum_bank_bytes)
    sbuf = OnChipSpace(Memory.SBUF, arch.sbuf_usable_bytes_per_partition)
    return {Memory.SBUF: sbuf, Memory.PSUM: psum}


def _first_use(program: Program, tile: Tile) -> Loc:
    uses = (i.loc for i in program.instructions() if tile in (p.tile for p in i.patterns()))
    return next(uses, UNKNOWN)


def memory_full(space: OnChipSpace, tile: Tile, loc: Loc) -> OnChipMemoryFull:
    """The error for a tile that does not fit, at the line of its first use."""
    return OnChipMemoryFull(
        memory=space.memory.value,
        tile=tile.name,
        bytes=tile.bytes_per_partition,
        capacity=space.capacity,
        held=sum(end - start for start, end, _ in space.active),
        loc=loc,
    )


def _place_in_hbm(program: Program, shared: Collection[str], start: int) -> dict[str, int]:
    """Addresses for the tiles of HBM without one: temporaries follow what lives throughout."""
    space = _DeviceSpace(program, start)
    lifetimes = find_lifetimes(program, (Memory.HBM,))
    temporaries = {tile.name: tile for tile in temporaries_in_hbm(program, shared)}
    free = [tile for tile in program.tiles.values() if tile.memory is Memory.HBM]
    free = [tile for tile in free if tile.name not in program.addresses]
    addresses = {t.name: space.place(t.bytes) for t in free if t.name not in temporaries}
    packed = [t for t in free if t.name in temporaries and t.name in lifetimes]
    spans = [lifetimes[tile.name] for tile in packed]
    blocks = [
        Block(_round_up(tile.bytes, HBM_ALIGNMENT), span.first, span.last)
        for tile, span in zip(packed, spans, strict=True)
    ]
    offsets = pack(blocks)
    ends = (offset + block.extent for offset, block in zip(offsets, blocks, strict=True))
    base = space.place(max(ends, default=0))
    addresses |= {t.name: base + offset for t, offset in zip(packed, offsets, strict=True)}
    _check_device_memory(program, space.cursor)
    return addresses


class _DeviceSpace:
    """Consecutive addresses in HBM, from `cursor` on, around the tiles with fixed ones."""

    def __init__(self, program: Program, start: int) -> None:
        self.cursor = _round_up(start, HBM_ALIGNMENT)
        self._fixed = sorted(
            (program.addresses[tile.name], program.addresses[tile.name] + tile.bytes)
            for tile in program.tiles.values()
            if tile.memory is Memory.HBM and tile.name in program.addresses
        )

    def place(self, count: int) -> int:
        """The address of so many bytes."""
        for low, high in self._fixed:
            if low < self.cursor + count and self.cursor < high:
                self.cursor = _round_up(high, HBM_ALIGNMENT)
        address = self.cursor
        self.cursor = _round_up(address + count, HBM_ALIGNMENT)
        return address


def _check_device_memory(program: Program, total: int) -> None:
    capacity = get_target(program.target).hbm_bytes
    if total <= capacity:
        return
    external = sum(b.tile.bytes for b in (*program.inputs, *program.outputs))
    constants = sum(program.tiles[name].bytes for name in program.constants)
    raise DeviceMemoryFull(
        total=total,
        target=program.target,
        capacity=capacity,
        external=external,
        constants=constants,
        intermediate=total - external - constants,
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
