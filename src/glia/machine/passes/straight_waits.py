"""Waits and signals of programs without control flow, found in machine code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glia.base.affine import Affine
from glia.base.fast_objects import from_fields
from glia.base.machine_code.native import Library
from glia.base.machine_code.native_records import arrays_of, as_words
from glia.isa.instructions.sync import Barrier
from glia.isa.kit import ENGINES, Instr
from glia.isa.operand import Memory, Signal, Wait
from glia.machine.columns.extents import extents_of
from glia.machine.columns.table import AffineColumn, Columns, SignalTable, WaitTable, cache_columns
from glia.machine.columns.value_numbering import Array, DictionaryColumn, group_column
from glia.machine.ir import Program
from glia.machine.passes import wait_rules as rules
from glia.machine.queues import stream_of

FEW_INSTRUCTIONS = 200  # up to so many are faster in Python than compiling the rules
MEMORIES = tuple(Memory)
LIBRARY = Library(
    rules,
    rules.FUNCTIONS,
    tuple(arrays_of(rules.WaitRecord)),
    is_optimised=False,
)
Record = dict[str, Array]


def is_straight(columns: Columns) -> bool:
    """Whether a program is one block without barriers whose accesses no variable moves."""
    patterns = columns.patterns
    examples = (columns.instructions[row] for row in columns.form.first.tolist())
    return (
        all(span.statement is None for span in columns.body)
        and not any(patterns.offset.terms.distinct)
        and not any(patterns.partition.terms.distinct)
        and not any(isinstance(each, Barrier) for each in examples)
    )


def synchronise(
    program: Program, columns: Columns, shared_in_hbm: set[str], *, is_native: bool = True
) -> Program:
    """A program for which `is_straight` holds with all waits and signals, and its columns.

    `shared_in_hbm` names the tiles of HBM that have bytes in common with another.
    """
    waits = _Waits(program, columns, shared_in_hbm, is_native=is_native)
    result = replace(program, body=waits.instructions)
    tables = replace(
        columns,
        instructions=[*waits.instructions],
        waits=waits.wait_table(),
        signals=waits.signal_table(),
        semaphores=[waits.streams[waits.stream[row]] for row in waits.semaphores.first.tolist()],
    )
    cache_columns(result, tables)
    return result


class _Waits:
    def __init__(
        self, program: Program, columns: Columns, shared: set[str], *, is_native: bool
    ) -> None:
        self.columns = columns
        forms = [columns.instructions[row] for row in columns.form.first.tolist()]
        names = [stream_of(form) for form in forms]
        self.streams = sorted(set(names))
        number = {name: place for place, name in enumerate(self.streams)}
        form = columns.form.number
        self.stream = np.array([number[name] for name in names], np.int64)[form]
        engine = np.array([ENGINES.index(each.runs_on) for each in forms], np.int64)[form]
        is_queued = np.array([bool(each.queue) for each in forms], np.int64)[form]
        record = self._record(engine, is_queued) | self._tiles(program, shared)
        entries = columns.patterns.owner.size + 1024
        while True:
            attempt = as_words({name: np.array(each) for name, each in record.items()})
            attempt |= as_words(_entries(entries))
            if not LIBRARY.call("find_waits", attempt, is_native=is_native):
                break
            entries *= 4
        self.begin = attempt["wait_begin"]
        found = int(self.begin[-1])
        self.awaited = attempt["wait_stream"][:found]
        self.counts = attempt["wait_count"][:found]
        self.semaphores = group_column(self.stream)
        self.instructions = self._synchronised()

    def _record(self, engine: Array, is_queued: Array) -> dict[str, object]:
        columns, streams = self.columns, len(self.streams)
        patterns, count = columns.patterns, len(columns.instructions)
        return {
            "instructions": [count], "streams": [streams], "begin": patterns.begin,
            "stream": self.stream, "engine": engine, "is_queued": is_queued,
            "access": patterns.access,
            **extents_of(patterns).boxes(np.arange(patterns.owner.size)),
            "count": np.zeros(streams), "need_count": np.zeros(streams),
            "need_stamp": np.full(streams, -1), "observed": np.zeros(len(ENGINES) * streams),
            "summary": np.full(2 * streams, -1), "wait_begin": np.zeros(count + 1),
            **{name: np.zeros(count * streams) for name in ("wait_stream", "wait_count")},
        }  # fmt: skip

    def _tiles(self, program: Program, shared: set[str]) -> dict[str, object]:
        patterns = self.columns.patterns
        numbers: dict[str, int] = {}
        tile = patterns.tile.map(lambda each: numbers.setdefault(each.name, len(numbers)))
        tiles = list({each.name: each for each in patterns.tile.distinct}.values())
        count = len(tiles)
        begin = [program.addresses.get(each.name, 0) for each in tiles]
        room = 2 * count + 2
        return {
            "tile": tile,
            "memory": [
                -1 if each.memory is Memory.HBM and each.name not in shared
                else MEMORIES.index(each.memory)
                for each in tiles
            ],
            "tile_begin": begin,
            "tile_end": [b + t.bytes_per_partition for b, t in zip(begin, tiles, strict=True)],
            "tile_last": [each.bytes_per_partition - 1 for each in tiles],
            "tile_bottom": [each.partitions - 1 for each in tiles],
            "is_known": np.zeros(count), "is_sole": np.zeros(count),
            "known": np.full(count, -1), "known_count": np.zeros(count),
            "parts": np.zeros(len(MEMORIES)), "part_room": [room],
            **{name: np.zeros(len(MEMORIES) * room) for name in (
                "part_begin", "part_end", "part_owner",
            )},
        }  # fmt: skip

    def _synchronised(self) -> tuple[Instr, ...]:
        """The instructions with their waits and signals."""
        signals = [(Signal(stream),) for stream in self.streams]
        known: dict[tuple[int, int], Wait] = {}
        pairs = list(zip(self.awaited.tolist(), self.counts.tolist(), strict=True))
        for stream, count in pairs:
            if (stream, count) not in known:
                known[stream, count] = Wait(self.streams[stream], Affine((), count))
        waits = [known[pair] for pair in pairs]
        begin = self.begin.tolist()
        result = []
        for number, (instruction, stream) in enumerate(
            zip(self.columns.instructions, self.stream.tolist(), strict=True)
        ):
            own = tuple(waits[begin[number] : begin[number + 1]])
            fields = dict(vars(instruction), waits=own, signals=signals[stream])
            result.append(from_fields(type(instruction), fields))
        return tuple(result)

    def wait_table(self) -> WaitTable:
        """The waits as columns."""
        semaphore = self._semaphore_numbers()[self.awaited]
        terms = DictionaryColumn(np.zeros(self.awaited.size, np.int64), [()])
        return WaitTable(self.begin, semaphore, AffineColumn(self.counts, terms))

    def signal_table(self) -> SignalTable:
        """The signals as columns."""
        count = self.stream.size
        semaphore = self._semaphore_numbers()[self.stream]
        return SignalTable(np.arange(count + 1), semaphore, np.ones(count, np.int64))

    def _semaphore_numbers(self) -> Array:
        """By stream, the number of its semaphore: in the order in which they first signal."""
        numbers = np.zeros(len(self.streams), np.int64)
        numbers[self.stream[self.semaphores.first]] = np.arange(self.semaphores.first.size)
        return numbers


def _entries(count: int) -> dict[str, object]:
    names = ("access", "write", "stream", "count", "stamp")
    return {
        **{f"entry_{name}": np.zeros(count, np.int64) for name in names},
        "entry_next": np.append(np.arange(1, count), -1),
        "unused": [0],
        "is_full": [0],
    }
