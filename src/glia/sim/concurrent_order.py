"""Whether concurrent accesses to memory and registers keep program order.

Executions are numbered in program order. Two that touch a byte, one of them writing, must not
overlap in time and must not come in the opposite order. Per byte the greatest numbers that have
written and read it are kept; what has started and is not complete is compared one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
from glia.isa.sync import register_variable
from glia.machine.text import print_instruction
from glia.sim.memory import Environment, Memories
from glia.sim.policy import ExecutionFault

Array = np.ndarray[Any, Any]


class Race(ExecutionFault):
    """Two instructions touched the same memory, and nothing but luck put them in order."""


@dataclass(eq=False, slots=True)
class Execution:
    """One execution of an instruction; `number` counts them in program order, from 1."""

    number: int
    instr: Instr
    variables: Mapping[str, int]  # the loops around it
    environment: Environment = field(default_factory=dict)  # registers too, when it starts
    is_early: bool = False

    def __str__(self) -> str:
        where = ", ".join(f"{name}={value}" for name, value in self.variables.items())
        text = f"{self.instr.runs_on}: {print_instruction(self.instr)}"
        return f"{text} at {where}" if where else text


@dataclass(frozen=True, slots=True)
class _Access:
    """What one operand does: `view` gives its bytes in `buffer` for an environment."""

    place: str  # tile or register
    reads: bool
    writes: bool
    buffer: Array
    view: Callable[[Environment], Array]
    is_register: bool = False


@dataclass(frozen=True, slots=True)
class _Started:
    access: _Access
    bytes: Array


class Order:
    """Follows executions as they start and complete; raises Race."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories
        self._accesses: dict[int, list[_Access]] = {}
        self._registers: dict[str, Array] = {}
        self._owners: dict[str, str] = {}  # register -> engine that set it since engines met
        self._written: dict[int, Array] = {}
        self._read: dict[int, Array] = {}
        self._under_way: dict[Execution, list[_Started]] = {}
        self._executions: dict[int, Execution] = {}

    def start(self, execution: Execution) -> None:
        """Note that an execution starts to access its operands."""
        accesses = self._accesses_of(execution.instr)
        for access in accesses:
            self._check_known(execution, access)
        started = [_Started(access, access.view(execution.environment)) for access in accesses]
        for each in started:
            self._check_order(execution, each)
            self._check_under_way(execution, each)
        for each in started:
            self._note(execution.number, each)
        self._under_way[execution] = started
        self._executions[execution.number] = execution

    def complete(self, execution: Execution) -> None:
        """Note that all accesses of an execution are done."""
        for started in self._under_way.pop(execution):
            if started.access.is_register and started.access.writes:
                self._owners[started.access.place] = execution.instr.runs_on

    def meet(self) -> None:
        """Note that all engines met: they know each other's registers."""
        self._owners.clear()

    def _check_known(self, execution: Execution, access: _Access) -> None:
        """A register is an engine's own until the engines meet."""
        if not access.is_register or not access.reads:
            return
        owner = self._owners.get(access.place, execution.instr.runs_on)
        if access.place not in execution.environment or owner != execution.instr.runs_on:
            self._raise(execution, access, "which its engine has not loaded since engines met")

    def _check_order(self, execution: Execution, started: _Started) -> None:
        """Nothing later in program order may have been there first."""
        access = started.access
        latest = int(_plane(self._written, started).max(initial=0))
        if latest > execution.number:
            self._fail(execution, access, latest, "writes")
        if access.writes:
            latest = int(_plane(self._read, started).max(initial=0))
            if latest > execution.number:
                self._fail(execution, access, latest, "reads")

    def _check_under_way(self, execution: Execution, started: _Started) -> None:
        access = started.access
        for other, theirs in self._under_way.items():
            for each in theirs:
                conflicts = access.writes or each.access.writes
                if conflicts and np.shares_memory(each.bytes, started.bytes):
                    does = "writes" if each.access.writes else "reads"
                    self._raise(execution, access, f"while what {does} it is not complete: {other}")

    def _fail(self, execution: Execution, access: _Access, latest: int, does: str) -> None:
        other = self._executions[latest]
        text = f"after a later instruction of the program that {does} it: {other}"
        self._raise(execution, access, text)

    @staticmethod
    def _raise(execution: Execution, access: _Access, when: str) -> NoReturn:
        does = "writes" if access.writes else "reads"
        instr = execution.instr
        raise Race(
            f"{execution} {does} {access.place} {when}",
            instruction=print_instruction(instr),
            loc=instr.loc,
        )

    def _note(self, number: int, started: _Started) -> None:
        if started.access.writes:
            _plane(self._written, started)[...] = number
        if started.access.reads:
            plane = _plane(self._read, started)
            np.maximum(plane, number, out=plane)

    def _accesses_of(self, instr: Instr) -> list[_Access]:
        key = id(instr)
        if key not in self._accesses:
            operands = [
                self._operand(pattern, instr.access(name)) for name, _, pattern in instr.operands()
            ]
            self._accesses[key] = operands + self._register_accesses(instr)
        return self._accesses[key]

    def _operand(self, pattern: Pattern, access: str) -> _Access:
        buffer = self._memories.region(pattern.tile).buffer
        view = self._memories.viewer(pattern)
        return _Access(pattern.tile.name, access != "writes", access != "reads", buffer, view)

    def _register_accesses(self, instr: Instr) -> list[_Access]:
        """A register is one byte of a memory of its own."""
        expressions = [v for v in instr.attributes().values() if isinstance(v, Affine)]
        for _, _, pattern in instr.operands():
            expressions += [pattern.offset, pattern.partition]
        read = {v for e in expressions for v in e.variables if v.startswith("$")}
        register = getattr(instr, "register", None)
        written = {register_variable(register)} if register is not None else set()
        return [self._register(name, name in read, name in written) for name in read | written]

    def _register(self, name: str, reads: bool, writes: bool) -> _Access:
        cell = self._registers.setdefault(name, np.zeros(1, np.uint8))
        return _Access(name, reads, writes, cell, lambda _: cell, is_register=True)


def _plane(planes: dict[int, Array], started: _Started) -> Array:
    """The numbers kept for the bytes of an access, one for each byte, as a view."""
    buffer, data = started.access.buffer, started.bytes
    key = id(buffer)
    if key not in planes:
        planes[key] = np.zeros(buffer.size, np.int32)
    offset = _address(data) - _address(buffer)
    strides = (*(4 * stride for stride in data.strides), 4)
    shape = (*data.shape, data.itemsize)
    return np.ndarray(shape, np.int32, planes[key], 4 * offset, strides)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
