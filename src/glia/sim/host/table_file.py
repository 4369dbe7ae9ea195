"""Tables as bytes, for a later process: without the instructions that run as machine code.

A run stops for one of these only where its program is wrong. Those that Python executes, and loops
that registers end, are named by their places in the program.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glia.isa.operand import Tile
from glia.machine.ir import Block, Program, While, blocks, walk
from glia.sim.host.table import Table
from glia.sim.memory import Memories

MOST_BYTES = 1 << 28  # of a table
NUMBERS = ("code", "words", "pool_words", "waves", "strips", "entries")
TUPLES = (
    "fixed",
    "scratch_words",
    "call_words",
    "decision_words",
    "number_words",
    "variable_words",
    "known_words",
)


@dataclass(frozen=True)
class TableFile:
    """A table; tiles that are others as bytes, or copies, with these; facts about its program."""

    table: Table
    bases: Mapping[str, str]
    copies: Mapping[str, str]
    written: Sequence[str]
    left_out: Sequence[tuple[str, str, int]]


def table_file(file: TableFile, program: Program) -> bytes | None:
    """The bytes of a table of a program; None for one that keeps states.

    None, too, where Python executes what is not an instruction of the program but stands for one.
    """
    table = file.table
    places = {id(each): place for place, each in enumerate(walk(program.body))}
    numbers = {id(each): number for number, each in table.instructions.items()}
    executed = {id(each) for each in (*table.in_python, *table.guarded)}
    named = {numbers[each]: places.get(each) for each in executed}
    is_named = None not in named.values() and _are_loops_of(table.loops, program)
    if not is_named or not all(isinstance(tile, Tile) for tile in table.tiles):
        return None
    found: dict[str, Any] = {
        name: _number(np.array(getattr(table, name), np.int64)) for name in (*NUMBERS, *TUPLES)
    }
    found |= {
        "scratch": table.scratch,
        "variables": list(table.variables),
        "native": table.native,
        "codes": list(table.codes.items()),
        "numbers": [_number(each) for each in table.numbers],
        "tiles": [(tile.name, file.bases.get(tile.name, "")) for tile in table.tiles],
        "copies": dict(file.copies),
        "written": list(file.written),
        "left_out": list(file.left_out),
        "named": sorted(named.items()),
        "in_python": [numbers[id(each)] for each in table.in_python],
        "guarded": [numbers[id(each)] for each in table.guarded],
        "loops": len(table.loops),
        "reasons": [(*why, count) for why, count in table.reasons.items()],
    }
    return zlib.compress(json.dumps(found, separators=(",", ":")).encode(), 1)


def read_table_file(data: bytes, program: Program, memories: Memories) -> TableFile | None:
    """The table of a program, with its tiles in these memories; None if it is not one of it."""
    try:
        unpacker = zlib.decompressobj()
        found = json.loads(unpacker.decompress(data, MOST_BYTES))
        tiles, bases, known_tiles = [], {}, dict(program.tiles)
        for name, original in found["copies"].items():
            known_tiles[name] = replace(program.tiles[original], name=name)
        for name, base in found["tiles"]:
            tile = memories.as_bytes(known_tiles[base]) if base else known_tiles[name]
            if tile.name != name:
                return None
            tiles.append(tile)
            bases[name] = base
        lists: dict[str, Any] = {name: _array(found[name]).tolist() for name in NUMBERS}
        lists |= {name: [*map(tuple, _array(found[name]).tolist())] for name in TUPLES}
        program_instructions = [*walk(program.body)] if found["named"] else []
        known = {int(number): program_instructions[place] for number, place in found["named"]}
        loops = [*_while_loops(program.body)] if found["loops"] else []
        if found["loops"] != len(loops):
            return None
        table = Table(
            **lists,
            instructions=known,
            in_python=[known[number] for number in found["in_python"]],
            guarded=[known[number] for number in found["guarded"]],
            loops=loops,
            reasons=Counter({(str(n), str(why)): int(c) for n, why, c in found["reasons"]}),
            tiles=tiles,
            variables={name: number for number, name in enumerate(found["variables"])},
            codes={int(word): str(name) for word, name in found["codes"]},
            numbers=[_array(each) for each in found["numbers"]],
            scratch=found["scratch"],
            native=Counter(found["native"]),
        )
        left_out = [(str(name), str(why), int(count)) for name, why, count in found["left_out"]]
        return TableFile(table, bases, found["copies"], found["written"], left_out)
    except (ValueError, TypeError, LookupError, zlib.error):
        return None


def _are_loops_of(loops: Sequence[While], program: Program) -> bool:
    """Whether these are the loops of the program that registers end, in order."""
    if not loops:
        return True
    return [each.register for each in _while_loops(program.body)] == [e.register for e in loops]


def _while_loops(body: Block) -> Iterator[While]:
    for statement in body:
        if isinstance(statement, While):
            yield statement
        for block in blocks(statement):
            yield from _while_loops(block)


def _number(array: Any) -> tuple[str, list[int], str]:
    values = np.asarray(array)
    return values.dtype.name, list(values.shape), b64encode(values.tobytes()).decode()


def _array(kept: tuple[str, list[int], str]) -> np.ndarray[Any, Any]:
    name, shape, data = kept
    return np.frombuffer(b64decode(data), np.dtype(name)).reshape(shape).copy()
