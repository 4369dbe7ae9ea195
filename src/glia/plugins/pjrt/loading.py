"""The interface's functions that make executables, and that write them."""

from __future__ import annotations

from typing import Any

from glia.plugins.pjrt.api_table import implements
from glia.plugins.pjrt.c_memory import bytes_at, object_of
from glia.plugins.pjrt.compilation import (
    compile_program,
    deserialize,
    serialize,
    serialized_assignment,
)
from glia.plugins.pjrt.devices import give_bytes
from glia.plugins.pjrt.interface import STRUCTURES


@implements("Client_Compile")
def _compile(call: Any) -> None:
    program = STRUCTURES["Program"].from_address(call.program)
    code = bytes_at(program.code, program.code_size)
    kind = bytes_at(program.format, program.format_size).decode()
    options = bytes_at(call.compile_options, call.compile_options_size)
    executable = compile_program(code, kind, options)
    call.executable = executable.place(object_of(call.client))


@implements("Executable_DeserializeAndLoad")
def _load(call: Any) -> None:
    data = bytes_at(call.serialized_executable, call.serialized_executable_size)
    options = bytes_at(
        call.overridden_serialized_compile_options, call.overridden_serialized_compile_options_size
    )
    call.loaded_executable = deserialize(data, options).place(object_of(call.client))


@implements("Executable_Serialize")
def _serialize(call: Any) -> None:
    give_bytes(call, serialize(object_of(call.executable)), "serialized_executable")


@implements("Executable_GetCompileOptions")
def _compile_options(call: Any) -> None:
    given = object_of(call.executable).serialized_options
    give_bytes(call, given, "serialized_compile_options")


@implements("LoadedExecutable_GetDeviceAssignment")
def _device_assignment(call: Any) -> None:
    content = serialized_assignment(object_of(call.executable))
    give_bytes(call, content, "serialized_device_assignment")
