"""Unordered accesses of two cores to the same bytes that are no race: the contents stay the same.

A kernel that does not split its work runs alike on both cores. What two writes leave in shared
memory is compared once both are performed. A write after another core's read is compared with what
was there when the read began.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from glia.sim.order.access_history import AccessHistory, AccessSpan
from glia.sim.order.execution import Execution
from glia.sim.order.race import Race

Array = np.ndarray[Any, Any]


class Contests:
    """The contests of a run whose writes are not both performed, and the changes of shared bytes.

    Moments ascend: each start and each completed write has one.
    """

    def __init__(self) -> None:
        self._open: dict[int, list[_Contest]] = {}  # by the number of an execution to perform
        self._rewrites: dict[int, list[_Rewrite]] = {}
        self._writes: dict[int, list[_Write]] = {}
        self._moment = 0

    def begin(self, execution: Execution) -> None:
        """Take note that an execution starts."""
        self._moment += 1
        execution.began = self._moment

    def add(self, race: Race, earlier: Execution, later: Execution, span: AccessSpan,
            chosen: Array) -> None:  # fmt: skip
        """A contest for the chosen elements of a span, which `earlier` was the last to write."""
        contest = _Contest(race, span, chosen)
        if earlier.is_performed:
            contest.found.append(contest.contents())
        else:
            self._open.setdefault(earlier.number, []).append(contest)
        self._open.setdefault(later.number, []).append(contest)

    def add_rewrite(self, race: Race, reader: Execution, writer: Execution,
                    history: AccessHistory, span: AccessSpan, chosen: Array) -> None:  # fmt: skip
        """A contest for the chosen bytes of a span, which `reader` read and `writer` will write."""
        rewrite = _Rewrite(race, history, span, chosen, reader.began)
        self._rewrites.setdefault(writer.number, []).append(rewrite)

    def add_write(self, execution: Execution, history: AccessHistory, span: AccessSpan) -> None:
        """A write of shared memory that has started."""
        self._writes.setdefault(execution.number, []).append(_Write(history, span))

    def prepare(self, execution: Execution) -> None:
        """Take note of what an execution is about to overwrite."""
        for write in self._writes.get(execution.number, ()):
            write.before = write.contents()

    def perform(self, execution: Execution) -> list[Race]:
        """Take note of a performed execution; the races of contests that it decides."""
        self._moment += 1
        for write in self._writes.pop(execution.number, ()):
            write.history.note_change(write.span, write.contents() != write.before, self._moment)
        found = []
        for contest in self._open.pop(execution.number, ()):
            contest.found.append(contest.contents())
            if len(contest.found) == 2 and contest.found[0] != contest.found[1]:
                found.append(contest.race)
        rewrites = self._rewrites.pop(execution.number, ())
        return found + [each.race for each in rewrites if each.has_changed()]


class _Contest:
    """`found` has what each write left, in the order in which they are performed."""

    def __init__(self, race: Race, span: AccessSpan, chosen: Array) -> None:
        self.race = race
        self.found: list[bytes] = []
        self._span = span
        whole = span.data[span.index]
        self._chosen = chosen.any(axis=-1) if chosen.ndim > whole.ndim else chosen

    def contents(self) -> bytes:
        """The chosen elements as they are now."""
        elements: Array = self._span.data[self._span.index][self._chosen]
        return elements.tobytes()


class _Rewrite:
    """Bytes that a core has read, `since` when, and another writes unordered."""

    def __init__(
        self, race: Race, history: AccessHistory, span: AccessSpan, chosen: Array, since: int
    ) -> None:
        self.race = race
        self._history = history
        self._span = span
        self._chosen = chosen
        self._since = since

    def has_changed(self) -> bool:
        """Whether one of the bytes is no longer what was read."""
        return bool((self._history.changes(self._span)[self._chosen] > self._since).any())


class _Write:
    """A write of shared memory; `before` has the elements that it overwrites, as integers."""

    def __init__(self, history: AccessHistory, span: AccessSpan) -> None:
        self.history = history
        self.span = span
        self.before: Array = np.empty(0)

    def contents(self) -> Array:
        """The elements as they are now, as integers."""
        elements = np.array(self.span.data[self.span.index], order="C")
        bits: Array = elements.view(f"u{elements.itemsize}")
        return bits
