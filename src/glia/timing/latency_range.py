"""How far the latency of a program moves within what publications give for the constants.

The constants of a group, as the engines' or the launch's, go to the slow and to the fast end of
their spreads together; what the groups add is independent, and combined as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot

from glia.arch import Arch
from glia.machine.ir import Program
from glia.timing.cores import simulate_cores

GROUPS = {
    "engines": (
        "clocks_ghz", "tensor_passes", "transpose_passes", "load_stationary_cycles",
        "vector_modes", "scalar_half_speedup", "min_issue_cycles", "issue_gap_cycles",
        "latency_cycles", "gpsimd_dispatch_cycles", "accumulator_read_cycles",
        "reciprocal_cycles", "two_input_cycles", "activation_table_load_ns",
        "register_load_cycles",
        "sequencer_cycles", "strided_access_rate", "tensor_ramp_ns", "tensor_ramp_part",
        "tensor_rest_ns", "tensor_rest_part", "operand_read_cycles",
    ),
    "DMA rates": (
        "hbm_bytes_per_ns", "dma_bytes_per_ns", "dma_descriptor_ns", "dma_transpose_rate",
        "dma_transpose_sbuf_rate", "dma_compute_rate", "gpsimd_dma_bytes_per_ns",
    ),
    "DMA and semaphore latencies": (
        "dma_start_ns", "dma_completion_ns", "dma_ring_skew_ns", "dma_issue_ns",
        "dma_software_issue_ns", "dma_hardware_issue_ns", "semaphore_ns", "semaphore_wake_ns",
    ),
    "collectives": ("collective_hop_ns", "collective_bytes_per_ns"),
    "launch": ("preamble_ns", "postamble_ns", "unmeasured_ns", "logical_core_ns"),
}  # fmt: skip
_RATES = ("GHz", "bytes/ns", "fraction", "elements per cycle")  # more of them is faster


@dataclass(frozen=True)
class LatencyRange:
    """How much sooner or later a program may end, in all and by group of constants."""

    sooner_ns: float
    later_ns: float
    parts: Mapping[str, tuple[float, float]]  # by group: sooner, later


def latency_range(programs: Sequence[Program], arch: Arch) -> LatencyRange:
    """The range of the latency of programs that run together, of the one that ends last."""
    expected = _latency_ns(programs, arch)
    parts: dict[str, tuple[float, float]] = {}
    for group in GROUPS:
        fast, slow = (_latency_ns(programs, arch.with_values(v)) for v in extremes(arch, group))
        parts[group] = (max(0.0, expected - fast), max(0.0, slow - expected))
    sooner, later = (hypot(*(part[side] for part in parts.values())) for side in (0, 1))
    return LatencyRange(sooner, later, parts)


def extremes(arch: Arch, group: str) -> tuple[dict[str, float], dict[str, float]]:
    """The values of a group's constants at which a program is fastest, and slowest."""
    fast: dict[str, float] = {}
    slow: dict[str, float] = {}
    for name, constant in arch.constants.items():
        low, high = constant.spread
        if name.partition(".")[0] not in GROUPS[group] or low == high:
            continue
        is_rate = constant.unit in _RATES
        fast[name], slow[name] = (high, low) if is_rate else (low, high)
    return fast, slow


def _latency_ns(programs: Sequence[Program], arch: Arch) -> float:
    return max(each.latency_ns for each in simulate_cores(programs, arch, trace=False))
