"""Object code as a shared library, without a linker: ELF for x86-64, as LLVM writes it.

The sections of one object become two segments, what is only read before what is written. Places
inside are filled in here; addresses that depend on where the library is loaded, and those of other
libraries, are left to the loader. Formats and numbers: System V ABI, and its supplement for AMD64.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from glia.base.errors import InternalError

PAGE = 4096

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_PAIR = struct.Struct("<Qq")

_IDENTITY = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_RELOCATABLE, _SHARED, _X86_64 = 1, 3, 62
_PROGBITS, _SYMBOLS, _TEXTS, _WITH_ADDENDS, _NO_BITS = 1, 2, 3, 4, 8
_WRITABLE, _ALLOCATED = 1, 2
_ABSOLUTE, _RELATIVE_TO_PLACE, _CALL, _TO_BASE = 1, 2, 4, 8  # relocations R_X86_64_...
_GLOBAL_FUNCTION, _WEAK_FUNCTION = 0x12, 0x22
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_TAGS = {
    "hash": 4, "texts": 5, "symbols": 6, "relocations": 7, "relocation_bytes": 8,
    "relocation_size": 9, "text_bytes": 10, "symbol_size": 11, "name": 14,
}  # fmt: skip


@dataclass(frozen=True)
class _Section:
    """A section of the object; `target` is the one that its relocations are for."""

    kind: int
    flags: int
    content: bytes
    alignment: int
    target: int


@dataclass(frozen=True)
class _Symbol:
    """A name of the object: its section, 0 for one of another library, and where it is there."""

    name: str
    section: int
    value: int


@dataclass
class _Image:
    """The library as it is put together: a segment, with the address that it has."""

    address: int
    content: bytearray = field(default_factory=bytearray)

    def add(self, content: bytes, alignment: int = 8) -> int:
        """Append, and return the address."""
        self.content += bytes(-(self.address + len(self.content)) % alignment)
        address = self.address + len(self.content)
        self.content += content
        return address


class _Object:
    """The sections and symbols of object code; InternalError for what is not LLVM's for x86-64."""

    def __init__(self, code: bytes) -> None:
        head = _HEADER.unpack_from(code)
        if not head[0].startswith(_IDENTITY) or head[1:3] != (_RELOCATABLE, _X86_64):
            raise InternalError("object code is not ELF for x86-64")
        start, count = head[6], head[12]
        table = [_SECTION.unpack_from(code, start + n * _SECTION.size) for n in range(count)]
        self.sections = [
            _Section(
                kind,
                flags,
                bytes(length) if kind == _NO_BITS else code[offset : offset + length],
                max(1, alignment),
                info,
            )
            for _, kind, flags, _, offset, length, _, info, alignment, _ in table
        ]
        symbols = next(n for n, each in enumerate(self.sections) if each.kind == _SYMBOLS)
        texts = self.sections[table[symbols][6]].content
        self.symbols = [
            _Symbol(texts[name : texts.index(b"\0", name)].decode(), section, value)
            for name, _, _, section, value, _ in _SYMBOL.iter_unpack(self.sections[symbols].content)
        ]

    def loaded(self) -> Iterator[tuple[int, _Section]]:
        """The sections that are in memory, by number."""
        for number, each in enumerate(self.sections):
            if each.flags & _ALLOCATED and each.content:
                if each.kind not in (_PROGBITS, _NO_BITS):
                    raise InternalError(f"a section of kind {each.kind:#x} has no place")
                yield number, each

    def relocations(self) -> Iterator[tuple[int, int, int, _Symbol, int]]:
        """Each (section, offset, kind, symbol, addend) that is to be filled in."""
        for each in self.sections:
            if each.kind == _WITH_ADDENDS:
                for offset, info, addend in _RELOCATION.iter_unpack(each.content):
                    yield each.target, offset, info & 0xFFFFFFFF, self.symbols[info >> 32], addend


