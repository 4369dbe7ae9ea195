"""Calls of machine code that instructions of a class become, and what a call accesses."""

from __future__ import annotations

from dataclasses import dataclass

from glia.sim.host.library import Code
from glia.sim.host.traced import HeldArray


@dataclass(frozen=True)
class OperandPlace:
    """What an operand stands for: a pattern, a number, an engine's state, scratch or an array."""

    # "pattern" | "immediate" | "state" | "scratch" | "array" | "decision" | "term" | "register"
    # | "is set": of a term of an attribute's expression, and of the register that is set
    kind: str
    name: str = ""
    number: int = 0  # which of several patterns or terms; bytes from the start of scratch
    held: HeldArray | None = None


@dataclass(frozen=True)
class HostCall:
    """One call: code, its words, and which words take the address of which place.

    It has `parts` iterations, which take about `nanoseconds` together in one thread and may run at
    once if it `is_parallel`.
    """

    code: Code
    words: tuple[int, ...]
    addresses: tuple[tuple[int, OperandPlace], ...]
    parts: int
    nanoseconds: float
    is_parallel: bool = True


@dataclass(frozen=True)
class Lowered:
    """The calls of a class, in order, and the bytes of scratch that they need.

    Each of `guards` sets a word; where one sets 0, the meaning decides otherwise than the calls do.
    """

    calls: tuple[HostCall, ...]
    scratch: int
    guards: tuple[HostCall, ...] = ()

    @property
    def all_calls(self) -> tuple[HostCall, ...]:
        """Guards and calls."""
        return (*self.guards, *self.calls)


@dataclass(frozen=True)
class RowAccess:
    """Bytes of an operand that a call's first iteration may access, from where the operand begins.

    Iteration i is `step` bytes times i further. It touches about `touched` bytes.
    """

    place: OperandPlace
    step: int
    low: int
    high: int
    touched: int
    is_written: bool


@dataclass(frozen=True)
class RowsCall:
    """A call of which each iteration is a row of all operands, and what that accesses.

    `ahead` is the same call, which also asks for lines of what `far` reads, as many bytes further
    as its last words say.
    """

    call: HostCall
    accesses: tuple[RowAccess, ...]
    ahead: HostCall | None = None
    far: tuple[RowAccess, ...] = ()
