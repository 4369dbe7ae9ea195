"""Registers that machine code sets and reads hold what the reference executor's hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.arch.instances import COMPILED_TARGETS
from glia.base.affine import Affine
from glia.base.dtype import S8, S16, S32, U8, U16, U32
from glia.isa.instructions.sync import (
    REGISTER_OPS,
    RegisterAlu,
    RegisterLoad,
    RegisterMove,
    RegisterStore,
)
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While
from glia.sim.host.check.checked_run import run_checked
from glia.sim.host.host_program import HostProgram
from glia.sim.notifications import Notifications
from glia.sim.policy import MalformedProgram
from glia.sim.run import run

INTEGERS = (S8, U8, S16, U16, S32, U32)
WIDTH = 16  # elements of each input
NAMES = ("a", "b", "c", "d")
EDGES = (0, 1, -1, 2**31 - 1, -(2**31), 12345, -7)


RESULTS = {S32: (1, 0), U32: (3, -1), S8: (1, 5), U16: (-1, 2)}  # stored as these multiples


def _place(name: str, dtype: Any, element: int | Affine) -> Pattern:
    tile = Tile(name, Memory.HBM, dtype, 1, WIDTH)
    return Pattern(tile, dtype, ((1, 1),), Affine.of(element))


class _Programs:
    """Random programs of registers; every one that is read is set."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.loops: list[str] = []

    def among(self, *choices: Any) -> Any:
        return choices[self.random.integers(len(choices))]

    def value(self) -> int | Affine:
        """A number, or an expression of registers and loop variables."""
        value: Any = int(self.among(*EDGES))
        if not self.random.integers(3):
            return value
        value = Affine.of(int(self.random.integers(-5, 6)))
        for name in self.random.choice([*(f"${n}" for n in NAMES), *self.loops], 2):
            value = value + Affine.of(str(name)) * int(self.random.integers(-3, 4))
        return value if value.variables else value.constant

    def instruction(self) -> Instr:
        register = self.among(*NAMES)
        match self.random.integers(4):
            case 0:
                return RegisterMove(register=register, value=self.value())
            case 1:
                dtype, at = self.among(*INTEGERS), int(self.random.integers(WIDTH))
                extent = self.among(0, 0, 2**30)
                limit = extent and int(self.random.integers(extent))
                src = _place(f"x.{dtype}", dtype, at)
                return RegisterLoad(register=register, src=src, extent=extent, limit=limit)
        op = self.among(*REGISTER_OPS)
        return RegisterAlu(register=register, op=op, a=self.value(), b=self.value())

    def statements(self, depth: int) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for _ in range(self.random.integers(2, 7)):
            kind = self.random.integers(8) if depth else 7
            if kind == 0:
                name = f"i{len(self.loops)}"
                self.loops.append(name)
                found.append(
                    Loop(name, int(self.random.integers(1, 4)), self.statements(depth - 1))
                )
                self.loops.pop()
            elif kind == 1:
                arms = tuple(self.statements(depth - 1) for _ in range(2))
                found.append(Branch(self.among(*NAMES), arms))
            elif kind == 2:
                found += self.counted(depth)
            else:
                found.append(self.instruction())
        return tuple(found)

    def counted(self, depth: int) -> list[Statement]:
        """A loop that a register ends, which nothing inside sets."""
        inside = self.statements(depth - 1)
        left = f"left{depth}"
        less = RegisterAlu(register=left, op="subtract", a=Affine.of(f"${left}"), b=1)
        start = RegisterMove(register=left, value=int(self.random.integers(1, 4)))
        test = RegisterMove(register=f"goes{depth}", value=Affine.of(f"${left}"))
        return [start, While((test,), f"goes{depth}", (*inside, less))]

    def program(self, target: str) -> tuple[Program, dict[str, np.ndarray]]:
        first = tuple(RegisterMove(register=n, value=int(self.among(*EDGES))) for n in NAMES)
        stores = tuple(
            RegisterStore(
                dst=_place(f"y.{dtype}", dtype, n), value=Affine.of(f"${name}") * factor + number
            )
            for n, name in enumerate(NAMES)
            for dtype, (factor, number) in RESULTS.items()
        )
        inputs = {}
        for dtype in INTEGERS:
            info = np.iinfo(dtype.numpy)
            values = self.random.integers(info.min, info.max, WIDTH, endpoint=True)
            inputs[f"x.{dtype}"] = values.astype(dtype.numpy)
        return _program((*first, *self.statements(2), *stores), target), inputs


