"""The cores of a launch that run together: they take turns, and meet where their kernel says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glia.isa.meeting import Participant
from glia.nki.errors import CoresDisagree


@dataclass
class Cores:
    """The programs of one launch: they take turns, instruction by instruction."""

    count: int
    _memory: dict[str, np.ndarray] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _turn: int = 0
    _waiting: dict[int, tuple[Any, Participant]] = field(default_factory=dict)
    _received: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    _finished: set[int] = field(default_factory=set)
    _failure: BaseException | None = None

    def shared(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The memory of a tensor in shared HBM: the same for every core that names it."""
        if self.count == 1:
            return make()
        if name not in self._memory:
            self._memory[name] = make()
        return self._memory[name]

    def run(self, programs: list[Callable[[], Any]]) -> list[Any]:
        """Run one function for each core; what each returns. The first failure is raised."""
        if self.count == 1:
            return [programs[0]()]
        results: list[Any] = [None] * self.count

        def work(rank: int) -> None:
            try:
                self._wait_for_turn(rank)
                results[rank] = programs[rank]()
            except BaseException as failure:
                self._failure = self._failure or failure
            finally:
                self._finish(rank)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, self.count)]
        for thread in threads:
            thread.start()
        work(0)
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return results

    def meet(self, instr: Any, own: Participant) -> tuple[Any, ...]:
        """Wait until all who meet at an instruction have come; what it gives this core.

        CoresDisagree when another core waits elsewhere or has ended.
        """
        ranks = instr.ranks(own.rank)
        if instr.among != "cores" or ranks == (own.rank,):
            return tuple(type(instr).compute([own])[0])
        self._waiting[own.rank] = (instr, own)
        if len(self._waiting) < self.count:
            self._pass_on(own.rank, instr)
        else:
            self._compute(own.rank, ranks)
        return self._received.pop(own.rank)

    def _compute(self, rank: int, ranks: tuple[int, ...]) -> None:
        """All have come: compute once for all."""
        mine = self._waiting[rank][0]
        for other, (instr, _) in self._waiting.items():
            if instr.topic() != mine.topic():
                text = f"core {other} in {instr.mnemonic()} {instr.topic()[1:]}"
                self._disagree(rank, mine, text)
        results = type(mine).compute([self._waiting[each][1] for each in ranks])
        self._received.update(zip(ranks, map(tuple, results), strict=True))
        self._waiting.clear()

    def take_turns(self, rank: int) -> None:
        """After an instruction: the next core that can run goes on, as cores run side by side."""
        following = self._next(rank)
        if following != rank:
            self._give(following)
            self._wait_for_turn(rank)

    def _next(self, rank: int) -> int:
        """The next core that has neither ended nor waits."""
        for step in range(1, self.count):
            other = (rank + step) % self.count
            waits = other in self._waiting and other not in self._received
            if other not in self._finished and not waits:
                return other
        return rank

    def _give(self, rank: int) -> None:
        with self._changed:
            self._turn = rank
            self._changed.notify_all()

    def _pass_on(self, rank: int, instr: Any) -> None:
        """Let other cores run, until this one has received."""
        following = self._next(rank)
        if following != rank:
            self._give(following)
            self._wait_for_turn(rank)
        if rank not in self._received:
            self._disagree(rank, instr, f"core {(rank + 1) % self.count} has ended")

    def _disagree(self, rank: int, instr: Any, other: str) -> None:
        call = f"{instr.mnemonic()} {instr.topic()[1:]}"
        raise CoresDisagree(core=rank, call=call, other=other, loc=instr.loc)

    def _wait_for_turn(self, rank: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == rank or self._failure is not None)
        if self._failure is not None:
            raise _Stopped from self._failure

    def _finish(self, rank: int) -> None:
        self._finished.add(rank)
        following = self._next(rank)
        stuck = [other for other in self._waiting if other != rank]
        self._give(stuck[0] if following == rank and stuck else following)


class _Stopped(BaseException):
    """Another core failed."""
