"""The profiler's Summary: one number for each of its published metrics that the machine model has.

Names, units and definitions are those of the public schema, version 7.4.0: seconds, bytes, and
fractions of 1 for what it calls percent. Of a logical core with two physical ones, counts and bytes
are sums, and active times are means, so that none exceeds the total time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from glia.isa.kit import ENGINES
from glia.isa.operand import Memory
from glia.machine.ir import Binding
from glia.ntff.totals import GENERATORS, Totals, constants_bytes, cores_of, totals_of
from glia.ntff.work import profiler_opcode
from glia.profile.report import Profile
from glia.timing.costs import PS
from glia.timing.simulate import is_queue

Summary = Mapping[str, float | int]
NS = 1e-9
PREFIX = {"": "static_dma", "software": "software_dynamic_dma", "hardware": "hardware_dynamic_dma"}


def summarize_profile(
    profile: Profile, inputs: Iterable[Binding], outputs: Iterable[Binding], model_flops: int = 0
) -> Summary:
    """The metrics of one execution on all cores; `model_flops` of the HLO model, 0 for kernels."""
    totals = Totals()
    for core in cores_of(profile):
        totals += totals_of(core)
    sizes = _SizesOfTensors.of(profile, inputs, outputs)
    return {
        **_times(profile, totals),
        **_operations(profile, totals, model_flops),
        **_traffic(profile, totals),
        **sizes.metrics(profile),
        **_dma(profile, totals),
        **_engines(profile),
    }


class _SizesOfTensors:
    def __init__(self, inputs: int, outputs: int, weights: int) -> None:
        self.inputs, self.outputs, self.weights = inputs, outputs, weights

    @staticmethod
    def of(
        profile: Profile, inputs: Iterable[Binding], outputs: Iterable[Binding]
    ) -> _SizesOfTensors:
        """The bytes of a model's tensors."""
        sizes = [sum(binding.tile.bytes for binding in each) for each in (inputs, outputs)]
        return _SizesOfTensors(sizes[0], sizes[1], constants_bytes(cores_of(profile)))

    def metrics(self, profile: Profile) -> Summary:
        """The metrics that are about tensors."""
        once = self.inputs + self.weights
        return {
            "inputs_and_weights_size_bytes": once,
            "inputs_outputs_weights_size_bytes": once + self.outputs,
            "weight_size_bytes": self.weights,
            "mbu_min_read_util_percent": once / _most_bytes(profile),
        }


def total_ns(profile: Profile) -> float:
    """Nanoseconds until the last core ends."""
    return profile.timing.latency_ns


def _most_bytes(profile: Profile) -> float:
    """Bytes that the HBM could move in the whole time, by all cores."""
    return profile.target.arch.hbm_bytes_per_ns * total_ns(profile) * len(cores_of(profile))


def _times(profile: Profile, totals: Totals) -> Summary:
    cores = len(cores_of(profile))
    active = totals.any_active_ns / cores
    cycles = total_ns(profile) * profile.target.arch.clocks_ghz["base"]
    return {
        "total_time": total_ns(profile) * NS,
        "neuroncore_cycle_count": round(cycles),
        "total_exec_time": totals.executed_ns / cores * NS,
        "total_active_time": active * NS,
        "total_active_time_percent": active / total_ns(profile),
    }


def _operations(profile: Profile, totals: Totals, model_flops: int) -> Summary:
    arch = profile.target.arch
    most = arch.peak_flops["bf16"] * total_ns(profile) * NS * len(cores_of(profile))
    traffic = totals.read[Memory.HBM] + totals.written[Memory.HBM]
    balance = arch.peak_flops["bf16"] / (arch.hbm_bytes_per_ns / NS)
    useful = totals.flops - totals.transpose_flops
    of_model = model_flops or useful
    found: dict[str, float | int] = {
        "model_flops": of_model,
        "hardware_flops": totals.flops,
        "transpose_flops": totals.transpose_flops,
        "adjusted_hardware_flops": round(totals.adjusted_flops),
        "adjusted_transpose_flops": round(totals.adjusted_transpose_flops),
        "peak_flops_bandwidth_ratio": balance,
        "hfu_estimated_percent": totals.flops / most,
        "mm_arithmetic_intensity": useful / traffic if traffic else 0.0,
    }
    for name, flops in (("mfu", of_model), ("mfu_hlo", model_flops), ("mfu_inst", useful)):
        found[f"{name}_estimated_percent"] = flops / most
        achievable = min(1.0, flops / traffic / balance) if traffic else 0.0
        found[f"{name}_max_achievable_estimated_percent"] = achievable
    return found


