"""NeuronCore-v2, in Trainium1 and Inferentia2."""

from __future__ import annotations

from dataclasses import replace

from glia.arch import fabrics
from glia.arch.constant import Constant
from glia.arch.kit import Capability, build_arch, build_target, with_readings
from glia.arch.readings import READINGS_V2

_GUIDE = "Trainium/Inferentia2 architecture guide"
_PERFORMANCE = "NKI performance guide"
_SCHEMA = "Neuron profiler schema reference"
_ISA = "NKI release 2.26.1, nki.isa"
_NKI = "NKI nki.isa"
_BANDWIDTH = "DMA bandwidth guide"
_OVERVIEW = "NKI DMA overview"
_MATMUL = "matrix multiplication tutorial, releases 2.20 to 2.26"
_COLLECTIVES = "intra-node collectives: algorithms by size"
_LIMITS = "NKI nki.language.tile_size"
_V3 = "not published for this generation; the value of NeuronCore-v3"

CONSTANTS = {
    "clocks_ghz.tensor": Constant(2.8, "GHz", _GUIDE, "high"),
    "clocks_ghz.vector": Constant(1.12, "GHz", _GUIDE, "high"),
    "clocks_ghz.scalar": Constant(1.4, "GHz", _GUIDE, "high"),
    "clocks_ghz.gpsimd": Constant(1.4, "GHz", _GUIDE, "high"),
    "clocks_ghz.sync": Constant(1.4, "GHz", "not published; the base clock", "assumed"),
    "clocks_ghz.base": Constant(1.4, "GHz", _SCHEMA, "high"),
    "partitions": Constant(128, "partitions", _GUIDE, "high"),
    "quadrant_partitions": Constant(32, "partitions", _GUIDE, "high"),
    "sbuf_bytes_per_partition": Constant(192 * 1024, "bytes", _GUIDE, "high"),
    "sbuf_usable_bytes_per_partition": Constant(180224, "bytes", _LIMITS, "high"),
    "psum_banks": Constant(8, "banks", _GUIDE, "high"),
    "psum_bank_bytes": Constant(2048, "bytes", _GUIDE, "high"),
    "stationary_columns": Constant(128, "columns", _GUIDE, "high"),
    "moving_columns": Constant(512, "columns", _GUIDE, "high"),
    "tensor_passes.bf16": Constant(1.0, "passes", _SCHEMA, "high"),
    "tensor_passes.f16": Constant(1.0, "passes", _SCHEMA, "high"),
    "tensor_passes.f32": Constant(4.0, "passes", _SCHEMA, "high"),
    "tensor_passes.f8e4m3": Constant(1.0, "passes", _SCHEMA, "high"),
    "tensor_passes.f8e5m2": Constant(1.0, "passes", _SCHEMA, "high"),
    "tensor_passes.f8e3m4": Constant(1.0, "passes", _SCHEMA, "high"),
    "transpose_passes.f32": Constant(4.0, "passes", "Trainium2 guide: no mode before v3", "high"),
    "transpose_passes.bf16": Constant(1.0, "passes", f"{_ISA}.nc_transpose", "high"),
    "load_stationary_cycles": Constant(32, "tensor cycles", _PERFORMANCE, "high"),
    "tensor_ramp_ns": Constant(0.0, "ns", "none documented for this generation", "medium"),
    "tensor_ramp_rate": Constant(1.0, "fraction", "none documented for this generation", "medium"),
    "tensor_ramp_part": Constant(0.0, "fraction", "no ramp on this generation", "medium"),
    "tensor_rest_ns": Constant(0.0, "ns", "no ramp on this generation", "medium"),
    "tensor_rest_part": Constant(0.0, "fraction", "no ramp on this generation", "medium"),
    "vector_modes": Constant(1.0, "elements per cycle", f"{_GUIDE}: no fast modes", "high"),
    "scalar_half_speedup": Constant(1.0, "elements per cycle", _GUIDE, "high"),
    "min_issue_cycles.tensor": Constant(64, "tensor cycles", _GUIDE, "high"),
    "min_issue_cycles.vector": Constant(64, "vector cycles", f"{_ISA} cost formulas", "high"),
    "min_issue_cycles.scalar": Constant(64, "scalar cycles", f"{_ISA} cost formulas", "high"),
    "min_issue_cycles.gpsimd": Constant(64, "gpsimd cycles", f"{_ISA} cost formulas", "medium"),
    "issue_gap_cycles.tensor": Constant(0, "tensor cycles", f"{_ISA}.nc_matmul", "high"),
    "issue_gap_cycles.vector": Constant(
        20, "vector cycles", "profiles of mamba v1, Trn1", "medium"
    ),
    "issue_gap_cycles.scalar": Constant(0, "scalar cycles", "not published", "assumed"),
    "issue_gap_cycles.gpsimd": Constant(0, "gpsimd cycles", "not published", "assumed"),
    "operand_read_cycles.vector": Constant(0, "vector cycles", "not published", "assumed"),
    "operand_read_cycles.scalar": Constant(0, "scalar cycles", "not published", "assumed"),
    "latency_cycles.tensor": Constant(
        450, "tensor cycles", f"{_PERFORMANCE}, fig. 18, 20, 26: 149 to 173 ns", "medium"
    ),
    "latency_cycles.vector": Constant(80, "vector cycles", f"{_PERFORMANCE}, fig. 10", "medium"),
    "latency_cycles.scalar": Constant(200, "scalar cycles", f"{_PERFORMANCE}, fig. 16", "medium"),
    "latency_cycles.gpsimd": Constant(100, "gpsimd cycles", f"{_PERFORMANCE}: overhead", "medium"),
    "gpsimd_dispatch_cycles": Constant(150, "gpsimd cycles", f"{_ISA}.iota", "high"),
    "strided_access_bytes": Constant(16, "bytes", _GUIDE, "high"),
    "strided_access_rate": Constant(0.5, "fraction", _GUIDE, "high"),
    "accumulator_read_cycles": Constant(64, "scalar cycles", _GUIDE, "high"),
    "reciprocal_cycles": Constant(8, "vector cycles", f"{_ISA}.reciprocal", "high"),
    "two_input_cycles": Constant(
        2, "vector cycles", f"{_ISA}.tensor_tensor; {_PERFORMANCE}, fig. 10 and 17", "high"
    ),
    "activation_table_load_ns": Constant(368, "ns", "profile of ACT_TABLE_LOAD, Trn1", "medium"),
    "register_load_cycles": Constant(600, "cycles", f"{_ISA}.tensor_copy_dynamic_src", "high"),
    "sequencer_cycles": Constant(16, "cycles", "not published", "assumed"),
    "semaphore_ns": Constant(9, "ns", f"{_PERFORMANCE}, fig. 12 and 13", "medium"),
    "semaphore_wake_ns": Constant(19, "ns", _V3, "low"),
    "hbm_bytes_per_ns": Constant(410, "bytes/ns", f"{_PERFORMANCE}, fig. 27", "high"),
    "dma_engines": Constant(16, "engines", _GUIDE, "high"),
    "semaphores": Constant(256, "semaphores per core", "Neuron driver, device facts", "high"),
    "dma_queues": Constant(16, "rings per engine", _OVERVIEW, "high"),
    "dma_bytes_per_ns": Constant(17, "bytes/ns", _BANDWIDTH, "high"),
    "dma_descriptor_ns": Constant(
        7, "ns", f"{_PERFORMANCE}, fig. 29; 512-byte rows of the matmul tutorial, Trn2", "medium"
    ),
    "dma_packet_bytes": Constant(4096, "bytes", "compute-communication overlap page", "medium"),
    "dma_issue_ns": Constant(46, "ns", "profiles of DMA triggers, Trn1", "medium"),
    "dma_hardware_issue_ns": Constant(0, "ns", "no hardware descriptor generation", "high"),
    "dma_software_issue_ns": Constant(429, "ns", f"{_ISA}: dynamic copies, 600 cycles", "low"),
    "dma_start_ns": Constant(800, "ns", f"{_BANDWIDTH}: 1300 ns in all, less the skew", "medium"),
    "dma_ring_skew_ns": Constant(24, "ns", _V3, "assumed"),
    "dma_completion_ns": Constant(300, "ns", f"{_BANDWIDTH}: 1300 ns in all", "medium"),
    "dma_transpose_rate": Constant(
        0.5, "fraction", "not published for this generation; assumed to be that from SBUF", "low"
    ),
    "dma_transpose_sbuf_rate": Constant(0.5, "fraction", _V3, "low"),
    "dma_compute_rate": Constant(0.5, "fraction", "Trainium3 guide: before NC-v4", "medium"),
    "gpsimd_dma_bytes_per_ns": Constant(0, "bytes/ns", "Trainium2 guide: new there", "high"),
    "collective_hop_ns": Constant(2000, "ns", "intra-node collectives: 1 to 2 us", "medium"),
    "collective_bytes_per_ns": Constant(
        56.7, "bytes/ns", "nccom-test guide: 1 GiB all-reduced by 2 ranks", "low"
    ),
    "collective_mesh_bytes": Constant(1 << 20, "bytes", _COLLECTIVES, "high"),
    "collective_doubling_bytes": Constant(56 << 20, "bytes", _COLLECTIVES, "high"),
    "preamble_ns": Constant(13500, "ns", "profile of the exp kernel, Trn1", "medium"),
    "postamble_ns": Constant(
        4900, "ns", "profiles of the exp kernel and mamba v1, Trn1: 5.5 and 4.3 us", "medium"
    ),
    "unmeasured_ns": Constant(
        0, "ns", "CS 149 assignment 4: 30 us measured, 29 profiled, Trn1", "medium"
    ),
    "logical_core_ns": Constant(0, "ns", f"{_GUIDE}: one core in each logical core", "high"),
    "peak_flops.bf16": Constant(91.75e12, "flop/s", _GUIDE, "high"),
    "peak_flops.f16": Constant(91.75e12, "flop/s", _GUIDE, "high"),
    "peak_flops.f8e4m3": Constant(91.75e12, "flop/s", _GUIDE, "high"),
    "peak_flops.f32": Constant(22.9e12, "flop/s", _GUIDE, "high"),
}

