"""Instructions between cores: exchange of tiles, barriers, and the ranks of cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from glia.arch import generations_from
from glia.base.affine import Affine
from glia.base.errors import Unspecified
from glia.isa.examples import chip, hbm
from glia.isa.instructions.dma import ISSUERS, Transfer
from glia.isa.instructions.sync import SEQUENCERS
from glia.isa.kit import Array, Instr, Rule, reads, updates, writes
from glia.isa.operand import Pattern
from glia.isa.rendezvous import CrossCoreInstr, Groups, Participant, group_of, predecessor
from glia.isa.rules import same_dtype

if TYPE_CHECKING:
    from glia.arch import Arch

SENDRECV = "NKI nki.isa.sendrecv"
BARRIER = "NKI nki.isa.core_barrier"
RING = "NKI nki.collectives.collective_permute_implicit_current_processing_rank_id"
PAIR = (0, 1)  # the cores of a logical core
GPSIMD_BYTES_PER_DTYPE_BYTE = 256  # most bytes per partition for each byte of the dtype


def _fits_gpsimd_dma(i: Sendrecv, _: Arch) -> bool:
    if i.dma_engine != "gpsimd_dma":
        return True
    return i.src.free <= GPSIMD_BYTES_PER_DTYPE_BYTE


def _triggered_by_gpsimd(i: Sendrecv, _: Arch) -> bool:
    return i.dma_engine != "gpsimd_dma" or i.runs_on == "gpsimd"


class Sendrecv(CrossCoreInstr, Transfer, engine="gpsimd", engines=ISSUERS):
    """Send src to another core of the logical core and receive its src into dst, at one time.

    The core with rank `send_to_rank` receives; dst takes what `recv_from_rank` sends. Cores meet
    pipe by pipe (`pipe_id`), in program order. What happens when a core does not send to
    the one that receives from it is not documented.
    """

    dst: Pattern = writes("SBUF")
    src: Pattern = reads("SBUF")
    send_to_rank: int
    recv_from_rank: int
    pipe_id: int
    dma_engine: str = "dma"

    among: ClassVar = "cores"
    differs: ClassVar = ("send_to_rank", "recv_from_rank")
    generations = generations_from(3)
    hints: ClassVar = ("dma_engine",)
    takes_packed: ClassVar = ("dst", "src")
    cost_source = "Trainium2 guide: GpSimd's DMA moves 153 GB/s each way; else as any transfer"
    rules = (
        Rule(
            "{send_to_rank} and {recv_from_rank} must be 0 or 1",
            lambda i, _: i.send_to_rank in PAIR and i.recv_from_rank in PAIR,
            SENDRECV,
        ),
        same_dtype("dst", "src", source=SENDRECV),
        Rule("{dst} and {src} must have the same shape", lambda i, _: _same_shape(i), SENDRECV),
        Rule(
            "{dma_engine} must be dma or gpsimd_dma",
            lambda i, _: i.dma_engine in ("dma", "gpsimd_dma"),
            SENDRECV,
        ),
        Rule(
            "GpSimd's DMA takes at most 256 elements per partition of 1, 2 or 4 bytes",
            _fits_gpsimd_dma,
            SENDRECV,
        ),
        Rule("GpSimd triggers its own DMA", _triggered_by_gpsimd, SENDRECV),
    )

    def ranks(self, rank: int) -> tuple[int, ...]:
        return PAIR

    def topic(self) -> tuple[object, ...]:
        return (self.mnemonic(), self.pipe_id)

    @staticmethod
    def compute(participants: Sequence[Participant]) -> list[tuple[Array]]:
        at = {p.rank: p for p in participants}
        received = []
        for p in participants:
            sender = at[p.attributes["recv_from_rank"]]
            if sender.attributes["send_to_rank"] != p.rank:
                raise Unspecified(
                    f"core {p.rank} receives from core {sender.rank}, which sends to core "
                    f"{sender.attributes['send_to_rank']}"
                )
            received.append((sender.operands["src"],))
        return received

    def transfer_nanoseconds(self, arch: Arch) -> float:
        """The bytes at the rate of GpSimd's own DMA, or as for every transfer."""
        if self.dma_engine == "gpsimd_dma" and arch.gpsimd_dma_bytes_per_ns:
            return self.moved_bytes() / arch.gpsimd_dma_bytes_per_ns
        return super().transfer_nanoseconds(arch)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("got", 64, 32),
            src=chip("given", 64, 32),
            send_to_rank=1,
            recv_from_rank=1,
            pipe_id=0,
            queue="q0",
        )


