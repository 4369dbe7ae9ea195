"""Where ranks meet: a monitor at which each arrives, and the last one computes for all.

What a rank gets depends on what the others give, never on when they come. When every rank that has
not ended waits, none can go on: each is then told why.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glia.base.errors import CompileError
from glia.base.loc import Loc
from glia.isa.rendezvous import Participant, differences
from glia.sim.policy import ExecutionFault
from glia.sim.ranks.errors import RankMissing, RanksDisagree


@dataclass
class Arrival:
    """A core that waits in an instruction, and what it is given in the end.

    `places` are the numbers in the run of those who meet, in the order of the instruction's
    `ranks`.
    """

    instr: Any
    participant: Participant
    places: tuple[int, ...]
    results: tuple[Any, ...] | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What those who meet have in common."""
        return (self.instr.topic(), self.instr.among, self.places)


class GivenUp(Exception):
    """Ends the run of a rank because another rank's run has failed."""


def results_alone(instr: Any, participant: Participant) -> tuple[Any, ...]:
    """The results of a rank that is the only participant of an instruction."""
    return tuple(type(instr).compute([participant])[0])


@dataclass
class Meeting:
    """The meetings in one run of `count` cores, of which each `cores` neighbours are a rank.

    Cores of a rank meet each other, and those of one number in their ranks.
    """

    count: int
    cores: int = 1
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _waiting: dict[int, Arrival] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _failure: BaseException | None = None

    def exchange(self, instr: Any, participant: Participant) -> tuple[Any, ...]:
        """`exchange_at` for ranks of one core."""
        return self.exchange_at(participant.rank, instr, participant)

    def exchange_at(self, place: int, instr: Any, participant: Participant) -> tuple[Any, ...]:
        """Wait for all participants of a cross-core instruction; the results of this one.

        `place` is its number in the run. Raises RanksDisagree or RankMissing where they cannot
        meet, GivenUp when another run has failed.
        """
        ranks = instr.ranks(participant.rank)
        if ranks == (participant.rank,):
            return results_alone(instr, participant)
        is_of_rank = instr.among == "cores"
        most = self.cores if is_of_rank else self.count // self.cores
        if max(ranks) >= most:
            raise ExecutionFault(
                f"{instr.mnemonic()} is among {max(ranks) + 1} {instr.among}, this run has {most}",
                loc=instr.loc,
            )
        core = place % self.cores
        places = [place - core + n if is_of_rank else n * self.cores + core for n in ranks]
        arrival = Arrival(instr, participant, tuple(places))
        with self._condition:
            self._waiting[place] = arrival
            self._complete(arrival)
            while arrival.results is None:
                self.require_going_on()
                if len(self._waiting) + len(self._ended) == self.count:
                    problem = why_stuck(self._waiting)
                    assert problem is not None, "cores wait that have all met"
                    raise problem
                self._condition.wait()
        return arrival.results

    def leave(self, place: int, failure: BaseException | None = None) -> None:
        """The run of a core has ended; with a failure all others end too."""
        with self._condition:
            self._ended.add(place)
            self._failure = self._failure or failure
            self._condition.notify_all()

    def give_up(self, reason: BaseException) -> None:
        """End all runs that wait, and those that come."""
        with self._condition:
            self._failure = self._failure or reason
            self._condition.notify_all()

    def require_going_on(self) -> None:
        """GivenUp where another rank has failed or all were told to end."""
        if self._failure is not None:
            raise GivenUp from self._failure

    def _complete(self, last: Arrival) -> None:
        """Compute for all participants if `last` was the one that was missing."""
        present = [self._waiting.get(place) for place in last.places]
        arrivals = [each for each in present if each is not None and each.key == last.key]
        if len(arrivals) < len(last.places):
            return
        if found := disagreement(arrivals):
            raise found
        participants = [each.participant for each in arrivals]
        results = type(last.instr).compute(participants)
        for place, each, own in zip(last.places, arrivals, results, strict=True):
            each.results = tuple(own)
            del self._waiting[place]
        self._condition.notify_all()


def why_stuck(waiting: Mapping[int, Arrival], unknown: Collection[int] = ()) -> CompileError | None:
    """Why the first that waits, by its place in the run, cannot go on, where none can.

    None where all wait for others of which it is `unknown` what comes next.
    """
    for _, arrival in sorted(waiting.items(), key=lambda each: each[0]):
        ranks = arrival.instr.ranks(arrival.participant.rank)
        for number, place in zip(ranks, arrival.places, strict=True):
            met = waiting.get(place)
            if met is not None and met.key != arrival.key:
                return _disagreeing(arrival, met, _difference(arrival, met))
            if met is None and place not in unknown:
                return RankMissing(
                    rank=arrival.participant.rank,
                    call=arrival.instr.mnemonic(),
                    place=_place(arrival.instr.loc),
                    other=number,
                    why="its run has ended",
                    loc=arrival.instr.loc,
                )
    return None


def _place(loc: Loc) -> str:
    return f" ({loc})" if str(loc) else ""


def _disagreeing(first: Arrival, second: Arrival, what: str) -> RanksDisagree:
    return RanksDisagree(
        rank=first.participant.rank,
        call=first.instr.mnemonic(),
        place=_place(first.instr.loc),
        other=second.participant.rank,
        other_call=second.instr.mnemonic(),
        other_place=_place(second.instr.loc),
        what=what,
        loc=first.instr.loc,
    )


def _difference(first: Arrival, second: Arrival) -> str:
    """In what two instructions differ at which ranks wait for each other."""
    if first.instr.mnemonic() != second.instr.mnemonic():
        return "which collective comes next"
    ours = first.instr.ranks(first.participant.rank)
    theirs = second.instr.ranks(second.participant.rank)
    return f"the group, {list(ours)} and {list(theirs)}"


def disagreement(arrivals: Sequence[Arrival]) -> RanksDisagree | None:
    """The first difference in what participants of one instruction bring."""
    first = arrivals[0]
    for other in arrivals[1:]:
        for what in differences(first.instr, other.instr):
            return _disagreeing(first, other, what)
    return None
