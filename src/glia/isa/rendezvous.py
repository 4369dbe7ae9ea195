"""Instructions at which cores meet: how one is declared whose meaning needs other cores' memories.

Such an instruction says who meets (`ranks`) and at what (`topic`). Its `compute` is called once for
all of them: it is given what every participant brings, in the order of `ranks`, and returns for
each what is stored in its written operands. It touches no memory, so any executor can drive it:
wait until all have come, compute, let each store. See docs/decisions/meetings.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glia.base.errors import Unspecified

Array = np.ndarray[Any, Any]
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Participant:
    """The contribution of one core to a rendezvous.

    `operands` holds an array for each operand of the instruction, in its own dtype and the shape of
    its pattern, written ones included (a tuple of arrays for an operand that is several);
    `attributes` the instruction's attributes.
    """

    rank: int  # of the core within its logical core, or of the logical core: see `Meeting.among`
    operands: Mapping[str, Any]
    attributes: Mapping[str, Any]


class Meeting:
    """Base of instructions at which cores synchronise and exchange data.

    `compute(participants)` returns for each participant a tuple with one entry for each written
    operand, in the order of declaration, and for the register if it sets one: an array, a tuple of
    arrays where the operand is several, or None to leave it as it is.
    """

    arrives: ClassVar[str] = "participants"
    among: ClassVar[str] = "ranks"  # who is numbered: "cores" of a logical core, "ranks" of a world

    def ranks(self, rank: int) -> tuple[int, ...]:
        """Who meets when the core with this rank comes here, itself included."""
        raise TypeError("a meeting must declare who meets")

    def topic(self) -> tuple[object, ...]:
        """Tells meetings apart: all who meet bring equal topics, each topic in program order."""
        raise TypeError("a meeting must declare its topic")


def group_of(groups: Groups, rank: int) -> tuple[int, ...]:
    """The group that a rank belongs to; Unspecified when none does."""
    for group in groups:
        if rank in group:
            return group
    raise Unspecified(f"rank {rank} meets the groups {groups}, of which none has it")


def predecessor(group: tuple[int, ...], rank: int, steps: int = 1) -> int:
    """The rank that stands so many steps before this one in its ring.

    The order of a ring is not documented; here it is that of the group's list.
    """
    return group[(group.index(rank) - steps) % len(group)]


def agreed(participants: Sequence[Participant], name: str) -> Any:
    """An attribute that all participants must have alike; Unspecified when they have not."""
    values = [p.attributes[name] for p in participants]
    if any(value != values[0] for value in values):
        raise Unspecified(f"ranks meet with different values of {name}: {values}")
    return values[0]
