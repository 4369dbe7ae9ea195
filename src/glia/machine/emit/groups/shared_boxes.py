"""Boxes that several nests of a group read: staged by the first, read by all."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

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
    scopes: list[dict[Hashable, Home]] = field(default_factory=list)

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Inside, what is added is known until the iteration ends."""
        self.scopes.append({})
        yield
        self.scopes.pop()

    def find(self, key: Hashable) -> Home | None:
        """The home of a box that some nest has staged; None without one, or without a key."""
        return next((scope[key] for scope in self.scopes if key in scope), None)

    def add(self, key: Hashable, home: Home) -> None:
        """Enter a box that was staged in the innermost loop."""
        if key is not None and self.scopes:
            self.scopes[-1][key] = home


def box_key(load: Load, box: Box, partitions: int) -> Hashable:
    """What two boxes have in common that hold the same; None where a home names axes of its nest.

    `partitions` is how many hold a copy of a value without a partition axis.
    """
    names_axes = any(dim.axis for dim in box.dims)
    if names_axes or load.guards or load.dynamic or (box.partition and box.partition_dim < 0):
        return None
    index = tuple(each.substitute({box.partition: "@rows"}) for each in box.index)
    place = (box.partition_dim, box.low, box.rows, box.block, partitions)
    return (load.buffer, storage_dtype(load.dtype), index, box.dims, *place)
