"""Calls of the PJRT interface as C makes them: through the pointers of its table."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from glia.plugins.pjrt.c_memory import CArray, c_array, named_values
from glia.plugins.pjrt.interface import ARGUMENTS, RETURNS_NOTHING, Api
from glia.plugins.pjrt.interface_table import table_address

_KINDS = {np.dtype(np.float32): 11, np.dtype(np.int32): 4}


class Refused(Exception):
    """A function has returned an error: its code, and its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def function(name: str, table: int | None = None) -> Any:
    """A function of the table, or of another's, that takes the address of its arguments."""
    result = None if name in RETURNS_NOTHING else ctypes.c_void_p
    address = getattr(Api.from_address(table or table_address()), name)
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p)(address)


def arguments(name: str, **fields: Any) -> Any:
    """The arguments of a function; an array is given by its address."""
    made = ARGUMENTS[name]()
    made.struct_size = ctypes.sizeof(made)
    for field, value in fields.items():
        setattr(made, field, value.address if isinstance(value, CArray) else value)
    return made


def call(name: str, table: int | None = None, **fields: Any) -> Any:
    """The arguments after a call; Refused where it returns an error."""
    made = arguments(name, **fields)
    if error := function(name, table)(ctypes.addressof(made)):
        raise _refused(error, table)
    return made


def _refused(error: int, table: int | None) -> Refused:
    text = call("Error_Message", table, error=error)
    message = ctypes.string_at(text.message, text.message_size).decode()
    refused = Refused(call("Error_GetCode", table, error=error).code, message)
    call("Error_Destroy", table, error=error)
    return refused


def client() -> int:
    """A new client."""
    handle: int = call("Client_Create").client
    return handle


def first_device(of_client: int) -> int:
    """The handle of a client's first device."""
    handle: int = call("Client_LookupDevice", client=of_client, id=0).device
    return handle


def give(of_client: int, array: np.ndarray) -> int:
    """The handle of an array on a client's first device."""
    handle: int = call(
        "Client_BufferFromHostBuffer",
        client=of_client,
        data=array.ctypes.data,
        type=_KINDS[array.dtype],
        dims=c_array(ctypes.c_int64, array.shape),
        num_dims=array.ndim,
        byte_strides=c_array(ctypes.c_int64, array.strides),
        num_byte_strides=array.ndim,
        device=first_device(of_client),
    ).buffer
    return handle


def take(buffer: int, like: np.ndarray, layout: int | None = None) -> np.ndarray:
    """The elements of a buffer, of the dtype and shape of an array."""
    found = np.empty(like.shape, like.dtype)
    call("Buffer_ToHostBuffer", src=buffer, dst=found.ctypes.data, dst_size=found.nbytes,
         host_layout=layout)  # fmt: skip
    return found


def option(name: str) -> CArray:
    """A client's option with the value 1."""
    return named_values({name: 1})


def text_of(name: str, field: str, **fields: Any) -> str:
    """The text that a function gives."""
    found = call(name, **fields)
    return ctypes.string_at(getattr(found, field), getattr(found, f"{field}_size")).decode()
