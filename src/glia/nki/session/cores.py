"""The cores of a launch that run together: they take turns, and meet where their kernel says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from glia.isa.rendezvous import Participant
from glia.nki.names.errors import CoresDisagree
from glia.nki.session.core_races import CoreRaces
from glia.nki.session.coroutines import NeverMet, Turns


class Cores:
    """The programs of one launch: they take turns, instruction by instruction."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.races = CoreRaces(count)
        self._memory: dict[str, np.ndarray] = {}
        self._turns = Turns(())

    def shared(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The memory of a tensor in shared HBM: the same for every core that names it."""
        if self.count == 1:
            return make()
        if name not in self._memory:
            self._memory[name] = make()
        return self._memory[name]

    def run(self, programs: list[Callable[[], Any]]) -> list[Any]:
        """Run one function for each core; what each returns. The first failure is raised."""
        self._turns = Turns(programs)
        return self._turns.run()

    def meet(self, instr: Any, own: Participant) -> tuple[Any, ...]:
        """Wait until all who meet at an instruction have come; what it gives this core.

        CoresDisagree when another core waits elsewhere or has ended.
        """
        ranks, compute = instr.ranks(own.rank), type(instr).compute
        if instr.among != "cores" or ranks == (own.rank,):
            return tuple(compute([own])[0])
        try:
            received = self._turns.meet(ranks, instr.topic(), own, compute, instr.loc)
            self.races.meet(own.rank)
        except NeverMet as apart:
            other = f"core {apart.other} {apart.does}"
            raise CoresDisagree(
                core=apart.first, call=apart.call, other=other, loc=apart.loc
            ) from None
        return tuple(received[ranks.index(own.rank)])

    def take_turns(self) -> None:
        """After an instruction: the next core that can run goes on, as cores run side by side."""
        self._turns.give()
