"""Ranks in other processes and on other hosts: they meet where the monitor is, over a channel.

A rank's side asks for an exchange by the number of its instruction; the other side arrives at the
monitor for it. Both have the same program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glia.isa.rendezvous import CrossCoreInstr, Participant
from glia.machine.ir import Program
from glia.sim.notifications import Notification, Notifications
from glia.sim.ranks.channel import Array, Channel, ChannelClosed, Header, Message
from glia.sim.ranks.failures import described_failure, failure_of, loc_of
from glia.sim.ranks.meeting import GivenUp, Meeting, results_alone

EXCHANGE, RESULTS, GIVEN_UP, RUN, ENDED = "exchange", "results", "given up", "run", "ended"


def exchanges_of(program: Program) -> list[Any]:
    """The instructions at which ranks meet; their places are their numbers in messages."""
    return [each for each in program.instructions() if isinstance(each, CrossCoreInstr)]


class RemoteMeeting:
    """The monitor as a rank in another process sees it."""

    def __init__(self, channel: Channel, program: Program) -> None:
        self._channel = channel
        self._numbers = {id(each): number for number, each in enumerate(exchanges_of(program))}

    def exchange(self, instr: Any, participant: Participant) -> tuple[Any, ...]:
        """This rank's results of a cross-core instruction; GivenUp when a rank has failed."""
        if instr.ranks(participant.rank) == (participant.rank,):
            return results_alone(instr, participant)
        declared = instr.attributes()
        header = {
            "do": EXCHANGE,
            "instruction": self._numbers[id(instr)],
            "operands": [
                [name, len(each) if isinstance(each, tuple) else -1]
                for name, each in participant.operands.items()
            ],
            "attributes": {
                name: int(value)
                for name, value in participant.attributes.items()
                if value is not declared[name]
            },
        }
        self._channel.send(header, _flat(participant.operands.values()))
        answer = self._channel.receive()
        if answer.header["do"] == GIVEN_UP:
            raise GivenUp
        return tuple(_grouped(answer.header["results"], answer.arrays))


def answer_run(
    channel: Channel, outputs: Mapping[str, Array], notifications: Notifications
) -> None:
    """Tell that this rank's run has ended well, and what it gave."""
    kept = [{**each.to_dict(), "loc": vars(each.loc)} for each in notifications]
    told = {"kept": kept, "total": notifications.total}
    header = {"do": ENDED, "outputs": list(outputs), "notifications": told}
    channel.send(header, list(outputs.values()))


def answer_failure(channel: Channel, failure: BaseException) -> None:
    """Tell that this rank's run has failed, or was given up."""
    is_own = not isinstance(failure, GivenUp)
    channel.send({"do": ENDED, "failure": described_failure(failure) if is_own else None})


def serve_rank(
    channel: Channel, meeting: Meeting, program: Program, rank: int, reported: Notifications
) -> dict[str, Array]:
    """Let a rank that runs elsewhere meet the others, until it ends; its outputs.

    Raises its failure; GivenUp where another's has ended it; ChannelClosed.
    """
    instructions = exchanges_of(program)
    while True:
        message = channel.receive()
        if message.header.get("do") == ENDED:
            return _ended(message, reported)
        try:
            instr, participant = _arrival(message, instructions, rank)
            results = meeting.exchange(instr, participant)
        except GivenUp:
            _end(channel)
            raise
        except ChannelClosed:
            raise
        except BaseException:
            _end(channel)
            raise
        channel.send({"do": RESULTS, "results": list(map(_count, results))}, _flat(results))


def _end(channel: Channel) -> None:
    """Have the rank give up, and wait until it has."""
    channel.send({"do": GIVEN_UP})
    while channel.receive().header.get("do") != ENDED:
        pass


def _ended(message: Message, reported: Notifications) -> dict[str, Array]:
    header = message.header
    if "failure" in header:
        raise failure_of(header["failure"]) if header["failure"] else GivenUp
    told = header["notifications"]
    found = [Notification(**{**each, "loc": loc_of(each["loc"])}) for each in told["kept"]]
    reported.take(found, told["total"])
    return {
        name: np.array(array) for name, array in zip(header["outputs"], message.arrays, strict=True)
    }


def _arrival(message: Message, instructions: list[Any], rank: int) -> tuple[Any, Participant]:
    """The instruction that a rank has come to, and what it brings, copied."""
    header: Header = message.header
    if header.get("do") != EXCHANGE or not 0 <= header["instruction"] < len(instructions):
        raise ChannelClosed(f"it sends {header!s:.100}")
    instr = instructions[header["instruction"]]
    names = [name for name, _ in header["operands"]]
    arrays = [np.array(each) for each in message.arrays]
    grouped = _grouped([count for _, count in header["operands"]], arrays)
    operands = dict(zip(names, grouped, strict=True))
    return instr, Participant(rank, operands, {**instr.attributes(), **header["attributes"]})


def _count(value: Any) -> int:
    """How many arrays stand for a value: -1 for one by itself, -2 for None."""
    if value is None:
        return -2
    return len(value) if isinstance(value, tuple) else -1


def _flat(values: Any) -> list[Array]:
    """All arrays of some values, in order."""
    found: list[Array] = []
    for value in values:
        if value is not None:
            found += map(np.asarray, value) if isinstance(value, tuple) else [np.asarray(value)]
    return found


def _grouped(counts: list[int], arrays: Any) -> list[Any]:
    """The values that `_flat` has laid out, by what `_count` says of each."""
    left = iter(arrays)
    found: list[Any] = []
    for count in counts:
        if count == -2:
            found.append(None)
        elif count == -1:
            found.append(next(left))
        else:
            found.append(tuple(next(left) for _ in range(count)))
    return found
