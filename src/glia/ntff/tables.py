"""The profiler's tables, row by row, under the field names of the public schema, version 7.4.0.

Fields that the machine model has no value for are absent; the table Warning says which parts of a
profile are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia import __version__
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.neff.package import Neff
from glia.ntff.summary import Summary, summarize_profile
from glia.ntff.totals import cores_of, merged_intervals
from glia.ntff.trace_file import TraceFile
from glia.ntff.work import Work, profiler_opcode, work_of
from glia.profile.bandwidth import hbm_bandwidth
from glia.profile.describe import operands_text, pattern_text
from glia.profile.report import Profile
from glia.timing.costs import PS
from glia.timing.simulate import is_queue

SCHEMA_VERSION = "7.4.0"
QUEUE_TYPES = {"": "data", "software": "software_dynamic", "hardware": "hardware_dynamic"}
PAST_EVENTS = "rows of {left} of {total} executions: a table holds {kept} of each core"
NOT_HERE = "fields about compiler levels, checksums, semaphores, packets and throttling"

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Row]]


@dataclass(frozen=True)
class CapturedProfile:
    """What a profile is made from: the NEFF, its hash, the captured execution and its timing."""

    neff: Neff
    neff_hash: str
    trace: TraceFile
    profile: Profile

    @property
    def name(self) -> str:
        """The profile's name, as the profiler makes it from the NEFF's hash."""
        return f"n_{self.neff_hash[:40]}"

    def summary(self) -> Summary:
        """The metrics of the table Summary."""
        flops = int(self.neff.statistics.get("flops", 0))
        return summarize_profile(self.profile, self.neff.inputs, self.neff.outputs, flops)

    def tables(self) -> Tables:
        """Every table that has rows, by its name in the schema."""
        made: dict[str, Callable[[], list[Row]]] = {
            "Summary": lambda: [dict(self.summary())],
            "Instruction": self._instructions,
            "DmaPacketAggregated": self._transfers,
            "ActiveTime": self._active_times,
            "OpcodeSummary": self._opcodes,
            "HbmUsage": self._hbm_usage,
            "TensorInfo": self._tensors,
            "Error": self._errors,
            "Warning": self._warnings,
            "NeffHeader": self._header,
            "Metadata": self._metadata,
        }
        found = {name: rows() for name, rows in made.items()}
        return {name: rows for name, rows in found.items() if rows}

    def _instructions(self) -> list[Row]:
        rows = (row for core in self._cores() for row in core.instruction_rows())
        return _numbered(rows)

    def _transfers(self) -> list[Row]:
        return _numbered(row for core in self._cores() for row in core.transfer_rows())

    def _cores(self) -> Iterator[_Core]:
        return (_Core(number, core) for number, core in enumerate(cores_of(self.profile)))

    def _active_times(self) -> list[Row]:
        return [row for core in self._cores() for row in core.active_rows()]

    def _opcodes(self) -> list[Row]:
        time = self.profile.timing.latency_ns
        totals: dict[tuple[str, str], Row] = {}
        for core in cores_of(self.profile):
            for row in (row for row in core.timing.opcodes if not is_queue(row.engine)):
                key = row.engine, profiler_opcode(row.engine, row.opcode)
                entry = totals.setdefault(key, {"instruction_count": 0, "busy": 0.0})
                entry["instruction_count"] += row.count
                entry["busy"] += row.busy_ns
        return [
            {
                "engine": engine,
                "opcode": opcode,
                "instruction_count": entry["instruction_count"],
                "instruction_time_ns": round(entry["busy"]),
                "active_time_ns": round(entry["busy"]),
                "active_time_percent": entry["busy"] / time / len(cores_of(self.profile)),
            }
            for (engine, opcode), entry in totals.items()
        ]

    def _hbm_usage(self) -> list[Row]:
        rows = []
        for number, core in enumerate(cores_of(self.profile)):
            traffic, total = hbm_bandwidth(core.timing), 0.0
            for index, rates in enumerate(zip(traffic.read, traffic.written, strict=True)):
                total += sum(rates) * traffic.interval_ns
                rows.append(
                    {
                        "timestamp": round(traffic.begin_ns + (index + 1) * traffic.interval_ns),
                        "current_throughput": sum(rates) * 1e9,
                        "total_transfer_bytes": round(total),
                        "pcore_idx": number,
                    }
                )
        return rows

    def _tensors(self) -> list[Row]:
        bindings = [("IN", each) for each in self.neff.inputs]
        bindings += [("OUT", each) for each in self.neff.outputs]
        return [
            {
                "variable_name": each.name,
                "type": kind,
                "shape": " ".join(map(str, each.shape)),
                "size": each.tile.bytes,
            }
            for kind, each in bindings
        ]

    def _errors(self) -> list[Row]:
        return [
            {
                "description": "DMA2D OOB",
                "error_type_id": 1,
                "metadata": report.text,
                "pcore_idx": report.core,
                "timestamp": round(self.profile.timing.latency_ns),
                "type": "Errors",
            }
            for report in self.trace.reports
        ]

    def _warnings(self) -> list[Row]:
        texts = [NOT_HERE, *self.profile.not_modelled]
        for core in cores_of(self.profile):
            if left := core.timing.events_left_out:
                kept = len(core.timing.events)
                texts.append(PAST_EVENTS.format(left=left, total=left + kept, kept=kept))
        return [{"message": text, "category": "Not Modelled"} for text in texts]

    def _header(self) -> list[Row]:
        return [
            {
                "network_name": self.neff.name,
                "hash": self.neff_hash,
                "neuroncore_count": len(self.neff.programs),
                "pcore_count_per_lnc": len(self.neff.programs),
            }
        ]

    def _metadata(self) -> list[Row]:
        arch, timing = self.profile.target.arch, self.profile.timing
        clocks = {
            f"{engine}_engine_clock_freq": arch.clocks_ghz[engine]
            for engine in ("tensor", "vector", "scalar", "gpsimd")
        }
        channels = {
            f"{engine}_engine_num_channels": arch.partitions
            for engine in ("vector", "scalar", "gpsimd")
        }
        return [
            {
                "profile_schema_version": SCHEMA_VERSION,
                "num_physical_cores": len(self.neff.programs),
                "vnc_enabled": len(self.neff.programs) > 1,
                "first_hw_timestamp": 0,
                "last_hw_timestamp": round(timing.latency_ns),
                "dma_ddr_bandwidth": arch.dma_bytes_per_ns * arch.dma_engines * 1e9,
                "num_dma_engines_per_neuroncore": arch.dma_engines,
                "hbm_ddr_bandwidth": arch.hbm_bytes_per_ns * 1e9,
                "tensor_engine_num_rows": arch.partitions,
                "tensor_engine_num_cols": arch.stationary_columns,
                **clocks,
                **channels,
                "neuroncore_clock_freq": arch.clocks_ghz["base"],
                "ticks_per_nanosec": 1,
                "instance_type": self.profile.target.name,
                "compiler_version": self.trace.written_by,
                "explorer_version": f"glia {__version__}",
                "profile_name": self.name,
                "is_simulation": True,
            }
        ]


def _numbered(rows: Iterator[Row]) -> list[Row]:
    return [row | {"id": number} for number, row in enumerate(rows)]


class _Core:
    """The rows of one core; what executions of a step have in common is made once."""

    def __init__(self, number: int, profile: Profile) -> None:
        self.number, self.profile = number, profile
        self._common: dict[int, Row] = {}
        self._positions: dict[str, int] = {}

    def instruction_rows(self) -> Iterator[Row]:
        """An Instruction for each execution on an engine, in the order in which they began."""
        return self._rows(is_wanted=lambda track: not is_queue(track), common=self._instruction)

    def transfer_rows(self) -> Iterator[Row]:
        """A DmaPacketAggregated for each transfer, in the order in which they began."""
        return self._rows(is_wanted=is_queue, common=self._transfer)

    def _rows(
        self, is_wanted: Callable[[str], bool], common: Callable[[int, Instr, str], Row]
    ) -> Iterator[Row]:
        run = self.profile.timing.executions
        if run is None:
            return
        for step, start, end, _ in run.rows[np.argsort(run.rows[:, 1], kind="stable")].tolist():
            track = run.track(step)
            if not is_wanted(track):
                continue
            if step not in self._common:
                self._common[step] = common(step, run.instruction(step), track)
            yield self._timed(self._common[step], round(start / PS), round(end / PS))

    def _timed(self, common: Row, start: int, end: int) -> Row:
        times = {"start_ts": start, "end_ts": end, "duration_ns": end - start}
        if "throughput" in common:
            times["throughput"] = common["transfer_bytes"] / max(end - start, 1) * 1e9
        return {**common, **times, "pcore_idx": self.number}

    def _instruction(self, step: int, instr: Instr, track: str) -> Row:
        work = work_of(instr, self.profile.target.arch)
        position = self._positions[track] = self._positions.get(track, -1) + 1
        kind = {"tensor_instruction_type": _product_kind(work)} if track == "tensor" else {}
        function = {"scalar_activation_fn": instr.function} if hasattr(instr, "function") else {}
        return {
            "engine": track,
            "timeline_track": track,
            "opcode": profiler_opcode(track, instr.mnemonic()),
            "compiler_opcode": instr.mnemonic(),
            "operands": operands_text(instr),
            "pc": position,
            "bir_id": f"sg{self.number:04}:{step}",
            **_place(instr),
            **_bytes(work),
            "raw_flops": work.flops,
            "adjusted_flops": round(work.flops * work.adjusted),
            "flops_transpose": work.transpose_flops,
            "adjusted_flops_transpose": round(work.transpose_flops * work.adjusted),
            **kind,
            **function,
        }

    def _transfer(self, step: int, instr: Instr, track: str) -> Row:
        work = work_of(instr, self.profile.target.arch)
        source, dest = list(instr.read_patterns()), list(instr.written_patterns())
        return {
            "block_id": step,
            "queue_name": track.partition(" ")[2],
            "queue_idx": 0,
            "queue_type": QUEUE_TYPES[work.generator],
            "op": instr.mnemonic(),
            "variable": _variable([*source, *dest]),
            "read_bytes": work.moved,
            "write_bytes": work.moved,
            "transfer_bytes": work.moved,
            "throughput": 0.0,
            "source": _memories(source),
            "dest": _memories(dest),
            "semaphore_id": ",".join(signal.semaphore for signal in instr.signals),
            "read_shape": _patterns(source),
            "write_shape": _patterns(dest),
            **_place(instr),
        }

    def active_rows(self) -> Iterator[Row]:
        """An ActiveTime for each stretch in which an engine is busy without a pause."""
        run = self.profile.timing.executions
        if run is None:
            return
        spans = run.spans()
        tracks = np.array([run.track(step) for step in spans.step.tolist()])
        for engine in (track for track in self.profile.timing.used_tracks if not is_queue(track)):
            rows = tracks == engine
            for start, end in merged_intervals(spans.start[rows], spans.end[rows]):
                yield {
                    "start_ts": round(start / PS),
                    "end_ts": round(end / PS),
                    "duration_ns": round((end - start) / PS),
                    "engine": engine,
                    "pcore_idx": self.number,
                }


def _product_kind(work: Work) -> str:
    return "TRANSPOSE" if work.transpose_flops else "REGULAR"


def _place(instr: Instr) -> Row:
    """The source line, and the operator of the model; absent where it has none."""
    found = {}
    if instr.loc.file:
        found["nki_source_location"] = f"{instr.loc.file}:{instr.loc.line}"
    if instr.loc.name:
        found["hlo_name"] = instr.loc.name
    return found


def _bytes(work: Work) -> Row:
    return {
        "sbuf_read_bytes": work.read[Memory.SBUF],
        "sbuf_write_bytes": work.written[Memory.SBUF],
        "psum_read_bytes": work.read[Memory.PSUM],
        "psum_write_bytes": work.written[Memory.PSUM],
        "psum_read_sbuf_write_bytes": work.from_psum_to_sbuf,
    }


def _variable(patterns: Sequence[Pattern]) -> str:
    return next((p.tile.name for p in patterns if p.memory is Memory.HBM), "")


def _memories(patterns: Sequence[Pattern]) -> str:
    return f"[{','.join(dict.fromkeys(p.memory.value for p in patterns))}]"


def _patterns(patterns: Sequence[Pattern]) -> str:
    return " ".join(map(pattern_text, patterns))
