"""Unordered writes of two cores to the same bytes, which are no race if they write the same.

A kernel that does not split its work runs alike on both cores of a logical core. What each leaves
in shared memory is compared once both writes are performed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from glia.sim.order.access_history import AccessSpan
from glia.sim.order.execution import Execution
from glia.sim.order.race import Race

Array = np.ndarray[Any, Any]


class Contests:
    """The contests of a run whose writes are not both performed."""

    def __init__(self) -> None:
        self._open: dict[int, list[_Contest]] = {}  # by the number of an execution to perform

    def add(self, race: Race, earlier: Execution, later: Execution, span: AccessSpan,
            chosen: Array) -> None:  # fmt: skip
        """A contest for the chosen elements of a span, which `earlier` was the last to write."""
        contest = _Contest(race, span, chosen)
        if earlier.is_performed:
            contest.found.append(contest.contents())
        else:
            self._open.setdefault(earlier.number, []).append(contest)
        self._open.setdefault(later.number, []).append(contest)

    def perform(self, execution: Execution) -> list[Race]:
        """Take note of a performed execution; the races of contests that it decides."""
        found = []
        for contest in self._open.pop(execution.number, ()):
            contest.found.append(contest.contents())
            if len(contest.found) == 2 and contest.found[0] != contest.found[1]:
                found.append(contest.race)
        return found


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
