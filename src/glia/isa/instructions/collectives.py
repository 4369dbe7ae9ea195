"""Collectives: what the ranks of a replica group, each a logical core, compute together.

`srcs` and `dsts` are one tensor or several that travel together. Ranks meet in the order of their
group's list, which is the order of pieces in gathered and scattered tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from glia.base.dtype import U32
from glia.base.errors import Unspecified
from glia.isa.collective_steps import (
    TravelTime,
    Ways,
    direct_time,
    exchange_time,
    gathering_time,
)
from glia.isa.examples import hbm
from glia.isa.instructions.dma import ISSUERS, OutOfBounds, Transfer, priority_holds
from glia.isa.kit import Array, Rule, reads, updates, writes
from glia.isa.numerics import is_integer, widen
from glia.isa.operand import Memory, Pattern
from glia.isa.rendezvous import (
    CrossCoreInstr,
    Groups,
    Participant,
    common_attribute,
    group_of,
    predecessor,
)
from glia.isa.rules import dtypes

if TYPE_CHECKING:
    from glia.arch import Arch

PAGE = "NKI nki.collectives"
REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
EXACT_INTEGERS = 2**24  # float32 holds every integer up to here
Results = list[tuple[tuple[Array | None, ...]]]


def _tensors(i: Any) -> list[Pattern]:
    names = ("srcs", "srcs0", "srcs1", "dsts")
    return [pattern for name, _, pattern in i.operands() if name in names]


def _same_memory(i: Any, _: Arch) -> bool:
    return len({p.memory for p in _tensors(i)}) <= 1


def _single_tensor_in_sbuf(i: Any, _: Arch) -> bool:
    return i.dsts[0].memory is Memory.HBM or len(i.dsts) == 1


def _has_matching_counts(i: Any, _: Arch) -> bool:
    named = (i.srcs,) if hasattr(i, "srcs") else (i.srcs0, i.srcs1)
    return all(len(srcs) == len(i.dsts) >= 1 for srcs in named)


def _same_dtypes(i: Any, _: Arch) -> bool:
    return all(src.dtype is dst.dtype for src, dst in zip(i.srcs, i.dsts, strict=False))


def _same_shapes(function: str) -> Rule:
    return Rule(
        "a dst must have the shape of its src",
        lambda i, _: all(s.shape == d.shape for s, d in zip(i.srcs, i.dsts, strict=False)),
        f"{PAGE}.{function}",
    )


def _groups_are_disjoint(i: Any, _: Arch) -> bool:
    ranks = [rank for group in i.groups for rank in group]
    sizes = {len(group) for group in i.groups}
    return len(sizes) == 1 and 0 not in sizes and len(ranks) == len(set(ranks))


PAIRED = Rule("there must be as many dsts as srcs, at least one", _has_matching_counts, PAGE)
ONE_MEMORY = Rule("all tensors must be in HBM or all in SBUF", _same_memory, PAGE)
ONE_IN_SBUF = Rule("several tensors travel together only in HBM", _single_tensor_in_sbuf, PAGE)
SAME_DTYPES = Rule("a dst must have the dtype of its src", _same_dtypes, "assumed")
GROUPS = Rule("{groups} must be of one size and share no rank", _groups_are_disjoint, PAGE)
PRIORITY = priority_holds(f"{PAGE}: priority")
REDUCES = Rule(
    "{op} must be add, maximum or minimum", lambda i, _: i.op in REDUCTIONS, f"{PAGE}.all_reduce"
)
OUTERMOST = Rule("{collective_dim} must be 0", lambda i, _: i.collective_dim == 0, PAGE)
ALONE = Rule("one tensor travels at a time", lambda i, _: len(i.dsts) == 1, PAGE)
IN_HBM = Rule(
    "tensors must be in HBM", lambda i, _: all(p.memory is Memory.HBM for p in _tensors(i)), PAGE
)


def _ranks(i: Any) -> int:
    """The size of a group, 0 when there is none."""
    return len(i.groups[0]) if i.groups else 0


def _scaled(shape: tuple[int, ...], dim: int, factor: int) -> tuple[int, ...]:
    if not 0 <= dim < len(shape):
        return ()
    return (*shape[:dim], shape[dim] * factor, *shape[dim + 1 :])


IN_ORDER = "ranks are combined in the order of their group's list, floats in float32"
RING_ORDER = "a ring goes through a group in the order of its list"


class Collective(CrossCoreInstr, Transfer, engine="gpsimd", is_abstract=True):
    """Base of all collectives: disjoint groups of ranks, each of which synchronises by itself."""

    groups: Groups
    priority: int | None = None

    hints: ClassVar = ("priority",)
    takes_packed: ClassVar[tuple[str, ...]] = ("srcs", "dsts")
    passes: ClassVar[int] = 1  # how often pieces are gathered, or sums scattered
    cost_source = (
        "collectives within and between nodes: steps of mesh, recursive doubling, KangaRing and "
        "ring by size, over the links of the instance"
    )

    def ranks(self, rank: int) -> tuple[int, ...]:
        return group_of(self.groups, rank)

    def topic(self) -> tuple[object, ...]:
        return (self.mnemonic(), self.groups)

    def transfer_nanoseconds(self, arch: Arch) -> float:
        """The bytes through the DMA engines or the links, whichever is slower, and the hops."""
        step = gathering_time(self.moved_bytes(), self.groups, arch)
        once = TravelTime(self.passes * step.ns, self.passes * step.ns_per_byte)
        return _between_ranks(self, arch, once)


def _between_ranks(i: Transfer, arch: Arch, steps: TravelTime) -> float:
    """A transfer, what its steps need longer for bytes than engines and HBM, and their hops."""
    in_hbm = sum(p.bytes for p in i.moved() if p.memory is Memory.HBM)
    engines = i.moved_bytes() / (arch.dma_bytes_per_ns * arch.dma_engines)
    own = max(engines, in_hbm / arch.hbm_bytes_per_ns)
    longer = max(0.0, i.moved_bytes() * steps.ns_per_byte - own)
    return Transfer.transfer_nanoseconds(i, arch) + longer + steps.ns


def reduced(op: str, arrays: Sequence[Array]) -> Array:
    """The arrays combined in order: floats in float32, rounded once at the end; integers exactly.

    Whether integers pass through float32 on the way is not documented, so sums that it could not
    hold are Unspecified.
    """
    combine = REDUCTIONS[op]
    if not is_integer(arrays[0].dtype):
        total = widen(arrays[0])
        for array in arrays[1:]:
            total = combine(total, widen(array))
        return total
    total = arrays[0].astype(np.int64)
    for array in arrays[1:]:
        total = combine(total, array.astype(np.int64))
    if max(np.abs(a.astype(np.int64)).max(initial=0) for a in (*arrays, total)) > EXACT_INTEGERS:
        raise Unspecified("a collective combines integers that float32 cannot hold")
    return total


def _results_of_each(
    participants: Sequence[Participant], make: Callable[[int, int], Array | None]
) -> Results:
    """make(position of the participant, number of the tensor) for all."""
    count = len(participants[0].operands["dsts"])
    return [
        (tuple(make(position, number) for number in range(count)),)
        for position in range(len(participants))
    ]


def _sources(participants: Sequence[Participant], number: int) -> list[Array]:
    return [p.operands["srcs"][number] for p in participants]


class AllReduce(Collective):
    """Every rank gets the srcs of its group combined with `op`, element by element."""

    srcs: tuple[Pattern, ...] = reads("HBM", "SBUF", several=True)
    dsts: tuple[Pattern, ...] = writes("HBM", "SBUF", several=True)
    op: str

    passes = 2  # the pieces are combined, then gathered
    assumed: ClassVar = (IN_ORDER,)
    takes_packed: ClassVar[tuple[str, ...]] = ()
    rules = (
        PAIRED, ONE_MEMORY, ONE_IN_SBUF, SAME_DTYPES, GROUPS, PRIORITY, REDUCES,
        _same_shapes("all_reduce"),
    )  # fmt: skip

    @staticmethod
    def compute(participants: Sequence[Participant]) -> Results:
        op = common_attribute(participants, "op")
        count = len(participants[0].operands["srcs"])
        totals = tuple(reduced(op, _sources(participants, n)) for n in range(count))
        return [(totals,) for _ in participants]

    @classmethod
    def example(cls) -> Self:
        return cls(
            srcs=(hbm("x", 8, 4),),
            dsts=(hbm("y", 8, 4),),
            groups=((0, 1, 2, 3), (4, 5, 6, 7)),
            queue="q0",
            op="add",
        )


def _gathered_shape(i: AllGather, _: Arch) -> bool:
    pairs = zip(i.srcs, i.dsts, strict=False)
    count = _ranks(i)
    return all(d.shape == _scaled(s.shape, i.collective_dim, count) for s, d in pairs)


class AllGather(Collective):
    """Every rank gets the srcs of its group one after the other along `collective_dim`."""

    srcs: tuple[Pattern, ...] = reads("HBM", "SBUF", several=True)
    dsts: tuple[Pattern, ...] = writes("HBM", "SBUF", several=True)
    collective_dim: int

    rules = (
        PAIRED, ONE_MEMORY, ONE_IN_SBUF, SAME_DTYPES, GROUPS, PRIORITY,
        Rule(
            "{collective_dim} must be 0 in HBM, 0 or 1 in SBUF",
            lambda i, _: 0 <= i.collective_dim <= (i.srcs[0].memory is Memory.SBUF),
            f"{PAGE}.all_gather",
        ),
        Rule(
            "a tensor in SBUF must have one free dimension",
            lambda i, _: all(len(p.dims) == 2 for p in _tensors(i) if p.memory is Memory.SBUF),
            f"{PAGE}.all_gather",
        ),
        Rule(
            "a dst must have the shape of its src, collective_dim times the size of a group",
            _gathered_shape,
            f"{PAGE}.all_gather",
        ),
    )  # fmt: skip

    @staticmethod
    def compute(participants: Sequence[Participant]) -> Results:
        dim = common_attribute(participants, "collective_dim")
        return _results_of_each(
            participants, lambda _, number: np.concatenate(_sources(participants, number), dim)
        )

    @classmethod
    def example(cls) -> Self:
        return cls(
            srcs=(hbm("x", 8, 4),),
            dsts=(hbm("wide", 32, 4),),
            groups=((0, 1, 2, 3), (4, 5, 6, 7)),
            queue="q0",
            collective_dim=0,
        )


def _scattered_shape(i: ReduceScatter, _: Arch) -> bool:
    pairs = zip(i.srcs, i.dsts, strict=False)
    count = _ranks(i)
    return all(s.shape == _scaled(d.shape, i.collective_dim, count) for s, d in pairs)


class ReduceScatter(Collective):
    """The srcs of a group are combined with `op`; rank number i of it gets piece i of the result.

    Pieces are equal parts along `collective_dim`.
    """

    srcs: tuple[Pattern, ...] = reads("HBM", "SBUF", several=True)
    dsts: tuple[Pattern, ...] = writes("HBM", "SBUF", several=True)
    collective_dim: int
    op: str

    assumed: ClassVar = (IN_ORDER,)
    takes_packed: ClassVar[tuple[str, ...]] = ()
    rules = (
        PAIRED, ONE_MEMORY, ONE_IN_SBUF, SAME_DTYPES, GROUPS, PRIORITY, REDUCES, OUTERMOST,
        Rule(
            "a src must have the shape of its dst, collective_dim times the size of a group",
            _scattered_shape,
            f"{PAGE}.reduce_scatter",
        ),
    )  # fmt: skip

    @staticmethod
    def compute(participants: Sequence[Participant]) -> Results:
        op, size = common_attribute(participants, "op"), len(participants)

        def piece(position: int, number: int) -> Array:
            parts = [np.split(s, size)[position] for s in _sources(participants, number)]
            return reduced(op, parts)

        return _results_of_each(participants, piece)

    @classmethod
    def example(cls) -> Self:
        return cls(
            srcs=(hbm("wide", 32, 4),),
            dsts=(hbm("y", 8, 4),),
            groups=((0, 1, 2, 3), (4, 5, 6, 7)),
            queue="q0",
            collective_dim=0,
            op="add",
        )


class _Exchanging(Collective, is_abstract=True):
    """Base of collectives in which every rank has other data for each of its group."""

    def transfer_nanoseconds(self, arch: Arch) -> float:
        """One hop, in which every rank sends to all others."""
        return _between_ranks(self, arch, exchange_time(self.groups, Ways.of(arch)))


class AllToAll(_Exchanging):
    """Rank number i of a group gets piece i of every rank's src, in the order of ranks.

    Pieces are equal parts along `collective_dim`.
    """

    srcs: tuple[Pattern, ...] = reads("HBM", several=True)
    dsts: tuple[Pattern, ...] = writes("HBM", several=True)
    collective_dim: int

    rules = (
        PAIRED, SAME_DTYPES, GROUPS, PRIORITY, OUTERMOST,
        Rule(
            "a dst must have the shape of its src, which falls into a piece for each rank",
            lambda i, _: all(
                s.shape == d.shape and s.shape[0] % max(_ranks(i), 1) == 0
                for s, d in zip(i.srcs, i.dsts, strict=False)
            ),
            f"{PAGE}.all_to_all",
        ),
    )  # fmt: skip

    @staticmethod
    def compute(participants: Sequence[Participant]) -> Results:
        size = len(participants)

        def received(position: int, number: int) -> Array:
            parts = [np.split(s, size)[position] for s in _sources(participants, number)]
            return np.concatenate(parts)

        return _results_of_each(participants, received)

    @classmethod
    def example(cls) -> Self:
        return cls(
            srcs=(hbm("x", 8, 4),),
            dsts=(hbm("y", 8, 4),),
            groups=((0, 1, 2, 3), (4, 5, 6, 7)),
            queue="q0",
            collective_dim=0,
        )


class CollectivePermute(CrossCoreInstr, Transfer, engine="gpsimd", engines=ISSUERS):
    """For each pair (source, target) of ranks: the target's dst takes the source's src."""

    srcs: tuple[Pattern, ...] = reads("HBM", several=True)
    dsts: tuple[Pattern, ...] = updates("HBM", several=True, raw=True)
    source_target_pairs: tuple[tuple[int, int], ...]
    priority: int | None = None

    hints: ClassVar = ("priority",)
    assumed: ClassVar = ("a rank that is no target keeps its dst",)
    partly_written: ClassVar = ("dsts",)
    takes_packed: ClassVar[tuple[str, ...]] = ("srcs", "dsts")
    cost_source = "intra-node collectives: a hop of 1 to 2 us; nccom-test guide: bytes per ns"
    rules = (
        PAIRED, ALONE, SAME_DTYPES, PRIORITY,
        Rule(
            "no rank may be the source of two pairs, none the target of two",
            lambda i, _: all(len(set(r)) == len(r) for r in zip(*i.source_target_pairs,
                                                                strict=True)),
            "assumed",
        ),
        _same_shapes("collective_permute"),
    )  # fmt: skip

    def ranks(self, rank: int) -> tuple[int, ...]:
        named = {each for pair in self.source_target_pairs for each in pair}
        return tuple(sorted(named)) if rank in named else (rank,)

    def topic(self) -> tuple[object, ...]:
        return (self.mnemonic(), self.source_target_pairs)

    def transfer_nanoseconds(self, arch: Arch) -> float:
        """One hop of the bytes."""
        return _between_ranks(self, arch, direct_time(self.source_target_pairs, Ways.of(arch)))

    @staticmethod
    def compute(participants: Sequence[Participant]) -> Results:
        pairs = common_attribute(participants, "source_target_pairs")
        senders = {target: source for source, target in pairs}
        at = {p.rank: p for p in participants}

        def received(position: int, number: int) -> Array | None:
            sender = senders.get(participants[position].rank)
            return None if sender is None else at[sender].operands["srcs"][number]

        return _results_of_each(participants, received)

    @classmethod
    def example(cls) -> Self:
        return cls(
            srcs=(hbm("x", 8, 4),),
            dsts=(hbm("y", 8, 4),),
            source_target_pairs=((0, 1), (1, 0)),
            queue="q0",
        )


def _channels_count_up(i: Any, _: Arch) -> bool:
    return bool(i.channel_ids == tuple(range(len(i.dsts))))


CHANNELS = Rule(
    "{channel_ids} must count from 0, one for each tensor", _channels_count_up,
    f"{PAGE}.collective_permute_implicit",
)  # fmt: skip
FEW_CHANNELS = Rule(
    "there are at most 4 channels", lambda i, _: len(i.dsts) <= 4,
    f"{PAGE}.collective_permute_implicit",
)  # fmt: skip


def _ring_forwarded(participants: Sequence[Participant], bring: Callable[..., Array]) -> Results:
    """The sources of each participant's predecessor in the ring, by channel."""
    group = tuple(p.rank for p in participants)
    at = {p.rank: p for p in participants}

    def received(position: int, number: int) -> Array:
        return bring(at[predecessor(group, group[position])], number)

    return _results_of_each(participants, received)


