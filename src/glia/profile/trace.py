"""Traces in the Trace Event Format, which Perfetto and Chrome read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glia.profile.bandwidth import hbm_bandwidth
from glia.profile.communication import exchange_parts
from glia.profile.describe import operands_text
from glia.profile.flows import data_flows
from glia.profile.timeline import TrackSlice, lanes_of, slices_of
from glia.timing.costs import PS
from glia.timing.simulate import Skip, Timing, is_queue

MAX_SLICES = 50_000  # of a core
MAX_FLOWS = 20_000  # of a core
MAX_REPETITIONS = 2_000  # of a core
MAX_EXCHANGES = 5_000  # of a core
LANES = 64  # transfers of a queue that are shown side by side
ENGINE_PROCESS, DMA_PROCESS, SUMMARY_PROCESS = 1, 2, 3
PROCESSES = 3  # of each core
Lane = tuple[str, int]


def perfetto_events(name: str, *timings: Timing, titles: Sequence[str] = ()) -> dict[str, object]:
    """A JSON trace: a process for engines with a thread for each, one for queues, one for the rest.

    Each core has three processes of its own, named after its title. Times are microseconds, in
    whole nanoseconds, so that slices of a thread do not overlap. A queue has a thread for each
    transfer that is in flight at once. A slice carries opcode, operands and source line, or says
    how many executions it stands for; `busy_ns` of all slices of an engine is the time it was busy.
    Arrows lead from the instruction that made data to those that read it. Counters show HBM traffic
    and the transfers in flight. Exchanges with other ranks have a thread that says when they are
    hidden or exposed.
    """
    events: list[dict[str, Any]] = []
    left_out = blocks = 0
    for core, timing in enumerate(timings):
        title = f"{name}: {titles[core]}" if titles else name
        trace = _CoreTrace(title, timing, core)
        events += trace.events
        left_out += trace.flows_left_out
        blocks += sum(each.count for each in trace.slices if each.is_block)
    slowest = max(timings, key=lambda timing: timing.latency_ns)
    summary = {
        "latency_ns": slowest.latency_ns,
        "executions_in_blocks": blocks,
        "flows_left_out": left_out,
        "not_modelled": list(slowest.not_modelled),
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": summary}


class _CoreTrace:
    """The events of one core."""

    def __init__(self, name: str, timing: Timing, core: int) -> None:
        self.timing, self.processes = timing, PROCESSES * core
        self.slices = slices_of(timing, MAX_SLICES, LANES)
        self.threads = self._threads()
        self.events: list[dict[str, Any]] = []
        self.flows_left_out = 0
        self._name_processes(name)
        for each in self.slices:
            self.events.append(self._slice(each))
        self._add_summary()
        self._add_flows(MAX_FLOWS * core)

    def _threads(self) -> dict[Lane, int]:
        lanes = lanes_of(self.slices)
        names = [(track, n) for track in self.timing.tracks for n in range(lanes.get(track, 1))]
        return {lane: number for number, lane in enumerate(names, 1)}

    def _name_processes(self, name: str) -> None:
        for process, of in (
            (ENGINE_PROCESS, "engines"),
            (DMA_PROCESS, "DMA queues"),
            (SUMMARY_PROCESS, "program, HBM"),
        ):
            self._add("M", "process_name", process, 0, args={"name": f"{name}: {of}"})
        for (track, lane), thread in self.threads.items():
            title = f"{track} [{lane}]" if lane else track
            self._add("M", "thread_name", _process(track), thread, args={"name": title})
            self._add(
                "M", "thread_sort_index", _process(track), thread, args={"sort_index": thread}
            )
        for thread, title in ((1, "program"), (2, "repeated iterations")):
            self._add("M", "thread_name", SUMMARY_PROCESS, thread, args={"name": title})

    def _add(self, kind: str, name: str, process: int, thread: int, **rest: Any) -> None:
        event = {"ph": kind, "name": name, "pid": self.processes + process, "tid": thread}
        self.events.append(event | rest)

    def _slice(self, each: TrackSlice) -> dict[str, Any]:
        assert self.timing.executions is not None
        instr = self.timing.executions.instruction(each.step)
        opcode = instr.mnemonic()
        arguments: dict[str, Any] = {"busy_ns": each.busy_ns}
        if each.is_block:
            arguments |= {"executions": each.count, "longest": opcode, "source": str(instr.loc)}
            opcode = f"{each.count} instructions"
        else:
            arguments |= {
                "opcode": opcode,
                "operands": operands_text(instr),
                "source": str(instr.loc),
            }
        return {
            "ph": "X",
            "name": opcode,
            "pid": self.processes + _process(each.track),
            "tid": self.threads[each.track, each.lane],
            "args": arguments,
            **_extent(each.start_ns, each.end_ns),
        }

    def _add_summary(self) -> None:
        """The parts of the program, the repeated iterations, and the counters."""
        timing = self.timing
        parts = (
            ("preamble", 0.0, timing.begin_ns),
            (f"run of {sum(timing.instructions.values())} instructions", timing.begin_ns,
             timing.end_ns),
            ("postamble", timing.end_ns, timing.latency_ns),
        )  # fmt: skip
        for title, start, end in parts:
            self._add("X", title, SUMMARY_PROCESS, 1, args={}, **_extent(start, end))
        for skip in repetitions(timing, MAX_REPETITIONS):
            title = f"{skip.iterations} more iterations of {skip.variable}"
            extent, found = _extent(skip.start_ns, skip.end_ns), {"iterations": skip.iterations}
            self._add("X", title, SUMMARY_PROCESS, 2, args=found, **extent)
        exchanged = exchange_parts(timing)[:MAX_EXCHANGES]
        if exchanged:
            named = {"name": "exchanges with other ranks"}
            self._add("M", "thread_name", SUMMARY_PROCESS, 3, args=named)
        for part in exchanged:
            extent = _extent(part.start_ns, part.end_ns)
            self._add("X", part.name, SUMMARY_PROCESS, 3, args={}, **extent)
        traffic = hbm_bandwidth(timing)
        for number, (read, written) in enumerate(zip(traffic.read, traffic.written, strict=True)):
            moment = (traffic.begin_ns + number * traffic.interval_ns) / 1000
            rates = {"read": round(read, 3), "written": round(written, 3)}
            self._add("C", "HBM GB/s", SUMMARY_PROCESS, 0, ts=moment, args=rates)
        for moment, count in _transfers_in_flight(self.slices):
            name, counted = "transfers in flight", {"transfers": count}
            self._add("C", name, SUMMARY_PROCESS, 0, ts=moment / 1000, args=counted)

    def _add_flows(self, first: int) -> None:
        """Arrows between slices that are single executions."""
        run = self.timing.executions
        if run is None:
            return
        shown = {(s.step, round(s.start_ns * PS)): s for s in self.slices if not s.is_block}
        keys = [(step, start) for step, start, _, _ in run.rows.tolist()]
        flows = data_flows(run)
        pairs = [(shown.get(keys[one]), shown.get(keys[other])) for one, other in flows]
        drawn = [(a, b) for a, b in pairs if a is not None and b is not None][:MAX_FLOWS]
        self.flows_left_out = len(flows) - len(drawn)
        for number, (producer, consumer) in enumerate(drawn, first):
            self._flow("s", number, producer)
            self._flow("f", number, consumer, bp="e")

    def _flow(self, kind: str, number: int, each: TrackSlice, **rest: str) -> None:
        """One end of an arrow, at the start of its slice."""
        thread, moment = self.threads[each.track, each.lane], math.floor(each.start_ns) / 1000
        self._add(
            kind, "data", _process(each.track), thread, cat="data", id=number, ts=moment, **rest
        )


def repetitions(timing: Timing, limit: int) -> list[Skip]:
    """The longest of the skipped iterations, at most `limit`, by start."""
    found = [each for each in timing.skips if each.end_ns > each.start_ns]
    found.sort(key=lambda each: each.start_ns - each.end_ns)
    return sorted(found[:limit], key=lambda each: each.start_ns)


def _process(track: str) -> int:
    return DMA_PROCESS if is_queue(track) else ENGINE_PROCESS


def _extent(start_ns: float, end_ns: float) -> dict[str, float]:
    """Start and duration in microseconds, both in whole nanoseconds."""
    start = math.floor(start_ns)
    return {"ts": start / 1000, "dur": (math.floor(end_ns) - start) / 1000}


def _transfers_in_flight(slices: Sequence[TrackSlice]) -> list[tuple[float, float]]:
    """(moment, transfers in flight from then on): of a block, how many there are on average."""
    changes: list[tuple[float, float]] = []
    for each in slices:
        if is_queue(each.track) and each.end_ns > each.start_ns:
            among = each.busy_ns / (each.end_ns - each.start_ns)
            changes += [(each.start_ns, among), (each.end_ns, -among)]
    found: list[tuple[float, float]] = []
    count = 0.0
    for moment, change in sorted(changes):
        count += change
        if found and found[-1][0] == moment:
            found.pop()
        found.append((moment, round(count, 2)))
    return found
