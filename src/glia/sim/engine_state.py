"""Engine registers that persist between instructions: accumulators, random generators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.base.affine import ZERO, Affine
from glia.isa.kit import Instr, State, StateUse
from glia.isa.operand import Pattern
from glia.sim.memory import Environment, evaluator
from glia.sim.policy import Policy

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _RegisterFile:
    """The registers of one state in one engine, and which lanes are initialized."""

    values: Array  # [lanes, words]
    known: Array  # [lanes]


class EngineStates:
    """The registers of all engines of one core; they persist while its program is loaded."""

    def __init__(self, arch: Arch, policy: Policy | None = None) -> None:
        poison = (policy or Policy()).poison
        self._lanes = arch.partitions
        self._poison = 0 if poison is None else poison
        self._registers: dict[tuple[str, str], _RegisterFile] = {}
        self._states: dict[str, State] = {}

    def fetch(self, instr: Instr, kept: StateUse) -> Callable[[Environment], Array]:
        """A function that returns the values of the instruction's lanes, [lanes, words]."""
        registers, rows = (
            self._register_file(instr.runs_on, kept.state),
            self._lane_range(instr, kept),
        )
        return lambda environment: registers.values[rows(environment)]

    def store(self, instr: Instr, kept: StateUse) -> Callable[[Environment, Any], None]:
        """A function that sets the values of the instruction's lanes."""
        registers, rows = (
            self._register_file(instr.runs_on, kept.state),
            self._lane_range(instr, kept),
        )

        def store(environment: Environment, value: Any) -> None:
            lanes = rows(environment)
            registers.values[lanes] = value
            registers.known[lanes] = True

        return store

    def invalidate(self, instr: Instr, kept: StateUse) -> Callable[[Environment], None]:
        """A function that poisons the instruction's lanes and marks them uninitialized."""
        registers, rows = (
            self._register_file(instr.runs_on, kept.state),
            self._lane_range(instr, kept),
        )

        def invalidate(environment: Environment) -> None:
            lanes = rows(environment)
            registers.values[lanes].view(np.uint8)[...] = self._poison
            registers.known[lanes] = False

        return invalidate

    def unknown_lane_counter(self, instr: Instr, kept: StateUse) -> Callable[[Environment], int]:
        """A function that counts the uninitialized ones of the instruction's lanes."""
        registers, rows = (
            self._register_file(instr.runs_on, kept.state),
            self._lane_range(instr, kept),
        )
        return lambda environment: int(np.count_nonzero(~registers.known[rows(environment)]))

    def lanes(self, instr: Instr, kept: StateUse) -> tuple[Array, Affine, int]:
        """(values of all lanes, the instruction's first lane, how many it uses)."""
        values = self._register_file(instr.runs_on, kept.state).values
        if not kept.lanes:
            return values, ZERO, len(values)
        pattern: Pattern = getattr(instr, kept.lanes)
        return values, pattern.partition, pattern.partitions

    def reset(self) -> None:
        """Give all registers their initial values, in place."""
        for (_, name), registers in self._registers.items():
            initial = self._initial_registers(self._states[name], registers.values.shape[1])
            registers.values.view(np.uint8)[...] = initial.values.view(np.uint8)
            registers.known[...] = initial.known

    def _register_file(self, engine: str, state: State) -> _RegisterFile:
        key = (engine, state.name)
        if key not in self._registers:
            self._states[state.name] = state
            self._registers[key] = self._initial_registers(state, state.words[engine])
        return self._registers[key]

    def _initial_registers(self, state: State, words: int) -> _RegisterFile:
        known = np.full(self._lanes, state.start is not None)
        if state.start is not None:
            return _RegisterFile(state.start(self._lanes, words), known)
        raw = np.full((self._lanes, words * state.dtype.bytes), self._poison, np.uint8)
        return _RegisterFile(raw.view(state.dtype.numpy), known)

    def _lane_range(self, instr: Instr, kept: StateUse) -> Callable[[Environment], slice]:
        if not kept.lanes:
            return lambda _: slice(None)
        pattern: Pattern = getattr(instr, kept.lanes)
        start, count = evaluator(pattern.partition), pattern.partitions

        def rows(environment: Environment) -> slice:
            first = start(environment)
            return slice(first, first + count)

        return rows