class _PassingOn(Collective, is_abstract=True):
    """Base of collectives in which ranks send to their successors in a ring."""

    assumed: ClassVar = (RING_ORDER,)

    def transfer_nanoseconds(self, arch: Arch) -> float:
        """One hop of the bytes."""
        pairs = tuple(pair for group in self.groups for pair in pairwise([*group, group[0]]))
        return _between_ranks(self, arch, direct_time(pairs, Ways.of(arch)))


class CollectivePermuteImplicit(_PassingOn):
    """Every rank sends its srcs to its successor in a ring and takes its predecessor's into dsts.

    There is one tensor for each channel. Which way a ring goes is known only at run time.
    """

    srcs: tuple[Pattern, ...] = reads("HBM", "SBUF", several=True)
    dsts: tuple[Pattern, ...] = writes("HBM", "SBUF", several=True)
    channel_ids: tuple[int, ...] = (0,)

    rules = (
        PAIRED, SAME_DTYPES, GROUPS, PRIORITY, CHANNELS, FEW_CHANNELS,
        _same_shapes("collective_permute_implicit"),
    )  # fmt: skip

    @staticmethod
    def compute(participants: Sequence[Participant]) -> Results:
        common_attribute(participants, "channel_ids")
        return _ring_forwarded(participants, lambda p, number: p.operands["srcs"][number])

    @classmethod
    def example(cls) -> Self:
        return cls(
            srcs=(hbm("x", 8, 4),),
            dsts=(hbm("y", 8, 4),),
            groups=((0, 1, 2, 3), (4, 5, 6, 7)),
            queue="q0",
        )


