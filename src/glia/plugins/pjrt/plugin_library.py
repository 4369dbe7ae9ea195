"""libneuronpjrt.so: the interface's table for what loads a plugin as a shared library.

The process that loads it has a Python, in which the library imports glia: the table that it
returns is that of `interface_table`. Where there is no Python, or no glia in it, it returns a table
all of whose functions return one error. LLVM writes its code, so no compiler is needed.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite import binding, ir

from glia.base.errors import CompileError
from glia.base.files import read_file, user_cache, write_atomically
from glia.base.machine_code.object_cache import initialise_llvm
from glia.base.machine_code.shared_object import shared_object
from glia.base.output_files import writing
from glia.plugins.pjrt.errors import NoLibraryForMachine, ProcessWithoutGlia, ProcessWithoutPython
from glia.plugins.pjrt.interface import ARGUMENTS, FUNCTIONS, STRUCTURES, VERSION, Api
from glia.plugins.pjrt.machine_entries import CallFields

NAME = "libneuronpjrt.so"
ENTRY = "GetPjrtApi"  # what every plugin of the interface exports
FAILED_PRECONDITION = 9  # a code of the interface

_MODULE, _FUNCTION = b"glia.plugins.pjrt.interface_table", b"table_address"
_TRIPLE = "x86_64-unknown-linux-gnu"
_MOST_BYTES = 1 << 20
_OF_ERRORS = ("Error_Destroy", "Error_Message", "Error_GetCode")

_WORD, _INT = ir.IntType(64), ir.IntType(32)
_POINTER = ir.IntType(8).as_pointer()
_ERROR = ir.LiteralStructType([_POINTER, _WORD])  # an error's text, and its bytes

# Functions of Python that the library calls: result and arguments
_PYTHON = {
    "Py_IsInitialized": (_INT, []),
    "PyGILState_Ensure": (_INT, []),
    "PyGILState_Release": (ir.VoidType(), [_INT]),
    "PyImport_ImportModule": (_POINTER, [_POINTER]),
    "PyObject_GetAttrString": (_POINTER, [_POINTER, _POINTER]),
    "PyObject_CallNoArgs": (_POINTER, [_POINTER]),
    "PyLong_AsVoidPtr": (_POINTER, [_POINTER]),
    "PyErr_Print": (ir.VoidType(), []),
}


def library_path() -> Path:
    """The library: `glia/libneuronpjrt.so` in the user's cache, written if it is not there.

    Raises NoLibraryForMachine on what is not Linux on x86-64, and UnwritableOutput.
    """
    system, processor = platform.system(), platform.machine()
    if (system, processor) != ("Linux", "x86_64"):
        raise NoLibraryForMachine(system=system, processor=processor)
    path = user_cache() / NAME
    content = library()
    try:
        if read_file(path, _MOST_BYTES) == content:
            return path
    except OSError:
        pass  # it is not there, or is no library
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, [content])
    return path


@cache
def library() -> bytes:
    """The content of the library."""
    initialise_llvm()
    machine = binding.Target.from_triple(_TRIPLE).create_target_machine(
        cpu="x86-64", opt=1, reloc="pic", codemodel="small"
    )
    module = binding.parse_assembly(str(_Library().module))
    module.verify()
    return shared_object(machine.emit_object(module), NAME, [ENTRY])


class _Library:
    """The functions and the data of the library, as a module of LLVM."""

    def __init__(self) -> None:
        self.module = ir.Module(name="neuronpjrt")
        self.module.triple = _TRIPLE
        self._addresses = {name: self._imported(name, *kind) for name, kind in _PYTHON.items()}
        self._refusal = self._variable("refusal", ir.Constant(_ERROR.as_pointer(), None))
        self._without_python = self._error("without_python", ProcessWithoutPython())
        self._without_glia = self._error("without_glia", ProcessWithoutGlia())
        self._refusing = self._refusing_table()
        self._write_entry()

    def _variable(self, name: str, value: ir.Constant) -> ir.GlobalVariable:
        """A variable that only the library sees."""
        made = ir.GlobalVariable(self.module, value.type, name)
        made.linkage, made.initializer = "internal", value
        return made

    def _text(self, text: bytes) -> ir.Constant:
        """The address of a text, with a zero after it."""
        characters = ir.ArrayType(ir.IntType(8), len(text) + 1)
        value = ir.Constant(characters, bytearray(text + b"\0"))
        made = self._variable(self.module.get_unique_name("text"), value)
        made.global_constant = True
        return made.bitcast(_POINTER)

    def _imported(self, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.GlobalVariable:
        """A variable with the address of a function of the process, 0 where it has none."""
        function = ir.Function(self.module, ir.FunctionType(result, arguments), name)
        function.linkage = "extern_weak"
        return self._variable(f"address_of_{name}", function)

    def _error(self, name: str, error: CompileError) -> ir.GlobalVariable:
        """An error as the refusing table returns it: where its text is, and how long."""
        text = str(error).encode()
        return self._variable(name, ir.Constant(_ERROR, [self._text(text), len(text)]))

    def _function(self, name: str, *arguments: ir.Type) -> ir.IRBuilder:
        made = ir.Function(self.module, ir.FunctionType(_POINTER, arguments), name)
        made.attributes.add("nounwind")
        return ir.IRBuilder(made.append_basic_block())

    def _refusing_table(self) -> ir.GlobalVariable:
        """A table whose functions return the error `refusal`, and say what that is."""
        refuse = self._function("refuse", _POINTER)
        refuse.ret(refuse.bitcast(refuse.load(self._refusal), _POINTER))
        of_errors = {name: self._of_errors(name) for name in _OF_ERRORS}
        functions = [of_errors.get(name, refuse.function).bitcast(_POINTER) for name in FUNCTIONS]
        version = STRUCTURES["ApiVersion"]
        words = [ctypes.sizeof(Api), 0, ctypes.sizeof(version), 0]
        kinds = [*[_WORD] * len(words), _INT, _INT, *[_POINTER] * len(functions)]
        table = ir.Constant(ir.LiteralStructType(kinds), [*words, *VERSION, *functions])
        return self._variable("refusing_table", table)

    def _of_errors(self, name: str) -> ir.Function:
        """A function that is given an error: its text, its code, or nothing to be done."""
        builder = self._function(name, _POINTER)
        call = CallFields(builder, builder.function.args[0], ARGUMENTS[name])
        if name == "Error_Message":
            error = builder.inttoptr(call.load("error"), _WORD.as_pointer())
            call.store("message", builder.load(error))
            call.store("message_size", builder.load(builder.gep(error, [_WORD(1)])))
        elif name == "Error_GetCode":
            call.store("code", _WORD(FAILED_PRECONDITION))
        builder.ret(_POINTER(None))
        return builder.function

    def _write_entry(self) -> None:
        """The function that the library exports."""
        builder = self._function(ENTRY)
        with self._unless_null(builder, builder.load(self._addresses["Py_IsInitialized"])):
            is_running = self._call(builder, "Py_IsInitialized")
            with builder.if_then(builder.icmp_signed("!=", is_running, _INT(0))):
                self._return_table_of_python(builder)
        self._refuse(builder, self._without_python)

    def _return_table_of_python(self, builder: ir.IRBuilder) -> None:
        """Return the table that Python makes, or the refusing one where an exception is raised."""
        found = builder.alloca(_POINTER)
        builder.store(_POINTER(None), found)
        state = self._call(builder, "PyGILState_Ensure")
        module = self._call(builder, "PyImport_ImportModule", self._text(_MODULE))
        with self._unless_null(builder, module):
            name = self._text(_FUNCTION)
            function = self._call(builder, "PyObject_GetAttrString", module, name)
            with self._unless_null(builder, function):
                address = self._call(builder, "PyObject_CallNoArgs", function)
                with self._unless_null(builder, address):
                    builder.store(self._call(builder, "PyLong_AsVoidPtr", address), found)
        table = builder.load(found)
        with builder.if_then(builder.icmp_unsigned("==", table, _POINTER(None))):
            self._call(builder, "PyErr_Print")
        self._call(builder, "PyGILState_Release", state)
        with self._unless_null(builder, table):
            builder.ret(table)
        self._refuse(builder, self._without_glia)

    def _refuse(self, builder: ir.IRBuilder, error: ir.GlobalVariable) -> None:
        """Return the refusing table, which returns an error."""
        builder.store(error, self._refusal)
        builder.ret(self._refusing.bitcast(_POINTER))

    def _call(self, builder: ir.IRBuilder, name: str, *arguments: ir.Value) -> ir.Value:
        """Call a function of Python."""
        return builder.call(builder.load(self._addresses[name]), arguments)

    def _unless_null(self, builder: ir.IRBuilder, pointer: ir.Value) -> Any:
        """A branch that is taken where a pointer is not null."""
        return builder.if_then(builder.icmp_unsigned("!=", pointer, pointer.type(None)))
