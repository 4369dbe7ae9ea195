"""Decode machine programs from bytes, which are validated as hostile input."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import DEVICE_DTYPES, DType
from glia.base.loc import Loc
from glia.isa.kit import INSTRUCTIONS, Instr, Operand
from glia.isa.operand import Memory, Pattern, Signal, Tile, Wait
from glia.machine.binary.bytestream import ByteReader
from glia.machine.binary.encode import (
    MEMORIES,
    PAYLOAD_MAGIC,
    PAYLOAD_VERSION,
    FieldBits,
    StatementTag,
    ValueTag,
    encoded_fields,
)
from glia.machine.binary.errors import UnsupportedNeffVersion
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While

MAXIMUM_DEPTH = 64  # loops and branches inside one another
MAXIMUM_VALUE_DEPTH = 8  # tuples inside one another
MAXIMUM_DIMENSIONS = 16
MAXIMUM_TRIPS = 1 << 40
MAXIMUM_TILE_BYTES = 1 << 42  # far above any device's HBM; keeps later arithmetic sane
MAXIMUM_PATTERN_BYTES = 1 << 35  # that one operand covers, repeated elements counted
Entry = TypeVar("Entry")
Member = Callable[[str], memoryview]
Check = Callable[[Any], bool]


def decode_program(
    program: memoryview, engine_stream: Member, constant_file: Member, part: str
) -> Program:
    """The program in `program`.

    `engine_stream(engine)` and `constant_file(member)` give the other members' bytes; `part` names
    the program's member in errors. Raises DamagedNeff for anything malformed, and
    UnsupportedNeffVersion when the payload or an instruction is another version's.
    """
    return _Decoder(ByteReader(program, part), engine_stream, constant_file).decode()


class _Decoder:
    def __init__(self, stream: ByteReader, engine_stream: Member, constant_file: Member) -> None:
        self._from = stream
        self._engine_stream = engine_stream
        self._constant_file = constant_file
        self._engines: tuple[str, ...] = ()
        self._streams: tuple[ByteReader, ...] = ()
        self._strings: list[str] = []
        self._tiles: list[Tile] = []
        self._patterns: list[Pattern] = []
        self._opcodes: list[type[Instr]] = []
        self._sources: list[Loc] = []
        self._constants: dict[int, Affine] = {}  # by value
        self._readers: dict[int, Callable[[ByteReader, int], Any]] = {
            ValueTag.NONE: lambda source, _: None,
            ValueTag.FALSE: lambda source, _: False,
            ValueTag.TRUE: lambda source, _: True,
            ValueTag.INTEGER: lambda source, _: self._integer(source),
            ValueTag.REAL: lambda source, _: source.real(),
            ValueTag.TEXT: lambda source, _: self._text(source),
            ValueTag.TUPLE: self._tuple,
            ValueTag.DTYPE: lambda source, _: self._dtype(source),
            ValueTag.TILE: lambda source, _: self._tiles[source.index(len(self._tiles), "tile")],
            ValueTag.AFFINE: lambda source, _: self._affine(source),
            ValueTag.SCALAR: lambda source, _: self._scalar(source),
            ValueTag.MEMORY: lambda source, _: MEMORIES[source.index(len(MEMORIES), "memory")],
        }

    def decode(self) -> Program:
        source = self._from
        if source.take(len(PAYLOAD_MAGIC)) != PAYLOAD_MAGIC:
            source.fail("it is not a glia program")
        self._version = source.byte()
        if not 1 <= self._version <= PAYLOAD_VERSION:
            raise UnsupportedNeffVersion(
                what="program encoding", supported=PAYLOAD_VERSION, received=self._version
            )
        self._strings = self._table(self._string)
        self._tiles = self._table(self._tile_entry)
        self._patterns = self._table(self._pattern)
        self._opcodes = self._table(self._declaration)
        self._sources = self._table(self._source)
        name, target = self._text(source), self._text(source)
        tiles = self._named((tile.name, tile) for tile in self._table(self._tile))
        if len({tile.name for tile in self._tiles}) != len(tiles) or len(self._tiles) != len(tiles):
            source.fail("the tile table and the program's tiles differ")
        addresses = self._named(self._table(lambda: (self._text(source), source.extent())))
        inputs, outputs = self._bindings(), self._bindings()
        constants = self._named(self._table(lambda: self._constant(tiles)))
        notes = tuple(self._table(lambda: self._text(source)))
        self._engines = tuple(self._table(lambda: self._text(source)))
        if len(set(self._engines)) != len(self._engines):
            source.fail("an engine occurs twice")
        self._streams = tuple(ByteReader(self._engine_stream(e), e) for e in self._engines)
        body = self._block(0)
        for stream in (source, *self._streams):
            stream.finish()
        return Program(name, target, tiles, inputs, outputs, constants, body, addresses, notes)

    def _table(self, read: Callable[[], Entry]) -> list[Entry]:
        return [read() for _ in range(self._from.count())]

    def _named(self, pairs: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in pairs:
            if name in result:
                self._from.fail(f"{name!r} is declared twice")
            result[name] = value
        return result

    def _string(self) -> str:
        try:
            return self._from.raw().decode("utf-8")
        except UnicodeDecodeError:
            self._from.fail("text is not UTF-8")

    def _text(self, source: ByteReader) -> str:
        return self._strings[source.index(len(self._strings), "string")]

    def _dtype(self, source: ByteReader) -> DType:
        name = self._text(source)
        if name not in DEVICE_DTYPES:
            source.fail(f"{name!r} is not a dtype")
        return DEVICE_DTYPES[name]

    def _tile_entry(self) -> Tile:
        source = self._from
        name = self._text(source)
        memory = MEMORIES[source.index(len(MEMORIES), "memory")]
        tile = Tile(name, memory, self._dtype(source), source.extent(), source.extent())
        is_filled = tile.bytes > 0 or memory is Memory.HBM  # where tensors without elements are
        if not is_filled or tile.bytes > MAXIMUM_TILE_BYTES:
            source.fail(f"tile {name!r} has {tile.bytes} bytes")
        return tile

    def _tile(self) -> Tile:
        return self._tiles[self._from.index(len(self._tiles), "tile")]

    def _pattern(self) -> Pattern:
        source = self._from
        tile, dtype = self._tile(), self._dtype(source)
        rank = source.unsigned()
        if not 1 <= rank <= MAXIMUM_DIMENSIONS:
            source.fail(f"an access pattern has {rank} dimensions")
        dims = tuple((source.place(), source.extent()) for _ in range(rank))
        pattern = Pattern(tile, dtype, dims, self._affine(source), self._affine(source))
        if not 0 < pattern.bytes <= MAXIMUM_PATTERN_BYTES:
            source.fail(f"an access pattern covers {pattern.bytes} bytes")
        return pattern

    def _affine(self, source: ByteReader) -> Affine:
        constant, count = source.place(), source.count()
        if not count:
            if (found := self._constants.get(constant)) is None:
                found = self._constants[constant] = Affine((), constant)
            return found
        terms = tuple((self._text(source), source.place()) for _ in range(count))
        names = [variable for variable, _ in terms]
        if names != sorted(set(names)) or not all(coefficient for _, coefficient in terms):
            source.fail("an affine expression is not in normal form")
        return Affine(terms, constant)

    def _declaration(self) -> type[Instr]:
        source = self._from
        mnemonic = self._text(source)
        names = tuple(self._table(lambda: self._text(source)))
        kind = INSTRUCTIONS.get(mnemonic)
        if kind is None or encoded_fields(kind) != names:
            supported = "none" if kind is None else ", ".join(encoded_fields(kind)) or "no fields"
            raise UnsupportedNeffVersion(
                what=f"instruction {mnemonic!r}", supported=supported, received=", ".join(names)
            )
        return kind

    def _source(self) -> Loc:
        return Loc(self._text(self._from), self._from.extent(), self._text(self._from))

    def _bindings(self) -> tuple[Binding, ...]:
        bindings = tuple(self._table(self._binding))
        if len({binding.name for binding in bindings}) != len(bindings):
            self._from.fail("two inputs or two outputs have the same name")
        return bindings

    def _binding(self) -> Binding:
        source = self._from
        name, tile, dtype = self._text(source), self._tile(), self._dtype(source)
        shape = self._shape()
        if math.prod(shape) * dtype.bytes > tile.bytes:
            source.fail(f"tensor {name!r} is larger than its tile")
        return Binding(name, tile, shape, dtype)

    def _shape(self) -> tuple[int, ...]:
        source = self._from
        shape = tuple(source.extent() for _ in range(source.count()))
        if len(shape) > MAXIMUM_DIMENSIONS:
            source.fail(f"a tensor has {len(shape)} dimensions")
        return shape

    def _constant(self, tiles: Mapping[str, Tile]) -> tuple[str, np.ndarray]:
        source = self._from
        name, file, dtype = self._text(source), self._text(source), self._dtype(source)
        shape = self._shape()
        data = self._constant_file(file)
        bytes_needed = math.prod(shape) * dtype.bytes
        if bytes_needed != len(data):
            source.fail(
                f"constant {name!r} has {bytes_needed} bytes, member {file!r} has {len(data)}"
            )
        if name not in tiles or tiles[name].bytes < bytes_needed:
            source.fail(f"constant {name!r} does not fit a tile of that name")
        array = np.frombuffer(data, dtype.numpy).reshape(shape)
        array.flags.writeable = False
        return name, array

    def _block(self, depth: int) -> tuple[Statement, ...]:
        if depth > MAXIMUM_DEPTH:
            self._from.fail(f"loops and branches are nested more than {MAXIMUM_DEPTH} deep")
        statements: list[Statement] = []
        for _ in range(self._from.count()):
            tag = self._from.byte()
            if tag == StatementTag.RUN:
                statements.extend(self._run())
            else:
                statements.append(self._control(tag, depth))
        return tuple(statements)

    def _run(self) -> list[Instr]:
        engine = self._from.index(len(self._engines), "engine")
        stream, count = self._streams[engine], self._from.unsigned()
        if count > stream.remaining:
            self._from.fail(f"{count} instructions expected, the engine has fewer")
        return [self._instruction(stream, self._engines[engine]) for _ in range(count)]

    def _control(self, tag: int, depth: int) -> Statement:
        source = self._from
        match tag:
            case StatementTag.LOOP:
                variable, trips = self._text(source), source.extent()
                if trips > MAXIMUM_TRIPS:
                    source.fail(f"loop {variable!r} runs {trips} times")
                return Loop(variable, trips, self._block(depth + 1))
            case StatementTag.WHILE:
                register = self._text(source)
                iterations = source.extent() if self._version > 1 else 0
                condition = self._block(depth + 1)
                return While(condition, register, self._block(depth + 1), iterations)
            case StatementTag.BRANCH:
                register = self._text(source)
                arms = tuple(self._block(depth + 1) for _ in range(source.count()))
                if not arms:
                    source.fail("a branch has no arms")
                return Branch(register, arms)
        source.fail(f"{tag} is not a statement")

    def _instruction(self, source: ByteReader, engine: str) -> Instr:
        kind = self._opcodes[source.index(len(self._opcodes), "opcode")]
        parts = source.byte()
        fields: dict[str, Any] = {}
        if parts & FieldBits.ENGINE:
            fields["on"] = engine
        if parts & FieldBits.QUEUE:
            fields["queue"] = self._text(source)
        if parts & FieldBits.WAITS:
            waits = range(source.count())
            fields["waits"] = tuple(Wait(self._text(source), self._affine(source)) for _ in waits)
        if parts & FieldBits.SIGNALS:
            signals = range(source.count())
            fields["signals"] = tuple(Signal(self._text(source), source.place()) for _ in signals)
        if parts & FieldBits.SOURCE:
            fields["loc"] = self._sources[source.index(len(self._sources), "source line")]
        for name, is_allowed in _checks(kind):  # type: ignore[arg-type]  # as of `__hash__`
            fields[name] = value = self._value(source, 0)
            if not is_allowed(value):
                source.fail(f"{kind.mnemonic()} cannot have {name} = {value!r:.40}")
        instruction = kind(**fields)
        if instruction.runs_on != engine or parts >= 2 * FieldBits.SOURCE:
            source.fail(f"{kind.mnemonic()} is in the stream of engine {engine!r}")
        return instruction

    def _value(self, source: ByteReader, depth: int) -> Any:
        tag = source.byte()
        if tag == ValueTag.PATTERN:
            return self._patterns[source.index(len(self._patterns), "access pattern")]
        read = self._readers.get(tag)
        if read is None:
            source.fail("an operand or attribute has an unknown kind")
        return read(source, depth)

    def _tuple(self, source: ByteReader, depth: int) -> tuple[Any, ...]:
        if depth == MAXIMUM_VALUE_DEPTH:
            source.fail("tuples are nested too deep")
        return tuple(self._value(source, depth + 1) for _ in range(source.count()))

    def _integer(self, source: ByteReader) -> int:
        """An immediate or attribute, which has at most 64 bits."""
        value = source.signed()
        if not -(1 << 63) <= value < 1 << 64:
            source.fail(f"an attribute has more than 64 bits: {value}")
        return value

    def _scalar(self, source: ByteReader) -> np.generic:
        dtype = self._dtype(source)
        data = source.raw()
        if len(data) != dtype.numpy.itemsize:
            source.fail(f"a {dtype} has {len(data)} bytes")
        scalar: np.generic = np.frombuffer(data, dtype.numpy)[0]
        return scalar


@cache
def _checks(kind: type[Instr]) -> tuple[tuple[str, Check], ...]:
    """The fields that are written, each with what says whether it may hold a value."""
    hints, declared = typing.get_type_hints(kind), kind.operand_declarations
    return tuple(
        (name, _operand_check(declared[name]) if name in declared else type_check(hints[name]))
        for name in encoded_fields(kind)
    )


def _operand_check(declared: Operand) -> Check:
    """What says whether an operand may be a value, by its declaration."""
    memories = declared.memories
    if declared.is_several:
        return lambda value: (
            isinstance(value, tuple)
            and all(isinstance(each, Pattern) and each.tile.memory in memories for each in value)
        )

    def is_allowed(value: Any) -> bool:
        if isinstance(value, Pattern):
            return value.tile.memory in memories
        if value is None:
            return declared.is_optional
        is_number = isinstance(value, (int, float, np.generic)) and not isinstance(value, bool)
        return declared.allows_immediate and is_number

    return is_allowed


@cache
def type_check(hint: Any) -> Check:
    """What says whether a value is of the annotated type: classes, unions, and tuples of such.

    An int is a float as everywhere in Python; a bool is not an int.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return lambda value: True
    if hint is None or hint is type(None):
        return lambda value: value is None
    if origin in (typing.Union, types.UnionType):
        options = tuple(map(type_check, arguments))
        return lambda value: any(option(value) for option in options)
    if origin is typing.Literal:
        return lambda value: any(type(value) is type(o) and value == o for o in arguments)
    if origin is tuple:
        return _tuple_check(arguments)
    if hint in (float, int):
        numbers = (int, float) if hint is float else int
        return lambda value: isinstance(value, numbers) and not isinstance(value, bool)
    return lambda value: isinstance(hint, type) and isinstance(value, hint)


def _tuple_check(arguments: tuple[Any, ...]) -> Check:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        each = type_check(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    checks = tuple(map(type_check, arguments))

    def is_allowed(value: Any) -> bool:
        if not isinstance(value, tuple) or len(value) != len(checks):
            return False
        return all(check(element) for check, element in zip(checks, value, strict=True))

    return is_allowed
