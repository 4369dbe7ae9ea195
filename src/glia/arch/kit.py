"""How a NeuronCore generation is declared: every number with its unit, source and confidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONFIDENCES = ("high", "medium", "low", "assumed")


@dataclass(frozen=True)
class Constant:
    """One published (or assumed) number of the hardware.

    confidence: "high" stated in text or by several measurements, "medium" one measurement or a
    consistent inference, "low" read off one picture, "assumed" not published at all.
    """

    value: float
    unit: str
    source: str
    confidence: str

    def __post_init__(self) -> None:
        if self.confidence not in CONFIDENCES or not self.source or not self.unit:
            raise ValueError(f"constant {self.value} needs a unit, a source and a known confidence")


@dataclass(frozen=True)
class Arch:
    """One NeuronCore: its engines, memories, queues and rates.

    `constants` holds the declaration of every number under the field's name, or `field.key` for
    fields that are mappings. Clocks are in GHz, times in nanoseconds (ns) or in cycles of
    the engine named, bandwidths in bytes per nanosecond (= GB/s).
    """

    name: str
    generation: int
    constants: Mapping[str, Constant]

    clocks_ghz: Mapping[str, float]  # tensor vector scalar gpsimd sync base

    partitions: int
    quadrant_partitions: int
    sbuf_bytes_per_partition: int
    sbuf_usable_bytes_per_partition: int
    psum_banks: int
    psum_bank_bytes: int

    stationary_columns: int  # most columns of a stationary tile
    moving_columns: int  # most columns of a moving tile
    tensor_passes: Mapping[str, float]  # by dtype: times the cost of a bf16 multiplication
    transpose_passes: Mapping[str, float]  # by dtype: times the cost of a bf16 transposition
    load_stationary_cycles: float  # to load 128 columns of weights, hidden behind a multiplication
    tensor_ramp_ns: float  # time at half rate after a pause, 0 where there is none
    tensor_ramp_rate: float

    vector_modes: float  # most elements per cycle and partition in the fast modes
    scalar_half_speedup: float  # elements per cycle and partition of 16-bit copies
    min_issue_cycles: Mapping[str, int]  # by engine: least busy cycles of an instruction
    issue_gap_cycles: Mapping[str, float]  # by engine: between independent instructions
    latency_cycles: Mapping[str, float]  # by engine: from the last element in to the result visible
    gpsimd_dispatch_cycles: float
    strided_access_bytes: int  # between elements: from here on an access runs at another rate
    strided_access_rate: float
    accumulator_read_cycles: float
    activation_table_load_ns: float
    register_load_cycles: float
    sequencer_cycles: float
    semaphores: int
    semaphore_ns: float  # an instruction that waits for or sets a semaphore
    semaphore_wake_ns: float  # from a semaphore's change to the start of the waiting engine

    hbm_bytes_per_ns: float  # this core's share
    hbm_conflict_bytes: int  # rows so far apart, or a multiple, meet in the same channels
    hbm_conflict_rate: float  # part of the bandwidth that such rows reach
    dma_engines: int
    dma_queues: int  # rings in each engine
    dma_bytes_per_ns: float  # of one engine
    dma_descriptor_ns: float  # for each descriptor on one engine, beside its bytes
    dma_packet_bytes: int
    dma_issue_ns: float  # the issuing engine's time for one transfer
    dma_hardware_issue_ns: float  # of descriptor generation in hardware, 0 where there is none
    dma_software_issue_ns: float  # of descriptor generation by GpSimd
    dma_start_ns: float  # from the trigger to the first byte
    dma_ring_skew_ns: float  # from one DMA engine's first byte to the next engine's
    dma_completion_ns: float  # from the last byte to the consumer's start
    dma_transpose_rate: float  # part of the rate that a transposing transfer reaches
    dma_transpose_sbuf_rate: float  # the same from SBUF to SBUF
    dma_compute_rate: float  # part of the rate that a transfer with arithmetic reaches
    gpsimd_dma_bytes_per_ns: float  # of GpSimd's own DMA, each way, 0 where there is none
    collective_hop_ns: float  # from one rank to another within an instance
    collective_bytes_per_ns: float  # what a rank sends to others
    collective_mesh_bytes: int  # below it a collective goes to all others in a fixed number of hops
    collective_doubling_bytes: int  # from there to here in as many as the group can be halved

    preamble_ns: float
    postamble_ns: float
    peak_flops: Mapping[str, float]  # by dtype

    @property
    def psum_bytes_per_partition(self) -> int:
        return self.psum_banks * self.psum_bank_bytes

    @property
    def sbuf_bytes(self) -> int:
        return self.partitions * self.sbuf_bytes_per_partition

    @property
    def sources(self) -> dict[str, str]:
        """Where each number comes from, by name."""
        return {name: constant.source for name, constant in self.constants.items()}

    @property
    def assumed(self) -> tuple[str, ...]:
        """The names of the numbers that no public source gives."""
        return tuple(n for n, c in self.constants.items() if c.confidence == "assumed")

    def cycles_to_ns(self, engine: str, cycles: float) -> float:
        """Cycles of an engine's clock in nanoseconds."""
        return cycles / self.clocks_ghz[engine]


def build_arch(name: str, generation: int, constants: Mapping[str, Constant]) -> Arch:
    """An Arch from declared constants; TypeError unless they are exactly its fields."""
    values: dict[str, Any] = {}
    for key, constant in constants.items():
        head, _, tail = key.partition(".")
        if tail:
            values.setdefault(head, {})[tail] = constant.value
        else:
            values[head] = constant.value
    expected = {f.name for f in dataclasses.fields(Arch)} - {"name", "generation", "constants"}
    if set(values) != expected:
        raise TypeError(f"{name}: constants and fields differ in {sorted(set(values) ^ expected)}")
    return Arch(name=name, generation=generation, constants=constants, **values)
