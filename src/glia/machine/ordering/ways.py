"""The ways in which an instruction may be issued, with their times, as tables of integers.

Times are picoseconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from glia.arch import Arch
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import TensorCopy, TensorScalar
from glia.isa.kit import Instr
from glia.machine.columns.growing_table import GrowingTable
from glia.machine.columns.value_numbering import Array
from glia.machine.ordering.unread_copies import sums

AS_ACTIVATION = "activation"  # of the Scalar Engine, as a variant of another instruction
AS_SUM = "tensor_reduce"  # of the Vector Engine, as a variant of an activation
NONE = -1
DMA = "dma"


@dataclass(frozen=True)
class Variant:
    """One way to issue an instruction.

    `way` is "" for the instruction as it is, an engine, or AS_…; `stream` the queue or engine that
    it is issued in, and `latency` the time from its end to its result being visible there.
    """

    way: str
    stream: str
    duration_ps: int
    latency_ps: int
    table: str = ""  # the activation table that it needs on the Scalar Engine


@dataclass(frozen=True)
class IssueWays:
    """The variants of an instruction, the first as it is.

    `issuer` is, of a transfer, the engine that issues it once its operands are there.
    """

    variants: tuple[Variant, ...]
    issuer: str = ""
    issue_ps: int = 0  # for which it keeps that engine

    def without_sums(self) -> IssueWays:
        """The ways of a sum that stays on its engine."""
        kept = tuple(each for each in self.variants if each.way != AS_SUM)
        return self if len(kept) == len(self.variants) else replace(self, variants=kept)


class WayTable:
    """Numbers for ways, streams and activation tables, and the arrays of `order_rules` for them."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.ways: list[IssueWays] = []
        self.variants: list[Variant] = []
        self.streams: list[str] = []
        self._numbers: dict[Hashable, int] = {}
        self._stream_numbers: dict[str, int] = {}
        self._table_numbers: dict[str, int] = {"": NONE}
        self._resources: list[int] = []
        self._rows = GrowingTable(("stream", "duration", "latency", "table"))
        self._heads = GrowingTable(("first_variant", "end_variant", "issuer", "issue"))
        self.stream(DMA)

    def number(self, ways: IssueWays) -> int:
        """The number of ways, which become known with it."""
        found = self._numbers.setdefault(ways, len(self.ways))
        if found == len(self.ways):
            self._add(ways)
        return found

    def _add(self, ways: IssueWays) -> None:
        first = len(self.variants)
        for each in ways.variants:
            table = self._table_numbers.setdefault(each.table, len(self._table_numbers))
            row = self.stream(each.stream), each.duration_ps, each.latency_ps, table
            self._rows.append(row)
        self.ways.append(ways)
        self.variants += ways.variants
        issuer = self.stream(ways.issuer) if ways.issuer else NONE
        self._heads.append((first, len(self.variants), issuer, ways.issue_ps))

    def stream(self, name: str) -> int:
        """The number of a stream, which becomes known with it."""
        found = self._stream_numbers.setdefault(name, len(self.streams))
        if found == len(self.streams):
            self.streams.append(name)
            resource = resource_of(name, self.arch)
            self._resources.append(found if resource == name else self.stream(resource))
        return found

    def record(self) -> dict[str, Array]:
        """The arrays of `order_rules.ListOrderRecord` that are the same for all runs."""
        is_queue = [resource_of(each, self.arch) == DMA for each in self.streams]
        return {
            **self._rows.columns(), **self._heads.columns(),
            "resource": np.array(self._resources), "is_queue": np.array(is_queue),
        }  # fmt: skip


def resource_of(stream: str, arch: Arch) -> str:
    """What a stream occupies: all queues share DMA, and where they share a port Vector and GpSimd.

    Streams are queues and engines.
    """
    if stream == DMA or stream.startswith("queue."):
        return DMA
    is_shared = arch.capabilities.has_shared_sbuf_port and stream == "gpsimd"
    return "vector" if is_shared else stream


def in_way(instruction: Instr, way: str) -> Instr:
    """An instruction in one of its ways."""
    if way == AS_ACTIVATION:
        return next(activations(instruction))
    if way == AS_SUM:
        return next(sums(instruction))
    return replace(instruction, on=way) if way else instruction


def activations(instruction: Instr) -> Iterator[Instr]:
    """Equivalent activations for the Scalar Engine, as its own copies came later."""
    match instruction:
        case TensorCopy(dst=dst, src=src, loc=loc):
            yield Activation(dst=dst, data=src, function="copy", on="scalar", loc=loc)
        case TensorScalar(dst=dst, data=data, operand0=by, op0="multiply", op1="", loc=loc):
            if by is not None:
                yield Activation(
                    dst=dst, data=data, function="copy", scale=by, on="scalar", loc=loc
                )
        case TensorScalar(dst=dst, data=data, operand0=by, op0="add", op1="", loc=loc):
            yield Activation(dst=dst, data=data, function="copy", bias=by, on="scalar", loc=loc)
