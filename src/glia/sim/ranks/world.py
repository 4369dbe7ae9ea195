"""The processes that MPI has started for one run, and the messages between them.

Only the main thread calls MPI. What other threads send is in a queue until it comes by; what
arrives goes to the mailbox of the rank that it is for.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import queue
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from glia.sim.host.threads.pool import VARIABLE as THREADS
from glia.sim.host.threads.pool import lanes
from glia.sim.ranks.channel import (
    Array,
    ChannelClosed,
    Header,
    Message,
    array_in,
    as_bytes,
    packed,
    parsed,
)
from glia.sim.ranks.errors import MpiMissing, RankLost, WrongProcesses

LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # set by the mpirun of Open MPI, and of others
MOST_BODY_BYTES = 1 << 40
_HEADER_TAG, _BODY_TAG = 1, 2
_NAME_BYTES = 256
_PIECE = 1 << 30  # bytes of one MPI message: counts are of 32 bits
_LONGEST_NAP, _SHORTEST_NAP = 0.002, 0.00005  # seconds
_WATCH = 0.2  # seconds between looks at the processes of this host
_GRACE = 0.7  # seconds in which the one that says who is lost sees the others
TERMINATED = 143  # exit status of a process that SIGTERM ends


def launched_processes() -> int:
    """How many processes `mpirun` has started for this run; 1 without it."""
    for name in LAUNCHED:
        given = os.environ.get(name, "")
        if given.isdecimal() and int(given) > 1:
            return int(given)
    return 1


class World:
    """The processes of a run, numbered host by host; this one is number `position`."""

    def __init__(self) -> None:
        """Join them. Raises MpiMissing where mpi4py or MPI's library is not installed."""
        try:
            self._mpi = importlib.import_module("mpi4py.MPI")
        except (ImportError, RuntimeError) as problem:
            first = (str(problem).splitlines() or ["it does not load"])[0]
            raise MpiMissing(reason=first) from problem
        everyone = self._mpi.COMM_WORLD
        names = self._gathered(everyone, self._mpi.Get_processor_name())
        first_of = {name: names.index(name) for name in names}
        order = sorted(range(everyone.size), key=lambda each: (first_of[names[each]], each))
        self._comm = everyone.Split(0, order.index(everyone.rank))
        self.hosts = [names[each] for each in order]
        self._processes = [int(each) for each in self._gathered(self._comm, str(os.getpid()))]
        here = self.hosts[self.position]
        self._neighbours = [n for n, host in enumerate(self.hosts) if host == here]
        os.environ.setdefault(THREADS, str(max(1, lanes() // len(self._neighbours))))
        lanes.cache_clear()
        self._ranks = 0
        self._outgoing: queue.SimpleQueue[tuple[int, bytes, Array]] = queue.SimpleQueue()
        self._mailboxes: dict[int, queue.SimpleQueue[Message]] = {}
        self._requests: list[tuple[Any, Any]] = []  # with what must stay until they are done
        self._arriving: list[tuple[list[Any], int, Header, list[Any], Array]] = []
        self._next_look = 0.0
        signal.signal(signal.SIGTERM, self._terminated)

    @property
    def position(self) -> int:
        """The number of this process."""
        return int(self._comm.rank)

    @property
    def count(self) -> int:
        """How many processes there are."""
        return int(self._comm.size)

    def share(self, ranks: int, position: int | None = None) -> range:
        """The ranks of a process: as many as any other, and neighbours on one host.

        Raises WrongProcesses where they cannot be shared out evenly.
        """
        self._ranks = ranks
        return share_of(ranks, self.count, self.position if position is None else position)

    def same_everywhere(self, what: bytes) -> bool:
        """Whether all processes call this with equal bytes; all of them must call it."""
        return len(set(self._gathered(self._comm, what.hex()))) == 1

    def channel(self, position: int, rank: int) -> MpiChannel:
        """What another process and this one say to each other about a rank."""
        return MpiChannel(self, position, rank)

    def post(self, position: int, rank: int, header: Header, arrays: Sequence[Array]) -> None:
        """Send to a process, for the mailbox of a rank there."""
        described, needed = packed(arrays)
        body = np.empty(needed, np.uint8)
        for array, (_, _, offset) in zip(arrays, described, strict=True):
            body[offset : offset + array.nbytes] = as_bytes(array)
        text = json.dumps([header, described, needed, rank]).encode()
        self._outgoing.put((position, text, body))

    def mailbox(self, rank: int) -> queue.SimpleQueue[Message]:
        """The messages for a rank that have arrived here."""
        return self._mailboxes.setdefault(rank, queue.SimpleQueue())

    def carry_until(self, is_done: Callable[[], bool]) -> None:
        """Carry messages until so, and until all that were sent are on their way.

        Raises RankLost where another process of this host has ended.
        """
        nap = _SHORTEST_NAP
        while not is_done() or self._requests or not self._outgoing.empty():
            self._look_after_neighbours()
            if self._send_some() | self._receive_some():
                nap = _SHORTEST_NAP
            else:
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)

    def _gathered(self, comm: Any, text: str) -> list[str]:
        """The text of each process, up to _NAME_BYTES of it."""
        own = np.zeros(_NAME_BYTES, np.uint8)
        data = text.encode()[:_NAME_BYTES]
        own[: len(data)] = np.frombuffer(data, np.uint8)
        found = np.zeros((comm.size, _NAME_BYTES), np.uint8)
        comm.Allgather(own, found)
        return [bytes(each).rstrip(b"\0").decode(errors="replace") for each in found]

    def _send_some(self) -> bool:
        """Begin to send what waits; whether anything did."""
        self._requests = [each for each in self._requests if not each[0].Test()]
        is_any = False
        with contextlib.suppress(queue.Empty):
            while True:
                position, text, body = self._outgoing.get_nowait()
                is_any = True
                head = self._comm.Isend(np.frombuffer(text, np.uint8), position, _HEADER_TAG)
                self._requests.append((head, text))
                for piece in _pieces(body):
                    request = self._comm.Isend(piece, position, _BODY_TAG)
                    self._requests.append((request, body))
        return is_any

    def _receive_some(self) -> bool:
        """Take what has arrived; whether anything has."""
        is_any = False
        status = self._mpi.Status()
        while (message := self._comm.Improbe(tag=_HEADER_TAG, status=status)) is not None:
            is_any = True
            text = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
            message.Recv(text)
            header, described, needed, rank = parsed(text.tobytes(), 4)
            if not 0 <= needed < MOST_BODY_BYTES:
                raise ChannelClosed(f"it sends {needed} bytes at once")
            body = np.empty(needed, np.uint8)
            requests = [
                self._comm.Irecv(piece, status.Get_source(), _BODY_TAG) for piece in _pieces(body)
            ]
            self._arriving.append((requests, rank, header, described, body))
        while self._arriving and all(each.Test() for each in self._arriving[0][0]):
            is_any = True
            _, rank, header, described, body = self._arriving.pop(0)
            data = memoryview(body.data)
            arrays = tuple(array_in(data, each) for each in described)
            self.mailbox(rank).put(Message(header, arrays))
        return is_any

    def _look_after_neighbours(self) -> None:
        """Raise RankLost, in one process of this host, where another has ended."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _WATCH
        alive = [n for n in self._neighbours if _is_alive(self._processes[n])]
        lost = sorted(set(self._neighbours) - set(alive))
        if not lost:
            return
        atexit.register(self._comm.Abort, 1)  # what MPI does at the end would wait for the lost
        if self.position != alive[0]:
            time.sleep(_GRACE)
            os._exit(TERMINATED)
        ranks = [rank for each in lost for rank in self.share(self._ranks, each)]
        how = f"process {self._processes[lost[0]]} on {self.hosts[lost[0]]} has ended"
        raise RankLost(ranks=", ".join(map(str, ranks)), count=self._ranks, how=how)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        """mpirun ends this process: it has seen before us that another has ended."""
        self._next_look = 0.0
        self._look_after_neighbours()
        time.sleep(_GRACE)
        os._exit(TERMINATED)


def share_of(ranks: int, processes: int, position: int) -> range:
    """The ranks that a process has of all; WrongProcesses where not all have as many."""
    if ranks % processes:
        raise WrongProcesses(ranks=ranks, processes=processes)
    each = ranks // processes
    return range(position * each, (position + 1) * each)


class MpiChannel:
    """One side of what two processes say about a rank."""

    def __init__(self, world: World, position: int, rank: int) -> None:
        self._world, self._position, self._rank = world, position, rank
        self._mailbox = world.mailbox(rank)

    def send(self, header: Header, arrays: Sequence[Array] = ()) -> None:
        """Tell the other side, at some time."""
        self._world.post(self._position, self._rank, header, arrays)

    def receive(self) -> Message:
        """What the other side tells next."""
        return self._mailbox.get()


def _pieces(body: Array) -> list[Array]:
    return [body[start : start + _PIECE] for start in range(0, len(body), _PIECE)]


def _is_alive(process: int) -> bool:
    """Whether a process of this host runs, and is not only waited for."""
    try:
        os.kill(process, 0)
        stat = Path(f"/proc/{process}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:
        return True
