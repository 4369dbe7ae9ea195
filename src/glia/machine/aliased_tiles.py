"""Joining of tiles that alias by address, so that placement can move them together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from glia.base.dtype import U8
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.instruction_rewriting import map_patterns
from glia.machine.ir import Program

WORD = 4  # bytes of the widest element


def join_overlapping(program: Program, names: Iterable[str]) -> Program:
    """The program with the on-chip tiles of `names` that overlap joined into one tile per group.

    ValueError when a part of the new tile would begin inside an element of an access to it.
    """
    parts: dict[str, tuple[Tile, int]] = {}
    for group in _overlapping_groups(program, set(names)):
        begin = min(program.addresses[tile.name] for tile in group) // WORD * WORD
        end = max(program.addresses[tile.name] + tile.bytes_per_partition for tile in group)
        name = "+".join(tile.name for tile in group)
        rows = max(tile.partitions for tile in group)
        joined = Tile(name, group[0].memory, U8, rows, end - begin)
        parts |= {tile.name: (joined, program.addresses[tile.name] - begin) for tile in group}
    if not parts:
        return program

    def rebase(pattern: Pattern) -> Pattern:
        if pattern.tile.name not in parts:
            return pattern
        joined, start = parts[pattern.tile.name]
        if start % pattern.dtype.bytes:
            problem = f"{pattern.tile.name} begins {start} bytes inside {joined.name}"
            raise ValueError(f"{problem}, not at an element of {pattern.dtype}")
        offset = pattern.offset + start // pattern.dtype.bytes
        return replace(pattern, tile=joined, offset=offset)

    tiles = {name: tile for name, tile in program.tiles.items() if name not in parts}
    tiles |= {joined.name: joined for joined, _ in parts.values()}
    body = tuple(map_patterns(each, rebase) for each in program.body)
    addresses = {n: a for n, a in program.addresses.items() if n in tiles}
    return replace(program, tiles=tiles, body=body, addresses=addresses)


def _overlapping_groups(program: Program, names: set[str]) -> list[list[Tile]]:
    """The groups of two or more tiles that overlap, directly or transitively."""
    found: list[list[Tile]] = []
    for memory in (Memory.SBUF, Memory.PSUM):
        tiles = [t for n, t in program.tiles.items() if n in names and t.memory is memory]
        group: list[Tile] = []
        end = 0
        for tile in sorted(tiles, key=lambda each: program.addresses[each.name]):
            start = program.addresses[tile.name]
            if group and start >= end:
                found.append(group)
                group = []
            group.append(tile)
            end = max(end if len(group) > 1 else 0, start + tile.bytes_per_partition)
        found.append(group)
    return [group for group in found if len(group) > 1]
