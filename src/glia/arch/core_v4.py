"""NeuronCore-v4, in Trainium3: what differs from NeuronCore-v3."""

from __future__ import annotations

from glia.arch import core_v3, fabrics
from glia.arch.constant import Constant
from glia.arch.kit import Capability, build_arch, build_target, with_readings
from glia.arch.readings import READINGS_V4

_GUIDE = "Trainium3 architecture guide"
_NKI = "NKI nki.isa"
_V3 = "not published for this generation; the value of NeuronCore-v3"


def _inherited(constant: Constant) -> Constant:
    """A timing that only NeuronCore-v3 has been measured for."""
    return Constant(constant.value, constant.unit, _V3, "assumed")


_MEASURED = (
    "issue_gap_cycles.vector",
    "issue_gap_cycles.tensor",
    "issue_gap_cycles.scalar",
    "operand_read_cycles.vector",
    "operand_read_cycles.scalar",
    "two_input_cycles",
    "tensor_ramp_ns",
    "tensor_ramp_part",
    "tensor_rest_ns",
    "tensor_rest_part",
    "preamble_ns",
    "postamble_ns",
    "unmeasured_ns",
    "logical_core_ns",
    "latency_cycles.tensor",
    "latency_cycles.vector",
    "latency_cycles.scalar",
    "latency_cycles.gpsimd",
    "activation_table_load_ns",
    "semaphore_ns",
    "semaphore_wake_ns",
    "dma_descriptor_ns",
    "dma_issue_ns",
    "dma_ring_skew_ns",
    "dma_software_issue_ns",
    "collective_bytes_per_ns",
    "min_issue_cycles.tensor",
)

CONSTANTS = (
    core_v3.CONSTANTS
    | {name: _inherited(core_v3.CONSTANTS[name]) for name in _MEASURED}
    | {
        "clocks_ghz.vector": Constant(1.2, "GHz", _GUIDE, "high"),
        "clocks_ghz.base": Constant(1.2, "GHz", "not stated; engines say 1.2", "assumed"),
        "sbuf_bytes_per_partition": Constant(256 * 1024, "bytes", _GUIDE, "high"),
        "sbuf_usable_bytes_per_partition": Constant(245752, "bytes", "NKI tile_size", "high"),
        "tensor_passes.f8e4m3fn": Constant(1.0, "passes", _GUIDE, "medium"),
        "scalar_half_speedup": Constant(2.0, "elements per cycle", _GUIDE, "high"),
        "hbm_bytes_per_ns": Constant(588, "bytes/ns", f"{_GUIDE}: 4.7 TB/s over 8 cores", "medium"),
        "dma_bytes_per_ns": Constant(33, "bytes/ns", "DMA bandwidth guide", "high"),
    }
)

CAPABILITIES = core_v3.CAPABILITIES | {
    "has_bf16_sums": Capability(True, f"{_NKI}.nc_matmul"),
    "has_products_across_banks": Capability(True, _GUIDE),
    "has_accumulation_on_any_value": Capability(True, f"{_NKI}.nc_matmul"),
    "has_microscaling_dtypes": Capability(True, "NKI API common fields, Supported Data Types"),
    "has_fast_f8_copies": Capability(True, _GUIDE),
    "has_vector_random_state": Capability(True, f"{_NKI}.rand_set_state"),
    "has_dma_priority": Capability(True, f"{_NKI}.dma_copy"),
    "has_receive_displacements": Capability(True, "NKI nki.collectives.all_to_all_v"),
    "has_indirect_views": Capability(True, "NKI nki.language.NkiTensor.indirect"),
}

CORE_V4 = build_arch(
    "core_v4", 4, with_readings(CONSTANTS, READINGS_V4), CAPABILITIES, fabrics.TRN3_GEN2
)

TARGETS = (
    build_target(
        "trn3", CORE_V4, chip_hbm_gib=144, lncs=(2, 1),
        source="Trainium3 hardware page; LNC as on Trainium2",
        nki_names=("trn3", "gen4", "trn3pre", "trn3_a0"),
    ),
)  # fmt: skip
