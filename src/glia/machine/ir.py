"""Level 3: instructions on engines under loops and branches, in program order.

Program order executed sequentially is the meaning. Every engine and DMA queue runs its own
subsequence concurrently; the waits and signals on instructions keep every dependency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from glia.base.dtype import DType
from glia.isa.kit import Instr
from glia.isa.operand import Tile
from glia.machine.program_cache import ProgramCache


@dataclass(frozen=True)
class Loop:
    """Run `body` for variable = 0 .. trips-1; loops stay loops in every engine's stream.

    With `is_fixed`, and one trip, it holds what was written by hand: passes leave order, engines
    and tiles alone, and the scheduler puts the body in the loop's place. With `copies`, so
    many iterations, at most, have tiles of their own, in `room` bytes per partition of SBUF; once
    they have them, `room` is for all tiles that the body accesses.
    """

    variable: str
    trips: int
    body: tuple[Statement, ...]
    is_fixed: bool = False
    copies: int = 0
    room: int = 0


@dataclass(frozen=True)
class While:
    """Run `condition`, which loads `register`; while that is not 0 run `body` and start over.

    `iterations` is how often the body runs where that is known, else 0; time alone depends on it.
    """

    condition: tuple[Statement, ...]
    register: str
    body: tuple[Statement, ...]
    iterations: int = 0


@dataclass(frozen=True)
class Branch:
    """Run arms[register], clamped to the last arm when out of range."""

    register: str
    arms: tuple[tuple[Statement, ...], ...]

    def arm(self, value: int) -> int:
        """Which arm runs when the register holds `value`."""
        last = len(self.arms) - 1
        return value if 0 <= value < last else last


Statement = Instr | Loop | While | Branch
Block = tuple[Statement, ...]


@dataclass(frozen=True)
class Binding:
    """A tensor the outside sees: its name, shape and dtype, and the HBM tile that holds it."""

    name: str
    tile: Tile
    shape: tuple[int, ...]
    dtype: DType


@dataclass
class Traffic:
    """Bytes that are read from, and written to, a buffer in HBM, and by how many transfers."""

    read_bytes: int = 0
    written_bytes: int = 0
    transfers: int = 0


@dataclass
class EmittedWork:
    """What a group of nests, or one by itself, has to do: nanoseconds by engine and of DMA.

    `traffic` is by buffer in HBM; bytes are those that are transposed, and change their dtype.
    """

    engine_ns: dict[str, float] = field(default_factory=dict)
    dma_ns: float = 0.0
    traffic: dict[str, Traffic] = field(default_factory=dict)
    transposed_bytes: int = 0
    cast_bytes: int = 0
    instructions: int = 0

    @property
    def bound(self) -> tuple[str, float]:
        """(what is busy for longest, its nanoseconds): all else could be beside it."""
        busy = {**self.engine_ns, "DMA": self.dma_ns}
        name = max(busy, key=busy.__getitem__)
        return name, busy[name]


@dataclass(frozen=True)
class Program:
    """One physical core's program."""

    name: str
    target: str
    tiles: Mapping[str, Tile]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    constants: Mapping[str, np.ndarray]  # by HBM tile name, read-only
    body: tuple[Statement, ...]
    addresses: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a pass wants the user to know: spills, casts, ...
    # nest -> mnemonic -> instructions, as emitted; a program that was read from a file has none
    emitted: Mapping[str, Mapping[str, int]] = field(default_factory=dict, compare=False)
    # group, or nest by itself -> what its instructions do, as emitted
    works: Mapping[str, EmittedWork] = field(default_factory=dict, compare=False)
    cores: int = 1  # physical cores whose programs `machine.merge_cores.join_cores` has joined
    cache: ProgramCache = field(default_factory=ProgramCache, init=False, repr=False, compare=False)

    def instructions(self) -> Iterator[Instr]:
        """Every instruction once, in program order."""
        yield from walk(self.body)

    def __repr__(self) -> str:
        count = sum(1 for _ in self.instructions())
        return f"<program {self.name} for {self.target}: {count} instructions>"


def walk(body: Block) -> Iterator[Instr]:
    """Every instruction of a block once, in program order, entering loops and branches."""
    for statement in body:
        if isinstance(statement, Instr):
            yield statement
        else:
            for block in blocks(statement):
                yield from walk(block)


def blocks(statement: Statement) -> tuple[Block, ...]:
    """The blocks inside a statement, in program order; an instruction has none."""
    if isinstance(statement, Loop):
        return (statement.body,)
    if isinstance(statement, While):
        return statement.condition, statement.body
    if isinstance(statement, Branch):
        return statement.arms
    return ()


def with_blocks(statement: Statement, change: Callable[[Block], Block]) -> Statement:
    """The statement with every block inside it changed; an instruction stays what it is."""
    if isinstance(statement, Loop):
        return replace(statement, body=change(statement.body))
    if isinstance(statement, While):
        condition, body = change(statement.condition), change(statement.body)
        return replace(statement, condition=condition, body=body)
    if isinstance(statement, Branch):
        return replace(statement, arms=tuple(map(change, statement.arms)))
    return statement
