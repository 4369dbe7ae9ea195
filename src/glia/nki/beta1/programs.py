"""The programs of a grid: one after the other, but where they wait for each other.

A program that waits stays where it is, on the stack of its thread, and another thread goes on with
the programs that have not begun. One thread runs at a time, so that the order is always the same.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from glia.base.loc import Loc
from glia.nki.beta1.errors import ProgramsDisagree
from glia.nki.beta1.frame import Frame
from glia.nki.session import caller

Position = tuple[int, ...]


@dataclass
class Meeting:
    """Programs of a group that make the same call, with what each brought."""

    topic: Any
    loc: Loc
    brought: dict[Position, Any] = field(default_factory=dict)
    result: Any = None
    is_over: bool = False


class Programs:
    """Runs `call` once for each position of a grid; `meet` lets programs wait for each other."""

    def __init__(self, frame: Frame, positions: list[Position], call: Callable[[], Any]) -> None:
        self._frame = frame
        self._positions = positions
        self._call = call
        self._waiting = deque(positions)
        self._results: dict[Position, Any] = {}
        self._parked: dict[Position, Meeting] = {}
        self._meetings: dict[tuple[Position, ...], Meeting] = {}
        self._changed = threading.Condition()
        self._turn: Position | None = None  # the parked program that goes on
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def run(self) -> list[Any]:
        """What the call returned for each position; the first failure is raised."""
        self._frame.programs = self
        self._go_on()
        for thread in self._threads:  # which may start more
            thread.join()
        if self._failure is not None:
            raise self._failure
        return [self._results[position] for position in self._positions]

    def meet(
        self, group: tuple[Position, ...], topic: Any, value: Any, combine: Callable[..., Any]
    ) -> Any:
        """What `combine` makes of the values of all programs in `group`, in order, once for all.

        ProgramsDisagree when one of them comes with another topic, or never.
        """
        own = self._frame.position
        meeting = self._meetings.setdefault(group, Meeting(topic, caller()))
        if meeting.topic != topic:
            self._disagree(meeting, f"program {own} in {_shown(topic)}")
        meeting.brought[own] = value
        if len(meeting.brought) < len(group):
            self._park(own, meeting)
        else:
            del self._meetings[group]
            meeting.result = combine([meeting.brought[each] for each in group])
            meeting.is_over = True
        return meeting.result

    # --- whose turn it is ----------------------------------------------------------------------

    def _go_on(self) -> None:
        """Run programs that have not begun, one after the other, then let others run."""
        try:
            while self._waiting:
                position = self._waiting.popleft()
                self._frame.begin(position)
                self._results[position] = self._call()
            self._frame.flush()
            self._pass_on()
        except BaseException as failure:
            self._fail(failure)

    def _park(self, own: Position, meeting: Meeting) -> None:
        """Wait for the others of a meeting."""
        frame = self._frame
        frame.flush()
        made, bodies = frame.made, frame.bodies
        self._parked[own] = meeting
        self._pass_on()
        with self._changed:
            self._changed.wait_for(lambda: self._turn == own or self._failure is not None)
        if self._failure is not None:
            raise _Stopped from self._failure
        self._turn = None
        del self._parked[own]
        frame.position, frame.made, frame.bodies = own, made, bodies

    def _pass_on(self) -> None:
        """Let another program run: one whose meeting is over, else one that has not begun."""
        ready = [position for position, meeting in self._parked.items() if meeting.is_over]
        if ready:
            with self._changed:
                self._turn = ready[0]
                self._changed.notify_all()
        elif self._waiting:
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=(self._go_on,))
            self._threads.append(thread)
            thread.start()
        elif self._parked:
            meeting = next(iter(self._parked.values()))
            self._disagree(meeting, "others have ended or wait elsewhere")

    def _disagree(self, meeting: Meeting, other: str) -> None:
        first = next(iter(meeting.brought))
        raise ProgramsDisagree(
            program=first, call=_shown(meeting.topic), other=other, loc=meeting.loc
        )

    def _fail(self, failure: BaseException) -> None:
        """Keep the first failure and end every program that waits."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()


def _shown(topic: tuple[Any, ...]) -> str:
    name, *details = topic
    return f"{name} {tuple(details)}"


class _Stopped(BaseException):
    """Another program failed."""
