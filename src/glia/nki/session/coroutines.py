"""Cooperative scheduling of calls that wait for each other: cores of a launch, programs of a grid.

One call runs at a time. A call that waits stays suspended on the stack of its thread while another
thread runs those not started yet. Scheduling is round robin, and so deterministic.
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
class Rendezvous:
    """The calls of a group that have reached the same topic, with the value of each."""

    topic: tuple[Any, ...]
    loc: Loc
    values: dict[int, Any] = field(default_factory=dict)
    result: Any = None
    is_complete: bool = False


class RendezvousFailed(Exception):
    """Call number `first` waits in `call`, which `other` cannot reach; `status` says why."""

    def __init__(self, rendezvous: Rendezvous, other: int, status: str) -> None:
        self.first = next(iter(rendezvous.values))
        self.call = _topic_text(rendezvous.topic)
        self.other = other
        self.status = status
        self.loc = rendezvous.loc


class CoroutineScheduler:
    """Runs calls, one at a time; they switch in `synchronise` and `yield_control`."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._calls = calls
        self._results: list[Any] = [None] * len(calls)
        self._running = 0  # the number of the running call
        self._started = 0  # how many calls have started
        self._suspended: dict[int, tuple[threading.Lock, Rendezvous | None]] = {}
        self._open: dict[Group, Rendezvous] = {}
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def run(self) -> list[Any]:
        """Run all calls; the value that each returned. The first failure is raised."""
        self._run_unstarted()
        for thread in self._threads:  # grows while its threads start others
            thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results

    def synchronise(
        self, group: Group, topic: tuple[Any, ...], value: Any,
        combine: Callable[[list[Any]], Any], loc: Loc,
    ) -> Any:  # fmt: skip
        """Wait for all calls of `group`; `combine` of their values in order, computed once.

        NeverMet when one of them comes with another topic, or never.
        """
        call = self._running
        rendezvous = self._open.setdefault(group, Rendezvous(topic, loc))
        if rendezvous.topic != topic:
            raise RendezvousFailed(rendezvous, call, f"in {_topic_text(topic)}")
        rendezvous.values[call] = value
        if len(rendezvous.values) < len(group):
            self._suspend(rendezvous)
            if not rendezvous.is_complete:
                absent = next(each for each in group if each not in rendezvous.values)
                raise RendezvousFailed(rendezvous, absent, "has ended or waits elsewhere")
        else:
            del self._open[group]
            rendezvous.result = combine([rendezvous.values[each] for each in group])
            rendezvous.is_complete = True
        return rendezvous.result

    def yield_control(self) -> None:
        """Run the next runnable call; returns at once where there is none."""
        if self._next_runnable() is not None:
            self._suspend(None)

    def _run_unstarted(self) -> None:
        """Run the calls not started yet, one after the other, then resume a suspended one."""
        try:
            while self._started < len(self._calls):
                call = self._running = self._started
                self._started += 1
                self._results[call] = self._calls[call]()
            self._resume_next()
        except BaseException as failure:
            self._fail(failure)

    def _suspend(self, rendezvous: Rendezvous | None) -> None:
        """Suspend this call until the rendezvous is complete, or nothing else can run."""
        call, lock = self._running, threading.Lock()
        lock.acquire()
        self._suspended[call] = lock, rendezvous
        if self._failure is None:
            self._resume_next()
            lock.acquire()
        del self._suspended[call]
        if self._failure is not None:
            raise _Cancelled from self._failure
        self._running = call

    def _next_runnable(self) -> int | None:
        """The next runnable call, round robin; None when all others have ended or wait."""
        count = len(self._calls)
        for step in range(1, count + 1):
            other = (self._running + step) % count
            if other >= self._started:
                return other
            if other in self._suspended:
                rendezvous = self._suspended[other][1]
                if rendezvous is None or rendezvous.is_complete:
                    return other
        return None

    def _resume_next(self) -> None:
        """Run another call; in a deadlock the first that waits, so that it reports it."""
        following = self._next_runnable()
        if following is None:
            following = next(iter(self._suspended), None)
        if following in self._suspended:
            self._suspended[following][0].release()
        elif following is not None:
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=(self._run_unstarted,))
            self._threads.append(thread)
            thread.start()

    def _fail(self, failure: BaseException) -> None:
        """Keep the first failure and cancel every suspended call."""
        if self._failure is None:
            self._failure = failure
            for lock, _ in list(self._suspended.values()):
                lock.release()


def _topic_text(topic: tuple[Any, ...]) -> str:
    name, *details = topic
    return f"{name} {tuple(details)}"


class _Cancelled(BaseException):
    """Ends a suspended call because another call failed."""
