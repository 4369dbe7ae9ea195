"""Python functions over 64-bit integers, compiled to machine code on first use.

A function takes a record of integer arrays and integers, and returns an integer. Its body may use
assignments, if, while, break, continue, return, arithmetic (+ - * // % >> & |), comparisons, `in`
a tuple, and, or, not, `min`, `max`, conditional expressions, integer constants of the module,
members of its integer enumerations, elements of the record's arrays (`m.name[i]`), calls of the
functions compiled with it and, by `invoke`, of other machine code. The same function runs in Python
too: one text is both what is meant and what is fast. Integers wrap at 64 bits; indices are not
checked.

Optimising takes LLVM five times as long as translating. What is not optimised is half as fast, and
still tens of times as fast as Python: enough for what runs for milliseconds. Object code is kept on
disk for later processes (`base.machine_code.object_cache`).
"""

from __future__ import annotations

import ast
import ctypes
import functools
import hashlib
import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from llvmlite import binding, ir

from glia.base.errors import InternalError
from glia.base.fork_safe_lock import ForkSafeLock
from glia.base.machine_code.object_cache import ObjectCache, cache_folder, host_machine, loaded

Function = Callable[..., int]
Records = Mapping[str, np.ndarray]

_COMPARISONS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.RShift: "ashr", ast.BitAnd: "and_",
    ast.BitOr: "or_",
}  # fmt: skip


def invoke(function: int, argument: int) -> int:
    """Call machine code at an address, int64 function(int64), and return what it returns."""
    result: int = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(function)(argument)
    return result


def address_of(array: Any) -> int:
    """Where the elements of an array begin."""
    return int(array.__array_interface__["data"][0])


def current_processor() -> int:
    """The processor that the calling thread runs on; -1 where the C library does not say."""
    ask = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return -1 if ask is None else int(ask())


def copy_bytes(source: int, target: int, count: int) -> None:
    """Copy bytes from address to address; they may overlap."""
    ctypes.memmove(target, source, count)


def array_at(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """The memory from an address on as an array, which keeps nothing alive."""
    count = math.prod(shape) * dtype.itemsize
    return np.ndarray(shape, dtype, memoryview((ctypes.c_uint8 * count).from_address(address)))


class Library:
    """Functions of one module, compiled together; `call` runs one on a record."""

    def __init__(
        self,
        module: ModuleType,
        names: Sequence[str],
        arrays: Sequence[str],
        *,
        is_optimised: bool = True,
    ) -> None:
        self.module, self.names, self.arrays = module, tuple(names), tuple(arrays)
        self.is_optimised = is_optimised
        self._engine: Any = None
        self._entries: dict[str, Any] = {}
        self._lock = ForkSafeLock()

    def bind(self, record: Records) -> Callable[[str], int]:
        """`call` bound to one record; valid until one of its arrays is replaced."""
        pointers = (ctypes.c_void_p * len(self.arrays))(
            *(record[array].ctypes.data for array in self.arrays)
        )
        address = ctypes.addressof(pointers)

        def call(name: str, _: object = pointers) -> int:
            result: int = self._entry(name)(address)
            return result

        return call

    def call(self, name: str, record: Records, *, is_native: bool = True) -> int:
        """Run a function whose only parameter is the record, compiled or in Python."""
        if not is_native:
            lists = {array: record[array].tolist() for array in self.arrays}
            result = getattr(self.module, name)(SimpleNamespace(**lists))
            for array, values in lists.items():
                record[array][:] = values
            return int(result)
        return self.bind(record)(name)

    def _object(self) -> bytes:
        """The object code of all functions, as an earlier process kept it or made now."""
        kept, name = ObjectCache(cache_folder([Path(__file__)])), self._name()
        found = kept.find(name)
        if found is None:
            found = _compiled(_ModuleWriter(self).write(), is_optimised=self.is_optimised)
            kept.store(name, found)
        return found

    def _name(self) -> str:
        """A hash of what the object code depends on: texts, integers, and the record's arrays."""
        there = vars(self.module)
        modules = {there[name].__module__ for name in self.names}
        found = [self.names, self.arrays, self.is_optimised]
        found += [inspect.getsource(sys.modules[name]) for name in sorted(modules)]
        found += [(name, each) for name, each in there.items() if isinstance(each, int)]
        for name, each in there.items():
            if isinstance(each, type) and issubclass(each, IntEnum):
                found.append((name, [(member, int(each[member])) for member in each.__members__]))
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def _entry(self, name: str) -> Any:
        if name not in self._entries:
            with self._lock:  # a second engine would take the place, and the code, of the first
                if self._engine is None:
                    self._engine = loaded([self._object()])
                address = self._engine.get_function_address(name)
                self._entries[name] = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)
        return self._entries[name]