def _program(body: tuple[Statement, ...], target: str) -> Program:
    tiles = [Tile(f"x.{dtype}", Memory.HBM, dtype, 1, WIDTH) for dtype in INTEGERS]
    results = [Tile(f"y.{dtype}", Memory.HBM, dtype, 1, WIDTH) for dtype in RESULTS]
    return Program(
        name="registers", target=target, tiles={t.name: t for t in (*tiles, *results)},
        inputs=tuple(Binding(t.name, t, (WIDTH,), t.dtype) for t in tiles),
        outputs=tuple(Binding(t.name, t, (WIDTH,), t.dtype) for t in results), constants={},
        body=body, addresses={t.name: 64 * n for n, t in enumerate((*tiles, *results))},
    )  # fmt: skip


def _results(of_run: dict[str, np.ndarray]) -> list[list[int]]:
    """What of each result is written."""
    return [of_run[f"y.{dtype}"][: len(NAMES)].tolist() for dtype in RESULTS]


@pytest.mark.parametrize("seed", range(60))
def test_registers_are_those_of_the_reference(seed: int) -> None:
    program, inputs = _Programs(seed).program(COMPILED_TARGETS[seed % len(COMPILED_TARGETS)])
    host, seen, said = HostProgram(program), Notifications(), Notifications()
    assert not host.table.in_python, host.table.reasons
    wanted = _results(run(program, inputs, notifications=said))
    for _ in range(2):
        assert _results(host.run(inputs, seen)) == wanted
    assert [*seen] == [*said, *said][: len(seen)] and seen.total == 2 * said.total
    assert _results(run_checked([program], inputs)) == wanted


READERS = {
    "move": RegisterMove(register="a", value=Affine.of("$none") + 1),
    "alu": RegisterAlu(register="a", op="add", a=1, b=Affine.of("$none") * 2),
    "address": RegisterLoad(register="a", src=_place(f"x.{S32}", S32, Affine.of("$none"))),
}


@pytest.mark.parametrize("name", READERS)
def test_a_register_that_is_not_set_is_a_fault(name: str) -> None:
    program = _program((READERS[name],), "trn2")
    inputs = {f"x.{d}": np.zeros(WIDTH, d.numpy) for d in INTEGERS}
    host = HostProgram(program)
    assert not host.table.in_python
    for _ in range(2):
        with pytest.raises(MalformedProgram, match=r"none. is not set before it is read"):
            host.run(inputs)


def _moves(*values: int | Affine) -> tuple[Statement, ...]:
    """The first value, then each expression of the one before."""
    moves = tuple(RegisterMove(register="a", value=value) for value in values)
    stores = [
        RegisterStore(dst=_place(f"y.{dtype}", dtype, 0), value=Affine.of("$a") * 3 + 7)
        for dtype in RESULTS
    ]
    return (*moves, *stores)


A = Affine.of("$a")
LARGE = {
    "beyond 61 bits": _moves(2**60, A * 4 + 7),
    "beyond 64 bits": _moves(2**60, A * 16),
    "a constant beyond 64 bits": _moves(2**70 + 5),
    "repeated": (
        RegisterMove(register="a", value=3),
        Loop("i", 41, (RegisterMove(register="a", value=A * 3),)),
        *_moves(A + 1),
    ),
    "operands beyond 64 bits": (RegisterAlu(register="a", op="add", a=2**70 + 3, b=1), *_moves(A)),
    "a factor that 64 bits do not hold": _moves(2**31, A * 2**40),
    "a test": (
        RegisterMove(register="a", value=2**32),
        Branch("a", (_moves(11), _moves(12))),
        *_moves(A),
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_registers_hold_32_bits(name: str) -> None:
    program = _program(LARGE[name], "trn2")
    inputs = {f"x.{d}": np.zeros(WIDTH, d.numpy) for d in INTEGERS}
    wanted = [row[0] for row in _results(run(program, inputs))]
    host = HostProgram(program)
    for _ in range(2):
        assert [row[0] for row in _results(host.run(inputs))] == wanted


def test_a_register_of_an_earlier_run_is_not_set() -> None:
    """One run sets it in a branch that the next does not take."""
    decided = RegisterLoad(register="b", src=_place(f"x.{S32}", S32, 0))
    arms = ((), (RegisterMove(register="a", value=3),))
    used = RegisterAlu(register="c", op="add", a=Affine.of("$a"), b=1)
    host = HostProgram(_program((decided, Branch("b", arms), used), "trn2"))
    inputs = {f"x.{d}": np.ones(WIDTH, d.numpy) for d in INTEGERS}
    host.run(inputs)
    inputs[f"x.{S32}"] = np.zeros(WIDTH, np.int32)
    with pytest.raises(MalformedProgram, match=r"a. is not set"):
        host.run(inputs)
