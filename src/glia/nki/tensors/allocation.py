"""Allocation of tiles for tensors, and validation of shapes, dtypes, buffers and addresses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

from glia.base.dtype import DType
from glia.base.suggestions import nearest
from glia.isa.operand import Memory, Tile
from glia.machine.passes.on_chip_space import on_chip_capacities
from glia.nki.issue.former_signatures import PartitionDim
from glia.nki.names.dtypes import DTYPES, dtype_name
from glia.nki.names.enums import MemoryRegion
from glia.nki.names.errors import ImpossibleTensor, NotInNki
from glia.nki.session.session import Session, caller, current
from glia.nki.tensors.registers import integer_or_register
from glia.nki.tensors.views import ViewLayout, is_integer, row_major_layout, storage_class


@dataclass(frozen=True)
class TensorSpec:
    """The properties of tensors of one shape, dtype and buffer; `refusal` says why none can exist.

    `dtype` is NKI's name, `stored` the dtype of the elements in memory, `stem` the default name of
    tiles, `is_shared` whether all cores share one tile.
    """

    shape: tuple[int, ...]
    dtype: str
    stored: DType
    buffer: MemoryRegion
    partitions: int
    elements: int
    layout: ViewLayout
    refusal: str
    stem: str
    memory: Memory
    is_shared: bool


def tensor_spec(session: Session, shape: Any, dtype: Any, buffer: Any) -> TensorSpec:
    """The spec of a tensor; ImpossibleTensor for a bad shape or dtype, NotInNki for a buffer."""
    try:
        key = (buffer, dtype, tuple(shape), *map(type, shape))
        known = session.specs.get(key)
    except TypeError:  # an unhashable extent or dtype, or no shape at all
        return _make_spec(session, shape, dtype, buffer)
    if known is None:
        known = session.specs[key] = _make_spec(session, shape, dtype, buffer)
    return known


def _make_spec(session: Session, shape: Any, dtype: Any, buffer: Any) -> TensorSpec:
    if not isinstance(buffer, MemoryRegion):
        raise NotInNki(feature=f"buffer {buffer!r} (give nl.sbuf, nl.psum, ...)", loc=caller())
    sizes = validate_shape(shape, dtype, buffer)
    name = validate_dtype(dtype, sizes, buffer)
    stored = DTYPES[name]
    if session.widens_floats and stored.is_float:
        stored = DTYPES["float32"]
    fixed = 1 if buffer.is_on_chip else 0
    elements, capacity = math.prod(sizes[fixed:]), _capacity(buffer)
    needed = elements * stored.bytes
    refusal = _refusal(needed, buffer) if needed > capacity else ""
    partitions = math.prod(sizes[:fixed])
    layout = row_major_layout(sizes, storage_class(buffer.memory, stored, partitions))
    return TensorSpec(
        sizes, name, stored, buffer, partitions, elements, layout, refusal,
        buffer.value, buffer.memory, buffer is MemoryRegion.shared_hbm,
    )  # fmt: skip


def new_tile(
    session: Session, spec: TensorSpec, name: str, first: int = 0, byte: int | None = None
) -> Tile:
    """Allocate the tile of a tensor; ImpossibleTensor when the memory cannot hold it.

    `first` is the first partition and `byte` the offset in a partition of a fixed address.
    """
    if spec.refusal:
        most = _usable(spec.buffer) // spec.stored.bytes
        cure = f"loop over tiles of fewer elements in a partition: {most} fill the memory"
        on_chip = cure if spec.buffer.is_on_chip else "divide it between cores"
        refuse_tensor(spec.shape, spec.dtype, spec.buffer, spec.refusal, on_chip)
    tile = session.new_tile(
        name or spec.stem, spec.memory, spec.stored, first + spec.partitions,
        spec.elements, byte, spec.is_shared,
    )  # fmt: skip
    if session.scopes:
        session.scopes[-1][tile.name] = tile
    return tile


def _capacity(buffer: MemoryRegion) -> int:
    target = current("nl.ndarray").target
    if buffer is MemoryRegion.sbuf:
        return target.arch.sbuf_bytes_per_partition
    if buffer is MemoryRegion.psum:
        return target.arch.psum_bytes_per_partition
    return target.chip_hbm_bytes


def _usable(buffer: MemoryRegion) -> int:
    """Bytes that a kernel's tiles may take, of each partition on chip."""
    if not buffer.is_on_chip:
        return _capacity(buffer)
    return on_chip_capacities(current("nl.ndarray").arch)[buffer.memory]