CAPABILITIES = {
    "is_documented": Capability(True, _GUIDE),
    "has_nki": Capability(True, f"{_NKI}.nc_version"),
    "has_shared_sbuf_port": Capability(True, _GUIDE),
    "has_shared_psum_port": Capability(True, _GUIDE),
    "has_bit_exact_transpose": Capability(False, f"{_NKI}.nc_transpose"),
    "has_double_row": Capability(False, f"{_NKI}.nc_matmul"),
    "has_quarter_tiles": Capability(False, f"{_NKI}.nc_matmul"),
    "has_bf16_sums": Capability(False, f"{_NKI}.nc_matmul"),
    "has_products_across_banks": Capability(False, _GUIDE),
    "has_accumulation_on_any_value": Capability(False, f"{_NKI}.nc_matmul"),
    "has_microscaling_dtypes": Capability(False, "NKI API common fields, Supported Data Types"),
    "has_fast_f8_copies": Capability(False, f"{_GUIDE}: no fast modes"),
    "has_scalar_engine_tensor_ops": Capability(False, f"{_NKI}.tensor_copy, tensor_scalar"),
    "has_immediate_bias": Capability(False, f"{_NKI}.activation"),
    "has_reciprocal_bias": Capability(False, "NKI API common fields, NKI Engine Selection"),
    "has_gpsimd_random": Capability(False, f"{_NKI}.rng"),
    "has_vector_random_state": Capability(False, f"{_NKI}.rand_set_state"),
    "has_hardware_dge": Capability(False, f"{_NKI}.dma_copy"),
    "has_dma_priority": Capability(False, f"{_NKI}.dma_copy"),
    "has_receive_displacements": Capability(False, "NKI nki.collectives.all_to_all_v"),
    "has_indirect_views": Capability(False, "NKI nki.language.NkiTensor.indirect"),
}

CORE_V2 = build_arch(
    "core_v2", 2, with_readings(CONSTANTS, READINGS_V2), CAPABILITIES, fabrics.TRN1
)

_TRAINIUM = "Trainium hardware page"
_INFERENTIA2 = "Inferentia2 hardware page"

TARGETS = (
    build_target(
        "trn1", CORE_V2, chip_hbm_gib=32, lncs=(1,), source=_TRAINIUM,
        nki_names=("trn1", "gen2"),
    ),
    build_target(
        "trn1n", replace(CORE_V2, fabric=fabrics.TRN1N), chip_hbm_gib=32, lncs=(1,),
        source=_TRAINIUM, nki_names=("trn1n",),
    ),
    build_target(
        "inf2", replace(CORE_V2, fabric=fabrics.INF2), chip_hbm_gib=32, lncs=(1,),
        source=_INFERENTIA2, nki_names=("inf2",),
    ),
)  # fmt: skip
