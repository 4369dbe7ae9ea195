"""Tables as bytes, for a later process: all but instructions, which such a table never needs.

A table that leaves nothing to Python stops for an instruction only where its program is wrong.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.isa.operand import Tile
from glia.machine.ir import Program
from glia.sim.host.table import Table
from glia.sim.memory import Memories

MOST_BYTES = 1 << 28  # of a table
NUMBERS = ("code", "words", "pool_words", "waves", "strips", "entries")
TUPLES = ("fixed", "scratch_words", "call_words", "decision_words", "number_words")


@dataclass(frozen=True)
class TableFile:
    """A table; tiles that are others as bytes, with these; and facts about its program."""

    table: Table
    bases: Mapping[str, str]
    written: Sequence[str]
    left_out: Sequence[tuple[str, str, int]]


def table_file(file: TableFile) -> bytes | None:
    """The bytes of a table; None for one that needs Python, keeps states or has while loops."""
    table = file.table
    needs_python = table.in_python or table.guarded or table.reasons or table.loops
    if needs_python or not all(isinstance(tile, Tile) for tile in table.tiles):
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
        "written": list(file.written),
        "left_out": list(file.left_out),
    }
    return zlib.compress(json.dumps(found, separators=(",", ":")).encode(), 1)


def read_table_file(data: bytes, program: Program, memories: Memories) -> TableFile | None:
    """The table of a program, with its tiles in these memories; None if it is not one of it."""
    try:
        unpacker = zlib.decompressobj()
        found = json.loads(unpacker.decompress(data, MOST_BYTES))
        tiles, bases = [], {}
        for name, base in found["tiles"]:
            tile = memories.as_bytes(program.tiles[base]) if base else program.tiles[name]
            if tile.name != name:
                return None
            tiles.append(tile)
            bases[name] = base
        lists: dict[str, Any] = {name: _array(found[name]).tolist() for name in NUMBERS}
        lists |= {name: [*map(tuple, _array(found[name]).tolist())] for name in TUPLES}
        table = Table(
            **lists,
            tiles=tiles,
            variables={name: number for number, name in enumerate(found["variables"])},
            codes={int(word): str(name) for word, name in found["codes"]},
            numbers=[_array(each) for each in found["numbers"]],
            scratch=found["scratch"],
            native=Counter(found["native"]),
        )
        left_out = [(str(name), str(why), int(count)) for name, why, count in found["left_out"]]
        return TableFile(table, bases, found["written"], left_out)
    except (ValueError, TypeError, KeyError, zlib.error):
        return None


def _number(array: Any) -> tuple[str, list[int], str]:
    values = np.asarray(array)
    return values.dtype.name, list(values.shape), b64encode(values.tobytes()).decode()


def _array(kept: tuple[str, list[int], str]) -> np.ndarray[Any, Any]:
    name, shape, data = kept
    return np.frombuffer(b64decode(data), np.dtype(name)).reshape(shape).copy()
