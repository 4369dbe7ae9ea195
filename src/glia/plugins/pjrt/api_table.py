"""The interface's table of functions: Python functions behind C pointers, errors as values.

A function is provided by `implements`; what it raises becomes a status with a code and a text.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

from glia.base.errors import CompileError, InternalError, Unspecified
from glia.plugins.pjrt.c_memory import (
    ENDED,
    CArray,
    c_bytes,
    following,
    give_handle,
    object_of,
    release,
)
from glia.plugins.pjrt.errors import NotProvided
from glia.plugins.pjrt.interface import (
    ARGUMENTS,
    FUNCTIONS,
    RETURNS_NOTHING,
    VERSION,
    Api,
)
from glia.plugins.pjrt.machine_entries import (
    Callback,
    Ending,
    Entry,
    Getter,
    MachineEntries,
    RecordWord,
)
from glia.plugins.pjrt.profiling.sessions import profiler_extension
from glia.runtime.errors import DeviceMemoryExhausted

Function = Callable[[Any], None]

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 3, 8, 12, 13

_RETURNING = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DRAIN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_ENDS_OBJECTS = ("_Destroy", "_Delete")

_implemented: dict[str, Function] = {}
_machine: dict[str, Entry] = {}


class ErrorStatus:
    """An error on its way to the caller: a code of the interface, and a text."""

    def __init__(self, error: BaseException) -> None:
        self.code = _code(error)
        self.message = c_bytes(_text(error))


def _code(error: BaseException) -> int:
    if isinstance(error, DeviceMemoryExhausted | MemoryError):
        return RESOURCE_EXHAUSTED
    if isinstance(error, NotProvided | Unspecified):
        return UNIMPLEMENTED
    return INVALID_ARGUMENT if isinstance(error, CompileError) else INTERNAL


def _text(error: BaseException) -> str:
    if isinstance(error, CompileError):
        return str(error)
    kind = "internal error" if isinstance(error, InternalError) else type(error).__name__
    return f"glia: {kind}: {error}"


def implements(name: str) -> Callable[[Function], Function]:
    """Provide a function of the interface; it is given its arguments, and sets their fields."""
    assert name in ARGUMENTS, f"the interface has no function {name}"

    def provide(function: Function) -> Function:
        _implemented[name] = function
        return function

    return provide


def getter(name: str, subject: str, **fields: str) -> None:
    """Provide a function that sets fields from attributes of the object in the field `subject`.

    Fields are set as `put` does.
    """
    found = [(field, attrgetter(path)) for field, path in fields.items()]

    @implements(name)
    def get(call: Any) -> None:
        value = object_of(getattr(call, subject))
        for field, attribute in found:
            put(call, field, attribute(value))


def machine_getter(name: str, subject: str, **fields: RecordWord | int) -> None:
    """Provide a function that sets fields from words of the object's record, or constants."""
    assert fields.keys() <= {field[0] for field in ARGUMENTS[name]._fields_}
    _machine[name] = Getter(subject, fields)


def ends(name: str, subject: str) -> None:
    """Provide a function that releases a handle when Python next can.

    The value's `ended` is called then, if it has that.
    """
    _machine[name] = Ending(subject)


def provides_callback(name: str) -> None:
    """Provide a function that calls its callback at once."""
    _machine[name] = Callback()


def put(call: Any, field: str, value: Any) -> None:
    """Set a field; for a CArray its address, and its count in `<field>_size` or `num_<field>`."""
    if isinstance(value, CArray):
        length = f"{field}_size"
        setattr(call, length if hasattr(call, length) else f"num_{field}", value.count)
        value = value.address
    setattr(call, field, value)


def _entry(name: str) -> Callable[[int], int | None]:
    """What C calls: never raises, and touches no more of the arguments than the caller has."""
    function, kind = _implemented.get(name), ARGUMENTS.get(name)
    if function is None or kind is None:
        return lambda _: give_handle(ErrorStatus(NotProvided(function=f"PJRT_{name}")))
    whole = ctypes.sizeof(kind)
    read_size = ctypes.c_size_t.from_address

    def enter(address: int) -> int | None:
        try:
            given = read_size(address).value
            if given >= whole:
                function(kind.from_address(address))
            else:
                _enter_shorter(function, kind, address, given)
        except BaseException as error:
            return give_handle(ErrorStatus(error))
        return None

    return enter


def _enter_shorter(function: Function, kind: type, address: int, given: int) -> None:
    """Call with a copy, where the caller was built for arguments with fewer fields."""
    call = kind()
    ctypes.memmove(ctypes.addressof(call), address, given)
    function(call)
    ctypes.memmove(address, ctypes.addressof(call), given)


@cache
def _machine_entries() -> MachineEntries:
    drain = _DRAIN(_drain)
    _make_immortal(drain)
    address = ctypes.cast(drain, ctypes.c_void_p).value or 0
    entries = MachineEntries(_machine, ENDED, address)
    _make_immortal(entries)
    return entries


def _drain(_: object) -> int:
    release_ended()
    return 0


def release_ended() -> None:
    """Release what has ended since the last call."""
    handle = _machine_entries().take_ended()
    while handle:
        before = following(handle)
        if (ended := getattr(release(handle), "ended", None)) is not None:
            ended()
        handle = before


@cache
def api_table() -> Api:
    """The table of all functions, made once; it lives until the process ends."""
    table = Api(struct_size=ctypes.sizeof(Api))
    table.extension_start = ctypes.addressof(profiler_extension())
    table.version.struct_size = ctypes.sizeof(table.version)
    table.version.major_version, table.version.minor_version = VERSION
    addresses = _machine_entries().addresses
    for name in FUNCTIONS:
        if name not in addresses:
            kind = _SILENT if name in RETURNS_NOTHING else _RETURNING
            callback = kind(_entry(name))
            _make_immortal(callback)
            setattr(table, name, ctypes.cast(callback, ctypes.c_void_p).value)
        else:
            setattr(table, name, addresses[name])
    _make_immortal(table)
    atexit.register(_leave, table)
    return table


def _make_immortal(value: Any) -> None:
    """Never free a value: C calls it until the process has ended."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _leave(table: Api) -> None:
    """Let what is destroyed after the interpreter call a C function that does nothing."""
    harmless = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value
    for name in FUNCTIONS:
        if name.endswith(_ENDS_OBJECTS):
            setattr(table, name, harmless)


ends("Error_Destroy", "error")
getter("Error_Message", "error", message="message")
getter("Error_GetCode", "error", code="code")