def _compiled(module: ir.Module, *, is_optimised: bool) -> bytes:
    """A module as object code."""
    level = 3 if is_optimised else 0
    machine = host_machine(level)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    if is_optimised:
        tuning = binding.create_pipeline_tuning_options(speed_level=level)
        passes = binding.create_pass_builder(machine, tuning)
        passes.getModulePassManager().run(parsed, passes)
    found: bytes = machine.emit_object(parsed)
    return found


class _ModuleWriter:
    """Writes the functions of a library as one LLVM module."""

    def __init__(self, library: Library) -> None:
        self.word = ir.IntType(64)
        self.record = self.word.as_pointer().as_pointer()
        self.library = library
        self.output = ir.Module(name=library.module.__name__)
        self.functions: dict[str, Any] = {}

    def write(self) -> ir.Module:
        parsed = {}
        for name in self.library.names:
            source = textwrap.dedent(inspect.getsource(getattr(self.library.module, name)))
            parsed[name] = tree = ast.parse(source).body[0]
            count = len(tree.args.args)  # type: ignore[attr-defined]
            kind = ir.FunctionType(self.word, [self.record] + [self.word] * (count - 1))
            self.functions[name] = ir.Function(self.output, kind, name)
        for name, tree in parsed.items():
            _FunctionWriter(self, name, tree).write()
        return self.output


