"""Ranks in processes of their own, which share weights and inputs and meet in this one.

What is shared is memory without a name, and every process ends when the one that started it does:
however a run ends, it leaves nothing behind, and runs do not know of each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from glia.base.machine_code.native import address_of
from glia.machine.ir import Program
from glia.neff.package import Neff
from glia.sim.host.support import warn_unsupported, why_unsupported
from glia.sim.host.threads.pool import VARIABLE, lanes
from glia.sim.notifications import Notifications
from glia.sim.ranks.channel import Array, ChannelClosed, SharedChannel, SharedMemory
from glia.sim.ranks.errors import RankLost
from glia.sim.ranks.meeting import GivenUp, Meeting
from glia.sim.ranks.process_devices import one_program
from glia.sim.ranks.rank_threads import run_together
from glia.sim.ranks.remote import RUN, serve_rank

Arrays = Mapping[str, Array]

_PATIENCE = 5  # seconds for a process to be gone after it was killed


def run_ranks_in_processes(
    programs: Sequence[Program],
    inputs: Sequence[Arrays],
    notifications: Notifications | None = None,
    *,
    device: str = "host",
) -> list[dict[str, Array]]:
    """Run one program by several ranks, each in a process; what `run_ranks` gives and raises.

    The processes stay for further runs of the program. Raises RankLost where one ends, and
    OneProcessOnly for ranks of several cores and other devices than host and reference.
    """
    one_program(programs, device)
    if device == "host" and (why := why_unsupported()):
        warn_unsupported(why)
        device = "reference"
    kept = programs[0].cache.get(StartedProcesses) or StartedProcesses()
    programs[0].cache.put(kept)
    with kept.lock:
        if kept.ranks is None or not kept.ranks.serves(len(inputs), device):
            kept.end()
            kept.ranks = RankProcesses(programs, len(inputs), device)
        try:
            return kept.ranks.run(inputs, notifications)
        except BaseException:
            kept.end()
            raise


@dataclass
class StartedProcesses:
    """The processes of a program, kept with it."""

    ranks: RankProcesses | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self) -> None:
        if self.ranks is not None:
            self.ranks.close()
        self.ranks = None


class RankProcesses:
    """A process for each rank of a program."""

    def __init__(self, programs: Sequence[Program], count: int, device: str) -> None:
        self._program, self._device = one_program(programs, device), device
        self._inputs, self._neff = SharedMemory(), SharedMemory()
        with os.fdopen(os.dup(self._neff.descriptor), "wb") as file:
            file.write(Neff(tuple(programs), is_compressed=False).to_bytes())
        self._life, self._end_of_life = os.pipe()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[SharedChannel] = []
        self._loss = threading.Lock()
        self._is_ending = False
        self._ending = weakref.finalize(
            self, _end, self._processes, self._channels, [self._inputs, self._neff],
            [self._life, self._end_of_life],
        )  # fmt: skip
        for rank in range(count):
            self._start(rank, count)

    def serves(self, count: int, device: str) -> bool:
        """Whether these are so many processes, for this device, and all of them run."""
        is_same = (len(self._processes), self._device) == (count, device)
        return is_same and all(each.poll() is None for each in self._processes)

    @property
    def process_ids(self) -> list[int]:
        """The process of each rank."""
        return [each.pid for each in self._processes]

    def run(
        self, inputs: Sequence[Arrays], notifications: Notifications | None
    ) -> list[dict[str, Array]]:
        """Run all ranks on the named inputs of each; the named outputs of each."""
        meeting = Meeting(len(self._processes))
        reported = [Notifications() for _ in inputs]
        distinct: dict[tuple[object, ...], Array] = {}
        for each in inputs:
            distinct |= {_identity(array): array for array in each.values()}
        described = self._inputs.place(list(distinct.values()))
        needed = os.fstat(self._inputs.descriptor).st_size
        places = dict(zip(distinct, described, strict=True))

        def run(rank: int) -> dict[str, Array]:
            given = {name: places[_identity(array)] for name, array in inputs[rank].items()}
            channel = self._channels[rank]
            try:
                channel.send({"do": RUN, "inputs": given, "bytes": needed})
                return serve_rank(channel, meeting, self._program, rank, reported[rank])
            except ChannelClosed as problem:
                raise self._loss_of(rank, problem) from problem

        return run_together(meeting, run, reported, notifications)

    def close(self) -> None:
        """End the processes, and free what they share."""
        self._is_ending = True
        self._ending()

    def _start(self, rank: int, count: int) -> None:
        ours, theirs = socket.socketpair()
        up, down = SharedMemory(), SharedMemory()
        passed = {
            "connection": theirs.fileno(),
            "outgoing": up.descriptor,
            "incoming": down.descriptor,
            "inputs": self._inputs.descriptor,
            "neff": self._neff.descriptor,
            "life": self._life,
        }
        arguments = json.dumps(passed | {"rank": rank, "device": self._device})
        path = os.pathsep.join(place for place in sys.path if place)
        shared = {"PYTHONPATH": path, VARIABLE: str(max(1, lanes() // count))}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "glia.sim.ranks.rank_process", arguments],
                pass_fds=tuple(passed.values()),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **shared},
            )
        self._processes.append(process)
        self._channels.append(SharedChannel(ours, down, up))

    def _loss_of(self, rank: int, problem: ChannelClosed) -> BaseException:
        """Why a rank's channel is closed: it was lost, or ended because another was."""
        with self._loss:
            if self._is_ending:
                return GivenUp()
            self._is_ending = True
            process = self._processes[rank]
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            for each in self._processes:
                each.kill()
        how = f"its process {process.pid} {_ended(process.returncode)}"
        return RankLost(ranks=rank, count=len(self._processes), how=how)


def _ended(status: int | None) -> str:
    """How a process ended."""
    if status is None:
        return "no longer answers"
    if status < 0:
        return f"was ended by signal {-status} ({signal.strsignal(-status)})"
    return f"ended with status {status}"


def _identity(array: Array) -> tuple[object, ...]:
    """Equal for arrays that are the same memory."""
    return address_of(array), array.dtype, array.shape, array.strides


def _end(
    processes: Sequence[subprocess.Popen[bytes]],
    channels: Sequence[SharedChannel],
    memories: Sequence[SharedMemory],
    descriptors: Sequence[int],
) -> None:
    """Kill processes and close what they were given."""
    for process in processes:
        process.kill()
    for channel in channels:
        channel.close()
    for memory in memories:
        memory.close()
    for descriptor in descriptors:
        os.close(descriptor)
    for process in processes:
        process.wait()
