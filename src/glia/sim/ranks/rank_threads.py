"""One program for each core of a rank, run by all ranks: in threads that meet at collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glia.machine.ir import Program
from glia.sim.float32_mode import apply_precision
from glia.sim.notifications import Notifications
from glia.sim.order.concurrent import run_cores
from glia.sim.policy import Policy
from glia.sim.ranks.comparing import require_meetings
from glia.sim.ranks.meeting import GivenUp, Meeting
from glia.sim.run import Executor, one_blas_thread

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


def run_ranks(
    programs: Sequence[Program],
    inputs: Sequence[Arrays],
    notifications: Notifications | None = None,
) -> list[dict[str, Array]]:
    """Run a model on the named inputs of each rank, in program order; each rank's named outputs.

    Raises what `glia.sim.run.run` raises, and RanksDisagree or RankMissing where ranks do not
    meet. A rank of several cores runs as `run_logical_core` runs them.
    """
    if len(programs) > 1:
        return run_ranks_concurrently(programs, inputs, notifications)
    return run_each_rank([programs[0]] * len(inputs), inputs, notifications)


def run_each_rank(
    programs: Sequence[Program],
    inputs: Sequence[Arrays],
    notifications: Notifications | None = None,
) -> list[dict[str, Array]]:
    """Run a program for each rank on its named inputs; they meet at their collectives.

    Raises what `run_ranks` raises; where programs cannot meet, before anything runs.
    """
    require_meetings(programs)
    programs, inputs = apply_precision(programs, inputs, None)
    meeting = Meeting(len(programs))
    executors = [_executor(program, rank, meeting) for rank, program in enumerate(programs)]

    def run(rank: int) -> dict[str, Array]:
        executors[rank].set_inputs(inputs[rank])
        executors[rank].execute()
        return executors[rank].outputs()

    return run_together(meeting, run, [each.notifications for each in executors], notifications)


def run_ranks_concurrently(
    programs: Sequence[Program],
    inputs: Sequence[Arrays],
    notifications: Notifications | None = None,
    *,
    policy: Policy | None = None,
) -> list[dict[str, Array]]:
    """As `run_ranks`, with engines and queues that run ahead; races between them are found."""
    cores = len(programs)
    found = run_cores(
        [program for _ in inputs for program in programs],
        [given for given in inputs for _ in programs],
        lnc=cores,
        policy=policy,
        notifications=notifications,
    )
    return [
        {name: array for each in found[first : first + cores] for name, array in each.items()}
        for first in range(0, len(found), cores)
    ]


def run_ranks_strictly(
    programs: Sequence[Program],
    inputs: Sequence[Arrays],
    notifications: Notifications | None = None,
) -> list[dict[str, Array]]:
    """`run_ranks_concurrently` that also raises UninitializedRead and StaleRead."""
    strict = Policy(check_initialized=True)
    return run_ranks_concurrently(programs, inputs, notifications, policy=strict)


def run_together(
    meeting: Meeting,
    run: Callable[[int], dict[str, Array]],
    reported: Sequence[Notifications],
    notifications: Notifications | None,
    *,
    are_awaited: bool = False,
) -> list[dict[str, Array]]:
    """What `run` gives for each rank, each in a thread; the failure of the first rank is raised.

    `reported` are the notifications of each rank, which `notifications` takes in their order. An
    interrupt waits for all threads if they `are_awaited`: they look at whether the meeting goes on.
    """
    results: list[dict[str, Array]] = [{} for _ in range(meeting.count)]
    failures: dict[int, BaseException] = {}

    def run_rank(rank: int) -> None:
        failure: BaseException | None = None
        try:
            results[rank] = run(rank)
        except GivenUp:
            pass  # the rank that failed says why
        except BaseException as error:
            failures[rank] = failure = error
        meeting.leave(rank, failure)

    threads = [
        threading.Thread(target=run_rank, args=[rank], name=f"glia rank {rank}", daemon=True)
        for rank in range(meeting.count)
    ]
    with one_blas_thread():  # entered by each rank too: what it restores is what it finds here
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as interrupt:
            meeting.give_up(interrupt)
            for thread in threads if are_awaited else ():
                thread.join()
            raise
    for each in reported:
        if notifications is not None:
            notifications.extend(each)
    if failures:
        raise failures[min(failures)]
    return results


def _executor(program: Program, rank: int, meeting: Meeting) -> Executor:
    executor = Executor(program, core=rank)
    executor.indices["ranks"] = rank
    executor.exchange = meeting.exchange
    return executor
