"""The process of one rank, which runs its program on demand. See `rank_processes`."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
import threading

from glia.neff.package import Neff
from glia.sim.notifications import Notifications
from glia.sim.ranks.channel import ChannelClosed, SharedChannel, SharedMemory
from glia.sim.ranks.one_rank import OneRank
from glia.sim.ranks.process_devices import one_program
from glia.sim.ranks.remote import RemoteMeeting, answer_failure, answer_run

LOST_ITS_PARENT = 3  # exit status


def main(arguments: str) -> None:
    """Serve until the process that started this one ends the connection, or itself."""
    given = json.loads(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which ends the other process, and so this one
    _end_with(given["life"])
    outgoing = SharedMemory(given["outgoing"])
    incoming, inputs = (
        SharedMemory(given[name], is_written=False) for name in ("incoming", "inputs")
    )
    channel = SharedChannel(socket.socket(fileno=given["connection"]), outgoing, incoming)
    programs = Neff.from_bytes(_mapped(given["neff"])).programs
    program = one_program(programs, given["device"])
    meeting, own = RemoteMeeting(channel, program), None
    while True:
        try:
            message = channel.receive()
        except ChannelClosed:
            return
        header, notifications = message.header, Notifications()
        try:
            own = own or OneRank(program, given["rank"], given["device"])
            arrays = inputs.arrays(list(header["inputs"].values()), header["bytes"])
            named = dict(zip(header["inputs"], arrays, strict=True))
            outputs = own.run(named, notifications, meeting.exchange)
        except ChannelClosed:
            return
        except Exception as failure:
            answer_failure(channel, failure)
        else:
            answer_run(channel, outputs, notifications)


def _end_with(descriptor: int) -> None:
    """End this process as soon as the other end of a pipe is closed, whatever it does."""

    def watch() -> None:
        os.read(descriptor, 1)
        os._exit(LOST_ITS_PARENT)

    threading.Thread(target=watch, name="glia parent", daemon=True).start()


def _mapped(descriptor: int) -> memoryview:
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))


if __name__ == "__main__":
    main(sys.argv[1])
