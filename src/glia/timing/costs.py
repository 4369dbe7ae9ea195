"""The time cost of each instruction: cycles as picoseconds, transfers as work on lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glia.isa.cost import activation_table, engine_cycles
from glia.isa.instructions.dma import Transfer
from glia.isa.instructions.sync import Barrier
from glia.isa.kit import ENGINES, Instr, is_register
from glia.isa.operand import Memory, Pattern
from glia.machine.columns.table import Columns
from glia.machine.columns.value_numbering import Array, group_rows

if TYPE_CHECKING:
    from glia.arch import Arch

DMA_ENGINES = 16
PARTITIONS_PER_DMA_ENGINE = 8  # DMA overview: engine e serves partitions 8e .. 8e+7
HBM_LANE = DMA_ENGINES  # the HBM interface is one more lane beside the DMA engines
MEMORIES = tuple(Memory)
PS = 1000  # picoseconds in a nanosecond
HARDWARE_GENERATORS = ("sync", "scalar")  # DGE deep dive: the engines that drive the hardware
GENERATORS = {"swdge": "software", "hwdge": "hardware"}


@dataclass(slots=True)
class Cost:
    """The cost that instructions of one kind, shape, engine and queue share.

    Times are picoseconds; engines and queues are numbers.
    """

    number: int
    kind: str  # "compute" | "matmul" | "activation" | "transfer" | "barrier"
    opcode: str
    engine: int
    queue: int = -1
    busy: int = 0
    generation: int = 0  # time of the hardware that makes descriptors
    transfer: TransferCost | None = None
    load: int = 0  # LoadStationary
    table: str = ""  # activation-table set; "" = none needed
    flops: int = 0  # of a matrix product
    transpose_flops: int = 0  # of a transposition through the array
    dtype: str = ""  # of a matrix product

    @property
    def longest(self) -> int:
        """The picoseconds that it keeps an engine or a lane busy."""
        lanes = self.transfer.lanes if self.transfer else ()
        return max([self.busy, self.load, *(time for time, _ in lanes)])


@dataclass(frozen=True)
class TransferCost:
    """One DMA transfer: picoseconds on each lane, bytes by direction, how it is issued."""

    lanes: tuple[tuple[int, tuple[int, ...]], ...]  # (picoseconds, the lanes that take as long)
    read_bytes: int  # from HBM
    written_bytes: int  # to HBM
    moved_bytes: int
    generator: str  # who makes the descriptors at run time: "", "software" or "hardware"
    skew: int  # from its own lanes' last byte to the last of all: DMA engines begin one by one


@dataclass(frozen=True)
class Costs:
    """The distinct costs of a program's instructions; instruction i has `distinct[number[i]]`.

    The other columns have a row for each cost.
    """

    distinct: list[Cost]
    number: Array
    queues: list[str]
    engine: Array
    is_matmul: Array
    is_transfer: Array
    is_barrier: Array
    by_dma: Array  # DMA engines, not the instruction's own, touch its operands


def cost_instructions(columns: Columns, arch: Arch) -> Costs:
    """The cost of every instruction, computed once for all that cannot differ in it.

    Those are of one family, and their patterns agree in memory, shape, dtype, first partition and
    whether a register is part of their place.
    """
    patterns = columns.patterns
    alike = columns.group_by_patterns(
        group_rows(
            patterns.tile.map(lambda tile: MEMORIES.index(tile.memory)),
            patterns.dims.number,
            patterns.dtype.number,
            patterns.partition.constant,
            patterns.offset.terms.map(_has_register) | patterns.partition.terms.map(_has_register),
        ).number,
        columns.family,
    )
    queues: dict[str, int] = {}
    distinct: list[Cost] = []
    representatives = [columns.instructions[row] for row in alike.first.tolist()]
    for instr in representatives:
        queue = -1
        if isinstance(instr, Transfer):
            name = instr.queue or f"of {instr.runs_on}"
            queue = queues.setdefault(name, len(queues))
        distinct.append(cost_of(instr, arch, len(distinct), queue))
    kinds = np.array([cost.kind for cost in distinct], "U10")
    return Costs(
        distinct=distinct,
        number=alike.number,
        queues=list(queues),
        engine=np.array([cost.engine for cost in distinct], np.int64),
        is_matmul=kinds == "matmul",
        is_transfer=kinds == "transfer",
        is_barrier=kinds == "barrier",
        by_dma=np.array([instr.arrives_by_dma for instr in representatives], bool),
    )


def _has_register(terms: tuple[tuple[str, int], ...]) -> bool:
    return any(is_register(variable) for variable, _ in terms)


def cycles_to_ps(cycles: float, engine: str, arch: Arch) -> int:
    """Picoseconds that `cycles` of an engine's clock take."""
    return round(cycles * PS / arch.clocks_ghz[engine])


