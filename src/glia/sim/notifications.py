"""What a run reports without stopping: indices that are outside of their table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from glia.base.loc import Loc
from glia.isa.kit import IndexCheck, Instr
from glia.machine.text import print_instruction

MAX_KEPT = 256
KINDS = {"dma_gather": "gather", "dma_scatter": "scatter"}  # others are dynamic slices
# How the product words what it finds at run time (source: the runtime's troubleshooting page)
RECEIVED = "Received notification generated at runtime: failed to run"
INDIRECT = "scatter/gather (indirect memory copy), due to out-of-bound access"
CONSEQUENCES = {
    "gather": "the nearest row was read",
    "scatter": "the update was dropped",
    "dynamic slice": "the nearest position was taken",
}


@dataclass(frozen=True)
class Notification:
    """One index that was outside of what it indexes, in one execution of an instruction.

    `limit` is the greatest valid index, less than `extent` - 1 where more than one element is
    accessed from there on; `rank` is the core that ran the instruction.
    """

    kind: str  # "gather" | "scatter" | "dynamic slice"
    index: int
    limit: int
    extent: int
    table: str  # the tensor that is accessed, where the instruction names it
    loc: Loc
    instruction: str
    rank: int

    def __str__(self) -> str:
        where = f" of {self.table}" if self.table else ""
        text = (
            f"{RECEIVED} {INDIRECT}: {self.kind}{where} at index {self.index}, outside of"
            f" 0..{self.limit}, in a dimension of {self.extent}; {CONSEQUENCES[self.kind]}"
        )
        opcode = self.instruction.partition("(")[0]
        at = f"\n  source: {self.loc}" if str(self.loc) else ""
        return f"{text}{at}\n  instruction: {opcode} on core {self.rank}"

    def to_dict(self) -> dict[str, object]:
        """In JSON's types."""
        return vars(self) | {"loc": str(self.loc)}


class Notifications(Sequence[Notification]):
    """The first MAX_KEPT notifications of a run in order, and how many it had in `total`."""

    def __init__(self) -> None:
        self.total = 0
        self._kept: list[Notification] = []

    def __repr__(self) -> str:
        return f"<{self.total} notifications>"

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Notification]:
        return iter(self._kept)

    @overload
    def __getitem__(self, index: int) -> Notification: ...

    @overload
    def __getitem__(self, index: slice) -> list[Notification]: ...

    def __getitem__(self, index: int | slice) -> Notification | list[Notification]:
        return self._kept[index]

    def add(self, instr: Instr, index: int, check: IndexCheck, rank: int) -> None:
        """Report an index that is out of bounds."""
        self.total += 1
        if len(self._kept) < MAX_KEPT:
            self._kept.append(_notification(instr, index, check, rank))

    def extend(self, others: Notifications) -> None:
        """Take what others were given, as if it came now."""
        self.take(others, others.total)

    def take(self, kept: Sequence[Notification], total: int) -> None:
        """Take the first of so many that another run was given."""
        self.total += total
        self._kept += kept[: MAX_KEPT - len(self._kept)]

    def by_source(self) -> list[tuple[Notification, int]]:
        """The first notification of each kind and source line that were kept, and their number."""
        found: dict[tuple[str, Loc], list[Notification]] = {}
        for each in self._kept:
            found.setdefault((each.kind, each.loc), []).append(each)
        return [(group[0], len(group)) for group in found.values()]


def _tensor_name(tile: str) -> str:
    """The name of the tensor that a tile was made for: tiles are numbered behind a dot."""
    name, _, number = tile.rpartition(".")
    return name if name and number.isdecimal() else tile


def _notification(instr: Instr, index: int, check: IndexCheck, rank: int) -> Notification:
    kind = KINDS.get(instr.mnemonic(), "dynamic slice")
    table = {"gather": "src", "scatter": "dst"}.get(kind)
    return Notification(
        kind=kind,
        index=index,
        limit=check.limit,
        extent=check.extent,
        table=_tensor_name(getattr(instr, table).tile.name) if table else "",
        loc=instr.loc,
        instruction=print_instruction(instr),
        rank=rank,
    )
