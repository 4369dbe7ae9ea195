"""Runs of a model's ranks by the processes that MPI has started, on one host or several.

They meet in the first process. Each has as many ranks as any other, in threads, and those of a host
are neighbours, as the cores of an instance are.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from glia.machine.ir import Program
from glia.machine.text import print_program
from glia.sim.host.support import warn_unsupported, why_unsupported
from glia.sim.notifications import Notifications
from glia.sim.ranks.channel import Array
from glia.sim.ranks.errors import DifferentPrograms
from glia.sim.ranks.meeting import Meeting
from glia.sim.ranks.one_rank import OneRank
from glia.sim.ranks.process_devices import one_program
from glia.sim.ranks.rank_threads import run_together
from glia.sim.ranks.remote import RemoteMeeting, answer_failure, answer_run, serve_rank
from glia.sim.ranks.world import World
from glia.sim.run import one_blas_thread

Arrays = Mapping[str, Array]

_GOODBYE = -1  # the mailbox, of no rank, in which the first process says that the run has ended


def run_ranks_over_mpi(
    world: World,
    programs: Sequence[Program],
    ranks: int,
    inputs: Sequence[Arrays],
    notifications: Notifications,
    *,
    device: str,
) -> list[dict[str, Array]]:
    """Run a program by `ranks` ranks, on the named inputs of those that this process has.

    In the first process the named outputs of all ranks; none in the others, which know nothing of
    failures either. Raises there what `run_ranks_in_processes` raises, and DifferentPrograms.
    """
    program = one_program(programs, device)
    if device == "host" and (why := why_unsupported()):
        warn_unsupported(why)
        device = "reference"
    text = print_program(program).encode()
    if not world.same_everywhere(hashlib.sha256(text).digest()):
        raise DifferentPrograms(processes=world.count)
    share = world.share(ranks)
    given = dict(zip(share, inputs, strict=True))
    if world.position:
        _run_share(world, program, device, given)
        return []
    return _run_first(world, program, ranks, device, given, notifications)


def _run_first(
    world: World,
    program: Program,
    ranks: int,
    device: str,
    inputs: Mapping[int, Arrays],
    notifications: Notifications,
) -> list[dict[str, Array]]:
    """Run the ranks of the first process, and let those of others meet them."""
    meeting = Meeting(ranks)
    reported = [Notifications() for _ in range(ranks)]

    def run(rank: int) -> dict[str, Array]:
        if rank in inputs:
            own = OneRank(program, rank, device)
            return own.run(inputs[rank], reported[rank], meeting.exchange)
        channel = world.channel(rank // len(inputs), rank)
        return serve_rank(channel, meeting, program, rank, reported[rank])

    result: Future[list[dict[str, Array]]] = Future()

    def run_all() -> None:
        try:
            result.set_result(run_together(meeting, run, reported, notifications))
        except BaseException as failure:
            result.set_exception(failure)

    threading.Thread(target=run_all, name="glia ranks", daemon=True).start()
    world.carry_until(result.done)
    for position in range(1, world.count):
        world.post(position, _GOODBYE, {}, ())
    world.carry_until(lambda: True)
    return result.result()


def _run_share(world: World, program: Program, device: str, inputs: Mapping[int, Arrays]) -> None:
    """Run the ranks of a process that is not the first, until that says goodbye."""
    goodbye = world.mailbox(_GOODBYE)

    def run(rank: int) -> None:
        channel, notifications = world.channel(0, rank), Notifications()
        try:
            own = OneRank(program, rank, device)
            meeting = RemoteMeeting(channel, program)
            outputs = own.run(inputs[rank], notifications, meeting.exchange)
        except BaseException as failure:
            answer_failure(channel, failure)
        else:
            answer_run(channel, outputs, notifications)

    threads = [
        threading.Thread(target=run, args=[rank], name=f"glia rank {rank}", daemon=True)
        for rank in inputs
    ]
    with one_blas_thread():
        for thread in threads:
            thread.start()
        world.carry_until(lambda: not goodbye.empty())
