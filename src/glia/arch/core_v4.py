"""NeuronCore-v4, in Trainium3: what differs from NeuronCore-v3."""

from __future__ import annotations

from glia.arch import core_v3
from glia.arch.kit import Constant, build_arch

_GUIDE = "Trainium3 architecture guide"
_V3 = "not published for this generation; the value of NeuronCore-v3"


def _inherited(constant: Constant) -> Constant:
    """A timing that only NeuronCore-v3 has been measured for."""
    return Constant(constant.value, constant.unit, _V3, "assumed")


_MEASURED = (
    "issue_gap_cycles.vector",
    "issue_gap_cycles.tensor",
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
    "hbm_conflict_rate",
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

CORE_V4 = build_arch("core_v4", 4, CONSTANTS)
