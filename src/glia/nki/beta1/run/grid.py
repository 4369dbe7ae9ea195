"""The programs of a grid, run one after the other except where they synchronise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from glia.nki.beta1.errors import ProgramsDisagree
from glia.nki.beta1.run.frame import Frame
from glia.nki.session.coroutines import CoroutineScheduler, RendezvousFailed
from glia.nki.session.session import caller

Position = tuple[int, ...]


class Programs:
    """Runs `call` once for each position of a grid; `synchronise` combines values of programs."""

    def __init__(self, frame: Frame, positions: list[Position], call: Callable[[], Any]) -> None:
        self._frame = frame
        self._positions = positions
        self._call = call
        self._scheduler = CoroutineScheduler(
            [functools.partial(self._program, each) for each in positions]
        )

    def run(self) -> list[Any]:
        """The results of the call by position; raises the first failure."""
        self._frame.programs = self
        return self._scheduler.run()

    def _program(self, position: Position) -> Any:
        self._frame.begin(position)
        returned = self._call()
        self._frame.flush()
        return returned

    def synchronise(
        self, group: tuple[Position, ...], topic: Any, value: Any, combine: Callable[..., Any]
    ) -> Any:
        """`combine` of the values of all programs in `group`, in order, computed once.

        ProgramsDisagree when one of them comes with another topic, or never.
        """
        frame = self._frame
        frame.flush()
        own = frame.position, frame.shared_count, frame.bodies
        numbers = tuple(map(self._positions.index, group))
        try:
            result = self._scheduler.synchronise(numbers, topic, value, combine, caller())
        except RendezvousFailed as failed:
            first, other = self._positions[failed.first], self._positions[failed.other]
            raise ProgramsDisagree(
                program=first,
                call=failed.call,
                other=f"program {other} {failed.status}",
                loc=failed.loc,
            ) from None
        frame.position, frame.shared_count, frame.bodies = own
        return result
