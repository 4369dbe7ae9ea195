"""How long a contraction in blocks takes, and what it holds on chip: a model without a program.

The array, the DMA engines and the engines that empty PSUM work at the same time: the busiest of
them sets the pace. Added to it is what nothing overlaps: the first block's operands, the last
block's results, and every load or sum whose loop has one set of tiles only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from glia.arch import Arch
from glia.tile.contraction import PARTITIONS
from glia.tile.ir import BlockLoop

FULL_UNROLL = 4  # trips of a loop that is unrolled whole, so that each part is awaited by itself
TURNED_RUN_BYTES = 1024  # contiguous in HBM, of a transfer that transposes
ON_CHIP_TURN_NS = 300  # of 128 x 128 elements that are transposed within SBUF


@dataclass(frozen=True)
class BlockedOperand:
    """An operand of a contraction: the axes it is read over, innermost in HBM last.

    `place` is "hbm", "turned" for what is in HBM with its contracted axis innermost, "resident"
    for what SBUF holds as the array reads it, or "unaligned" for what it holds otherwise.
    """

    axes: tuple[str, ...]
    bytes: int  # of an element
    place: str


@dataclass(frozen=True)
class Contraction:
    """What a nest and its tiles leave open: facts that blocks are chosen by.

    `tiles` has the values of each axis that one product sweeps; the partitions hold `rows` of the
    result and `contract` of the operands.
    """

    extents: tuple[tuple[str, int], ...]
    tiles: tuple[tuple[str, int], ...]
    rows: str
    contract: str
    stationary: BlockedOperand
    moving: BlockedOperand
    dtype: str  # of the moving operand
    stored: BlockedOperand
    epilogue_bytes: int  # of an element of the result, held while it is computed and stored
    sbuf_bytes: int  # of a partition, that there are

    @cached_property
    def extent_of(self) -> Mapping[str, int]:
        return dict(self.extents)

    @cached_property
    def tile_of(self) -> Mapping[str, int]:
        return dict(self.tiles)

    @property
    def operands(self) -> tuple[BlockedOperand, BlockedOperand]:
        """The stationary operand, then the moving one."""
        return self.stationary, self.moving

    @cached_property
    def columns(self) -> int:
        """Columns of one product."""
        return math.prod(
            tile for axis, tile in self.tiles if axis not in (self.rows, self.contract)
        )

    @cached_property
    def products(self) -> int:
        """Products of tiles, all together."""
        return math.prod(-(-n // self.tile_of[axis]) for axis, n in self.extents)


@dataclass(frozen=True)
class Blocking:
    """Loops over blocks, outermost first, and inside how many of them each operand is loaded."""

    loops: tuple[BlockLoop, ...]
    depths: tuple[int, int]  # of the stationary operand, of the moving one


@dataclass(frozen=True)
class Estimate:
    """The time of a contraction and what it holds, of each partition."""

    ns: float
    sbuf_bytes: int
    banks: int
    instructions: int  # products in the unrolled loops

    def fits(self, facts: Contraction, arch: Arch) -> bool:
        """Whether that much is on chip."""
        return self.sbuf_bytes <= facts.sbuf_bytes and self.banks <= arch.psum_banks


class BlockingModel:
    """The time of one contraction on one core under any blocking."""

    def __init__(self, facts: Contraction, arch: Arch) -> None:
        self.facts = facts
        self.arch = arch
        passes = arch.tensor_passes.get(facts.dtype, 1.0)
        columns = max(facts.columns, arch.min_issue_cycles["tensor"])
        gaps = arch.issue_gap_cycles["tensor"] * (2 if passes > 1 else 1)
        self.product_ns = arch.cycles_to_ns("tensor", columns * passes + gaps)
        self.array_ns = self.product_ns * facts.products
        self.dma_bytes_per_ns = arch.dma_bytes_per_ns * arch.dma_engines
        self.transfer_ns = arch.dma_start_ns + arch.dma_completion_ns
        self.transfer_ns += arch.dma_ring_skew_ns * arch.dma_engines
        cycles = facts.columns + arch.issue_gap_cycles["vector"]
        self.evacuation_ns = arch.cycles_to_ns("vector", cycles)

    def estimate(self, blocking: Blocking) -> Estimate:
        """The time of a blocking, and what it holds."""
        return _Timing(self, blocking).estimate()

    def load_ns(
        self, operand: BlockedOperand, spans: Mapping[str, int], partition: str = ""
    ) -> float:
        """Nanoseconds of DMA or of an engine to bring in the part of an operand over `spans`.

        `partition` is the axis on the partitions, that of the contraction if not given.
        """
        if operand.place == "resident":
            return 0.0
        elements = math.prod(spans[axis] for axis in operand.axes)
        if operand.place == "unaligned":
            return elements / PARTITIONS**2 * ON_CHIP_TURN_NS
        rate = self.dma_bytes_per_ns
        if operand.place == "turned":
            rate *= self.arch.dma_transpose_rate
            run = TURNED_RUN_BYTES
        else:
            run = self.run_bytes(operand, spans, partition or self.facts.contract)
        count = elements * operand.bytes
        return count / rate + count / run * self.arch.dma_descriptor_ns / self.arch.dma_engines

    def run_bytes(self, operand: BlockedOperand, spans: Mapping[str, int], partition: str) -> int:
        """Bytes of the contiguous runs in HBM of a part of an operand, as rows are in it."""
        run = 1
        for axis in reversed(operand.axes):
            if axis == partition:
                break
            run *= spans[axis]
            if spans[axis] < self.facts.extent_of[axis]:
                break
        return run * operand.bytes


class _Timing:
    """The parts of one estimate."""

    def __init__(self, model: BlockingModel, blocking: Blocking) -> None:
        self.model = model
        self.facts = model.facts
        self.loops = blocking.loops
        self.depths = blocking.depths
        self.trips: list[int] = []
        self.spans: list[dict[str, int]] = [dict(self.facts.extents)]  # by open loops
        for loop in self.loops:
            before = self.spans[-1]
            self.trips.append(-(-before[loop.axis] // loop.extent))
            self.spans.append({**before, loop.axis: min(before[loop.axis], loop.extent)})
        contract = self.facts.contract
        inside = (at for at, loop in enumerate(self.loops) if loop.axis == contract)
        self.sums_at = next(inside, len(self.loops))

    def estimate(self) -> Estimate:
        model, facts = self.model, self.facts
        pairs = zip(facts.operands, self.depths, strict=True)
        loads = [(self._iterations(at), model.load_ns(o, self.spans[at])) for o, at in pairs]
        blocks = self._iterations(self.sums_at)
        store_ns = blocks * model.load_ns(facts.stored, self.spans[self.sums_at], facts.rows)
        dma_ns = sum(count * each for count, each in loads) + store_ns
        evacuation_ns = model.evacuation_ns * self.sums * blocks / 2
        each_ns = [each for _, each in loads]
        ns = max(self._loops_ns(each_ns), dma_ns, evacuation_ns)
        ns += self._first_ns(each_ns) + self._last_ns()
        return Estimate(ns, self._sbuf_bytes(), self._banks(), self._instructions())

    def _loops_ns(self, loads_ns: Sequence[float]) -> float:
        """The time of all loops, each iteration with as many sets of tiles as it has copies.

        A set is loaded, used and free again one after the other: that, divided by the sets, is the
        least time from one iteration to the next.
        """
        model = self.model
        ns = model.array_ns / self._iterations(len(self.loops))
        for at in reversed(range(len(self.loops))):
            depth, loop, trips = at + 1, self.loops[at], self.trips[at]
            pairs = zip(loads_ns, self.depths, strict=True)
            loaded_ns = sum(each for each, own in pairs if own == depth)
            turnaround = [model.transfer_ns + loaded_ns] if loaded_ns else []
            if depth == self.sums_at:
                turnaround.append(model.evacuation_ns + self._latency_ns())
            iteration = max([ns, *((each + ns) / loop.copies for each in turnaround)])
            ns += iteration * (trips - 1)
        return ns

    @property
    def sums(self) -> int:
        """Tiles of the result that PSUM holds the sums of."""
        spans, tiles = self.spans[self.sums_at], self.facts.tile_of
        own = [axis for axis in spans if axis != self.facts.contract]
        return math.prod(-(-spans[axis] // tiles[axis]) for axis in own)

    def _iterations(self, depth: int) -> int:
        return math.prod(self.trips[:depth])

    def _copies(self, depth: int) -> int:
        """Sets of the tiles that are made inside of `depth` loops; enough where none repeats."""
        own = [
            loop.copies
            for loop, trips in zip(self.loops[:depth], self.trips, strict=False)
            if trips > 1
        ]
        return own[-1] if own else 2

    def _latency_ns(self) -> float:
        arch = self.model.arch
        return sum(
            arch.latency_cycles[engine] / arch.clocks_ghz[engine] for engine in ("tensor", "vector")
        )

    def _first_ns(self, loads_ns: Sequence[float]) -> float:
        """What the first sums take longer than the array, which begins when it has operands.

        Products of one block of the contracted axis follow when its operands are there, where those
        blocks are unrolled or loaded one by one; a loop awaits all that is loaded around it.
        """
        contract = self.facts.contract
        own = [n for loop, n in zip(self.loops, self.trips, strict=True) if loop.axis == contract]
        steps = math.prod(own)
        before = streamed = 0.0
        for each, depth in zip(loads_ns, self.depths, strict=True):
            if depth > self.sums_at:
                streamed += each * steps
            elif steps > FULL_UNROLL:
                before += each
            else:
                streamed += each
        array_ns = self.model.array_ns / self._iterations(self.sums_at)
        end = max(streamed + array_ns / steps, streamed / steps + array_ns)
        return self.model.transfer_ns + before + end - array_ns

    def _last_ns(self) -> float:
        """From the last product to the last byte of the result."""
        model = self.model
        tile = {a: min(t, self.facts.extent_of[a]) for a, t in self.facts.tiles}
        spans = {**self.spans[self.sums_at], **tile}
        stored_ns = model.load_ns(self.facts.stored, spans, self.facts.rows)
        return self._latency_ns() + model.evacuation_ns + model.transfer_ns + stored_ns

    # --- room -----------------------------------------------------------------------------------

    def _sbuf_bytes(self) -> int:
        held = 0
        for operand, depth in zip(self.facts.operands, self.depths, strict=True):
            if operand.place == "resident":
                continue
            spans = self.spans[depth]
            elements = math.prod(spans[axis] for axis in operand.axes)
            rows = spans[self.facts.contract]
            free = elements // rows * -(-rows // PARTITIONS)
            copies = self._copies(depth) if self._iterations(depth) > 1 else 1
            held += free * operand.bytes * copies
        copies = self._copies(self.sums_at) if self._iterations(self.sums_at) > 1 else 1
        return held + self.facts.columns * self.facts.epilogue_bytes * self.sums * copies

    def _banks(self) -> int:
        bank_bytes = self.model.arch.psum_bank_bytes
        copies = self._copies(self.sums_at) if self._iterations(self.sums_at) > 1 else 1
        return -(-self.facts.columns * 4 * self.sums // bank_bytes) * copies

    def _instructions(self) -> int:
        inner = self.spans[-1]
        count = math.prod(-(-inner[a] // t) for a, t in self.facts.tiles)
        for loop, trips in zip(self.loops, self.trips, strict=True):
            is_short = trips <= FULL_UNROLL and loop.copies > 1
            count *= trips if is_short else min(trips, loop.copies)
        return count
