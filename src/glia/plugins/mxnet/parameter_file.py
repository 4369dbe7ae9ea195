"""Files of arrays (`.params`), read as hostile input: an array lies where the file has it.

The layout is that of MXNet's NDArray::Save and NDArray::Load, for every version that it loads.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from glia.base.dtype import BF16, F16, F32, F64, PRED, S8, S16, S32, S64, U8, U16, U32, U64, DType
from glia.plugins.mxnet.errors import BadParameterFile

LIST_MAGIC = 0x112
ARRAY_V1, ARRAY_V2, ARRAY_V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
MOST_DIMENSIONS = 32
DENSE = 0

DTYPES: tuple[DType, ...] = (F32, F64, F16, U8, S32, S8, S64, PRED, S16, U16, U32, U64, BF16)
"""The dtypes by the numbers that MXNet has for them."""


class _Reader:
    """Numbers and bytes from a position on; BadParameterFile where the file ends."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        self.position = 0

    def take(self, count: int, what: str) -> memoryview:
        """The next `count` bytes."""
        left = len(self.data) - self.position
        if not 0 <= count <= left:
            raise BadParameterFile(reason=f"{what} has {count} bytes, of which {left} are there")
        self.position += count
        return self.data[self.position - count : self.position]

    def number(self, form: str, what: str) -> int:
        """The next number of a form of `struct`."""
        size = struct.calcsize(form)
        (found,) = struct.unpack(f"<{form}", self.take(size, what))
        return int(found)


def parse_parameters(data: bytes | memoryview) -> dict[str, np.ndarray]:
    """The arrays of a file by name, in its memory; BadParameterFile for anything else.

    Names keep their prefix (`arg:`, `aux:`); arrays of a file without names are called by number.
    """
    reader = _Reader(data)
    if (magic := reader.number("Q", "the head")) != LIST_MAGIC:
        raise BadParameterFile(reason=f"it begins with {magic:#x}, not {LIST_MAGIC:#x}")
    reader.number("Q", "the head")
    count = reader.number("Q", "the number of arrays")
    if count > len(reader.data) // 8:
        raise BadParameterFile(reason=f"it says that it has {count} arrays")
    arrays = [_array(reader, place) for place in range(count)]
    names = _names(reader, count)
    return dict(zip(names, arrays, strict=True))


def _names(reader: _Reader, arrays: int) -> list[str]:
    count = reader.number("Q", "the number of names")
    if count not in (0, arrays):
        raise BadParameterFile(reason=f"it has {arrays} arrays and {count} names")
    names = []
    for _ in range(count):
        length = reader.number("Q", "the length of a name")
        names.append(bytes(reader.take(length, "a name")).decode("utf-8", "replace"))
    if len(set(names)) != len(names):
        raise BadParameterFile(reason="several arrays have one name")
    return names or [str(place) for place in range(arrays)]


def _array(reader: _Reader, place: int) -> np.ndarray:
    what = f"array {place}"
    magic = reader.number("I", what)
    if magic not in (ARRAY_V1, ARRAY_V2, ARRAY_V3):
        raise BadParameterFile(reason=f"{what} begins with {magic:#x}")
    if magic != ARRAY_V1 and (storage := reader.number("i", what)) != DENSE:
        raise BadParameterFile(reason=f"{what} is sparse (storage type {storage})")
    rank = reader.number("i", what)
    is_absent = rank == (-1 if magic == ARRAY_V3 else 0)
    if is_absent:
        raise BadParameterFile(reason=f"{what} has no elements: it was saved before it was made")
    if not 0 <= rank <= MOST_DIMENSIONS:
        raise BadParameterFile(reason=f"{what} has {rank} dimensions")
    shape = [reader.number("q", what) for _ in range(rank)]
    reader.take(8, what)  # the device that it was on
    number = reader.number("i", what)
    if not 0 <= number < len(DTYPES):
        raise BadParameterFile(reason=f"{what} has the dtype number {number}")
    if any(extent < 0 for extent in shape):
        raise BadParameterFile(reason=f"{what} has the shape {shape}")
    dtype = DTYPES[number].numpy
    elements = 1
    for extent in shape:
        elements *= extent
    held = reader.take(elements * dtype.itemsize, what)
    try:
        return np.ndarray(shape, dtype, held)
    except ValueError as problem:  # no elements, and extents that no array has
        raise BadParameterFile(reason=f"{what} has the shape {shape}: {problem}") from None


def without_prefixes(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays by the names that a symbol has for them: without `arg:` and `aux:`."""
    return {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in arrays.items()}
