"""One rank by itself, which meets the others through a monitor that is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from glia.machine.ir import Program
from glia.sim.host.host_program import HostProgram
from glia.sim.notifications import Notifications
from glia.sim.ranks.channel import Array
from glia.sim.run import Exchange, Executor


class OneRank:
    """The program of one rank, made ready for a device; runs follow each other."""

    def __init__(self, program: Program, rank: int, device: str) -> None:
        """`device` is "host" or "reference"."""
        self._program, self._rank = program, rank
        self._host = HostProgram(program, rank=rank) if device == "host" else None

    def run(
        self, inputs: Mapping[str, Array], notifications: Notifications, exchange: Exchange
    ) -> dict[str, Array]:
        """Run once on named inputs; the outputs by name. Raises what `run_ranks` raises."""
        if self._host is not None:
            self._host.executor.exchange = exchange
            return self._host.run(inputs, notifications)
        executor = Executor(self._program, core=self._rank)
        executor.indices["ranks"] = self._rank
        executor.exchange = exchange
        executor.notifications = notifications
        executor.set_inputs(inputs)
        executor.execute()
        return executor.outputs()
