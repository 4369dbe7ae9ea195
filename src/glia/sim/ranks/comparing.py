"""Whether ranks can meet at all: their programs side by side, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from glia.base.errors import Unspecified
from glia.isa.rendezvous import CrossCoreInstr, Participant
from glia.machine.ir import Branch, Loop, Program, Statement, While, walk
from glia.sim.ranks.meeting import Arrival, disagreement, why_stuck

MOST_EXCHANGES = 10_000  # of each rank that are compared
_UNKNOWN = object()  # what comes next depends on data


def require_meetings(programs: Sequence[Program]) -> None:
    """Raise RanksDisagree or RankMissing where ranks cannot meet, whatever their data are.

    `programs` has that of each rank. Compared are the exchanges up to the first branch or loop that
    depends on data and holds one; of groups that a run refuses nothing is said.
    """
    coming = [_exchanges(program.body) for program in programs]
    taken = [0] * len(programs)
    waiting: dict[int, Arrival] = {}
    unknown: set[int] = set()
    moving: Sequence[int] = range(len(programs))
    while moving:
        for rank in moving:
            instr = next(coming[rank], None)
            taken[rank] += 1
            if instr is _UNKNOWN or taken[rank] > MOST_EXCHANGES:
                unknown.add(rank)
            elif instr is not None:
                if not _is_possible(instr, rank, len(programs)):
                    return
                waiting[rank] = Arrival(instr, Participant(rank, {}, {}), instr.ranks(rank))
        moving = _pass_those_who_meet(waiting, moving)
    if waiting and (problem := why_stuck(waiting, unknown)):
        raise problem


def _is_possible(instr: Any, rank: int, count: int) -> bool:
    """Whether so many ranks can execute an instruction at all."""
    try:
        return bool(max(instr.ranks(rank)) < count)
    except Unspecified:
        return False


def _pass_those_who_meet(waiting: dict[int, Arrival], moving: Sequence[int]) -> list[int]:
    """The ranks that can go on, of those that have just come and their partners."""
    found: list[int] = []
    for rank in moving:
        arrival = waiting.get(rank)
        if arrival is None:
            continue
        met = [waiting[each] for each in arrival.places if each in waiting]
        if [each.key for each in met] != [arrival.key] * len(arrival.places):
            continue
        if problem := disagreement(met):
            raise problem
        for each in arrival.places:
            del waiting[each]
        found += arrival.places
    return found


def _exchanges(body: tuple[Statement, ...]) -> Iterator[Any]:
    """The instructions of a rank's program at which it meets others, in order."""
    for statement in body:
        if isinstance(statement, Loop):
            if _has_exchange(statement.body):
                for _ in range(statement.trips):
                    yield from _exchanges(statement.body)
        elif isinstance(statement, While | Branch):
            if _has_exchange((statement,)):
                yield _UNKNOWN
                return
        elif isinstance(statement, CrossCoreInstr) and statement.among == "ranks":
            yield statement


def _has_exchange(body: tuple[Statement, ...]) -> bool:
    return any(isinstance(each, CrossCoreInstr) and each.among == "ranks" for each in walk(body))
