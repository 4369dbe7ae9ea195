"""Merging the iterations of an nl.affine_range as its body is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

from glia.base.loc import Loc
from glia.isa.kit import Instr
from glia.machine.ir import Statement
from glia.machine.passes.merge_iterations import may_merge, merge_iterations
from glia.nki.beta1.run.frame import Frame, LoopBody
from glia.nki.session.recorder import Recorder
from glia.nki.session.session import Session


def open_record(frame: Frame, body: LoopBody, loc: Loc) -> RecordedLoop | None:
    """The record of a loop that begins; None in a session where nothing is merged.

    That is one that executes at once, under a loop on the device, or told to change nothing.
    """
    session: Session = frame.session
    if not isinstance(session, Recorder) or not session.merges_iterations or session.is_in_loop:
        return None
    return RecordedLoop(session, body, loc)


class RecordedLoop:
    """Where the iterations of one loop begin in the recorded program."""

    def __init__(self, session: Recorder, body: LoopBody, loc: Loc) -> None:
        self._session = session
        self._body = body
        self._loc = loc
        self._starts: list[int] = []

    def begin(self) -> None:
        """Start an iteration."""
        self._starts.append(len(self._session.body))

    def end(self) -> None:
        """End the loop, and merge what can be merged of its iterations."""
        session = self._session
        ends = [*self._starts, len(session.body)]
        iterations = [session.body[first:end] for first, end in pairwise(ends)]
        count = len(iterations)
        if count < 2 or session.keeps_order or not may_merge(iterations[-1], count):
            return
        changed: list[Statement] = []
        for run in _runs_alike(iterations):
            changed += self._merged(run, count) or [each for part in run for each in part]
        session.body[self._starts[0] :] = changed

    def _merged(self, run: list[list[Statement]], count: int) -> list[Statement]:
        """The instructions of a run of iterations as one iteration; none where that cannot be."""
        session, own = self._session, self._body.own_tiles
        if len(run) < 2 or not may_merge(run[0], count):
            return []
        # all of a run are of the same kinds
        iterations = [[each for each in part if isinstance(each, Instr)] for part in run]
        merged = merge_iterations(iterations, own, session.arch, session.widened_tile)
        if merged is None:
            return []
        session.record_merged(self._loc, len(run))
        return [*merged]


def _runs_alike(iterations: list[list[Statement]]) -> Iterator[list[list[Statement]]]:
    """Runs of neighbouring iterations with the same kinds of instructions."""
    for _, run in groupby(iterations, lambda iteration: [*map(type, iteration)]):
        yield [*run]