def shared_object(code: bytes, name: str, exported: Collection[str]) -> bytes:
    """The library `name` of object code, from which other libraries see the names in `exported`.

    Names that the object does not define are looked for where the library is loaded; they are 0
    where no other library has them. Only words that are written may hold such addresses.
    """
    parts = _Object(code)
    readable = _Image(0)
    readable.add(bytes(_HEADER.size + 4 * _SEGMENT.size))
    places: dict[int, tuple[_Image, int]] = {}
    for number, section in parts.loaded():
        if not section.flags & _WRITABLE:
            places[number] = readable, readable.add(section.content, section.alignment)
    tables = _Tables(parts, name, exported)
    addresses = tables.reserve(readable)
    writable = _Image(-(-(readable.address + len(readable.content)) // PAGE) * PAGE)
    for number, section in parts.loaded():
        if section.flags & _WRITABLE:
            places[number] = writable, writable.add(section.content, section.alignment)
    relocations = _fill_in(parts, places, tables.numbers)
    tables.write(readable, addresses, {n: address for n, (_, address) in places.items()})
    addresses["relocations"] = writable.add(relocations)
    dynamic = tables.dynamic(addresses, len(relocations))
    dynamic_address = writable.add(dynamic)
    _write_header(readable, writable, dynamic_address, len(dynamic))
    return bytes(readable.content).ljust(writable.address, b"\0") + bytes(writable.content)


class _Tables:
    """What the loader reads: names, symbols, and a hash table with one chain of all."""

    def __init__(self, parts: _Object, name: str, exported: Collection[str]) -> None:
        named = [each for each in parts.symbols if each.name]
        missing = {*exported} - {each.name for each in named if each.section}
        if missing:
            raise InternalError(f"object code does not define {', '.join(sorted(missing))}")
        self._symbols = [each for each in named if not each.section or each.name in exported]
        self.numbers = {each.name: n for n, each in enumerate(self._symbols, 1)}
        self._texts = b"\0"
        self._offsets: dict[str, int] = {}
        for text in (*self.numbers, name):
            self._offsets[text] = len(self._texts)
            self._texts += text.encode() + b"\0"
        self._name = self._offsets[name]
        count = len(self._symbols) + 1
        self._hash = struct.pack(f"<{3 + count}I", 1, count, 1, 0, *range(2, count), 0)

    def reserve(self, image: _Image) -> dict[str, int]:
        """The addresses of the tables, which are filled in when those of symbols are known."""
        return {
            "hash": image.add(self._hash),
            "texts": image.add(self._texts),
            "symbols": image.add(bytes(_SYMBOL.size * (len(self._symbols) + 1))),
        }

    def write(
        self, image: _Image, addresses: Mapping[str, int], sections: Mapping[int, int]
    ) -> None:
        """Fill in the symbols; `sections` are the addresses of the object's."""
        for number, each in enumerate(self._symbols, 1):
            value = sections[each.section] + each.value if each.section else 0
            kind = _GLOBAL_FUNCTION if each.section else _WEAK_FUNCTION
            offset = addresses["symbols"] - image.address + number * _SYMBOL.size
            place = min(each.section, 1)  # any number but 0 says that it is defined
            _SYMBOL.pack_into(
                image.content, offset, self._offsets[each.name], kind, 0, place, value, 0
            )

    def dynamic(self, addresses: Mapping[str, int], relocation_bytes: int) -> bytes:
        """The list by which the loader finds everything."""
        facts = {
            **addresses,
            "relocation_bytes": relocation_bytes,
            "relocation_size": _RELOCATION.size,
            "text_bytes": len(self._texts),
            "symbol_size": _SYMBOL.size,
            "name": self._name,
        }
        return b"".join(_PAIR.pack(_TAGS[tag], n) for tag, n in facts.items()) + _PAIR.pack(0, 0)


def _fill_in(
    parts: _Object, places: Mapping[int, tuple[_Image, int]], numbers: Mapping[str, int]
) -> bytes:
    """Fill in distances; the relocations that are left to the loader."""
    left = b""
    for section, offset, kind, symbol, addend in parts.relocations():
        if section not in places:
            continue
        image, start = places[section]
        place = start + offset
        at = place - image.address
        known = places[symbol.section][1] + symbol.value if symbol.section else None
        if kind == _ABSOLUTE and parts.sections[section].flags & _WRITABLE:
            if known is None:
                left += _RELOCATION.pack(place, numbers[symbol.name] << 32 | _ABSOLUTE, addend)
            else:
                left += _RELOCATION.pack(place, _TO_BASE, known + addend)
        elif kind in (_RELATIVE_TO_PLACE, _CALL) and known is not None:
            struct.pack_into("<i", image.content, at, known + addend - place)
        else:
            raise InternalError(f"a relocation of kind {kind} for {symbol.name!r} has no place")
    return left


def _write_header(readable: _Image, writable: _Image, dynamic: int, dynamic_bytes: int) -> None:
    identity = _IDENTITY.ljust(16, b"\0")
    head = _HEADER.pack(
        identity, _SHARED, _X86_64, 1, 0, _HEADER.size, 0, 0,
        _HEADER.size, _SEGMENT.size, 4, 0, 0, 0,
    )  # fmt: skip
    whole, written = len(readable.content), len(writable.content)
    segments = (
        (_LOAD, _READ | _EXECUTE, 0, whole, PAGE),
        (_LOAD, _READ | _WRITE, writable.address, written, PAGE),
        (_DYNAMIC, _READ | _WRITE, dynamic, dynamic_bytes, 8),
        (_STACK, _READ | _WRITE, 0, 0, 16),
    )
    for kind, flags, start, length, alignment in segments:
        head += _SEGMENT.pack(kind, flags, start, start, start, length, length, alignment)
    readable.content[: len(head)] = head