class CollectivePermuteImplicitReduce(_PassingOn):
    """As collective_permute_implicit, of srcs0 `op` srcs1, which every rank combines before."""

    srcs0: tuple[Pattern, ...] = reads("HBM", "SBUF", several=True)
    srcs1: tuple[Pattern, ...] = reads("HBM", "SBUF", several=True)
    dsts: tuple[Pattern, ...] = writes("HBM", "SBUF", several=True)
    op: str
    channel_ids: tuple[int, ...] = (0,)

    takes_packed: ClassVar[tuple[str, ...]] = ()
    rules = (
        PAIRED, GROUPS, PRIORITY, REDUCES, CHANNELS, FEW_CHANNELS,
        Rule(
            "a dst must have the shape and dtype of both its srcs",
            lambda i, _: all(
                a.shape == b.shape == d.shape and a.dtype is b.dtype is d.dtype
                for a, b, d in zip(i.srcs0, i.srcs1, i.dsts, strict=False)
            ),
            f"{PAGE}.collective_permute_implicit_reduce",
        ),
    )  # fmt: skip

    @staticmethod
    def compute(participants: Sequence[Participant]) -> Results:
        op = common_attribute(participants, "op")
        common_attribute(participants, "channel_ids")

        def combined(p: Participant, number: int) -> Array:
            return reduced(op, [p.operands[name][number] for name in ("srcs0", "srcs1")])

        return _ring_forwarded(participants, combined)

    @classmethod
    def example(cls) -> Self:
        return cls(
            srcs0=(hbm("x", 8, 4),),
            srcs1=(hbm("x", 8, 4),),
            dsts=(hbm("y", 8, 4),),
            op="add",
            groups=((0, 1),),
            queue="q0",
        )


