"""Boxes that several nests of a group read: staged by the first, read by all."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from glia.base.affine import ZERO, Affine
from glia.machine.emit.box import Box, storage_dtype
from glia.machine.emit.layout import Home
from glia.tile.ir import Load


@dataclass
class SharedBoxes:
    """The staged boxes of the open loops of a group.

    `depths` has, by buffer that several nests read, the number of loops in which it is staged at
    most: inside of more than the shared ones, each nest would stage pieces of its own. What is
    `on_chip` is read where the group keeps it, with this dimension on the partitions; what nests
    of the group have `written` can be staged no earlier than where it is read. Each of the outer
    `loops` of all nests is left only by what is the same in all its iterations.
    """

    depths: Mapping[str, int] = field(default_factory=dict)
    on_chip: Mapping[str, int] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    loops: int = 0
    scopes: list[list[tuple[SharedBox, Home]]] = field(default_factory=list)

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Inside, what is added is known until the iteration ends."""
        self.scopes.append([])
        yield
        self.scopes.pop()

    def find(self, wanted: SharedBox | None) -> Home | None:
        """The home of a box that some nest has staged and that holds all of another, if any."""
        if wanted is None:
            return None
        staged = (each for scope in self.scopes for each in scope)
        return next((home for box, home in staged if box.holds(wanted)), None)

    def add(self, box: SharedBox | None, home: Home) -> None:
        """Enter a box that was staged in the innermost loop."""
        if box is not None and self.scopes:
            self.scopes[-1].append((box, home))


@dataclass(frozen=True)
class SharedBox:
    """A part of a buffer: its rows, if it has any, and an interval in each other dimension.

    `alike` is what two boxes have in common of which one may be read in the home of the other.
    """

    alike: Hashable
    first_row: Affine
    rows: int
    block: int
    intervals: tuple[tuple[Affine, int], ...]  # (least value, number of values)

    def holds(self, other: SharedBox) -> bool:
        """Whether another box is part of this one, with the same blocks of rows."""
        if self.alike != other.alike:
            return False
        skipped = _distance(self.first_row, other.first_row)
        if skipped is None or skipped % self.block or skipped + other.rows > self.rows:
            return False
        return all(
            (start := _distance(low, other_low)) is not None and start + other_count <= count
            for (low, count), (other_low, other_count) in zip(
                self.intervals, other.intervals, strict=True
            )
        )


def _distance(low: Affine, other: Affine) -> int | None:
    """How far a value lies above another, in every iteration; None where it may lie below it."""
    distance = other - low
    return distance.constant if distance.is_constant and distance.constant >= 0 else None


def shared_box(load: Load, box: Box, partitions: int) -> SharedBox | None:
    """A box that nests can share; None where its home names axes of the nest.

    `partitions` is how many hold a copy of a value without a partition axis.
    """
    names_axes = any(dim.axis for dim in box.dims)
    if names_axes or load.guards or load.dynamic or (box.partition and box.partition_dim < 0):
        return None
    swept = {dim.dim: (dim.low, dim.extent) for dim in box.dims}
    intervals = tuple(
        (ZERO, 1) if d == box.partition_dim else swept.get(d, (low, 1))
        for d, low in enumerate(box.index)
    )
    alike = (load.buffer, storage_dtype(load.dtype), box.partition_dim, box.block, partitions)
    return SharedBox(alike, box.low, box.rows, box.block, intervals)
