"""The C interface: layouts as published, errors as values, arrays that come back as they went."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from jaxlib.xla_client import CompileOptions

from glia.plugins.pjrt.api_table import UNIMPLEMENTED, implements
from glia.plugins.pjrt.c_memory import c_array, object_of
from glia.plugins.pjrt.compilation import compile_program, deserialize
from glia.plugins.pjrt.element_types import dtype_of
from glia.plugins.pjrt.executables import Executable
from glia.plugins.pjrt.interface import ARGUMENTS, FUNCTIONS, STRUCTURES, Api
from plugins.pjrt_calls import (
    Refused,
    arguments,
    call,
    client,
    first_device,
    function,
    give,
    option,
    take,
    text_of,
)

# Bytes of arguments in version 0.90 of the published header, measured with a C compiler
PUBLISHED_BYTES = {
    "Error_Message": 40, "Event_OnReady": 40, "Client_Create": 88, "Client_Compile": 56,
    "Client_BufferFromHostBuffer": 120, "Client_DefaultDeviceAssignment": 48,
    "Device_MemoryStats": 192, "Executable_OutputMemoryKinds": 48, "Executable_Serialize": 56,
    "LoadedExecutable_Execute": 80, "Executable_DeserializeAndLoad": 64,
    "Buffer_GetMemoryLayout": 104, "Buffer_ToHostBuffer": 56, "Buffer_CopyRawToHost": 56,
    "TopologyDescription_Serialize": 56, "Executable_GetCompiledMemoryStats": 120,
}  # fmt: skip
PUBLISHED_OFFSETS = {
    ("Client_BufferFromHostBuffer", "device"): 80,
    ("Device_MemoryStats", "bytes_limit"): 80,
    ("LoadedExecutable_Execute", "output_lists"): 56,
    ("Buffer_GetMemoryLayout", "layout"): 24,
}
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_arguments_have_the_published_sizes_and_places() -> None:
    found = {name: ctypes.sizeof(ARGUMENTS[name]) for name in PUBLISHED_BYTES}
    assert found == PUBLISHED_BYTES
    places = {key: getattr(ARGUMENTS[key[0]], key[1]).offset for key in PUBLISHED_OFFSETS}
    assert places == PUBLISHED_OFFSETS
    assert len(FUNCTIONS) == 128 and ctypes.sizeof(Api) == 8 * (2 + 3 + 128)


def test_a_function_that_is_not_provided_says_so_by_name() -> None:
    given = ctypes.c_size_t(8)
    error = function("Client_DmaMap")(ctypes.addressof(given))
    text = call("Error_Message", error=error)
    said = ctypes.string_at(text.message, text.message_size)
    assert b"[GLIA715] PJRT_Client_DmaMap" in said
    assert call("Error_GetCode", error=error).code == UNIMPLEMENTED


def test_no_exception_leaves_a_function() -> None:
    with pytest.raises(Refused, match="KeyError"):
        call("Client_LookupDevice", client=8, id=0)
    with pytest.raises(Refused, match="IndexError"):
        call("Client_LookupDevice", client=client(), id=99)


def test_a_caller_with_fewer_fields_keeps_the_memory_behind_them() -> None:
    known = call("Client_BufferFromHostBuffer", **_transfer(client())).buffer
    whole = arguments("Buffer_ToHostBuffer", src=known)
    whole.event = 77
    whole.struct_size = ARGUMENTS["Buffer_ToHostBuffer"].event.offset
    assert not function("Buffer_ToHostBuffer")(ctypes.addressof(whole))
    assert (whole.dst_size, whole.event) == (X.nbytes, 77)


def _transfer(handle: int) -> dict[str, Any]:
    return {
        "data": X.ctypes.data,
        "type": 11,
        "dims": c_array(ctypes.c_int64, X.shape),
        "num_dims": 2,
        "device": first_device(handle),
    }


@pytest.mark.parametrize(
    "array",
    [X, X.T, X[::-1], X[:, ::2], np.broadcast_to(X[0], (4, 3)), X[:0], np.full((), 3, np.float32)],
    ids=["dense", "turned", "backwards", "every second", "repeated", "empty", "scalar"],
)
def test_an_array_comes_back_as_it_went(array: np.ndarray) -> None:
    buffer = give(client(), array)
    np.testing.assert_array_equal(take(buffer, array), array)
    assert call("Buffer_Dimensions", buffer=buffer).num_dims == array.ndim
    assert call("Buffer_ElementType", buffer=buffer).type == 11


def test_an_array_is_a_copy() -> None:
    given = X.copy()
    buffer = give(client(), given)
    given[...] = 0
    np.testing.assert_array_equal(take(buffer, X), X)


def test_a_layout_turns_the_array_on_its_way_to_the_host() -> None:
    order = c_array(ctypes.c_int64, [0, 1])
    layout = STRUCTURES["MemoryLayout"](minor_to_major=order.address, minor_to_major_size=2, kind=0)
    found = take(give(client(), X), X, ctypes.addressof(layout))
    np.testing.assert_array_equal(found.reshape(3, 2), X.T)
    layout.kind = 1
    with pytest.raises(Refused, match="GLIA705"):
        take(give(client(), X), X, ctypes.addressof(layout))


def test_device_memory_is_counted_until_arrays_end() -> None:
    own = client()
    device = first_device(own)
    before = call("Device_MemoryStats", device=device).bytes_in_use
    buffers = [give(own, X) for _ in range(3)]
    assert call("Device_MemoryStats", device=device).bytes_in_use == before + 3 * X.nbytes
    for each in buffers:
        call("Buffer_Destroy", buffer=each)
    call("Buffer_Destroy", buffer=None)
    give(own, X)
    found = call("Device_MemoryStats", device=device)
    assert found.bytes_in_use == before + X.nbytes
    assert found.bytes_limit_is_set and not found.pool_bytes_is_set


def test_a_deleted_array_says_so_and_is_not_read() -> None:
    buffer = give(client(), X)
    assert not call("Buffer_IsDeleted", buffer=buffer).is_deleted
    call("Buffer_Delete", buffer=buffer)
    assert call("Buffer_IsDeleted", buffer=buffer).is_deleted
    with pytest.raises(Refused, match="deleted before"):
        take(buffer, X)


def test_an_event_is_ready_and_calls_back_at_once() -> None:
    event = call("Buffer_ReadyEvent", buffer=give(client(), X)).event
    assert call("Event_IsReady", event=event).is_ready
    called: list[tuple[int | None, int | None]] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    callback = kind(lambda error, user: called.append((error, user)))
    pointer = ctypes.cast(callback, ctypes.c_void_p).value
    call("Event_OnReady", event=event, callback=pointer, user_arg=5)
    assert called == [(None, 5)]


def test_the_platform_and_its_devices_have_names() -> None:
    own = client()
    assert text_of("Client_PlatformName", "platform_name", client=own) == "neuron"
    description = call("Device_GetDescription", device=first_device(own)).device_description
    kind = text_of("DeviceDescription_Kind", "device_kind", device_description=description)
    assert kind.startswith("NC_v")


def test_a_client_refuses_options_and_other_processes() -> None:
    with pytest.raises(Refused, match="GLIA703"):
        call("Client_Create", create_options=option("memory_fraction"), num_options=1)
    call("Client_Create", create_options=option("num_nodes"), num_options=1)


def test_an_unknown_element_type_has_a_code() -> None:
    with pytest.raises(Exception, match="GLIA704"):
        dtype_of(23)


def _options() -> bytes:
    return bytes(CompileOptions().SerializeAsString())


def test_programs_of_other_formats_are_refused() -> None:
    with pytest.raises(Exception, match="GLIA706"):
        compile_program(b"", "spirv", _options())


@pytest.mark.parametrize("data", [b"", b"junk", b"glia executable\n{", b"glia executable\n{}\n"])
def test_a_damaged_executable_is_refused(data: bytes) -> None:
    with pytest.raises(Exception, match="GLIA707"):
        deserialize(data, b"")


def test_a_donated_argument_cannot_be_given_again() -> None:
    kind = "tensor<2x3xf32>"
    text = f"func.func public @main(%0: {kind}) -> {kind} {{ return %0 : {kind} }}"
    executable: Executable = compile_program(text.encode(), "mlir", _options())
    own = client()
    executable.place(object_of(own))
    buffer = object_of(give(own, X))
    ((result,),) = executable.run([[buffer]], ())
    np.testing.assert_array_equal(result, X)
    buffer.delete()
    with pytest.raises(Exception, match="GLIA708"):
        executable.run([[buffer]], ())


def test_what_is_provided_stands_in_the_table() -> None:
    with pytest.raises(AssertionError, match="no function"):
        implements("Client_Dream")