def _traffic(profile: Profile, totals: Totals) -> Summary:
    traffic = totals.read[Memory.HBM] + totals.written[Memory.HBM]
    found: dict[str, float | int] = {"mbu_estimated_percent": traffic / _most_bytes(profile)}
    for memory in Memory:
        found[f"{memory.value.lower()}_read_bytes"] = totals.read[memory]
        found[f"{memory.value.lower()}_write_bytes"] = totals.written[memory]
    for way in ("save", "reload"):
        found[f"spill_{way}_bytes"] = totals.by_kind[way]
    for kind in ("input", "output", "weight"):
        found[f"{kind}_queue_bytes"] = totals.by_kind[kind]
    found["psum_read_sbuf_write_count"] = totals.drained_count
    found["psum_read_sbuf_write_bytes"] = totals.drained_bytes
    return found


def _dma(profile: Profile, totals: Totals) -> Summary:
    cores, time = len(cores_of(profile)), total_ns(profile)
    active = totals.dma_active_ns / cores
    moved, packets = sum(totals.moved.values()), sum(totals.packets.values())
    transfers = sum(totals.transfers.values())
    found: dict[str, float | int] = {
        "dma_active_time": active * NS,
        "dma_active_time_percent": active / time,
        "dma_active_cycles": round(active * profile.target.arch.clocks_ghz["base"]),
        "dma_transfer_time": totals.transfer_ns * NS,
        "dma_transfer_count": transfers,
        "dma_transfer_total_bytes": moved,
        "dma_transfer_average_bytes": moved / transfers if transfers else 0.0,
        "dma_queue_count": sum(len(core.timing.queue_busy_ns) for core in cores_of(profile)),
    }
    for name in GENERATORS:
        found |= _dma_of(PREFIX[name], name, totals, cores, time)
    dynamic = sum(totals.packets[name] for name in GENERATORS[1:])
    found["dynamic_dma_packet_percent"] = dynamic / packets if packets else 0.0
    dynamic = sum(totals.moved[name] for name in GENERATORS[1:])
    found["dynamic_dma_size_percent"] = dynamic / moved if moved else 0.0
    return found


def _dma_of(prefix: str, generator: str, totals: Totals, cores: int, time: float) -> Summary:
    """The metrics of transfers whose descriptors one generator makes."""
    packets, moved = totals.packets[generator], totals.moved[generator]
    active = totals.active_ps[generator] / PS
    return {
        f"{prefix}_active_time": active / cores * NS,
        f"{prefix}_active_time_percent": active / cores / time,
        f"{prefix}_packet_count": packets,
        f"{prefix}_size": moved,
        f"{prefix}_packet_percent": packets / (sum(totals.packets.values()) or 1),
        f"{prefix}_size_percent": moved / (sum(totals.moved.values()) or 1),
    }


def _engines(profile: Profile) -> Summary:
    cores = cores_of(profile)
    busy: Counter[str] = Counter()
    count: Counter[str] = Counter()
    products = activations = 0
    activation_ns = 0.0
    for core in cores:
        busy.update(core.timing.busy_ns)
        count.update(core.timing.instructions)
        for row in (row for row in core.timing.opcodes if not is_queue(row.engine)):
            opcode = profiler_opcode(row.engine, row.opcode)
            products += row.count if opcode == "MATMUL" else 0
            activations += row.count if opcode == "ACTIVATE" else 0
            activation_ns += row.busy_ns if opcode == "ACTIVATE" else 0.0
    found: dict[str, float | int] = {
        "matmul_instruction_count": products,
        "activate_instruction_count": activations,
        "activate_instruction_time": activation_ns * NS,
    }
    for engine in ENGINES:
        active = busy[engine] / len(cores)
        found |= {
            f"{engine}_engine_instruction_time": busy[engine] * NS,
            f"{engine}_engine_active_time": active * NS,
            f"{engine}_engine_active_time_percent": active / total_ns(profile),
            f"{engine}_engine_instruction_count": count[engine],
        }
    return found