# Rows of the metadata of collectives of varying sizes: what is sent, and what was received.
SEND_COUNT, SEND_PLACE, RECEIVED_COUNT, RECEIVED_PLACE = range(4)


def _metadata_has_shape(i: Any, _: Arch) -> bool:
    shape = i.metadata.shape
    if i.metadata.memory is Memory.SBUF:
        if shape[0] != 1:
            return False
        shape = shape[1:]
    rows = (3, 4) if not i.has_rdispls else (4,)
    return len(shape) == 2 and shape[0] in rows and shape[1] == _ranks(i)


class VaryingCollective(Collective, is_abstract=True):
    """Base of collectives whose pieces have sizes known at run time only.

    srcs and dsts are one tensor each, taken as flat. `metadata` has a column for each rank of the
    group and the rows: elements sent to it, where they start in the src, elements received from it
    (written unless `recv_counts_known`), and with `has_rdispls` where they start in the dst,
    otherwise in equal slots. A piece that leaves its tensor is an error.
    """

    srcs: tuple[Pattern, ...] = reads("HBM", several=True)
    dsts: tuple[Pattern, ...] = updates("HBM", several=True, raw=True)
    metadata: Pattern = updates("HBM", "SBUF", raw=True)
    recv_counts_known: bool = False
    has_rdispls: bool = False

    partly_written: ClassVar = ("dsts", "metadata")
    differs: ClassVar = ("recv_counts_known", "has_rdispls")
    sizes_vary: ClassVar = True
    common_rules: ClassVar = (
        PAIRED, ALONE, SAME_DTYPES, GROUPS, PRIORITY,
        dtypes("metadata", (U32,), source=f"{PAGE}.all_to_all_v"),
        Rule(
            "{metadata} must have 3 or 4 rows (4 with has_rdispls) and a column for each rank",
            _metadata_has_shape,
            f"{PAGE}.all_to_all_v",
        ),
    )  # fmt: skip


