"""Encode a machine program as bytes: one `program` stream and one stream for each engine.

The program stream holds the tables (strings, tiles, access patterns, instruction declarations,
source lines) and the control structure; each engine stream holds that engine's instructions in its
own order. A run in the control structure says how many instructions the next engine contributes,
so program order is restored exactly. See docs/decisions/neff-payload.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import DType, from_numpy
from glia.base.errors import InternalError
from glia.base.loc import UNKNOWN, Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.binary.bytestream import ByteWriter
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While

PAYLOAD_MAGIC = b"GLIA"
PAYLOAD_VERSION = 2
MEMORIES = (Memory.HBM, Memory.SBUF, Memory.PSUM)


class ValueTag(IntEnum):
    """The tag before an operand or attribute."""

    NONE = 0
    FALSE = 1
    TRUE = 2
    INTEGER = 3
    REAL = 4
    TEXT = 5
    TUPLE = 6
    DTYPE = 7
    PATTERN = 8
    TILE = 9
    AFFINE = 10
    SCALAR = 11  # a NumPy scalar: dtype and bytes
    MEMORY = 12


class StatementTag(IntEnum):
    """The tag before a statement of the control structure."""

    RUN = 0
    LOOP = 1
    WHILE = 2
    BRANCH = 3


class FieldBits(IntEnum):
    """Bits for the scheduling fields of an instruction that follow."""

    ENGINE = 1
    QUEUE = 2
    WAITS = 4
    SIGNALS = 8
    SOURCE = 16


@dataclass(frozen=True)
class Streams:
    """An encoded program: the program stream, and each engine's stream by engine name."""

    program: bytes
    engines: Mapping[str, bytes]


def encode_program(program: Program, constant_files: Mapping[str, str]) -> Streams:
    """Encode `program`; `constant_files` names the archive member that holds each constant."""
    return _Encoder(program).encode(constant_files)


