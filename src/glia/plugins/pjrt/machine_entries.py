"""Functions of the interface as machine code: they read and write words, and never enter Python.

JAX calls some functions for every array, and those that end objects also while Python raises an
exception, where none of its code may run. A handle is the address of a record of words; what ends
is put in a list through the first word of its record, which Python empties when it next can.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llvmlite import binding, ir

from glia.base.machine_code.object_cache import initialise_llvm
from glia.plugins.pjrt.interface import ARGUMENTS

_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_POINTER = _BYTE.as_pointer()
_PENDING_CALL = ir.FunctionType(_POINTER, [_POINTER])
_EVENT_CALLBACK = ir.FunctionType(ir.VoidType(), [_POINTER, _POINTER])
_TAKE = "take_ended"
_ADD_PENDING_CALL = ir.FunctionType(ir.IntType(32), [_POINTER, _POINTER])


@dataclass(frozen=True)
class RecordWord:
    """A word of an object's record."""

    index: int


@dataclass(frozen=True)
class Getter:
    """Sets fields of a function's arguments from words of the object in `subject`, or constants."""

    subject: str
    fields: Mapping[str, RecordWord | int]


@dataclass(frozen=True)
class Ending:
    """Puts the object in `subject` into the list of those that have ended."""

    subject: str


@dataclass(frozen=True)
class Callback:
    """Calls the function in `callback` with no error and the argument in `user_arg`."""


Entry = Getter | Ending | Callback


class MachineEntries:
    """The machine code of functions, by name.

    `head` is where the list of ended objects begins, `drain` the address of a function that Python
    is to call when something is in it; `take_ended` returns the list's first and empties it.
    """

    def __init__(self, entries: Mapping[str, Entry], head: int, drain: int) -> None:
        self._head, self._drain = head, drain
        self._module = ir.Module(name="pjrt")
        for name, entry in entries.items():
            self._write(name, entry)
        self._write_taking()
        initialise_llvm()
        machine = binding.Target.from_default_triple().create_target_machine(opt=0)
        parsed = binding.parse_assembly(str(self._module))
        parsed.verify()
        self._engine = binding.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        self.addresses = {name: self._engine.get_function_address(name) for name in entries}
        self.take_ended = ctypes.CFUNCTYPE(ctypes.c_int64)(self._engine.get_function_address(_TAKE))

    def _write(self, name: str, entry: Entry) -> None:
        function = ir.Function(self._module, ir.FunctionType(_POINTER, [_POINTER]), name)
        builder = ir.IRBuilder(function.append_basic_block())
        call = CallFields(builder, function.args[0], ARGUMENTS[name])
        if isinstance(entry, Getter):
            self._write_getter(builder, call, entry)
        elif isinstance(entry, Callback):
            target = builder.inttoptr(call.load("callback"), _EVENT_CALLBACK.as_pointer())
            user = builder.inttoptr(call.load("user_arg"), _POINTER)
            builder.call(target, [ir.Constant(_POINTER, None), user])
        else:
            self._write_ending(builder, call.load(entry.subject))
        builder.ret(ir.Constant(_POINTER, None))

    def _write_getter(self, builder: ir.IRBuilder, call: CallFields, entry: Getter) -> None:
        record = builder.inttoptr(call.load(entry.subject), _WORD.as_pointer())
        for field, source in entry.fields.items():
            if isinstance(source, RecordWord):
                place = builder.gep(record, [ir.Constant(_WORD, source.index)])
                call.store(field, builder.load(place))
            else:
                call.store(field, ir.Constant(_WORD, source))

    def _write_ending(self, builder: ir.IRBuilder, address: Any) -> None:
        """Put a record before the head; where that was the end, have Python empty the list."""
        with builder.if_then(builder.icmp_signed("!=", address, ir.Constant(_WORD, 0))):
            head = builder.inttoptr(ir.Constant(_WORD, self._head), _WORD.as_pointer())
            record = builder.inttoptr(address, _WORD.as_pointer())
            again, done = builder.append_basic_block(), builder.append_basic_block()
            builder.branch(again)
            builder.position_at_end(again)
            old = builder.load_atomic(head, "acquire", 8)
            builder.store(old, record)
            swapped = builder.cmpxchg(head, old, address, "acq_rel", "acquire")
            builder.cbranch(builder.extract_value(swapped, 1), done, again)
            builder.position_at_end(done)
            with builder.if_then(builder.icmp_signed("==", old, ir.Constant(_WORD, 0))):
                add = _address_of_python("Py_AddPendingCall")
                target = builder.inttoptr(ir.Constant(_WORD, add), _ADD_PENDING_CALL.as_pointer())
                drain = builder.inttoptr(ir.Constant(_WORD, self._drain), _POINTER)
                builder.call(target, [drain, ir.Constant(_POINTER, None)])

    def _write_taking(self) -> None:
        function = ir.Function(self._module, ir.FunctionType(_WORD, []), _TAKE)
        builder = ir.IRBuilder(function.append_basic_block())
        head = builder.inttoptr(ir.Constant(_WORD, self._head), _WORD.as_pointer())
        builder.ret(builder.atomic_rmw("xchg", head, ir.Constant(_WORD, 0), "acq_rel"))


class CallFields:
    """The arguments of a function in LLVM's code, by field; `kind` is their structure."""

    def __init__(self, builder: ir.IRBuilder, address: Any, kind: type) -> None:
        self._builder, self._address, self._kind = builder, address, kind

    def load(self, field: str) -> Any:
        """A pointer's word."""
        return self._builder.load(self._place(field, _WORD))

    def store(self, field: str, value: Any) -> None:
        """Set a field to the low bits of a word."""
        kind = ir.IntType(8 * getattr(self._kind, field).size)
        if kind.width < _WORD.width:
            value = self._builder.trunc(value, kind)
        self._builder.store(value, self._place(field, kind))

    def _place(self, field: str, kind: ir.IntType) -> Any:
        offset = ir.Constant(_WORD, getattr(self._kind, field).offset)
        return self._builder.bitcast(self._builder.gep(self._address, [offset]), kind.as_pointer())


def _address_of_python(name: str) -> int:
    """Where a function of the interpreter is."""
    return int(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0)
