"""Traces in the Trace Event Format, which Perfetto and Chrome read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glia.profile.describe import operands_text
from glia.timing.simulate import Timing, is_queue

ENGINE_PROCESS, DMA_PROCESS, SUMMARY_PROCESS = 1, 2, 3
PROCESSES = 3  # of each core


def perfetto_events(name: str, *timings: Timing) -> dict[str, object]:
    """A JSON trace: a process for engines with a thread for each, one for queues, one for skips.

    Each core has three processes of its own. Times are microseconds. Every event carries opcode,
    operands and source line. A counter shows how many transfers the DMA engines have in flight.
    """
    events: list[dict[str, Any]] = []
    for core, timing in enumerate(timings):
        title = f"{name}: core {core}" if len(timings) > 1 else name
        own = _events_of(title, timing)
        events += [event | {"pid": PROCESSES * core + event["pid"]} for event in own]
    slowest = max(timings, key=lambda timing: timing.latency_ns)
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": _summary(slowest)}


def _events_of(name: str, timing: Timing) -> list[dict[str, Any]]:
    """The events of one core."""
    threads = {track: number for number, track in enumerate(timing.tracks, 1)}
    events = [
        _metadata("process_name", ENGINE_PROCESS, 0, f"{name}: engines"),
        _metadata("process_name", DMA_PROCESS, 0, f"{name}: DMA queues"),
        _metadata("process_name", SUMMARY_PROCESS, 0, f"{name}: repeated iterations, DMA engines"),
    ]
    for track, thread in threads.items():
        events.append(_metadata("thread_name", _process(track), thread, track))
    for event in timing.events:
        opcode, loc = event.instr.mnemonic(), str(event.instr.loc)
        arguments = {"opcode": opcode, "operands": operands_text(event.instr), "source": loc}
        span = (event.start_ns, event.end_ns)
        events.append(
            _complete(opcode, _process(event.track), threads[event.track], span, arguments)
        )
    for skip in timing.skips:
        title = f"{skip.iterations} more iterations of {skip.variable}"
        span = (skip.start_ns, skip.end_ns)
        events.append(_complete(title, SUMMARY_PROCESS, 1, span, {"iterations": skip.iterations}))
    return events + _transfers_in_flight(timing)


def _process(track: str) -> int:
    return DMA_PROCESS if is_queue(track) else ENGINE_PROCESS


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _complete(
    name: str,
    process: int,
    thread: int,
    span_ns: tuple[float, float],
    arguments: Mapping[str, object],
) -> dict[str, Any]:
    start, end = span_ns
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": arguments,
    }


def _transfers_in_flight(timing: Timing) -> list[dict[str, Any]]:
    changes = []
    for event in timing.events:
        if is_queue(event.track):
            changes += [(event.start_ns, 1), (event.end_ns, -1)]
    found: list[dict[str, Any]] = []
    count = 0
    for moment, change in sorted(changes):
        count += change
        found.append(
            {
                "ph": "C",
                "name": "DMA engines: transfers in flight",
                "pid": SUMMARY_PROCESS,
                "ts": moment / 1000,
                "args": {"transfers": count},
            }
        )
    return found


def _summary(timing: Timing) -> dict[str, object]:
    return {
        "latency_ns": timing.latency_ns,
        "events_left_out": timing.events_left_out,
        "not_modelled": list(timing.not_modelled),
    }
