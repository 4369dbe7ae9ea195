"""What engines keep between instructions while a program runs: accumulators, random generators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.isa.kit import Instr, Kept, State
from glia.isa.operand import Pattern
from glia.sim.memory import Environment, evaluator
from glia.sim.policy import Policy

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Registers:
    """The registers of one state in one engine, and which lanes hold a known value."""

    values: Array  # [lanes, words]
    known: Array  # [lanes]


class EngineStates:
    """The registers of all engines of one core, kept for as long as the core has its program."""

    def __init__(self, arch: Arch, policy: Policy | None = None) -> None:
        poison = (policy or Policy()).poison
        self._lanes = arch.partitions
        self._poison = 0 if poison is None else poison
        self._registers: dict[tuple[str, str], _Registers] = {}

    def fetch(self, instr: Instr, kept: Kept) -> Callable[[Environment], Array]:
        """A function that gives the values of the instruction's lanes, [lanes, words]."""
        registers, rows = self._of(instr.runs_on, kept.state), self._rows(instr, kept)
        return lambda environment: registers.values[rows(environment)]

    def store(self, instr: Instr, kept: Kept) -> Callable[[Environment, Any], None]:
        """A function that sets the values of the instruction's lanes."""
        registers, rows = self._of(instr.runs_on, kept.state), self._rows(instr, kept)

        def store(environment: Environment, value: Any) -> None:
            lanes = rows(environment)
            registers.values[lanes] = value
            registers.known[lanes] = True

        return store

    def forget(self, instr: Instr, kept: Kept) -> Callable[[Environment], None]:
        """A function that makes the values of the instruction's lanes unknown."""
        registers, rows = self._of(instr.runs_on, kept.state), self._rows(instr, kept)

        def forget(environment: Environment) -> None:
            lanes = rows(environment)
            registers.values[lanes].view(np.uint8)[...] = self._poison
            registers.known[lanes] = False

        return forget

    def unknown(self, instr: Instr, kept: Kept) -> Callable[[Environment], int]:
        """A function that counts the instruction's lanes whose values are unknown."""
        registers, rows = self._of(instr.runs_on, kept.state), self._rows(instr, kept)
        return lambda environment: int(np.count_nonzero(~registers.known[rows(environment)]))

    def _of(self, engine: str, state: State) -> _Registers:
        key = (engine, state.name)
        if key not in self._registers:
            self._registers[key] = self._fresh(state, state.words[engine])
        return self._registers[key]

    def _fresh(self, state: State, words: int) -> _Registers:
        known = np.full(self._lanes, state.start is not None)
        if state.start is not None:
            return _Registers(state.start(self._lanes, words), known)
        raw = np.full((self._lanes, words * state.dtype.bytes), self._poison, np.uint8)
        return _Registers(raw.view(state.dtype.numpy), known)

    def _rows(self, instr: Instr, kept: Kept) -> Callable[[Environment], slice]:
        if not kept.lanes:
            return lambda _: slice(None)
        pattern: Pattern = getattr(instr, kept.lanes)
        start, count = evaluator(pattern.partition), pattern.partitions

        def rows(environment: Environment) -> slice:
            first = start(environment)
            return slice(first, first + count)

        return rows