def _refusal(needed: int, buffer: MemoryRegion) -> str:
    where = " of each partition" if buffer.is_on_chip else ""
    return f"it needs {needed} bytes{where}, of {_usable(buffer)}"


def validate_address(
    address: Any, shape: tuple[int, ...], dtype: str, buffer: MemoryRegion
) -> tuple[int, int]:
    """(partition, byte) of a fixed address; ImpossibleTensor unless the tensor fits there."""
    if not (isinstance(address, tuple | list) and len(address) == 2):
        refuse_tensor(shape, dtype, buffer, f"an address is (partition, byte), not {address!r}")
    partition, byte = (integer_or_register(each, "an address") for each in address)
    if not isinstance(partition, int) or not isinstance(byte, int) or not buffer.is_on_chip:
        refuse_tensor(shape, dtype, buffer, "a fixed address is two integers, on chip")
    end = byte + math.prod(shape[1:]) * DTYPES[dtype].bytes
    width = DTYPES[dtype].bytes
    if byte % width:
        refuse_tensor(shape, dtype, buffer, f"byte {byte} is not a multiple of its {width} bytes")
    if byte < 0 or end > _capacity(buffer):
        refuse_tensor(shape, dtype, buffer, f"bytes {byte} to {end - 1} do not fit its memory")
    if partition < 0 or partition + shape[0] > current("nl.ndarray").arch.partitions:
        refuse_tensor(shape, dtype, buffer, f"it does not fit at partition {partition}")
    return partition, byte


def validate_shape(shape: object, dtype: object, buffer: MemoryRegion) -> tuple[int, ...]:
    """`shape` as a tuple of integers; ImpossibleTensor otherwise.

    An extent may be 0 on chip, where a kernel allocates room for the part that is its own.
    """
    if not isinstance(shape, tuple | list):
        refuse_tensor(shape, dtype, buffer, "a shape is a tuple of integers")
    least = 0 if shape and buffer.is_on_chip else 1
    for extent in shape or (0,):
        if not is_integer(extent) or extent < least:
            problem = f"every extent is an integer of at least {least}"
            refuse_tensor(shape, dtype, buffer, problem)
    for dim, extent in enumerate(shape):
        if dim and extent.__class__ is PartitionDim:
            refuse_tensor(
                shape, dtype, buffer, f"nl.par_dim stands at dimension {dim}, and the partitions "
                "are the first (make a list of tensors, one for each block before it)",
            )  # fmt: skip
    return tuple([int(n) for n in shape])


def validate_dtype(dtype: object, shape: object, buffer: MemoryRegion) -> str:
    """NKI's name of a dtype; ImpossibleTensor for an unknown one."""
    name = dtype_name(dtype)
    if name is None:
        shown = getattr(dtype, "__name__", str(dtype))
        meant = nearest(shown, DTYPES) if isinstance(dtype, str) else ""
        cure = "write one of nl, as nl.float32 or nl.bfloat16; help(nki.language) has all"
        refuse_tensor(shape, shown, buffer, f"no engine has {shown}{meant}", cure)
    return name


def refuse_tensor(
    shape: object, dtype: object, buffer: MemoryRegion, reason: str, cure: str = ""
) -> NoReturn:
    """Raise ImpossibleTensor at the user's line."""
    most = current("nl.ndarray").arch.partitions
    layout = f"on chip a tensor is (partitions, elements, ...), with at most {most} partitions"
    raise ImpossibleTensor(
        shape=shape, dtype=dtype, buffer=buffer.value, reason=reason, cure=cure or layout,
        loc=caller(),
    )  # fmt: skip