class _FunctionWriter:
    """Writes one function: variables are stack slots, which LLVM promotes to registers."""

    def __init__(self, writer: _ModuleWriter, name: str, tree: Any) -> None:
        self.writer, self.tree, self.word = writer, tree, writer.word
        self.function = writer.functions[name]
        self.entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.entry)
        self.record = self.function.args[0]
        self.record_name = tree.args.args[0].arg
        self.places: dict[str, Any] = {}
        self.loops: list[tuple[Any, Any]] = []  # where continue and break go

    def write(self) -> None:
        for argument, value in zip(self.tree.args.args[1:], self.function.args[1:], strict=True):
            self.builder.store(value, self._place(argument.arg))
        self._block(self.tree.body)
        if not self.builder.block.is_terminated:
            self.builder.ret(self._number(0))

    def _number(self, value: int) -> Any:
        return self.word(value)

    def _place(self, name: str) -> Any:
        if name not in self.places:
            with self.builder.goto_entry_block():
                self.places[name] = self.builder.alloca(self.word, name=name)
        return self.places[name]

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self.builder.block.is_terminated:
                return
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        builder = self.builder
        match statement:
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr(value=value):
                self._value(value)
            case (
                ast.Assign(targets=[target], value=value)
                | ast.AnnAssign(target=target, value=ast.expr() as value)
            ):
                builder.store(self._value(value), self._target(target))
            case ast.AugAssign(target=target, op=op, value=value):
                place = self._target(target)
                changed = self._arithmetic(op, builder.load(place), self._value(value))
                builder.store(changed, place)
            case ast.If():
                self._if(statement)
            case ast.While():
                self._while(statement)
            case ast.Return(value=value):
                builder.ret(self._number(0) if value is None else self._value(value))
            case ast.Continue():
                builder.branch(self.loops[-1][0])
            case ast.Break():
                builder.branch(self.loops[-1][1])
            case _:
                raise self._unsupported(statement)

    def _target(self, target: ast.expr) -> Any:
        return self._place(target.id) if isinstance(target, ast.Name) else self._element(target)

    def _element(self, node: ast.expr) -> Any:
        match node:
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr=array), slice=at):
                if name == self.record_name and array in self.writer.library.arrays:
                    number = self._number(self.writer.library.arrays.index(array))
                    start = self.builder.load(self.builder.gep(self.record, [number]))
                    return self.builder.gep(start, [self._value(at)])
        raise self._unsupported(node)

    def _if(self, statement: ast.If) -> None:
        condition = self._truth(statement.test)
        after = self.function.append_basic_block("after")
        taken = self.function.append_basic_block("taken")
        other = self.function.append_basic_block("other") if statement.orelse else after
        self.builder.cbranch(condition, taken, other)
        for block, statements in ((taken, statement.body), (other, statement.orelse)):
            if not statements:
                continue
            self.builder.position_at_end(block)
            self._block(statements)
            if not self.builder.block.is_terminated:
                self.builder.branch(after)
        self.builder.position_at_end(after)

    def _while(self, statement: ast.While) -> None:
        test, body, after = (self.function.append_basic_block(n) for n in ("test", "body", "after"))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        self.builder.cbranch(self._truth(statement.test), body, after)
        self.loops.append((test, after))
        self.builder.position_at_end(body)
        self._block(statement.body)
        if not self.builder.block.is_terminated:
            self.builder.branch(test)
        self.loops.pop()
        self.builder.position_at_end(after)

    def _value(self, node: ast.expr) -> Any:
        builder = self.builder
        match node:
            case ast.Constant(value=bool() | int()):
                return self._number(int(node.value))  # type: ignore[arg-type]
            case ast.Name(id=name):
                return (
                    builder.load(self.places[name]) if name in self.places else self._constant(name)
                )
            case ast.Subscript():
                return builder.load(self._element(node))
            case ast.Attribute(value=ast.Name(id=enumeration), attr=member):
                return self._member(enumeration, member)
            case ast.BinOp(left=left, op=op, right=right):
                return self._arithmetic(op, self._value(left), self._value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return builder.neg(self._value(operand))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._conditional(test, body, orelse)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._call(name, arguments)
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return builder.zext(self._truth(node), self.word)
        raise self._unsupported(node)

    def _conditional(self, test: ast.expr, body: ast.expr, other: ast.expr) -> Any:
        builder = self.builder
        blocks = [self.function.append_basic_block(name) for name in ("this", "that", "chosen")]
        builder.cbranch(self._truth(test), *blocks[:2])
        edges = []
        for block, node in zip(blocks, (body, other), strict=False):
            builder.position_at_end(block)
            edges.append((self._value(node), builder.block))
            builder.branch(blocks[2])
        builder.position_at_end(blocks[2])
        return self._phi(self.word, edges)

    def _phi(self, kind: Any, edges: Sequence[tuple[Any, Any]]) -> Any:
        """The value of the edge by which control entered this block."""
        result = self.builder.phi(kind)
        for value, block in edges:
            result.add_incoming(value, block)
        return result

    def _constant(self, name: str) -> Any:
        value = getattr(self.writer.library.module, name, None)
        if not isinstance(value, int):
            raise InternalError(f"{name} is neither assigned nor an integer of the module")
        return self._number(value)

    def _member(self, name: str, member: str) -> Any:
        enumeration = getattr(self.writer.library.module, name, None)
        if not (isinstance(enumeration, type) and issubclass(enumeration, IntEnum)):
            raise InternalError(f"{name}.{member}: {name} is no integer enumeration of the module")
        return self._number(int(enumeration[member]))

    def _call(self, name: str, arguments: Sequence[ast.expr]) -> Any:
        if name in ("min", "max"):
            first, second = (self._value(argument) for argument in arguments)
            sign = "<" if name == "min" else ">"
            is_first = self.builder.icmp_signed(sign, first, second)
            return self.builder.select(is_first, first, second)
        if name == "invoke":
            function, argument = (self._value(each) for each in arguments)
            kind = ir.FunctionType(self.word, [self.word])
            return self.builder.call(self.builder.inttoptr(function, kind.as_pointer()), [argument])
        if name not in self.writer.functions:
            raise InternalError(f"{self.tree.name} calls {name}, which is not compiled with it")
        given = [self.record, *(self._value(argument) for argument in arguments[1:])]
        return self.builder.call(self.writer.functions[name], given)

    def _arithmetic(self, op: ast.operator, left: Any, right: Any) -> Any:
        if type(op) in _OPERATORS:
            return getattr(self.builder, _OPERATORS[type(op)])(left, right)
        if not isinstance(op, ast.FloorDiv | ast.Mod):
            raise self._unsupported(op)
        rest = self.builder.srem(left, right)
        zero = self._number(0)
        signs_differ = self.builder.icmp_signed("<", self.builder.xor(rest, right), zero)
        is_exact = self.builder.icmp_signed("==", rest, zero)
        is_moved = self.builder.and_(signs_differ, self.builder.not_(is_exact))
        if isinstance(op, ast.Mod):
            return self.builder.select(is_moved, self.builder.add(rest, right), rest)
        quotient = self.builder.sdiv(left, right)
        return self.builder.sub(quotient, self.builder.zext(is_moved, self.word))

    def _truth(self, node: ast.expr) -> Any:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                sign = _COMPARISONS[type(op)]
                return self.builder.icmp_signed(sign, self._value(left), self._value(right))
            case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Tuple(elts=choices)]):
                value = self._value(left)
                equal = [self.builder.icmp_signed("==", value, self._value(c)) for c in choices]
                return functools.reduce(self.builder.or_, equal)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.builder.not_(self._truth(operand))
            case ast.BoolOp(op=op, values=values):
                return self._short_circuit(isinstance(op, ast.And), values)
        return self.builder.icmp_signed("!=", self._value(node), self._number(0))

    def _short_circuit(self, is_and: bool, values: Sequence[ast.expr]) -> Any:
        """`and` or `or`: later operands are evaluated only where earlier ones do not decide."""
        builder = self.builder
        after = self.function.append_basic_block("decided")
        edges = []
        for value in values[:-1]:
            truth = self._truth(value)
            following = self.function.append_basic_block("following")
            edges.append((truth, builder.block))
            pair = (following, after) if is_and else (after, following)
            builder.cbranch(truth, *pair)
            builder.position_at_end(following)
        edges.append((self._truth(values[-1]), builder.block))
        builder.branch(after)
        builder.position_at_end(after)
        return self._phi(ir.IntType(1), edges)

    def _unsupported(self, node: ast.AST) -> InternalError:
        line = getattr(node, "lineno", 0)
        what = type(node).__name__
        return InternalError(f"{self.tree.name}, line {line}: {what} cannot be compiled")
