"""How the chips of an instance are connected: rows of links, or switches, and a network beyond.

Ranks fill a chip, then the next one; chips are numbered along the last row first, and those beyond
an instance are in the next instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from glia.arch.constant import Constant

Link = tuple[str, int, int]  # what it is, the chip that sends, and which way


@dataclass(frozen=True)
class Row:
    """So many chips in a ring of links, or at a switch through which each reaches all others.

    `rate` is one way: of a link between neighbours, or of a chip's connection to the switch.
    """

    chips: int
    rate: Constant
    is_switched: bool = False


@dataclass(frozen=True)
class Fabric:
    """The connections of an instance type, and of a chip to other instances of the type.

    `ranks` are those of a chip. `has_flat_ring`: ranks of several instances form one ring where
    that is faster than rings within them and between them.
    """

    instance: str
    ranks: int
    rows: tuple[Row, ...]
    network_rate: Constant  # of a chip, one way
    network_hop: Constant
    has_flat_ring: bool = False

    @property
    def chips(self) -> int:
        """In an instance."""
        total = 1
        for row in self.rows:
            total *= row.chips
        return total

    def chip_of(self, rank: int) -> int:
        """The chip that a rank is on, counted over all instances."""
        return rank // self.ranks

    def instance_of(self, chip: int) -> int:
        """The instance that a chip is in."""
        return chip // self.chips

    def place(self, chip: int) -> tuple[int, ...]:
        """A chip's place in each row of its instance."""
        rest, places = chip % self.chips, []
        for row in reversed(self.rows):
            rest, place = divmod(rest, row.chips)
            places.append(place)
        return tuple(reversed(places))

    def route(self, source: int, target: int) -> Iterator[Link]:
        """The links from one chip to another: row by row, the last first, the shorter way round.

        Which of two equal ways a message takes is not documented; here it is upwards.
        """
        if self.instance_of(source) != self.instance_of(target):
            yield from (("network", source, 1), ("network", target, 0))
            return
        at, end, stride = source, self.place(target), 1
        for number in reversed(range(len(self.rows))):
            row, place = self.rows[number], self.place(source)[number]
            steps = (end[number] - place) % row.chips
            if row.is_switched and steps:
                after = at + (end[number] - place) * stride
                yield from ((f"row {number}", at, 1), (f"row {number}", after, 0))
                at = after
            elif steps:
                way = 1 if steps <= row.chips - steps else -1
                count = min(steps, row.chips - steps)
                passed = [(place + way * each) % row.chips for each in range(count + 1)]
                for here, there in pairwise(passed):
                    yield f"row {number}", at, max(way, 0)
                    at += (there - here) * stride
            stride *= row.chips

    def rate(self, link: Link) -> float:
        """Bytes per nanosecond of a link."""
        if link[0] == "network":
            return self.network_rate.value
        return self.rows[int(link[0].removeprefix("row "))].rate.value

    def constants(self) -> Iterator[tuple[str, Constant]]:
        """Its numbers by name."""
        for number, row in enumerate(self.rows):
            kind = "at a switch" if row.is_switched else "in a ring"
            yield f"row {number}: {row.chips} {kind}", row.rate
        yield "network, a chip", self.network_rate
        yield "network, a hop", self.network_hop
