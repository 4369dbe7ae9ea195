"""What the other side of the C interface sees of Python values: handles, texts and arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from glia.plugins.pjrt.interface import STRUCTURES

_STRING, _INTEGER, _INTEGERS, _FLOAT = range(4)  # kinds of named values

Record = ctypes.c_int64 * 8  # the words that machine code reads; the first links what has ended

_objects: dict[int, Any] = {}
_records: dict[int, Any] = {}
_ended = ctypes.c_int64(0)  # the record that ended last, 0 for none
ENDED = ctypes.addressof(_ended)


def give_handle(value: Any, *words: int) -> int:
    """A new handle of a value, which is kept until `release`: the address of a record.

    `words` follow the first word of the record.
    """
    record = Record(0, *words)
    handle = ctypes.addressof(record)
    _objects[handle] = value
    _records[handle] = record
    return handle


def object_of(handle: int | None) -> Any:
    """The value of a handle; KeyError for one that was never given, or is released."""
    return _objects[handle or 0]


def record_of(handle: int) -> Any:
    """The record at a handle."""
    return _records[handle]


def release(handle: int | None) -> Any:
    """Forget a handle, and return its value; None where it is null or already released."""
    _records.pop(handle or 0, None)
    return _objects.pop(handle or 0, None)


def following(handle: int) -> int:
    """What had ended before a handle, 0 for nothing."""
    return int(_records[handle][0])


@dataclass(frozen=True)
class CArray:
    """An array of C values: where it is, and how many there are. It lives as long as this does."""

    address: int
    count: int
    memory: Any = field(repr=False, compare=False)


def c_array(kind: Any, values: Iterable[Any]) -> CArray:
    """Values as an array of a ctypes type; never at address 0, even if empty."""
    listed = list(values)
    memory = (kind * max(1, len(listed)))(*listed)
    return CArray(ctypes.addressof(memory), len(listed), memory)


def c_bytes(content: bytes | str) -> CArray:
    """Bytes or text as an array of characters, with a zero after them."""
    data = content.encode() if isinstance(content, str) else content
    memory = ctypes.create_string_buffer(data, len(data) + 1)
    return CArray(ctypes.addressof(memory), len(data), memory)


def handles(values: Iterable[Any]) -> CArray:
    """An array of the handles of values that have one."""
    return c_array(ctypes.c_void_p, (value.handle for value in values))


def pointers(address: int | None, count: int) -> Any:
    """The array of `count` pointers at an address, for reading and writing."""
    return (ctypes.c_void_p * count).from_address(address) if address and count else ()


def integers(address: int | None, count: int) -> tuple[int, ...]:
    """`count` 64-bit integers at an address."""
    return tuple((ctypes.c_int64 * count).from_address(address)) if address and count else ()


def bytes_at(address: int | None, count: int) -> bytes:
    """`count` bytes at an address."""
    return ctypes.string_at(address, count) if address and count else b""


def named_values(values: Mapping[str, int | float | str | tuple[int, ...]]) -> CArray:
    """Names and values as the interface's array of attributes."""
    kept: list[Any] = []

    def entry(name: str, value: int | float | str | tuple[int, ...]) -> Any:
        label = c_bytes(name)
        made = STRUCTURES["NamedValue"](name=label.address, name_size=label.count, value_size=1)
        made.struct_size = ctypes.sizeof(made)
        content = CArray(0, 1, None)
        if isinstance(value, str):
            made.kind, content = _STRING, c_bytes(value)
        elif isinstance(value, tuple):
            made.kind, content = _INTEGERS, c_array(ctypes.c_int64, value)
        elif isinstance(value, float):
            made.kind = _FLOAT
            made.value = int.from_bytes(bytes(ctypes.c_float(value)), "little")
        else:
            made.kind, made.value = _INTEGER, value
        if content.memory is not None:
            made.value, made.value_size = content.address, content.count
        kept.extend((label, content))
        return made

    made = c_array(STRUCTURES["NamedValue"], (entry(*item) for item in values.items()))
    return CArray(made.address, made.count, (made.memory, kept))


def read_named_values(address: int | None, count: int) -> dict[str, Any]:
    """The attributes at an address; of a float its bits."""
    found: dict[str, Any] = {}
    kind = STRUCTURES["NamedValue"]
    for each in (kind * count).from_address(address) if address and count else ():
        name = bytes_at(each.name, each.name_size).decode()
        if each.kind == _STRING:
            found[name] = bytes_at(each.value, each.value_size).decode()
        elif each.kind == _INTEGERS:
            found[name] = integers(each.value, each.value_size)
        else:
            found[name] = each.value or 0
    return found
