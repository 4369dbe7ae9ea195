"""Instructions that synchronise cores and need the memories of several: how one is declared.

Such an instruction names the participants of a rendezvous (`ranks`) and which rendezvous it is
(`topic`). `compute` is called once for all participants: it takes the operands of each, in the
order of `ranks`, and returns for each what is stored in its written operands. It accesses no
memory, so that any executor can drive it: wait until all participants have arrived, compute, store.
See docs/decisions/cross-core-instructions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

    rank: int  # of a core in its logical core, or of the logical core: `CrossCoreInstr.among`
    operands: Mapping[str, Any]
    attributes: Mapping[str, Any]


class CrossCoreInstr:
    """Base of instructions at which cores synchronise and exchange data.

    `compute(participants)` returns for each participant a tuple with one entry for each written
    operand, in the order of declaration, and for the register if it sets one: an array, a tuple of
    arrays where the operand is several, or None to leave it as it is.
    """

    arrives: ClassVar[str] = "participants"
    among: ClassVar[str] = "ranks"  # who is numbered: "cores" of a logical core, "ranks" of a world
    differs: ClassVar[tuple[str, ...]] = ()  # attributes in which participants may differ
    sizes_vary: ClassVar[bool] = False  # whether the tensors of participants may differ in size

    def ranks(self, rank: int) -> tuple[int, ...]:
        """The participants of the rendezvous that this rank arrives at, itself included."""
        raise TypeError("a cross-core instruction must declare its ranks")

    def topic(self) -> tuple[object, ...]:
        """The key of the rendezvous: equal for all participants; equal keys in program order."""
        raise TypeError("a cross-core instruction must declare its topic")


def differences(first: Any, second: Any) -> Iterator[str]:
    """In what the instructions differ with which two participants have come to one rendezvous."""
    ours, theirs = list(first.operands()), list(second.operands())
    if len(ours) != len(theirs):
        yield f"the number of tensors, {len(ours)} and {len(theirs)}"
    for (name, _, own), (_, _, other) in zip(ours, theirs, strict=False):
        if own.dtype is not other.dtype:
            yield f"the dtype of {name}, {own.dtype} and {other.dtype}"
        if own.elements != other.elements and not first.sizes_vary:
            yield f"the elements of {name}, {own.elements} and {other.elements}"
    allowed = {*first.hints, *first.differs, "register"}
    for name, value in first.attributes().items():
        if name not in allowed and getattr(second, name) != value:
            yield f"{name}, {value} and {getattr(second, name)}"


def group_of(groups: Groups, rank: int) -> tuple[int, ...]:
    """The group that a rank belongs to; Unspecified when none does."""
    for group in groups:
        if rank in group:
            return group
    raise Unspecified(f"rank {rank} is in none of the groups {groups}")


def predecessor(group: tuple[int, ...], rank: int, steps: int = 1) -> int:
    """The rank `steps` places before this one in the ring of its group.

    The order of a ring is not documented; here it is that of the group's list.
    """
    return group[(group.index(rank) - steps) % len(group)]


def common_attribute(participants: Sequence[Participant], name: str) -> Any:
    """The value of an attribute that must be equal in all participants; Unspecified if not."""
    values = [p.attributes[name] for p in participants]
    if any(value != values[0] for value in values):
        raise Unspecified(f"ranks of one collective differ in {name}: {values}")
    return values[0]
