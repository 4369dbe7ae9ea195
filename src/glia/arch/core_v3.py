"""NeuronCore-v3, in Trainium2: what differs from NeuronCore-v2."""

from __future__ import annotations

from glia.arch import core_v2, fabrics
from glia.arch.constant import Constant
from glia.arch.kit import Capability, build_arch, build_target, with_readings
from glia.arch.readings import READINGS_V3

_GUIDE = "Trainium2 architecture guide"
_NKI = "NKI nki.isa"
_SCHEMA = "Neuron profiler schema reference"
_PROFILE = "published profile of the NKI matmul tutorial, Trn2"
_OVERVIEW = "NKI DMA overview"
_GLOSSARY = "Neuron Explorer glossary, dI/dt"
_FUSION = "allenkchau/trainium-kernel-fusion, eight profiles, Trn2"
_KDA = "Jerry2423/kda-for-trainium, profiles of 23 kernels, Trn2"

CONSTANTS = core_v2.CONSTANTS | {
    "clocks_ghz.tensor": Constant(2.4, "GHz", _GUIDE, "high"),
    "clocks_ghz.vector": Constant(0.96, "GHz", _GUIDE, "high"),
    "clocks_ghz.scalar": Constant(1.2, "GHz", _GUIDE, "high"),
    "clocks_ghz.gpsimd": Constant(1.2, "GHz", _GUIDE, "high"),
    "clocks_ghz.sync": Constant(1.2, "GHz", "not published; the base clock", "assumed"),
    "clocks_ghz.base": Constant(1.2, "GHz", _SCHEMA, "high"),
    "sbuf_bytes_per_partition": Constant(224 * 1024, "bytes", _GUIDE, "high"),
    "sbuf_usable_bytes_per_partition": Constant(212984, "bytes", "NKI tile_size", "high"),
    "transpose_passes.f32": Constant(2.0, "passes", _GUIDE, "high"),
    "tensor_ramp_ns": Constant(
        4280, "ns", f"{_FUSION}: windows of 3413 ns from any moment on", "medium"
    ),
    "tensor_ramp_part": Constant(0.755, "fraction", _FUSION, "medium"),
    "tensor_rest_ns": Constant(
        3890, "ns", f"{_FUSION}: windows of 3413 ns from any moment on", "medium"
    ),
    "tensor_rest_part": Constant(0.36, "fraction", _FUSION, "medium"),
    "tensor_ramp_rate": Constant(0.5, "fraction", _GLOSSARY, "high"),
    "vector_modes": Constant(4.0, "elements per cycle", _GUIDE, "high"),
    "issue_gap_cycles.tensor": Constant(
        4, "tensor cycles", f"{_PROFILE}: 1028 cycles for 1024", "medium"
    ),
    "issue_gap_cycles.vector": Constant(67, "vector cycles", _PROFILE, "medium"),
    "issue_gap_cycles.scalar": Constant(60, "scalar cycles", _FUSION, "medium"),
    "operand_read_cycles.vector": Constant(60, "vector cycles", _FUSION, "medium"),
    "operand_read_cycles.scalar": Constant(136, "scalar cycles", _FUSION, "medium"),
    "two_input_cycles": Constant(1, "vector cycles", f"{_KDA}; trainium-kernel-fusion", "medium"),
    "latency_cycles.tensor": Constant(400, "tensor cycles", _PROFILE, "medium"),
    "latency_cycles.vector": Constant(158, "vector cycles", _PROFILE, "medium"),
    "latency_cycles.scalar": Constant(350, "scalar cycles", f"{_OVERVIEW}, timeline", "medium"),
    "activation_table_load_ns": Constant(1285, "ns", f"{_OVERVIEW}, timeline", "medium"),
    "semaphore_wake_ns": Constant(19, "ns", f"{_OVERVIEW}, timeline", "medium"),
    "hbm_bytes_per_ns": Constant(716, "bytes/ns", "profiler flops to bandwidth ratio", "high"),
    "dma_bytes_per_ns": Constant(23, "bytes/ns", "DMA bandwidth guide", "high"),
    "dma_descriptor_ns": Constant(4, "ns", f"{_PROFILE}: rows of 512 bytes and of 2 KiB", "medium"),
    "dma_issue_ns": Constant(88, "ns", f"{_OVERVIEW}, timeline", "medium"),
    "strided_access_rate": Constant(1.0, "fraction", "stated for NeuronCore-v2 only", "assumed"),
    "dma_hardware_issue_ns": Constant(600, "ns", "DGE deep dive", "high"),
    "dma_software_issue_ns": Constant(600, "ns", f"{_PROFILE}: 598 and 608 ns", "medium"),
    "dma_start_ns": Constant(815, "ns", f"{_OVERVIEW}, timeline: 615 to 1007 ns", "medium"),
    "dma_ring_skew_ns": Constant(24, "ns", f"{_OVERVIEW}, timeline: 370 ns over 16", "medium"),
    "dma_completion_ns": Constant(316, "ns", f"{_OVERVIEW}, timeline", "medium"),
    "dma_transpose_rate": Constant(0.9, "fraction", _GUIDE, "high"),
    "dma_transpose_sbuf_rate": Constant(0.5, "fraction", _GUIDE, "high"),
    "gpsimd_dma_bytes_per_ns": Constant(153, "bytes/ns", _GUIDE, "high"),
    "collective_bytes_per_ns": Constant(
        103.9, "bytes/ns", "nccom-test guide: 512 MiB all-reduced by 16 ranks", "low"
    ),
    "preamble_ns": Constant(13500, "ns", _FUSION, "medium"),
    "postamble_ns": Constant(1750, "ns", _FUSION, "medium"),
    "unmeasured_ns": Constant(6700, "ns", f"{_FUSION}, less what was measured", "medium"),
    "logical_core_ns": Constant(
        6200,
        "ns",
        "NKI library: rows quantised by two cores, less what one is known to take",
        "low",
    ),
    "peak_flops.bf16": Constant(78.64e12, "flop/s", _GUIDE, "high"),
    "peak_flops.f16": Constant(78.64e12, "flop/s", _GUIDE, "high"),
    "peak_flops.f8e4m3": Constant(157.3e12, "flop/s", _GUIDE, "high"),
    "peak_flops.f32": Constant(19.66e12, "flop/s", _GUIDE, "high"),
}