def cost_of(instr: Instr, arch: Arch, number: int, queue: int) -> Cost:
    """The cost of an instruction; `number` and `queue` are its and its queue's numbers."""
    engine = instr.runs_on
    cost = Cost(number, "compute", instr.mnemonic(), ENGINES.index(engine), queue)
    if isinstance(instr, Transfer):
        cost.kind, cost.transfer = "transfer", cost_transfer(instr, arch)
        cost.busy = cycles_to_ps(instr.cycles(arch), engine, arch)
        if cost.transfer.generator == "software":
            cost.busy = max(cost.busy, round(arch.dma_software_issue_ns * PS))
        elif cost.transfer.generator:
            cost.generation = round(arch.dma_hardware_issue_ns * PS)
        return cost
    cost.busy = cycles_to_ps(engine_cycles(instr, arch), engine, arch)
    if isinstance(instr, Barrier):
        cost.kind = "barrier"
    elif engine == "tensor" and (flops := matmul_flops(instr)):
        _cost_product(cost, instr, arch)
        cost.flops = flops
    elif engine == "tensor":
        cost.transpose_flops = transpose_flops(instr)
    elif table := activation_table(instr):
        cost.kind, cost.table = "activation", table
    return cost


def _cost_product(cost: Cost, instr: Instr, arch: Arch) -> None:
    stationary: Pattern = instr.stationary  # type: ignore[attr-defined]
    part = stationary.free / arch.stationary_columns
    part *= arch.tensor_passes.get(stationary.dtype.name, 1.0)
    cost.kind, cost.dtype = "matmul", instr.moving.dtype.name  # type: ignore[attr-defined]
    cost.load = cycles_to_ps(arch.load_stationary_cycles * part, "tensor", arch)


def cost_transfer(instr: Transfer, arch: Arch) -> TransferCost:
    """Split a transfer over the DMA engines by descriptors.

    A descriptor covers the longest run that is contiguous on both sides and takes its bytes at the
    engine's rate and a fixed time. On-chip partition p is served by DMA engine p // 8; transfers
    within HBM, and those that transpose, spread evenly. Hops of a ring, and paths that bypass the
    DMA engines, are added at the end.
    """
    moved = instr.moved_bytes()
    rate = arch.dma_bytes_per_ns * instr.rate(arch)
    work = (moved / rate + instr.descriptors() * arch.dma_descriptor_ns) * PS
    lanes: dict[int, tuple[int, ...]] = {}
    shares = _engine_shares(instr)
    for engine, share in shares:
        each = round(work * share)
        lanes[each] = (*lanes.get(each, ()), engine)
    elements = min((p.elements for p in instr.moved()), default=0)
    in_hbm = {"reads": 0, "writes": 0, "updates": 0}
    for name, _, pattern in instr.operands():
        if pattern.memory is Memory.HBM and any(pattern is p for p in instr.moved()):
            in_hbm[instr.access(name)] += min(pattern.elements, elements) * pattern.dtype.bytes
    read, written = in_hbm["reads"] + in_hbm["updates"], in_hbm["writes"] + in_hbm["updates"]
    served = tuple(lanes.items())
    if read + written:
        served += ((round((read + written) / arch.hbm_bytes_per_ns * PS), (HBM_LANE,)),)
    late = instr.transfer_nanoseconds(arch) - Transfer.transfer_nanoseconds(instr, arch)
    skew = arch.dma_ring_skew_ns * (len(shares) - 1) + max(0.0, late)
    return TransferCost(
        served, read, written, moved, _descriptor_generator(instr, arch), round(skew * PS)
    )


def _descriptor_generator(instr: Transfer, arch: Arch) -> str:
    """The generator named; else one only where a place is known no earlier than at run time."""
    mode = getattr(instr, "dge_mode", "unknown")
    if mode in GENERATORS:
        return GENERATORS[mode]
    patterns = [*instr.patterns()]
    has_indices = len(patterns) > len(instr.moved())
    places = [pattern.offset.terms + pattern.partition.terms for pattern in patterns]
    if not has_indices and not any(map(_has_register, places)):
        return ""
    in_hardware = arch.dma_hardware_issue_ns and instr.runs_on in HARDWARE_GENERATORS
    return "hardware" if in_hardware else "software"


def _engine_shares(instr: Transfer) -> list[tuple[int, float]]:
    """(DMA engine, share of the work); the on-chip side's partitions decide."""
    on_chip = [p for p in instr.moved() if p.memory is not Memory.HBM]
    if not on_chip or instr.uses_every_engine:
        return [(engine, 1 / DMA_ENGINES) for engine in range(DMA_ENGINES)]
    pattern = max(on_chip, key=lambda p: p.partitions)
    step = max(1, abs(pattern.dims[0][0]))
    counts: dict[int, int] = {}
    for index in range(pattern.partitions):
        partition = pattern.partition.constant + index * step
        engine = partition // PARTITIONS_PER_DMA_ENGINE % DMA_ENGINES
        counts[engine] = counts.get(engine, 0) + 1
    return [(engine, count / pattern.partitions) for engine, count in sorted(counts.items())]


def matmul_flops(instr: Instr) -> int:
    """Two per multiply-accumulate of a matrix product; 0 for everything else."""
    stationary, moving = getattr(instr, "stationary", None), getattr(instr, "moving", None)
    if not (isinstance(stationary, Pattern) and isinstance(moving, Pattern)):
        return 0
    return 2 * moving.partitions * stationary.free * moving.free


def transpose_flops(instr: Instr) -> int:
    """What a transposition through the Tensor Engine would be as a product with the identity."""
    if instr.runs_on != "tensor" or matmul_flops(instr):
        return 0
    data = next(iter(instr.read_patterns()), None)
    return 2 * data.partitions * data.partitions * data.free if data is not None else 0