class _InternTable:
    """Distinct values in order of first use, each already encoded."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self._indices: dict[Any, int] = {}

    def index(self, key: Any, encode: Callable[[Any], bytes]) -> int:
        found = self._indices.get(key)
        if found is None:
            entry = encode(key)  # may add to other tables, never to this one
            found = self._indices[key] = len(self.entries)
            self.entries.append(entry)
        return found

    def write(self, to: ByteWriter) -> None:
        to.unsigned(len(self.entries))
        for entry in self.entries:
            to.data += entry


class _Encoder:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._strings, self._tiles, self._patterns = _InternTable(), _InternTable(), _InternTable()
        self._opcodes, self._sources = _InternTable(), _InternTable()
        self._engines: dict[str, ByteWriter] = {}
        for engine in sorted({i.runs_on for i in program.instructions()}):
            self._engines[engine] = ByteWriter()

    def encode(self, constant_files: Mapping[str, str]) -> Streams:
        body = ByteWriter()
        self._head(body, constant_files)
        self._block(body, self._program.body)
        stream = ByteWriter()
        stream.data += PAYLOAD_MAGIC
        stream.byte(PAYLOAD_VERSION)
        for table in (self._strings, self._tiles, self._patterns, self._opcodes, self._sources):
            table.write(stream)
        stream.data += body.data
        return Streams(bytes(stream.data), {e: bytes(w.data) for e, w in self._engines.items()})

    def _head(self, to: ByteWriter, constant_files: Mapping[str, str]) -> None:
        program = self._program
        to.unsigned(self._text(program.name))
        to.unsigned(self._text(program.target))
        to.unsigned(len(program.tiles))
        for tile in program.tiles.values():
            to.unsigned(self._tile(tile))
        to.unsigned(len(program.addresses))
        for name, address in program.addresses.items():
            to.unsigned(self._text(name))
            to.unsigned(address)
        for bindings in (program.inputs, program.outputs):
            to.unsigned(len(bindings))
            for binding in bindings:
                self._binding(to, binding)
        to.unsigned(len(program.constants))
        for name, array in program.constants.items():
            self._constant(to, name, np.asarray(array), constant_files[name])
        for texts in (program.notes, tuple(self._engines)):
            to.unsigned(len(texts))
            for text in texts:
                to.unsigned(self._text(text))

    def _binding(self, to: ByteWriter, binding: Binding) -> None:
        to.unsigned(self._text(binding.name))
        to.unsigned(self._tile(binding.tile))
        to.unsigned(self._text(binding.dtype.name))
        _shape(to, binding.shape)

    def _constant(self, to: ByteWriter, name: str, array: np.ndarray, file: str) -> None:
        to.unsigned(self._text(name))
        to.unsigned(self._text(file))
        to.unsigned(self._text(from_numpy(array.dtype).name))
        _shape(to, array.shape)

    def _block(self, to: ByteWriter, body: tuple[Statement, ...]) -> None:
        def key(statement: Statement) -> Any:
            return statement.runs_on if isinstance(statement, Instr) else None

        runs = [(engine, tuple(statements)) for engine, statements in groupby(body, key)]
        to.unsigned(sum(1 if engine is not None else len(group) for engine, group in runs))
        for engine, group in runs:
            if engine is None:
                for statement in group:
                    assert not isinstance(statement, Instr)
                    self._control(to, statement)
                continue
            to.byte(StatementTag.RUN)
            to.unsigned(list(self._engines).index(engine))
            to.unsigned(len(group))
            for instruction in group:
                assert isinstance(instruction, Instr)
                self._instruction(self._engines[engine], instruction)

    def _control(self, to: ByteWriter, statement: Loop | While | Branch) -> None:
        match statement:
            case Loop(variable, trips, body):
                to.byte(StatementTag.LOOP)
                to.unsigned(self._text(variable))
                to.unsigned(trips)
                self._block(to, body)
            case While(condition, register, body, iterations):
                to.byte(StatementTag.WHILE)
                to.unsigned(self._text(register))
                to.unsigned(iterations)
                self._block(to, condition)
                self._block(to, body)
            case Branch(register, arms):
                to.byte(StatementTag.BRANCH)
                to.unsigned(self._text(register))
                to.unsigned(len(arms))
                for arm in arms:
                    self._block(to, arm)

    def _instruction(self, to: ByteWriter, instruction: Instr) -> None:
        kind = type(instruction)
        to.unsigned(self._opcodes.index(kind, self._declaration))
        parts = FieldBits.ENGINE * bool(instruction.on) | FieldBits.QUEUE * bool(instruction.queue)
        parts |= FieldBits.WAITS * bool(instruction.waits) | FieldBits.SIGNALS * bool(
            instruction.signals
        )
        parts |= FieldBits.SOURCE * (instruction.loc != UNKNOWN)
        to.byte(parts)
        if instruction.queue:
            to.unsigned(self._text(instruction.queue))
        if instruction.waits:
            to.unsigned(len(instruction.waits))
            for wait in instruction.waits:
                to.unsigned(self._text(wait.semaphore))
                self._affine(to, wait.value)
        if instruction.signals:
            to.unsigned(len(instruction.signals))
            for signal in instruction.signals:
                to.unsigned(self._text(signal.semaphore))
                to.signed(signal.amount)
        if instruction.loc != UNKNOWN:
            to.unsigned(self._sources.index(instruction.loc, self._source))
        for name in encoded_fields(kind):
            self._value(to, getattr(instruction, name))

    def _declaration(self, kind: type[Instr]) -> bytes:
        entry = ByteWriter()
        entry.unsigned(self._text(kind.mnemonic()))
        names = encoded_fields(kind)
        entry.unsigned(len(names))
        for name in names:
            entry.unsigned(self._text(name))
        return bytes(entry.data)

    def _source(self, loc: Loc) -> bytes:
        entry = ByteWriter()
        entry.unsigned(self._text(loc.file))
        entry.unsigned(loc.line)
        entry.unsigned(self._text(loc.name))
        return bytes(entry.data)

    def _value(self, to: ByteWriter, value: Any) -> None:
        match value:
            case None:
                to.byte(ValueTag.NONE)
            case np.generic():
                to.byte(ValueTag.SCALAR)
                to.unsigned(self._text(from_numpy(value.dtype).name))
                to.raw(value.tobytes())
            case bool():
                to.byte(ValueTag.TRUE if value else ValueTag.FALSE)
            case int():
                to.byte(ValueTag.INTEGER)
                to.signed(value)
            case float():
                to.byte(ValueTag.REAL)
                to.real(value)
            case str():
                to.byte(ValueTag.TEXT)
                to.unsigned(self._text(value))
            case tuple():
                to.byte(ValueTag.TUPLE)
                to.unsigned(len(value))
                for element in value:
                    self._value(to, element)
            case DType():
                to.byte(ValueTag.DTYPE)
                to.unsigned(self._text(value.name))
            case Pattern():
                to.byte(ValueTag.PATTERN)
                to.unsigned(self._patterns.index(value, self._pattern))
            case Tile():
                to.byte(ValueTag.TILE)
                to.unsigned(self._tile(value))
            case Affine():
                to.byte(ValueTag.AFFINE)
                self._affine(to, value)
            case Memory():
                to.byte(ValueTag.MEMORY)
                to.byte(MEMORIES.index(value))
            case _:
                raise InternalError(f"a NEFF cannot hold an attribute of type {type(value)}")

    def _pattern(self, pattern: Pattern) -> bytes:
        entry = ByteWriter()
        entry.unsigned(self._tile(pattern.tile))
        entry.unsigned(self._text(pattern.dtype.name))
        entry.unsigned(len(pattern.dims))
        for step, count in pattern.dims:
            entry.signed(step)
            entry.unsigned(count)
        self._affine(entry, pattern.offset)
        self._affine(entry, pattern.partition)
        return bytes(entry.data)

    def _affine(self, to: ByteWriter, affine: Affine) -> None:
        to.signed(affine.constant)
        to.unsigned(len(affine.terms))
        for variable, coefficient in affine.terms:
            to.unsigned(self._text(variable))
            to.signed(coefficient)

    def _tile(self, tile: Tile) -> int:
        if self._program.tiles.get(tile.name) != tile:
            raise InternalError(f"tile {tile.name!r} is not one of the program's tiles")
        return self._tiles.index(tile, self._tile_entry)

    def _tile_entry(self, tile: Tile) -> bytes:
        entry = ByteWriter()
        entry.unsigned(self._text(tile.name))
        entry.byte(MEMORIES.index(tile.memory))
        entry.unsigned(self._text(tile.dtype.name))
        entry.unsigned(tile.partitions)
        entry.unsigned(tile.elements)
        return bytes(entry.data)

    def _text(self, text: str) -> int:
        def encode(text: str) -> bytes:
            entry = ByteWriter()
            entry.raw(text.encode("utf-8"))
            return bytes(entry.data)

        return self._strings.index(text, encode)


def encoded_fields(kind: type[Instr]) -> tuple[str, ...]:
    """The fields of an instruction that are written, in order: attributes, then operands."""
    return (*kind.attribute_names, *kind.operand_declarations)


def _shape(to: ByteWriter, shape: tuple[int, ...]) -> None:
    to.unsigned(len(shape))
    for extent in shape:
        to.unsigned(extent)
