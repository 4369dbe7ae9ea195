"""The text form of machine programs: printer and parser.

    program "softmax" target "trn2"
    tile x HBM f32 1 65536 at 0
    tile t3 SBUF f32 128 512 at 2048
    input "x" x f32 (128, 512)
    loop m 4 {
      dma_copy(dst=t3[0 :+128; 0 | 1*512]:f32, src=x[65536*m | 512*128, 1*512]:f32, queue="q0")
    }

A pattern on chip is `tile[partition :+count/step; offset | step*count, ...]:dtype`, in HBM
`tile[offset | step*count, ...]:dtype`. An attribute in braces is affine. Contents of constants are
not part of the text.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from glia.base.affine import Affine
from glia.base.dtype import DEVICE_DTYPES, DType
from glia.base.loc import UNKNOWN, Loc
from glia.base.scanner import Scanner, TextError
from glia.isa import INSTRUCTIONS
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Signal, Tile, Wait
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While

Entry = TypeVar("Entry")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*|[%$][A-Za-z0-9_.$]+")
_INTEGER = re.compile(r"-?[0-9]+")
_RESERVED = {"true", "false", "none", "inf", "nan"}


def print_program(program: Program) -> str:
    """The program as text, without the contents of its constants."""
    lines = [f"program {_quote(program.name)} target {_quote(program.target)}"]
    lines += [_print_tile(tile, program.addresses) for tile in program.tiles.values()]
    lines += [_print_binding("input", binding) for binding in program.inputs]
    lines += [_print_binding("output", binding) for binding in program.outputs]
    lines += [f"constant {_name(name)}" for name in program.constants]
    lines += [f"note {_quote(note)}" for note in program.notes]
    lines += _print_block(program.body, "")
    return "\n".join(lines) + "\n"


def print_instruction(instr: Instr) -> str:
    """One instruction as text."""
    return f"{instr.mnemonic()}({', '.join(_print_fields(instr))})"


def print_pattern(pattern: Pattern) -> str:
    """One access pattern as text."""
    dims, where = pattern.dims, ""
    if pattern.memory is not Memory.HBM:
        step, count = dims[0]
        where = f"{pattern.partition} :+{count}" + (f"/{step}" if step != 1 else "") + "; "
        dims = dims[1:]
    listed = ", ".join(f"{step}*{count}" for step, count in dims)
    tail = f" | {listed}" if dims else ""
    return f"{_name(pattern.tile.name)}[{where}{pattern.offset}{tail}]:{pattern.dtype}"


def _print_tile(tile: Tile, addresses: Mapping[str, int]) -> str:
    at = f" at {addresses[tile.name]}" if tile.name in addresses else ""
    shape = f"{tile.partitions} {tile.elements}"
    return f"tile {_name(tile.name)} {tile.memory.value} {tile.dtype} {shape}{at}"


def _print_binding(word: str, binding: Binding) -> str:
    where = f"{_name(binding.tile.name)} {binding.dtype}"
    return f"{word} {_quote(binding.name)} {where} {_print_value(binding.shape)}"


def _print_block(body: tuple[Statement, ...], indent: str) -> Iterator[str]:
    inner = indent + "  "
    for statement in body:
        if isinstance(statement, Loop):
            fixed = " fixed" if statement.is_fixed else ""
            has_copies = statement.copies or statement.room
            copies = f" copies {statement.copies} in {statement.room}" if has_copies else ""
            yield f"{indent}loop {statement.variable} {statement.trips}{fixed}{copies} {{"
            yield from _print_block(statement.body, inner)
        elif isinstance(statement, While):
            times = f" times {statement.iterations}" if statement.iterations else ""
            yield f"{indent}while {statement.register}{times} {{"
            yield from _print_block(statement.condition, inner)
            yield f"{indent}}} do {{"
            yield from _print_block(statement.body, inner)
        elif isinstance(statement, Branch):
            yield f"{indent}branch {statement.register} {{"
            for number, arm in enumerate(statement.arms):
                if number:
                    yield f"{indent}}} or {{"
                yield from _print_block(arm, inner)
        else:
            yield indent + print_instruction(statement)
            continue
        yield f"{indent}}}"


def _print_fields(instr: Instr) -> Iterator[str]:
    for field in dataclasses.fields(instr):
        value = getattr(instr, field.name)
        if field.default is not dataclasses.MISSING and _is_same(value, field.default):
            continue
        if field.name in _PRINTERS:
            yield f"{field.name}={_PRINTERS[field.name](value)}"
        else:
            yield f"{field.name}={_print_value(value)}"


def _is_same(value: Any, default: Any) -> bool:
    is_equal = type(value) is type(default) and bool(value == default)
    return is_equal and (not isinstance(value, float) or repr(value) == repr(default))  # not -0.0


def _print_value(value: Any) -> str:
    if isinstance(value, Pattern):
        return print_pattern(value)
    if isinstance(value, Affine):
        return f"{{{value}}}"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, tuple):
        return f"({', '.join(_print_value(item) for item in value)})"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, int) else repr(float(value))


def _print_waits(waits: tuple[Wait, ...]) -> str:
    return f"({', '.join(f'{_name(w.semaphore)}: {w.value}' for w in waits)})"


def _print_signals(signals: tuple[Signal, ...]) -> str:
    return f"({', '.join(f'{_name(s.semaphore)}: {s.amount}' for s in signals)})"


def _print_loc(loc: Loc) -> str:
    return f"({_quote(loc.file)}, {loc.line}, {_quote(loc.name)})"


_PRINTERS: Mapping[str, Callable[[Any], str]] = {
    "waits": _print_waits,
    "signals": _print_signals,
    "loc": _print_loc,
}


def _quote(text: str) -> str:
    return json.dumps(text)


def _name(name: str) -> str:
    return name if _WORD.fullmatch(name) and name not in _RESERVED else _quote(name)


def parse_program(text: str, constants: Mapping[str, Any] | None = None) -> Program:
    """The program a text describes; `constants` holds the contents of its constants by tile name.

    TextError when the text does not parse or a constant is missing.
    """
    return _Parser(text, constants or {}).program()


class _Parser:
    def __init__(self, text: str, constants: Mapping[str, Any]) -> None:
        self._scan = Scanner(text)
        self._contents = constants
        self._tiles: dict[str, Tile] = {}
        self._addresses: dict[str, int] = {}
        self._bindings: dict[str, list[Binding]] = {"input": [], "output": []}
        self._constants: dict[str, Any] = {}
        self._notes: list[str] = []

    def program(self) -> Program:
        self._scan.expect("program")
        name = self._string()
        self._scan.expect("target")
        target = self._string()
        while self._declaration():
            pass
        body = self._statements("")
        return Program(
            name=name,
            target=target,
            tiles=self._tiles,
            inputs=tuple(self._bindings["input"]),
            outputs=tuple(self._bindings["output"]),
            constants=self._constants,
            body=body,
            addresses=self._addresses,
            notes=tuple(self._notes),
        )

    def _declaration(self) -> bool:
        word = self._scan.peek()
        if word not in ("tile", "input", "output", "constant", "note"):
            return False
        self._scan.take()
        if word == "tile":
            self._tile()
        elif word == "constant":
            name = self._word()
            if name not in self._contents or name not in self._tiles:
                self._scan.fail(f"constant {name} has no contents or no tile")
            self._constants[name] = self._contents[name]
        elif word == "note":
            self._notes.append(self._string())
        else:
            self._binding(word)
        return True

    def _tile(self) -> None:
        name = self._word()
        memory = self._member({m.value: m for m in Memory})
        dtype = self._dtype()
        tile = Tile(name, memory, dtype, self._scan.integer(), self._scan.integer())
        if name in self._tiles:
            self._scan.fail(f"tile {name} is declared twice")
        self._tiles[name] = tile
        if self._scan.accept("at"):
            self._addresses[name] = self._scan.integer()

    def _binding(self, word: str) -> None:
        name = self._string()
        tile, dtype, shape = self._declared_tile(), self._dtype(), self._value()
        if not isinstance(shape, tuple):
            self._scan.fail("expected a shape")
        self._bindings[word].append(Binding(name, tile, shape, dtype))

    def _statements(self, end: str) -> tuple[Statement, ...]:
        found: list[Statement] = []
        while self._scan.peek() != end:
            found.append(self._statement())
        if end:
            self._scan.expect(end)
        return tuple(found)

    def _statement(self) -> Statement:
        word = self._scan.take()
        if word == "loop":
            variable, trips = self._word(), self._scan.integer()
            is_fixed = self._scan.accept("fixed")
            copies = room = 0
            if self._scan.accept("copies"):
                copies = self._scan.integer()
                self._scan.expect("in")
                room = self._scan.integer()
            return Loop(variable, trips, self._braced(), is_fixed, copies, room)
        if word == "while":
            register = self._word()
            iterations = self._scan.integer() if self._scan.accept("times") else 0
            condition = self._braced()
            self._scan.expect("do")
            return While(condition, register, self._braced(), iterations)
        if word == "branch":
            register, arms = self._word(), [self._braced()]
            while self._scan.accept("or"):
                arms.append(self._braced())
            return Branch(register, tuple(arms))
        if word not in INSTRUCTIONS:
            self._scan.fail(f"{word!r} is not an instruction")
        return self._instruction(INSTRUCTIONS[word])

    def _braced(self) -> tuple[Statement, ...]:
        self._scan.expect("{")
        return self._statements("}")

    def _instruction(self, declared: type[Instr]) -> Instr:
        known = {field.name for field in dataclasses.fields(declared)}
        values: dict[str, Any] = {}
        self._scan.expect("(")
        while not self._scan.accept(")"):
            name = self._scan.take()
            if name not in known or name in values:
                self._scan.fail(f"{declared.mnemonic()} has no further field {name!r}")
            self._scan.expect("=")
            values[name] = self._field(name)
            if self._scan.peek() != ")":
                self._scan.expect(",")
        try:
            return declared(**values)
        except TypeError as error:
            raise TextError(str(error)) from error

    def _field(self, name: str) -> Any:
        if name == "waits":
            return tuple(Wait(s, value) for s, value in self._semaphores())
        if name == "signals":
            return tuple(Signal(s, value.constant) for s, value in self._semaphores())
        value = self._value()
        if name == "loc":
            return self._location(value)
        return value

    def _location(self, value: Any) -> Loc:
        match value:
            case (str(file), int(line), str(label)):
                return Loc(file, line, label)
            case () | None:
                return UNKNOWN
        self._scan.fail("expected a file, a line and a name")

    def _semaphores(self) -> list[tuple[str, Affine]]:
        found: list[tuple[str, Affine]] = []
        self._scan.expect("(")
        while not self._scan.accept(")"):
            semaphore = self._word()
            self._scan.expect(":")
            found.append((semaphore, self._scan.affine()))
            if self._scan.peek() != ")":
                self._scan.expect(",")
        return found

    def _value(self) -> Any:
        token = self._scan.peek()
        if token == "(":
            return self._tuple()
        if self._scan.accept("{"):
            value = self._scan.affine()
            self._scan.expect("}")
            return value
        if token in ("true", "false", "none"):
            self._scan.take()
            return {"true": True, "false": False, "none": None}[token]
        if token.startswith('"'):
            text = self._string()
            return self._pattern(text) if self._scan.peek() == "[" else text
        if _WORD.fullmatch(token) and token not in _RESERVED:
            return self._pattern(self._scan.take())
        return self._number()

    def _number(self) -> int | float:
        token = self._scan.take()
        try:
            return int(token) if _INTEGER.fullmatch(token) else float(token)
        except ValueError:
            raise TextError(f"expected a value, found {token!r}") from None

    def _tuple(self) -> tuple[Any, ...]:
        items: list[Any] = []
        self._scan.expect("(")
        while not self._scan.accept(")"):
            items.append(self._value())
            if self._scan.peek() != ")":
                self._scan.expect(",")
        return tuple(items)

    def _pattern(self, name: str) -> Pattern:
        tile = self._tiles.get(name)
        if tile is None:
            self._scan.fail(f"tile {name} is not declared")
        assert tile is not None
        self._scan.expect("[")
        dims: list[tuple[int, int]] = []
        partition, offset = Affine(), self._scan.affine()
        if tile.memory is not Memory.HBM:
            partition = offset
            self._scan.expect(":")
            self._scan.expect("+")
            count = self._scan.integer()
            dims.append((self._scan.integer() if self._scan.accept("/") else 1, count))
            self._scan.expect(";")
            offset = self._scan.affine()
        if self._scan.accept("|"):
            dims += self._dims()
        self._scan.expect("]")
        self._scan.expect(":")
        return Pattern(tile, self._dtype(), tuple(dims), offset, partition)

    def _dims(self) -> list[tuple[int, int]]:
        dims: list[tuple[int, int]] = []
        while True:
            step = self._scan.integer()
            self._scan.expect("*")
            dims.append((step, self._scan.integer()))
            if not self._scan.accept(","):
                return dims

    def _declared_tile(self) -> Tile:
        return self._member(self._tiles)

    def _dtype(self) -> DType:
        return self._member(DEVICE_DTYPES)

    def _member(self, table: Mapping[str, Entry]) -> Entry:
        name = self._word()
        if name not in table:
            self._scan.fail(f"{name!r} is not known here")
        return table[name]

    def _word(self) -> str:
        return self._string() if self._scan.peek().startswith('"') else self._scan.take()

    def _string(self) -> str:
        token = self._scan.take()
        try:
            text = json.loads(token) if token.startswith('"') else None
        except json.JSONDecodeError:
            text = None
        if not isinstance(text, str):
            raise TextError(f"expected a string, found {token!r}")
        return text
