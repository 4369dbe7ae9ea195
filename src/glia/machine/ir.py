"""Level 3: instructions on engines under loops and branches, in program order.

Program order executed sequentially is the meaning. Every engine and DMA queue runs its own
subsequence concurrently; the waits and signals on instructions keep every dependency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from glia.base.dtype import DType
from glia.isa.kit import Instr
from glia.isa.operand import Tile


@dataclass(frozen=True)
class Loop:
    """Run `body` for variable = 0 .. trips-1; loops stay loops in every engine's stream.

    With `is_fixed`, and one trip, it holds what was written by hand: passes leave order, engines
    and tiles alone, and the scheduler puts the body in the loop's place.
    """

    variable: str
    trips: int
    body: tuple[Statement, ...]
    is_fixed: bool = False


@dataclass(frozen=True)
class While:
    """Run `condition`, which loads `register`; while that is not 0 run `body` and start over."""

    condition: tuple[Statement, ...]
    register: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Branch:
    """Run arms[register], clamped to the last arm when out of range."""

    register: str
    arms: tuple[tuple[Statement, ...], ...]


Statement = Instr | Loop | While | Branch


@dataclass(frozen=True)
class Binding:
    """A tensor the outside sees: its name, shape and dtype, and the HBM tile that holds it."""

    name: str
    tile: Tile
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class Program:
    """One physical core's program."""

    name: str
    target: str
    tiles: Mapping[str, Tile]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    constants: Mapping[str, object]  # HBM tile name -> read-only np.ndarray
    body: tuple[Statement, ...]
    addresses: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a pass wants the user to know: spills, casts, ...

    def instructions(self) -> Iterator[Instr]:
        """Every instruction once, in program order."""
        yield from walk(self.body)


def walk(body: tuple[Statement, ...]) -> Iterator[Instr]:
    """Every instruction of a block once, in program order, entering loops and branches."""
    for statement in body:
        if isinstance(statement, Loop):
            yield from walk(statement.body)
        elif isinstance(statement, While):
            yield from walk(statement.condition)
            yield from walk(statement.body)
        elif isinstance(statement, Branch):
            for arm in statement.arms:
                yield from walk(arm)
        else:
            yield statement
