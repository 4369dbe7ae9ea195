"""Arrays of other libraries as NumPy arrays over the same memory.

By the buffer protocol and `__array__`, as NumPy knows them; by DLPack for what NumPy refuses
there, such as bfloat16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

CPU_DEVICES = (1, 3)  # DLPack's kDLCPU, and host memory that is pinned for another device
UNVERSIONED = b"dltensor"
_FAILURES = (TypeError, ValueError, RuntimeError, BufferError)
# DLPack's type codes, with bits where a code has several widths (source: dlpack.h)
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c"}
_OTHERS: dict[tuple[int, int], np.dtype[Any]] = {
    (4, 16): np.dtype(ml_dtypes.bfloat16),
    (6, 8): np.dtype(np.bool_),
    (8, 8): np.dtype(ml_dtypes.float8_e4m3),
    (10, 8): np.dtype(ml_dtypes.float8_e4m3fn),
    (12, 8): np.dtype(ml_dtypes.float8_e5m2),
    (14, 8): np.dtype(ml_dtypes.float8_e8m0fnu),
}


class _Tensor(ctypes.Structure):
    """DLTensor (source: dlpack.h)."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Memory:
    """What NumPy reads of memory that a capsule keeps alive."""

    def __init__(self, capsule: object, address: int, shape: Any, strides: Any, width: int) -> None:
        self._capsule = capsule
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{width}",
        }


def is_array(value: object) -> bool:
    """Whether a value is an array of some library, which has a dtype of its own."""
    if isinstance(value, np.generic):
        return False
    return hasattr(value, "__array__") or hasattr(value, "__dlpack__") or is_buffer(value)


def is_buffer(value: object) -> bool:
    """Whether a value exports its memory by Python's buffer protocol."""
    if isinstance(value, bytes | str | np.generic):
        return False
    try:
        memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def borrowed(value: Any) -> Array:
    """An array of any library as a NumPy array, of the same memory where it lies on the host.

    ValueError says why that cannot be.
    """
    readers: list[Callable[[Any], Array]] = []
    if hasattr(value, "__array__") or is_buffer(value):
        readers.append(np.asarray)
    if hasattr(value, "__dlpack__"):
        readers.append(from_dlpack)
    problem: Exception = ValueError("it is not an array")
    for read in readers:
        try:
            return read(value)
        except _FAILURES as raised:
            problem = raised
    raise ValueError(str(problem)) from problem


def from_dlpack(value: Any) -> Array:
    """The memory of an object with `__dlpack__`; ValueError where it is not the host's."""
    if value.__dlpack_device__()[0] not in CPU_DEVICES:
        raise ValueError("it lies on another device; copy it to the CPU first")
    # the capsule stays whole, and frees what it holds when the array is gone
    capsule = value.__dlpack__()
    tensor = ctypes.cast(_pointer(capsule, UNVERSIONED), ctypes.POINTER(_Tensor)).contents
    dtype = _dtype(tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = None
    if tensor.strides:
        strides = tuple(dtype.itemsize * step for step in tensor.strides[: tensor.ndim])
    address = (tensor.data or 0) + tensor.byte_offset
    if not address or 0 in shape:
        return np.empty(shape, dtype)
    return np.asarray(_Memory(capsule, address, shape, strides, dtype.itemsize)).view(dtype)


def rename_device(capsule: object, kind: int, number: int) -> None:
    """Say of the memory that a capsule holds that it is that of another device."""
    device = _Device.from_address(_pointer(capsule, UNVERSIONED) + _Tensor.device_type.offset)
    device[0], device[1] = kind, number


_Device = ctypes.c_int32 * 2
_pointer: Callable[[object, bytes], int] = ctypes.PYFUNCTYPE(
    ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)(("PyCapsule_GetPointer", ctypes.pythonapi))


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    key = (tensor.code, tensor.bits)
    if tensor.lanes == 1 and key in _OTHERS:
        return _OTHERS[key]
    if tensor.lanes == 1 and tensor.code in _KINDS and tensor.bits % 8 == 0:
        return np.dtype(f"{_KINDS[tensor.code]}{tensor.bits // 8}")
    raise ValueError(f"its type (DLPack code {tensor.code}, {tensor.bits} bits) has no NumPy dtype")
