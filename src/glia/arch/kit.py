"""How a core and its targets are declared: numbers with unit and source, capabilities with source.

A chip is one file, `core_v<generation>.py`: its constants, its capabilities, and TARGETS, the
instances that have it. Code elsewhere asks for a capability by name, never for a generation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glia.arch.constant import Constant, Reading
from glia.arch.fabric import Fabric


@dataclass(frozen=True)
class Capability:
    """Whether a core can do something that not every core can, and the page that says so."""

    is_present: bool
    source: str

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError("a capability needs a source")


@dataclass(frozen=True)
class Capabilities:
    """What some cores can do and others cannot; `Arch.capability_sources` has the pages."""

    is_documented: bool  # public pages describe it; else it is modelled as its successor
    has_nki: bool  # NKI compiles kernels for it
    has_shared_sbuf_port: bool  # Vector and GpSimd Engine access SBUF one at a time
    has_shared_psum_port: bool  # Vector and Scalar Engine access PSUM one at a time
    has_bit_exact_transpose: bool  # the Tensor Engine transposes without multiplying
    has_double_row: bool  # the Tensor Engine contracts two rows of 8-bit floats at once
    has_quarter_tiles: bool  # a tile of the systolic array may have 32 rows or columns
    has_bf16_sums: bool  # the Tensor Engine also accumulates in bfloat16
    has_products_across_banks: bool  # a product may cross PSUM banks, and take all of them
    has_accumulation_on_any_value: bool  # a product may be added to what another instruction wrote
    has_microscaling_dtypes: bool  # engines take float8_e4m3fn, float8_e8m0fnu and packed floats
    has_fast_f8_copies: bool  # fast copies of the Vector Engine take 8-bit floats too
    has_scalar_engine_tensor_ops: bool  # the Scalar Engine has tensor_copy and tensor_scalar
    has_immediate_bias: bool  # the bias of an activation may be a number, not only a column
    has_reciprocal_bias: bool  # the activation function reciprocal takes a bias
    has_gpsimd_random: bool  # GpSimd generates random numbers
    has_vector_random_state: bool  # the state of the Vector Engine's generators can be set and read
    has_hardware_dge: bool  # hardware generates DMA descriptors for the Sync and Scalar Engines
    has_dma_priority: bool  # a transfer has a priority
    has_receive_displacements: bool  # all_to_all_v takes displacements of what is received
    has_indirect_views: bool  # engines take operands whose elements an index on chip chooses


@dataclass(frozen=True)
class Arch:
    """One NeuronCore: its engines, memories, queues, rates and capabilities.

    `constants` holds the declaration of every number under the field's name, or `field.key` for
    fields that are mappings. Clocks are in GHz, times in nanoseconds (ns) or in cycles of
    the engine named, bandwidths in bytes per nanosecond (= GB/s).
    """

    name: str
    generation: int  # for texts and NKI's nc_version; decisions ask `capabilities`
    constants: Mapping[str, Constant]
    capabilities: Capabilities
    capability_sources: Mapping[str, str]
    fabric: Fabric

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
    tensor_ramp_ns: float  # busy time at a lower rate after a pause, 0 where there is none
    tensor_ramp_rate: float
    tensor_ramp_part: float  # of the time: an array less busy does not reach its full rate
    tensor_rest_ns: float  # idle time after which the full rate is lost
    tensor_rest_part: float  # of the time: an array busier than this keeps it

    vector_modes: float  # most elements per cycle and partition in the fast modes
    scalar_half_speedup: float  # elements per cycle and partition of 16-bit copies
    min_issue_cycles: Mapping[str, int]  # by engine: least busy cycles of an instruction
    issue_gap_cycles: Mapping[str, float]  # by engine: between independent instructions
    operand_read_cycles: Mapping[str, float]  # by engine: for an operand of one element a partition
    latency_cycles: Mapping[str, float]  # by engine: from the last element in to the result visible
    gpsimd_dispatch_cycles: float
    strided_access_bytes: int  # between elements: from here on an access runs at another rate
    strided_access_rate: float
    accumulator_read_cycles: float
    reciprocal_cycles: float  # of the Vector Engine, for an element of a partition
    two_input_cycles: float  # of it, for an element of two tensors in SBUF that are not all 16-bit
    activation_table_load_ns: float
    register_load_cycles: float
    sequencer_cycles: float
    semaphores: int
    semaphore_ns: float  # an instruction that waits for or sets a semaphore
    semaphore_wake_ns: float  # from a semaphore's change to the start of the waiting engine

    hbm_bytes_per_ns: float  # this core's share
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
    unmeasured_ns: float  # of the preamble, before what nki.benchmark measures
    logical_core_ns: float  # what a run on all cores of a logical core takes beside its programs
    peak_flops: Mapping[str, float]  # by dtype

    @property
    def psum_bytes_per_partition(self) -> int:
        return self.psum_banks * self.psum_bank_bytes

    @property
    def sbuf_bytes(self) -> int:
        return self.partitions * self.sbuf_bytes_per_partition

    def with_values(self, values: Mapping[str, float]) -> Arch:
        """The core with other values of some constants, by their names."""
        changed = {
            name: dataclasses.replace(self.constants[name], value=value)
            for name, value in values.items()
        }
        fields: dict[str, Any] = {}
        for name, value in values.items():
            head, _, tail = name.partition(".")
            if tail:
                fields.setdefault(head, dict(getattr(self, head)))[tail] = value
            else:
                fields[head] = value
        return dataclasses.replace(self, constants={**self.constants, **changed}, **fields)

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


def with_readings(
    constants: Mapping[str, Constant], readings: Mapping[str, tuple[Reading, ...]]
) -> dict[str, Constant]:
    """The constants, those named with their readings; KeyError for a name that is none."""
    found = dict(constants)
    for name, each in readings.items():
        found[name] = dataclasses.replace(found[name], readings=each)
    return found


def build_arch(
    name: str,
    generation: int,
    constants: Mapping[str, Constant],
    capabilities: Mapping[str, Capability],
    fabric: Fabric,
) -> Arch:
    """An Arch from declarations; TypeError unless they name exactly its fields and capabilities."""
    values: dict[str, Any] = {}
    for key, constant in constants.items():
        head, _, tail = key.partition(".")
        if tail:
            values.setdefault(head, {})[tail] = constant.value
        else:
            values[head] = constant.value
    _require_same(name, "constants", set(values), _names_of(Arch) - _NO_CONSTANTS)
    _require_same(name, "capabilities", set(capabilities), _names_of(Capabilities))
    present = {key: each.is_present for key, each in capabilities.items()}
    sources = {key: each.source for key, each in capabilities.items()}
    return Arch(name, generation, constants, Capabilities(**present), sources, fabric, **values)


_NO_CONSTANTS = {"name", "generation", "constants", "capabilities", "capability_sources", "fabric"}


def _names_of(kind: type[Arch | Capabilities]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _require_same(name: str, what: str, declared: set[str], expected: set[str]) -> None:
    if declared != expected:
        raise TypeError(f"{name}: {what} and fields differ in {sorted(declared ^ expected)}")


@dataclass(frozen=True)
class Target:
    """A target the compilers accept: an instance family.

    `hbm_bytes` is one physical core's share of the chip's device memory; `default_lnc` how many
    physical cores make a logical one when nothing else is asked for. A target that is not compiled
    is only described. `nki_names` are what NKI calls it as a platform target.
    """

    name: str
    arch: Arch
    hbm_bytes: int
    chip_hbm_bytes: int
    default_lnc: int
    lncs: tuple[int, ...]
    source: str
    nki_names: tuple[str, ...] = ()
    is_compiled: bool = True

    @property
    def cores_per_chip(self) -> int:
        return self.arch.fabric.ranks

    def device_memory(self, lnc: int = 0) -> int:
        """Bytes of HBM of a logical core of so many physical ones; 0 stands for the default."""
        return self.hbm_bytes * (lnc or self.default_lnc)


def build_target(
    name: str,
    arch: Arch,
    *,
    chip_hbm_gib: int,
    lncs: tuple[int, ...],
    source: str,
    nki_names: tuple[str, ...] = (),
    is_compiled: bool = True,
) -> Target:
    """A Target whose cores share the chip's memory evenly; the first of `lncs` is the default."""
    chip_bytes = chip_hbm_gib << _GIB_SHIFT
    share = chip_bytes // arch.fabric.ranks
    return Target(name, arch, share, chip_bytes, lncs[0], lncs, source, nki_names, is_compiled)


_GIB_SHIFT = 30
