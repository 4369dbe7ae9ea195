"""The profiler of the interface: executions on simulated devices, with their simulated times.

An extension of the interface's table leads to a table of the profiler, whose functions a framework
calls to start, stop and collect; layouts are those of xla/backends/profiler/plugin/profiler_c_api.h
and xla/pjrt/c/pjrt_c_api_profiler_extension.h of openxla/xla.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from glia.plugins.pjrt.c_memory import c_bytes, give_handle, object_of, release
from glia.plugins.pjrt.programs import Program

EXTENSION_TYPE = 1  # PJRT_Extension_Type_Profiler
_PLANES = "glia.plugins.pjrt.profiling.planes"  # which imports what times programs


@dataclass(frozen=True)
class DeviceExecution:
    """A program on devices, by their names, and when the host began it."""

    program: Program
    devices: Sequence[str]
    begin_ns: int


@dataclass
class ProfilerSession:
    """What is recorded between start and stop."""

    begin_ns: int = 0
    executions: list[DeviceExecution] = field(default_factory=list)
    collected: Any = None  # the bytes that were given last, which the caller does not own

    def start(self) -> None:
        """Record what is executed from now on."""
        self.begin_ns, self.executions = time.time_ns(), []
        _RUNNING.append(self)

    def stop(self) -> None:
        """Record nothing more."""
        if self in _RUNNING:
            _RUNNING.remove(self)

    def space(self) -> bytes:
        """What was recorded, as a serialized XSpace."""
        found: bytes = importlib.import_module(_PLANES).space(self.executions, self.begin_ns)
        return found


_RUNNING: list[ProfilerSession] = []
_LOCK = threading.Lock()


def begin_execution() -> int:
    """The time of the host's clock, in nanoseconds; 0 where nothing is recorded."""
    return time.time_ns() if _RUNNING else 0


def record(program: Program, devices: Iterable[object], begin_ns: int) -> None:
    """Let running sessions have an execution that began then."""
    execution = DeviceExecution(program, [str(each) for each in devices], begin_ns)
    with _LOCK:
        for session in _RUNNING:
            session.executions.append(execution)


# --- the tables in C -----------------------------------------------------------------------------


class _Arguments(ctypes.Structure):
    """Of start, stop and destroy."""

    _fields_ = [("struct_size", ctypes.c_size_t), ("profiler", ctypes.c_void_p)]


class _CreateArguments(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("options", ctypes.c_void_p),
        ("options_size", ctypes.c_size_t),
        ("profiler", ctypes.c_void_p),
    ]


class _CollectArguments(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("profiler", ctypes.c_void_p),
        ("buffer", ctypes.c_void_p),
        ("buffer_size_in_bytes", ctypes.c_size_t),
    ]


_FUNCTIONS = (
    "error_destroy", "error_message", "error_get_code", "create", "destroy", "start", "stop",
    "collect_data",
)  # fmt: skip


class ProfilerApi(ctypes.Structure):
    """The profiler's table: its size, a pointer of its own, and its functions."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("priv", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _FUNCTIONS),
    ]


class ProfilerExtension(ctypes.Structure):
    """The extension of the interface's table that leads to the profiler's."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("profiler_api", ctypes.c_void_p),
        ("traceme_context_id", ctypes.c_int64),
    ]


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def _create(address: int) -> None:
    _CreateArguments.from_address(address).profiler = give_handle(ProfilerSession())


def _destroy(address: int) -> None:
    release(_Arguments.from_address(address).profiler)


def _start(address: int) -> None:
    object_of(_Arguments.from_address(address).profiler).start()


def _stop(address: int) -> None:
    object_of(_Arguments.from_address(address).profiler).stop()


def _collect(address: int) -> None:
    call = _CollectArguments.from_address(address)
    session = object_of(call.profiler)
    session.collected = c_bytes(session.space())
    call.buffer, call.buffer_size_in_bytes = session.collected.address, session.collected.count


def _ignore(address: int) -> None:
    """Errors are not returned: what cannot be collected is left out."""


@cache
def profiler_extension() -> ProfilerExtension:
    """The extension, made once."""
    entries = dict.fromkeys(_FUNCTIONS, _ignore) | {
        "create": _create, "destroy": _destroy, "start": _start, "stop": _stop,
        "collect_data": _collect,
    }  # fmt: skip
    api = ProfilerApi(struct_size=ctypes.sizeof(ProfilerApi))
    kept: list[Any] = [api]
    for name, function in entries.items():
        callback = _CALLBACK(function)
        kept.append(callback)
        setattr(api, name, ctypes.cast(callback, ctypes.c_void_p).value)
    extension = ProfilerExtension(
        struct_size=ctypes.sizeof(ProfilerExtension), type=EXTENSION_TYPE,
        profiler_api=ctypes.addressof(api),
    )  # fmt: skip
    ctypes.pythonapi.Py_IncRef(ctypes.py_object((kept, extension)))  # C keeps the addresses
    return extension
