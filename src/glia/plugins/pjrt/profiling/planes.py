"""Executions on simulated devices as an XSpace, with their simulated times.

Its messages are those of tsl/profiler/protobuf/xplane.proto of openxla/xla: a plane for each
device, with a line for its programs and one for each engine and queue. An execution begins where
the host began it, and takes the time that the device would.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from glia.frontend.hlo_import.hlo_proto import message_classes
from glia.plugins.pjrt.profiling.sessions import DeviceExecution
from glia.plugins.pjrt.programs import DeviceProgram, Program

MOST_EVENTS = 500_000  # of a session; later executions are events of the line of programs only
PROGRAMS = "XLA Modules"  # the line that tools look for
PS_OF_NS = 1000

_SCHEMA = """
XEvent: metadata_id=1 i64, offset_ps=2 i64, duration_ps=3 i64
XLine: id=1 i64, name=2 str, timestamp_ns=3 i64, events=4 XEvent*
EventMetadata: id=1 i64, name=2 str
EventEntry: key=1 i64, value=2 EventMetadata
XPlane: id=1 i64, name=2 str, lines=3 XLine*, event_metadata=4 EventEntry*
XSpace: planes=1 XPlane*
"""


@cache
def messages() -> dict[str, Any]:
    """The classes of the table above, by name."""
    return message_classes("xplane", _SCHEMA)


def space(executions: Sequence[DeviceExecution], begin_ns: int) -> bytes:
    """A serialized XSpace of what ran since a time of the host's clock."""
    planes: dict[str, _Plane] = {}
    left = MOST_EVENTS
    for each in executions:
        for device in each.devices:
            plane = planes.setdefault(device, _Plane(len(planes), device, begin_ns))
            left -= plane.add(each.program, each.begin_ns - begin_ns, with_instructions=left > 0)
    found = messages()["XSpace"]()
    found.planes.extend(plane.message for plane in planes.values())
    return bytes(found.SerializeToString())


class _Plane:
    """The events of one device."""

    def __init__(self, number: int, device: str, begin_ns: int) -> None:
        self.message = messages()["XPlane"](id=number + 1, name=f"/device:NEURON:{device}")
        self._begin_ns = begin_ns
        self._lines: dict[str, Any] = {}
        self._names: dict[str, int] = {}

    def add(self, program: Program, offset_ns: int, *, with_instructions: bool) -> int:
        """Add an execution; how many events that makes."""
        profile = program.profile if isinstance(program, DeviceProgram) else None
        latency_ns = profile.latency_us * 1000 if profile else 0
        self._event(PROGRAMS, program.name, offset_ns, latency_ns)
        if not isinstance(program, DeviceProgram) or not with_instructions:
            return 1
        for line, name, begin_ns, end_ns in program.slices:
            self._event(line, name, offset_ns + begin_ns, end_ns - begin_ns)
        return 1 + len(program.slices)

    def _event(self, line: str, name: str, begin_ns: float, duration_ns: float) -> None:
        if line not in self._lines:
            made = self.message.lines.add(id=len(self._lines), name=line)
            made.timestamp_ns, self._lines[line] = self._begin_ns, made
        if name not in self._names:
            number = self._names[name] = len(self._names) + 1
            self.message.event_metadata.add(key=number).value.MergeFrom(
                messages()["EventMetadata"](id=number, name=name)
            )
        self._lines[line].events.add(
            metadata_id=self._names[name],
            offset_ps=int(begin_ns * PS_OF_NS),
            duration_ps=int(duration_ns * PS_OF_NS),
        )
