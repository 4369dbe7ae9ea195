"""Arrays on devices. They are kept in host memory, which the simulated device reads and writes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from glia.plugins.pjrt.api_table import ends, implements, machine_getter, release_ended
from glia.plugins.pjrt.c_memory import give_handle, integers, object_of, record_of
from glia.plugins.pjrt.devices import Device
from glia.plugins.pjrt.element_types import array_layout, dtype_of
from glia.plugins.pjrt.errors import UnknownHostLayout
from glia.plugins.pjrt.events import READY
from glia.plugins.pjrt.interface import STRUCTURES
from glia.plugins.pjrt.machine_entries import RecordWord

_TILED = 0  # the kind of a layout that is given as an order of dimensions

# Words of a buffer's record, after the first
_NUMBER, _DIMENSIONS, _RANK, _DEVICE, _MEMORY, _BYTES, _DELETED = map(RecordWord, range(1, 8))


class Buffer:
    """An array on a device. Nothing writes to its elements; donated, it is deleted."""

    def __init__(self, array: np.ndarray, device: Device) -> None:
        layout = array_layout(array.dtype, array.shape)
        self.array: np.ndarray | None = array
        self.layout = layout
        self.device = device
        dimensions = layout.dimensions
        self.handle = give_handle(
            self,
            layout.number,
            dimensions.address,
            dimensions.count,
            device.handle,
            device.memory,
            layout.bytes,
            0,
        )
        device.allocated(layout.bytes)

    @property
    def elements(self) -> np.ndarray:
        """The array; RuntimeError where it is deleted."""
        if self.array is None:
            raise RuntimeError("the array was donated or deleted before")
        return self.array

    def delete(self) -> None:
        """Free the elements; nothing where they are free."""
        if self.array is not None:
            record_of(self.handle)[_DELETED.index] = 1
            self.ended()

    def ended(self) -> None:
        """Free the elements of a buffer that has no handle any more."""
        if self.array is not None:
            self.array = None
            self.device.freed(self.layout.bytes)


@implements("Client_BufferFromHostBuffer")
def _from_host(call: Any) -> None:
    dtype = dtype_of(call.type)
    shape = integers(call.dims, call.num_dims)
    strides = integers(call.byte_strides, call.num_byte_strides)
    array = _copied(call.data, dtype, shape, strides)
    place = object_of(call.device or call.memory)
    release_ended()
    call.buffer = Buffer(array, place).handle
    call.done_with_host_buffer = READY


def _copied(
    address: int | None, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray:
    """A dense copy of the array at an address, which has byte strides or is dense."""
    array = np.empty(shape, dtype)
    if not array.size or address is None:
        return array
    if not strides or strides == array.strides:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return array
    spans = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    low, high = sum(min(0, each) for each in spans), sum(max(0, each) for each in spans)
    memory = (ctypes.c_uint8 * (high - low + dtype.itemsize)).from_address(address + low)
    array[...] = np.ndarray(shape, dtype, memoryview(memory), -low, strides)
    return array


@implements("Buffer_ToHostBuffer")
def _to_host(call: Any) -> None:
    buffer = object_of(call.src)
    if not call.dst:
        call.dst_size = buffer.layout.bytes
        return
    array = np.ascontiguousarray(_in_layout(buffer.elements, call.host_layout))
    if call.dst_size < array.nbytes:
        raise ValueError(f"{call.dst_size} bytes do not hold an array of {array.nbytes}")
    ctypes.memmove(call.dst, array.ctypes.data, array.nbytes)
    call.event = READY


def _in_layout(array: np.ndarray, layout_address: int | None) -> np.ndarray:
    """The array with its dimensions in the order of a layout; UnknownHostLayout."""
    if not layout_address:
        return array
    layout = STRUCTURES["MemoryLayout"].from_address(layout_address)
    if layout.kind != _TILED or layout.num_tiles:
        kind = "byte strides" if layout.kind != _TILED else "tiles"
        raise UnknownHostLayout(layout=kind)
    minor_to_major = integers(layout.minor_to_major, layout.minor_to_major_size)
    return array.transpose(minor_to_major[::-1]) if minor_to_major else array


@implements("Buffer_CopyRawToHost")
def _raw_to_host(call: Any) -> None:
    array = np.ascontiguousarray(object_of(call.buffer).elements)
    if not 0 <= call.offset <= call.offset + call.transfer_size <= array.nbytes:
        raise ValueError(f"{call.transfer_size} bytes at {call.offset} are not in {array.nbytes}")
    ctypes.memmove(call.dst, array.ctypes.data + call.offset, call.transfer_size)
    call.event = READY


@implements("Buffer_CopyToDevice")
def _copy_to_device(call: Any) -> None:
    call.dst_buffer = _copy(call, call.dst_device)


@implements("Buffer_CopyToMemory")
def _copy_to_memory(call: Any) -> None:
    call.dst_buffer = _copy(call, call.dst_memory)


def _copy(call: Any, place: int) -> int:
    """A second buffer; as nothing writes to elements, they can be the same."""
    return Buffer(object_of(call.buffer).elements, object_of(place)).handle


@implements("Buffer_Delete")
def _delete(call: Any) -> None:
    object_of(call.buffer).delete()


@implements("Buffer_UnsafePointer")
def _pointer(call: Any) -> None:
    call.buffer_pointer = object_of(call.buffer).elements.ctypes.data


@implements("Buffer_GetMemoryLayout")
def _memory_layout(call: Any) -> None:
    order = object_of(call.buffer).layout.minor_to_major
    layout = call.layout
    layout.struct_size = ctypes.sizeof(layout)
    layout.kind, layout.num_tiles = _TILED, 0
    layout.minor_to_major, layout.minor_to_major_size = order.address, order.count


ends("Buffer_Destroy", "buffer")
machine_getter("Buffer_ElementType", "buffer", type=_NUMBER)
machine_getter("Buffer_Dimensions", "buffer", dims=_DIMENSIONS, num_dims=_RANK)
machine_getter("Buffer_UnpaddedDimensions", "buffer", unpadded_dims=_DIMENSIONS, num_dims=_RANK)
machine_getter("Buffer_DynamicDimensionIndices", "buffer", dynamic_dim_indices=0,
               num_dynamic_dims=0)  # fmt: skip
machine_getter("Buffer_OnDeviceSizeInBytes", "buffer", on_device_size_in_bytes=_BYTES)
machine_getter("Buffer_Device", "buffer", device=_DEVICE)
machine_getter("Buffer_Memory", "buffer", memory=_MEMORY)
machine_getter("Buffer_IsDeleted", "buffer", is_deleted=_DELETED)
machine_getter("Buffer_IsOnCpu", "buffer", is_on_cpu=0)
machine_getter("Buffer_ReadyEvent", "buffer", event=READY)