CAPABILITIES = core_v2.CAPABILITIES | {
    "has_shared_sbuf_port": Capability(False, _GUIDE),
    "has_shared_psum_port": Capability(False, _GUIDE),
    "has_bit_exact_transpose": Capability(True, f"{_NKI}.nc_transpose"),
    "has_double_row": Capability(True, f"{_NKI}.nc_matmul"),
    "has_quarter_tiles": Capability(True, f"{_NKI}.nc_matmul"),
    "has_scalar_engine_tensor_ops": Capability(True, f"{_NKI}.tensor_copy, tensor_scalar"),
    "has_immediate_bias": Capability(True, f"{_NKI}.activation"),
    "has_reciprocal_bias": Capability(True, "NKI API common fields, NKI Engine Selection"),
    "has_gpsimd_random": Capability(True, f"{_NKI}.rng"),
    "has_hardware_dge": Capability(True, f"{_NKI}.dma_copy"),
}

CORE_V3 = build_arch(
    "core_v3", 3, with_readings(CONSTANTS, READINGS_V3), CAPABILITIES, fabrics.TRN2
)

TARGETS = (
    build_target(
        "trn2", CORE_V3, chip_hbm_gib=96, lncs=(2, 1),
        source="Trainium2 hardware page; LNC 2 by default", nki_names=("trn2", "gen3"),
    ),
)  # fmt: skip
