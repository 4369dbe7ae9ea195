"""Fewer tiles for a loop's body: results in tiles of operands, one tile for what is not read."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.instruction_rewriting import replace_tiles

LEAST_BYTES = 512  # per partition, of a tile that is worth it


@dataclass(frozen=True)
class _TileUse:
    """The first and the last instruction of a body that access a tile; what they do with it.

    It is new where the first one writes it only: nothing of an earlier iteration is read.
    """

    first: int
    last: int
    is_read: bool
    is_new: bool


def unread_tiles(body: Sequence[Instr]) -> set[str]:
    """The tiles that a body writes and does not read."""
    return {name for name, use in _uses_by_tile(body).items() if not use.is_read}


def merge_unread_tiles(body: Sequence[Instr], private: Set[str]) -> list[Instr]:
    """The body with one tile for all results of a shape that nothing reads.

    `private` tiles are those that nothing outside of the body accesses.
    """
    replaced: dict[str, Tile] = {}
    kept: dict[tuple[object, ...], Tile] = {}
    unread = unread_tiles(body) & private
    for instruction in body:
        for written in instruction.written_patterns():
            tile = written.tile
            first = kept.setdefault(_shape(tile), tile) if tile.name in unread else tile
            if first.name != tile.name:
                replaced[tile.name] = first
    return [replace_tiles(each, replaced) for each in body] if replaced else list(body)


def reuse_tiles(body: Sequence[Instr], private: Set[str]) -> list[Instr]:
    """The body with fewer of the `private` tiles: a result takes the tile of an operand.

    The instruction computes element by element, and the operand was written in this iteration and
    is not accessed later.
    """
    uses = _uses_by_tile(body)
    replaced: dict[str, Tile] = {}
    for position, instruction in enumerate(body):
        for written in instruction.written_patterns():
            tile = written.tile
            use = uses[tile.name]
            is_new = tile.name in private and use.is_new and use.first == position
            if not is_new or tile.bytes_per_partition < LEAST_BYTES:
                continue
            operand = _last_operand(instruction, written, position, uses, private)
            if operand is not None:
                replaced[tile.name] = replaced.get(operand.name, operand)
    return [replace_tiles(each, replaced) for each in body] if replaced else list(body)


def _uses_by_tile(body: Sequence[Instr]) -> dict[str, _TileUse]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    read: set[str] = set()
    carried: set[str] = set()
    for position, instruction in enumerate(body):
        carried |= {p.tile.name for p in instruction.read_patterns() if p.tile.name not in first}
        for pattern in instruction.patterns():
            first.setdefault(pattern.tile.name, position)
            last[pattern.tile.name] = position
        read |= {pattern.tile.name for pattern in instruction.read_patterns()}
    return {
        name: _TileUse(first[name], last[name], name in read, name not in carried) for name in first
    }


def _last_operand(
    instruction: Instr, result: Pattern, position: int, uses: dict[str, _TileUse], private: Set[str]
) -> Tile | None:
    """The tile of an operand that may hold the result instead; None if there is none."""
    is_element_by_element = instruction.maps_outer and len(result.dims) == 2
    if not is_element_by_element or result.memory is not Memory.SBUF:
        return None
    for operand in instruction.read_patterns():
        tile, use = operand.tile, uses[operand.tile.name]
        same_place = [p for p in instruction.patterns() if p.tile is tile]
        if (
            tile.name in private
            and use.is_new
            and use.first < position == use.last
            and _shape(tile) == _shape(result.tile)
            and all(_place(p) == _place(result) for p in same_place)
            and result.free == tile.elements
        ):
            return tile
    return None


def _shape(tile: Tile) -> tuple[object, ...]:
    return tile.memory, tile.dtype, tile.partitions, tile.elements


def _place(pattern: Pattern) -> tuple[object, ...]:
    return pattern.dtype, pattern.dims, pattern.offset, pattern.partition
