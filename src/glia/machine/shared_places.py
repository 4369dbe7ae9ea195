"""Where in HBM the cores of a logical core have what they share, and each its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glia.isa.operand import Memory
from glia.machine.emit.box import storage_dtype
from glia.machine.ir import Program
from glia.machine.passes.on_chip_space import round_up
from glia.machine.passes.place import HBM_ALIGNMENT, check_device_memory
from glia.tile import ir as tile
from glia.tile.cores.same_code import SHARED


def shared_places(program: tile.Program) -> tuple[dict[str, int], int]:
    """The addresses of the buffers that all cores of a program address, from 0 on; their end."""
    places: dict[str, int] = {}
    end = 0
    sources = dict(program.aliases)
    for name, buffer in program.buffers.items() if program.cores > 1 else ():
        if buffer.role in SHARED and buffer.elements and name not in sources:
            places[name] = end
            end = round_up(end + buffer.elements * storage_dtype(buffer.dtype).bytes, HBM_ALIGNMENT)
    return places, end


def shared_tiles(program: Program, nests: tile.Program) -> dict[str, str]:
    """The tiles of a core's program that hold the buffers of its nests that all cores address."""
    buffers = {at: name for name, at in shared_places(nests)[0].items()}
    found = {}
    for name, at in program.addresses.items():
        if at in buffers and program.tiles[name].memory is Memory.HBM:
            found[buffers[at]] = name
    return found


def separate_memories(
    programs: Sequence[Program], shared_bytes: int, lnc: int = 0
) -> tuple[Program, ...]:
    """The programs of several cores, each with what is its own behind that of the one before.

    Their own begins behind the `shared_bytes` in each of them as it is given. Raises
    DeviceMemoryFull where all of it exceeds the HBM of a logical core of `lnc` physical ones.
    """
    found = []
    start = shared_bytes
    for program in programs:
        in_hbm = {n: a for n, a in program.addresses.items() if _is_own(program, n, shared_bytes)}
        moved = {name: at - shared_bytes + start for name, at in in_hbm.items()}
        found.append(replace(program, addresses={**program.addresses, **moved}))
        ends = (at + program.tiles[name].bytes for name, at in moved.items())
        start = round_up(max(ends, default=start), HBM_ALIGNMENT)
    check_device_memory(programs[-1], start, lnc)
    return tuple(found)


def _is_own(program: Program, name: str, shared_bytes: int) -> bool:
    in_hbm = program.tiles[name].memory is Memory.HBM
    return in_hbm and program.addresses[name] >= shared_bytes
