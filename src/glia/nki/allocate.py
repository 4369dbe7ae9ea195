"""New tiles of memory for tensors, and the checks of what they are asked to be."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from glia.isa.operand import Tile
from glia.nki.dtypes import DTYPES, dtype_name
from glia.nki.enums import MemoryRegion
from glia.nki.errors import ImpossibleTensor
from glia.nki.registers import integer_or_register
from glia.nki.session import caller, current
from glia.nki.views import is_integer


def new_tile(
    shape: tuple[int, ...],
    dtype: str,
    buffer: MemoryRegion,
    name: str,
    address: tuple[int, int] | None = None,
) -> Tile:
    """A tile for a tensor of its own; ImpossibleTensor when the memory cannot hold it."""
    session = current("nl.ndarray")
    stored = DTYPES[dtype]
    if session.keeps_wide and stored.is_float:
        stored = DTYPES["float32"]
    fixed = 1 if buffer.is_on_chip else 0
    partitions, elements = math.prod(shape[:fixed]), math.prod(shape[fixed:])
    capacity = _capacity(buffer)
    if elements * stored.bytes > capacity:
        needed = elements * stored.bytes
        refuse_tensor(shape, dtype, buffer, f"it needs {needed} bytes of {capacity}")
    start, byte = (0, None) if address is None else (int(address[0]), int(address[1]))
    is_shared = buffer is MemoryRegion.shared_hbm
    return session.new_tile(
        name or buffer.value, buffer.memory, stored, start + partitions, elements, byte, is_shared
    )


def _capacity(buffer: MemoryRegion) -> int:
    target = current("nl.ndarray").target
    if buffer is MemoryRegion.sbuf:
        return target.arch.sbuf_bytes_per_partition
    if buffer is MemoryRegion.psum:
        return target.arch.psum_bytes_per_partition
    return target.chip_hbm_bytes


def checked_address(
    address: Any, shape: tuple[int, ...], dtype: str, buffer: MemoryRegion
) -> tuple[int, int]:
    """(partition, byte) of a fixed address that lies in the memory."""
    if not (isinstance(address, tuple | list) and len(address) == 2):
        refuse_tensor(shape, dtype, buffer, f"an address is (partition, byte), not {address!r}")
    partition, byte = (integer_or_register(each, "an address") for each in address)
    if not isinstance(partition, int) or not isinstance(byte, int) or not buffer.is_on_chip:
        refuse_tensor(shape, dtype, buffer, "a fixed address is two integers, on chip")
    end = byte + math.prod(shape[1:]) * DTYPES[dtype].bytes
    if byte < 0 or end > _capacity(buffer) or byte % DTYPES[dtype].bytes:
        refuse_tensor(shape, dtype, buffer, f"bytes {byte} to {end - 1} do not fit its memory")
    if partition < 0 or partition + shape[0] > current("nl.ndarray").arch.partitions:
        refuse_tensor(shape, dtype, buffer, f"partitions {partition} and on do not fit")
    return partition, byte


def checked_shape(shape: object, dtype: object, buffer: MemoryRegion) -> tuple[int, ...]:
    """`shape` as a tuple of positive integers; ImpossibleTensor otherwise."""
    if not isinstance(shape, tuple | list):
        refuse_tensor(shape, dtype, buffer, "a shape is a tuple of integers")
    for extent in shape or (0,):
        if not is_integer(extent) or extent < 1:
            refuse_tensor(shape, dtype, buffer, "every extent is an integer of at least 1")
    return tuple([int(n) for n in shape])


def checked_dtype(dtype: object, shape: object, buffer: MemoryRegion) -> str:
    """NKI's name of a dtype; ImpossibleTensor when it is none."""
    name = dtype_name(dtype)
    if name is None:
        refuse_tensor(shape, dtype, buffer, f"the dtypes are {', '.join(DTYPES)}")
    return name


def refuse_tensor(shape: object, dtype: object, buffer: MemoryRegion, reason: str) -> NoReturn:
    """Raise ImpossibleTensor at the user's line."""
    partitions = current("nl.ndarray").arch.partitions
    raise ImpossibleTensor(
        shape=shape, dtype=dtype, buffer=buffer.value, reason=reason, partitions=partitions,
        loc=caller(),
    )  # fmt: skip