def _same_shape(i: Sendrecv) -> bool:
    return i.dst.partitions == i.src.partitions and i.dst.shape == i.src.shape


class CoreBarrier(CrossCoreInstr, Instr, engine="gpsimd", engines=SEQUENCERS):
    """Cores wait for each other: what each wrote to `data` before is seen by all of them after.

    Only the engine that runs it waits. `data` lies in HBM that the cores share, or in SBUF, which
    they do not: then it only orders what this core does with it.
    """

    data: Pattern = updates("HBM", "SBUF", raw=True)
    cores: tuple[int, ...] = PAIR

    among: ClassVar = "cores"
    sizes_vary: ClassVar = True
    generations = generations_from(3)
    partly_written: ClassVar = ("data",)
    cost_source = "assumed: the cost of telling the other core and of waiting for it"
    rules = (
        Rule("{cores} must be (0, 1), the cores of a logical core", lambda i, _: i.cores == PAIR,
             BARRIER),
    )  # fmt: skip

    def ranks(self, rank: int) -> tuple[int, ...]:
        return self.cores

    def topic(self) -> tuple[object, ...]:
        return (self.mnemonic(), self.cores)

    @staticmethod
    def compute(participants: Sequence[Participant]) -> list[tuple[None]]:
        return [(None,) for _ in participants]

    def cycles(self, arch: Arch) -> int:
        """Two semaphore instructions: one for the other core, one to wait."""
        return max(1, round(2 * arch.semaphore_ns * arch.clocks_ghz[self.runs_on]))

    @classmethod
    def example(cls) -> Self:
        return cls(data=hbm("x", 8, 4))


class RankId(CrossCoreInstr, Instr, engine="sync", engines=SEQUENCERS):
    """Set a register to the rank of this core within the collective group."""

    register: str

    cost_source = "assumed: one issue of the sequencer"
    rules = ()

    def ranks(self, rank: int) -> tuple[int, ...]:
        return (rank,)

    def topic(self) -> tuple[object, ...]:
        return (self.mnemonic(),)

    @staticmethod
    def compute(participants: Sequence[Participant]) -> list[tuple[int]]:
        return [(p.rank,) for p in participants]

    def cycles(self, arch: Arch) -> int:
        """One issue of the sequencer."""
        return round(arch.sequencer_cycles)

    @classmethod
    def example(cls) -> Self:
        return cls(register="n")


class CollectivePermuteImplicitCurrentProcessingRankId(
    CrossCoreInstr, Instr, engine="sync", engines=SEQUENCERS
):
    """Set a register to the rank whose data a core has at a step of a ring.

    At step 0 that is its own, at step i what came from i steps before it in its replica group.
    """

    register: str
    iteration_id: int | Affine
    groups: Groups
    channel_id: int = 0

    hints: ClassVar = ("channel_id",)
    assumed: ClassVar = ("a ring goes through a group in the order of its list",)
    cost_source = "assumed: one issue of the sequencer"
    rules = (
        Rule(
            "{iteration_id} must not be negative",
            lambda i, _: Affine.of(i.iteration_id).constant >= 0,
            RING,
        ),
        Rule("{channel_id} must be 0 to 3", lambda i, _: 0 <= i.channel_id < 4, RING),
    )

    def ranks(self, rank: int) -> tuple[int, ...]:
        return (rank,)

    def topic(self) -> tuple[object, ...]:
        return (self.mnemonic(),)

    @staticmethod
    def compute(participants: Sequence[Participant]) -> list[tuple[int]]:
        return [
            (predecessor(group, p.rank, p.attributes["iteration_id"]),)
            for p in participants
            for group in (group_of(p.attributes["groups"], p.rank),)
        ]

    def cycles(self, arch: Arch) -> int:
        """One issue of the sequencer."""
        return round(arch.sequencer_cycles)

    @classmethod
    def example(cls) -> Self:
        return cls(register="n", iteration_id=1, groups=((0, 1),))