def _slice_in_bounds(flat: Array, start: int, count: int, what: str) -> Array:
    if start + count > flat.size:
        raise OutOfBounds(f"elements {start}..{start + count - 1} of {what}, which has {flat.size}")
    return flat[start : start + count]


def _exchange_varying(
    participants: Sequence[Participant], column_for: Callable[[int], int]
) -> list[tuple[tuple[Array], Array | None]]:
    """Each participant's dst and metadata after it received from all, in order.

    `column_for` says which column of its metadata a sender takes for the receiver at a position.
    """
    results: list[tuple[tuple[Array], Array | None]] = []
    for position, p in enumerate(participants):
        dst = p.operands["dsts"][0].copy()
        flat, metadata = dst.reshape(-1), p.operands["metadata"].copy()
        rows = metadata.reshape(-1, len(participants))
        slot = flat.size // len(participants)
        for number, sender in enumerate(participants):
            sent = sender.operands["metadata"].reshape(-1, len(participants))
            start, count = (
                int(sent[row, column_for(position)]) for row in (SEND_PLACE, SEND_COUNT)
            )
            source = sender.operands["srcs"][0].reshape(-1)
            piece = _slice_in_bounds(source, start, count, f"the src of rank {sender.rank}")
            is_placed = p.attributes["has_rdispls"]
            place = int(rows[RECEIVED_PLACE, number]) if is_placed else slot * number
            if not is_placed and count > slot:
                raise OutOfBounds(
                    f"rank {sender.rank} sends {count} elements to rank {p.rank}, whose slots "
                    f"have {slot}"
                )
            _slice_in_bounds(flat, place, count, f"the dst of rank {p.rank}")[...] = piece
            rows[RECEIVED_COUNT, number] = count
        known = p.attributes["recv_counts_known"]
        results.append(((dst,), None if known else metadata))
    return results


