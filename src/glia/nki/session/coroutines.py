"""Calls that run one at a time and wait for each other: the cores of a launch, a grid's programs.

A call that waits stays where it is, on the stack of its thread, and another thread goes on with the
calls that have not begun. Turns go round in a circle, so that the order is always the same.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from glia.base.loc import Loc

Group = tuple[int, ...]  # calls, by their numbers


@dataclass(eq=False)
class Meeting:
    """Calls of a group that come to the same topic, with what each brought."""

    topic: tuple[Any, ...]
    loc: Loc
    brought: dict[int, Any] = field(default_factory=dict)
    result: Any = None
    is_over: bool = False


class NeverMet(Exception):
    """The `first` waits in a `call` where the `other` never comes, and what that does instead."""

    def __init__(self, meeting: Meeting, other: int, does: str) -> None:
        self.first = next(iter(meeting.brought))
        self.call = _shown(meeting.topic)
        self.other = other
        self.does = does
        self.loc = meeting.loc


class Turns:
    """Runs calls; `meet` lets them wait for each other, `give` lets others go on."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._calls = calls
        self._results: list[Any] = [None] * len(calls)
        self._own = 0  # the call whose turn it is
        self._begun = 0  # how many have begun
        self._parked: dict[int, tuple[threading.Lock, Meeting | None]] = {}
        self._meetings: dict[Group, Meeting] = {}
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def run(self) -> list[Any]:
        """What each call returned; the first failure is raised."""
        self._begin()
        for thread in self._threads:  # which may start more
            thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results

    def meet(
        self, group: Group, topic: tuple[Any, ...], value: Any,
        combine: Callable[[list[Any]], Any], loc: Loc,
    ) -> Any:  # fmt: skip
        """What `combine` makes of the values of all calls in `group`, in order, once for all.

        NeverMet when one of them comes with another topic, or never.
        """
        own = self._own
        meeting = self._meetings.setdefault(group, Meeting(topic, loc))
        if meeting.topic != topic:
            raise NeverMet(meeting, own, f"in {_shown(topic)}")
        meeting.brought[own] = value
        if len(meeting.brought) < len(group):
            self._park(meeting)
            if not meeting.is_over:
                absent = next(each for each in group if each not in meeting.brought)
                raise NeverMet(meeting, absent, "has ended or waits elsewhere")
        else:
            del self._meetings[group]
            meeting.result = combine([meeting.brought[each] for each in group])
            meeting.is_over = True
        return meeting.result

    def give(self) -> None:
        """Let the next call that can run go on; at once back where there is none."""
        if self._next() is not None:
            self._park(None)

    def _begin(self) -> None:
        """Run calls that have not begun, one after the other, then let others go on."""
        try:
            while self._begun < len(self._calls):
                own = self._own = self._begun
                self._begun += 1
                self._results[own] = self._calls[own]()
            self._pass_on()
        except BaseException as failure:
            self._fail(failure)

    def _park(self, meeting: Meeting | None) -> None:
        """Stay here while others run: until the meeting is over, or nothing else can run."""
        own, closed = self._own, threading.Lock()
        closed.acquire()
        self._parked[own] = closed, meeting
        if self._failure is None:
            self._pass_on()
            closed.acquire()
        del self._parked[own]
        if self._failure is not None:
            raise _Stopped from self._failure
        self._own = own

    def _next(self) -> int | None:
        """The next call in the circle that can run; None when all others have ended or wait."""
        count = len(self._calls)
        for step in range(1, count + 1):
            other = (self._own + step) % count
            if other >= self._begun:
                return other
            if other in self._parked:
                meeting = self._parked[other][1]
                if meeting is None or meeting.is_over:
                    return other
        return None

    def _pass_on(self) -> None:
        """Let another call run; where all that are left wait, the first of them, to say so."""
        following = self._next()
        if following is None:
            following = next(iter(self._parked), None)
        if following in self._parked:
            self._parked[following][0].release()
        elif following is not None:
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=(self._begin,))
            self._threads.append(thread)
            thread.start()

    def _fail(self, failure: BaseException) -> None:
        """Keep the first failure and end every call that waits."""
        if self._failure is None:
            self._failure = failure
            for closed, _ in list(self._parked.values()):
                closed.release()


def _shown(topic: tuple[Any, ...]) -> str:
    name, *details = topic
    return f"{name} {tuple(details)}"


class _Stopped(BaseException):
    """Another call failed."""
