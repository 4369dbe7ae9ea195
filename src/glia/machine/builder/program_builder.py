"""`ProgramBuilder`: machine programs written by hand, one call for each instruction.

b = ProgramBuilder("double")
x, y = b.input("x", (512, 256), "f32"), b.output("y", (512, 256), "f32")
with b.loop(4) as i:
    t = b.sbuf((128, 256), "f32")
    b.dma_copy(t, x[ds(128 * i, 128)])
    b.tensor_scalar(t, t, operand0=2.0, op0="multiply")
    b.dma_copy(y[ds(128 * i, 128)], t)
program = b.finish()
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from glia.arch import get_target
from glia.base.affine import Affine
from glia.base.dtype import DType, from_numpy
from glia.base.suggestions import nearest
from glia.isa import INSTRUCTIONS
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Signal, Tile, Wait
from glia.machine.builder.errors import BrokenProgram, IllegalInstruction
from glia.machine.builder.source_line import caller
from glia.machine.builder.view import View, as_dtype
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.ir import Binding, Branch, Loop, Program, While
from glia.machine.legal import program_violations
from glia.machine.legal_instruction import violations
from glia.machine.passes.double_buffer import double_buffer
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.machine.queues import QUEUE_OWNERS
from glia.options import CompileOptions

Amounts = str | Mapping[str, int | Affine] | Iterable[Wait | Signal]
_COMMON = {"on", "queue", "waits", "signals", "loc"}


class ProgramBuilder:
    """Collects tiles, loops and instructions; `finish` gives the program.

    Every instruction of `glia.isa` is a method by its mnemonic: `b.tensor_tensor(dst, a, c,
    op="add")` takes the declared operands and attributes in order or by name, and `on` (engine),
    `queue`, `waits` and `signals`. Its rules are checked at once, for `target`;
    IllegalInstruction names the caller's line.
    """

    def __init__(self, name: str = "program", *, target: str = "trn2") -> None:
        self.name = name
        self.target = target
        self._arch = get_target(target).arch
        self._statements = BlockBuilder()
        self._inputs: list[Binding] = []
        self._outputs: list[Binding] = []
        self._addresses: dict[str, int] = {}
        self._variables: set[str] = set()
        self._issuers: dict[str, str] = dict(QUEUE_OWNERS)
        self._depth = 0
        self._is_synchronised = False

    def input(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike | DType = "f32", **at: int
    ) -> View:
        """An input tensor in HBM; `at` fixes its address."""
        view = self.hbm(shape, dtype, name, **at)
        self._inputs.append(Binding(name, view.tile, shape, view.dtype))
        return view

    def output(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike | DType = "f32", **at: int
    ) -> View:
        """An output tensor in HBM; `at` fixes its address."""
        view = self.hbm(shape, dtype, name, **at)
        self._outputs.append(Binding(name, view.tile, shape, view.dtype))
        return view

    def constant(self, value: np.ndarray, name: str = "constant", **at: int) -> View:
        """A tensor in HBM that holds `value` from the start and is never written."""
        contents = np.ascontiguousarray(value)
        view = self.hbm(contents.shape, from_numpy(contents.dtype), name, **at)
        self._statements.constants[view.tile.name] = contents
        return view

    def hbm(
        self, shape: tuple[int, ...], dtype: DTypeLike | DType = "f32", name: str = "hbm", **at: int
    ) -> View:
        """A tensor in HBM; `at` is its byte address, without one it is placed."""
        return self._tensor(Memory.HBM, shape, dtype, name, **at)

    def sbuf(
        self,
        shape: tuple[int, ...],
        dtype: DTypeLike | DType = "f32",
        name: str = "sbuf",
        **at: int,
    ) -> View:
        """A tile of (partitions, elements, ...) in SBUF; `at` is its byte in each partition."""
        return self._tensor(Memory.SBUF, shape, dtype, name, **at)

    def psum(
        self,
        shape: tuple[int, ...],
        dtype: DTypeLike | DType = "f32",
        name: str = "psum",
        **at: int,
    ) -> View:
        """A tile of (partitions, elements, ...) in PSUM; `at` is its byte in each partition."""
        return self._tensor(Memory.PSUM, shape, dtype, name, **at)

    def register(self, name: str) -> Affine:
        """A register: give it to register instructions, use it in indices and slices."""
        return Affine.of("$" + self._unused(name))

    @contextmanager
    def loop(self, trips: int, name: str = "i") -> Iterator[Affine]:
        """Open a loop over the statements in the block; yields its variable, 0 .. trips-1."""
        variable = self._unused(name)
        with self._block() as body:
            yield Affine.of(variable)
        self._statements.block.append(Loop(variable, trips, tuple(body)))

    @contextmanager
    def while_loop(self) -> Iterator[Condition]:
        """Open a loop that runs while a register is not 0; `.test(register)` ends its condition."""
        with self._block() as statements:
            condition = Condition(statements)
            yield condition
        if condition.register is None:
            self._refuse("a while loop has no test")
        register = self._register_name(condition.register)
        before, after = statements[: condition.end], statements[condition.end :]
        self._statements.block.append(While(tuple(before), register, tuple(after)))

    @contextmanager
    def branch(self, register: Affine) -> Iterator[Arms]:
        """Open a branch on a register; each `with arms.arm():` in the block adds an arm."""
        arms = Arms(self._block)
        yield arms
        name = self._register_name(register)
        self._statements.block.append(Branch(name, tuple(tuple(arm) for arm in arms.blocks)))

    def emit(self, instruction: Instr) -> Instr:
        """Append an instruction; IllegalInstruction when it breaks a rule."""
        broken = violations(instruction, self._arch)
        if broken:
            name = instruction.mnemonic()
            raise IllegalInstruction(problem=broken[0], instruction=name, loc=instruction.loc)
        self._is_synchronised |= bool(instruction.waits or instruction.signals)
        self._statements.emit(instruction)
        return instruction

    def finish(
        self,
        *,
        target: str = "",
        synchronise: bool | None = None,
        double_buffered: bool = False,
        is_checked: bool = True,
    ) -> Program:
        """The program, placed and verified for `target` (by default the builder's).

        Waits and signals are inserted with `synchronise`, by default unless an instruction has
        some. `double_buffered` unrolls innermost loops a few times, so that
        iterations overlap. BrokenProgram when an access leaves its tile, or a block is open.
        """
        if self._depth:
            self._refuse("a loop, arm or condition is still open")
        program = Program(
            name=self.name,
            target=target or self.target,
            tiles=dict(self._statements.tiles),
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            constants=dict(self._statements.constants),
            body=tuple(self._statements.block),
            addresses=dict(self._addresses),
        )
        if double_buffered:
            program = double_buffer(program, CompileOptions())
        program = place(program)
        if synchronise is None:
            synchronise = not self._is_synchronised
        if synchronise:
            program = insert_semaphores(program)
        broken = list(program_violations(program, get_target(program.target)))
        if broken and is_checked:
            self._refuse("; ".join(broken[:3]))
        return program

    def __getattr__(self, name: str) -> Callable[..., Instr]:
        """The instruction with this mnemonic."""
        if name not in INSTRUCTIONS:
            hint = nearest(name, dir(self))
            raise AttributeError(f"{name!r} is neither a method nor an instruction{hint}")
        return partial(self._instruction, INSTRUCTIONS[name])

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *INSTRUCTIONS})

    def _instruction(
        self,
        kind: type[Instr],
        *positional: Any,
        on: str = "",
        queue: str = "",
        waits: Amounts = (),
        signals: Amounts = (),
        **named: Any,
    ) -> Instr:
        loc = caller()
        order = [f.name for f in dataclasses.fields(kind) if f.name not in _COMMON]
        fields = dict(zip(order, positional, strict=False)) | named
        values = {name: self._value(name, value) for name, value in fields.items()}
        if kind.arrives_by_dma:
            on, queue = self._route(kind, values.get("dst"), on, queue)
        common: dict[str, Any] = {"on": on, "queue": queue, "loc": loc}
        try:
            if len(positional) > len(order) or set(order[: len(positional)]) & named.keys():
                raise TypeError(f"{kind.mnemonic()} takes {', '.join(order)}, each once")
            common |= {"waits": _as_tuple(waits, _wait), "signals": _as_tuple(signals, Signal)}
            instruction = kind(**values, **common)
        except TypeError as error:
            problem = f"{error}; it takes {', '.join(order)}"
            raise IllegalInstruction(
                problem=problem, instruction=kind.mnemonic(), loc=loc
            ) from error
        return self.emit(instruction)

    def _route(self, kind: type[Instr], dst: Any, on: str, queue: str) -> tuple[str, str]:
        """The issuing engine and the queue of a transfer: every queue has one issuer."""
        if not queue and not on and kind.engine == "sync":
            is_store = isinstance(dst, Pattern) and dst.memory is Memory.HBM
            queue = "store" if is_store else "load"
        if not queue:
            queue = on or kind.engine
        on = on or self._issuers.get(queue, kind.engine)
        if self._issuers.setdefault(queue, on) != on:
            raise IllegalInstruction(
                problem=f"queue {queue} is issued by {self._issuers[queue]}, not by {on}",
                instruction=kind.mnemonic(),
                loc=caller(),
            )
        return on, queue

    def _value(self, name: str, value: Any) -> Any:
        """An argument converted to the field of the instruction."""
        if isinstance(value, View):
            return value.pattern
        if name == "register":
            return self._register_name(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, list | tuple):
            return tuple(self._value(name, each) for each in value)
        return value

    def _register_name(self, register: Any) -> str:
        if isinstance(register, Affine) and len(register.terms) == 1:
            return register.variables[0].removeprefix("$")
        if not isinstance(register, str):
            self._refuse(f"{register!r} is not a register")
        return register

    def _tensor(
        self,
        memory: Memory,
        shape: tuple[int, ...],
        dtype: DTypeLike | DType,
        name: str,
        at: int | None = None,
    ) -> View:
        is_whole = all(isinstance(n, int) and n >= 1 for n in shape)
        on_chip = memory is not Memory.HBM
        if not is_whole or (on_chip and not shape):
            self._refuse(f"{name} cannot have shape {shape}")
        fixed = 1 if on_chip else 0
        partitions, elements = math.prod(shape[:fixed]), math.prod(shape[fixed:])
        tile = Tile(self._unused(name), memory, as_dtype(dtype), partitions, elements)
        self._statements.tiles[tile.name] = tile
        if at is not None:
            self._addresses[tile.name] = at
        return View.of(tile, tuple(shape))

    def _unused(self, name: str) -> str:
        """`name`, with a numeric suffix where it is in use."""
        unique, count = name, 1
        while unique in self._variables or unique in self._statements.tiles:
            unique, count = f"{name}.{count}", count + 1
        self._variables.add(unique)
        return unique

    @contextmanager
    def _block(self) -> Iterator[list[Any]]:
        self._depth += 1
        with self._statements.nested() as block:
            yield block
        self._depth -= 1

    def _refuse(self, problem: str) -> NoReturn:
        raise BrokenProgram(program=self.name, target=self.target, problem=problem, loc=caller())


class Condition:
    """The position in a while loop at which its condition ends and its body begins."""

    def __init__(self, statements: list[Any]) -> None:
        self._statements = statements
        self.register: Affine | str | None = None
        self.end = 0

    def test(self, register: Affine | str) -> None:
        """End the condition: the body follows, and runs while the register is not 0."""
        self.register, self.end = register, len(self._statements)


class Arms:
    """The arms of a branch, in order from register value 0 on; a greater value takes the last."""

    def __init__(self, block: Callable[[], Any]) -> None:
        self._block = block
        self.blocks: list[list[Any]] = []

    @contextmanager
    def arm(self) -> Iterator[None]:
        """Open the next arm."""
        with self._block() as statements:
            yield
        self.blocks.append(statements)


def _as_tuple(
    amounts: Amounts, make: Callable[[str, Any], Wait | Signal]
) -> tuple[Wait | Signal, ...]:
    """Waits or signals from a semaphore (amount 1), from amounts by semaphore, or as they are."""
    if isinstance(amounts, str):
        amounts = {amounts: 1}
    if isinstance(amounts, Mapping):
        return tuple(make(semaphore, amount) for semaphore, amount in amounts.items())
    return tuple(amounts)


def _wait(semaphore: str, value: int | Affine) -> Wait:
    return Wait(semaphore, Affine.of(value))