class AllGatherV(VaryingCollective):
    """Every rank sends one piece of its src to all ranks of its group; sizes vary by rank.

    Of the rows that say what is sent only the first column is read.
    """

    rules = (
        *VaryingCollective.common_rules,
        Rule("has_rdispls is not supported", lambda i, _: not i.has_rdispls,
             f"{PAGE}.all_gather_v"),
        Rule("a group must have 4 ranks", lambda i, _: {len(g) for g in i.groups} == {4},
             f"{PAGE}.all_gather_v"),
    )  # fmt: skip

    @staticmethod
    def compute(participants: Sequence[Participant]) -> list[tuple[tuple[Array], Array | None]]:
        return _exchange_varying(participants, lambda _: 0)

    @classmethod
    def example(cls) -> Self:
        return cls(
            srcs=(hbm("x", 8, 4),),
            dsts=(hbm("y", 8, 4),),
            groups=((0, 1, 2, 3), (4, 5, 6, 7)),
            queue="q0",
            metadata=hbm("sizes", 3, 4, dtype=U32),
        )


class AllToAllV(_Exchanging, VaryingCollective):
    """Every rank sends a piece of its src to each rank of its group; sizes vary by pair.

    Column i of the metadata is about rank number i of the group.
    """

    rules = (
        *VaryingCollective.common_rules,
        Rule(
            "{has_rdispls} needs generation 4",
            lambda i, arch: arch.capabilities.has_receive_displacements or not i.has_rdispls,
            f"{PAGE}.all_to_all_v",
        ),
    )

    @staticmethod
    def compute(participants: Sequence[Participant]) -> list[tuple[tuple[Array], Array | None]]:
        return _exchange_varying(participants, lambda position: position)

    @classmethod
    def example(cls) -> Self:
        return cls(
            srcs=(hbm("x", 8, 4),),
            dsts=(hbm("y", 8, 4),),
            groups=((0, 1, 2, 3), (4, 5, 6, 7)),
            queue="q0",
            metadata=hbm("sizes", 3, 4, dtype=U32),
        )
