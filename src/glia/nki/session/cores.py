"""The cores of a launch, simulated together: they alternate, and synchronise where they must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from glia.isa.rendezvous import Participant
from glia.nki.names.errors import CoresDisagree, ParticipantsMissing
from glia.nki.session.core_races import CoreRaces
from glia.nki.session.coroutines import CoroutineScheduler, RendezvousFailed


class Cores:
    """The programs of one launch, interleaved instruction by instruction."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.races = CoreRaces(count)
        self._memory: dict[str, np.ndarray] = {}
        self._scheduler = CoroutineScheduler(())

    def shared(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The memory of a tensor in shared HBM, one for all cores; `make` allocates it."""
        if self.count == 1:
            return make()
        if name not in self._memory:
            self._memory[name] = make()
        return self._memory[name]

    def run(self, programs: list[Callable[[], Any]]) -> list[Any]:
        """Run one function for each core; their return values. The first failure is raised."""
        self._scheduler = CoroutineScheduler(programs)
        return self._scheduler.run()

    def synchronise(self, instr: Any, participant: Participant) -> tuple[Any, ...]:
        """Wait until all participants have reached an instruction; its result for this core.

        CoresDisagree when a participant waits elsewhere or has ended, ParticipantsMissing when the
        launch has it not.
        """
        ranks, compute = instr.ranks(participant.rank), type(instr).compute
        if ranks == (participant.rank,):
            return tuple(compute([participant])[0])
        if instr.among != "cores" or self.count == 1:
            raise ParticipantsMissing(
                call=instr.mnemonic(),
                among=instr.among,
                all=", ".join(map(str, ranks)),
                own=participant.rank,
                loc=instr.loc,
            )
        try:
            received = self._scheduler.synchronise(
                ranks, instr.topic(), participant, compute, instr.loc
            )
            self.races.advance_epoch(participant.rank)
        except RendezvousFailed as failed:
            other = f"core {failed.other} {failed.status}"
            raise CoresDisagree(
                core=failed.first, call=failed.call, other=other, loc=failed.loc
            ) from None
        return tuple(received[ranks.index(participant.rank)])

    def yield_control(self) -> None:
        """Run the next runnable core; called after every instruction."""
        self._scheduler.yield_control()
