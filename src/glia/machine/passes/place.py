"""Placement: addresses by lifetime.

On chip tiles get addresses one after the other, in HBM all temporaries together. What the outside
or another core accesses keeps its bytes throughout the program.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from glia.arch.instances import get_target
from glia.graph.passes.errors import DeviceMemoryFull
from glia.isa.operand import Memory
from glia.machine.columns.update import share_columns
from glia.machine.ir import Program
from glia.machine.own_contents import tiles_with_own_contents
from glia.machine.passes.lifetimes import Lifetime, find_lifetimes
from glia.machine.passes.on_chip_space import (
    FixedTile,
    assign_addresses,
    first_lines,
    memory_full,
    on_chip_capacities,
    round_up,
)
from glia.machine.passes.pack_intervals import Block, pack
from glia.machine.scratchpad import temporaries_in_hbm
from glia.options import CompileOptions

HBM_ALIGNMENT = 512
ROTATION = 2
"""How many of the temporaries that begin after another has ended get no bytes of it.

What takes over bytes waits for those who had them, maybe for a transfer that has just been issued.
"""


def place(
    program: Program,
    options: CompileOptions | None = None,
    *,
    shared: Collection[str] = (),
    hbm_start: int = 0,
    rotation: int = ROTATION,
) -> Program:
    """Give every tile an address; a tile that has one keeps it.

    Nothing else has its bytes, where all fit so; else while it is live, if nothing reads there what
    was written to another tile.

    `shared` names tiles of HBM that other cores access too; addresses in HBM are given from
    `hbm_start` on; where they suffice the next `rotation` temporaries get no bytes of one that has
    ended. OnChipMemoryFull when the tiles live at one time exceed SBUF or PSUM,
    DeviceMemoryFull when the tensors exceed the HBM of a logical core.
    """
    arch = get_target(program.target).arch
    lifetimes = find_lifetimes(program)
    fixed = [FixedTile(program.tiles[name], address) for name, address in program.addresses.items()]
    wanted = [
        (program.tiles[name], lifetime)
        for name, lifetime in lifetimes.items()
        if name not in program.addresses
    ]
    found, overflows = assign_addresses(wanted, fixed, on_chip_capacities(arch), arch)
    if overflows and fixed:
        fixed = _while_live(program, fixed, lifetimes)
        found, overflows = assign_addresses(wanted, fixed, on_chip_capacities(arch), arch)
    if overflows:
        raise memory_full(overflows, first_lines(program))
    addresses = {**program.addresses, **found}
    lnc = options.logical_nc_config if options else 0
    in_hbm, end = _place_in_hbm(program, shared, hbm_start, rotation)
    if end > get_target(program.target).device_memory(lnc):
        in_hbm, end = _place_in_hbm(program, shared, hbm_start, 0)
    check_device_memory(program, end, lnc)
    addresses |= in_hbm
    used = {n: t for n, t in program.tiles.items() if n in addresses}
    return share_columns(replace(program, tiles=used, addresses=addresses), program)


def _while_live(
    program: Program, fixed: Sequence[FixedTile], lifetimes: Mapping[str, Lifetime]
) -> list[FixedTile]:
    """Tiles with addresses, those with contents of their own for as long as they are live."""
    own = tiles_with_own_contents(program, [each.tile.name for each in fixed])
    lives = {name: lifetimes[name] for name in own & lifetimes.keys()}
    return [
        replace(each, first=life.first, last=life.last)
        if (life := lives.get(each.tile.name))
        else each
        for each in fixed
    ]


def _place_in_hbm(
    program: Program, shared: Collection[str], start: int, rotation: int
) -> tuple[dict[str, int], int]:
    """Addresses for the tiles of HBM without one, and their end; temporaries come last.

    The first `rotation` temporaries that begin after another has ended get no bytes of it.
    """
    space = _DeviceSpace(program, start)
    lifetimes = find_lifetimes(program, (Memory.HBM,))
    temporaries = {tile.name: tile for tile in temporaries_in_hbm(program, shared)}
    free = [tile for tile in program.tiles.values() if tile.memory is Memory.HBM]
    free = [tile for tile in free if tile.name not in program.addresses]
    addresses = {t.name: space.place(t.bytes) for t in free if t.name not in temporaries}
    packed = [t for t in free if t.name in temporaries and t.name in lifetimes]
    spans = _lengthened([lifetimes[tile.name] for tile in packed], rotation)
    blocks = [
        Block(round_up(tile.bytes, HBM_ALIGNMENT), span.first, span.last)
        for tile, span in zip(packed, spans, strict=True)
    ]
    offsets = pack(blocks)
    ends = (offset + block.extent for offset, block in zip(offsets, blocks, strict=True))
    base = space.place(max(ends, default=0))
    addresses |= {t.name: base + offset for t, offset in zip(packed, offsets, strict=True)}
    return addresses, space.cursor


def _lengthened(spans: Sequence[Lifetime], rotation: int) -> list[Lifetime]:
    """Lifetimes, each until so many of the others that begin after its end have begun."""
    begins = sorted(span.first for span in spans)
    found = []
    for span in spans:
        at = bisect_right(begins, span.last)
        later = begins[at : at + rotation]
        found.append(Lifetime(span.first, max([span.last, *later])))
    return found


class _DeviceSpace:
    """Consecutive addresses in HBM, from `cursor` on, around the tiles with fixed ones."""

    def __init__(self, program: Program, start: int) -> None:
        self.cursor = round_up(start, HBM_ALIGNMENT)
        self._fixed = sorted(
            (program.addresses[tile.name], program.addresses[tile.name] + tile.bytes)
            for tile in program.tiles.values()
            if tile.memory is Memory.HBM and tile.name in program.addresses
        )

    def place(self, count: int) -> int:
        """The address of so many bytes."""
        for low, high in self._fixed:
            if low < self.cursor + count and self.cursor < high:
                self.cursor = round_up(high, HBM_ALIGNMENT)
        address = self.cursor
        self.cursor = round_up(address + count, HBM_ALIGNMENT)
        return address


def check_device_memory(program: Program, total: int, lnc: int) -> None:
    """Raise DeviceMemoryFull for more bytes than a logical core of `lnc` physical ones has."""
    target = get_target(program.target)
    capacity = target.device_memory(lnc)
    if total <= capacity:
        return
    bound = {b.tile.name: b.tile.bytes for b in (*program.inputs, *program.outputs)}
    external = sum(bound.values())
    constants = sum(program.tiles[name].bytes for name in program.constants)
    raise DeviceMemoryFull(
        total=total,
        target=program.target,
        capacity=capacity,
        external=external,
        constants=constants,
        intermediate=total - external - constants,
    )
