"""Sends and receives of one channel: what arrives is what is sent, moved between devices.

Both stand in the program that every device runs, so a pair is a permutation of devices. A receive
is imported after its send, whatever order tokens give them: tokens order what a device does, and
the exchange needs what all have sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from glia.frontend.errors import MalformedModule, UnsupportedOperator
from glia.frontend.hlo_import.module_context import Importer, Site
from glia.frontend.hlo_import.node_builder import Value
from glia.graph import ops
from glia.graph.ir import Node

_PAIRS = "_xla_send_recv_source_target_pairs"
_PAIR = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}")


def with_paired_channels(instructions: Sequence[Any]) -> Sequence[Any]:
    """Instructions in an order in which every receive follows, and reads, its send.

    MalformedModule for a channel without both, or whose send needs what it receives.
    """
    between_devices = [each for each in instructions if not each.is_host_transfer]
    receives = [each for each in between_devices if each.opcode == "recv"]
    sends = {each.channel_id: each for each in between_devices if each.opcode == "send"}
    if not receives and not sends:
        return instructions
    partners = {each.channel_id for each in receives}
    if lonely := sorted(partners ^ set(sends)):
        raise MalformedModule(reason=f"channel {lonely[0]} has no send and recv side by side")
    paired = []
    for each in instructions:
        if each.opcode in ("send", "recv") and not each.is_host_transfer:
            operands = sends[each.channel_id].id, *each.operand_ids[:1]
            copied = type(each)()
            copied.CopyFrom(each)
            copied.operand_ids[:] = operands[:1] if each.opcode == "recv" else operands[1:]
            each = copied
        paired.append(each)
    return _operands_first(paired)


def _operands_first(instructions: Sequence[Any]) -> list[Any]:
    """The instructions, each after what it reads; otherwise in their order."""
    known = {each.id: each for each in instructions}
    found: dict[int, Any] = {}
    begun: set[int] = set()  # those on the way from `first` to the top of the stack
    for first in instructions:
        stack = [first]
        while stack:
            each = stack[-1]
            waiting = [known[i] for i in each.operand_ids if i in known and i not in found]
            if each.id in found or not waiting:
                found[each.id] = each
                begun.discard(each.id)
                stack.pop()
                continue
            begun.add(each.id)
            if any(other.id in begun for other in waiting):
                reason = f"{each.name} sends what depends on what it receives"
                raise MalformedModule(reason=reason, instruction=each.name)
            stack += waiting
    return list(found.values())


def _send(site: Site) -> Value:
    _refuse_host(site)
    (value,) = site.tensors(1)
    return value


def _receive(site: Site) -> Value:
    _refuse_host(site)
    (sent,) = site.tensors(1)
    attributes = {entry.key: entry.value for entry in site.proto.frontend_attributes.map}
    pairs = tuple((int(a), int(b)) for a, b in _PAIR.findall(attributes.get(_PAIRS, "")))
    if not pairs:
        raise site.malformed(f"it names no devices in {_PAIRS}")
    return site.make(
        ops.Collective, (sent,), "collective-permute", sent.type, -1, (), pairs, (), "partitions"
    )


def _refuse_host(site: Site) -> None:
    if site.proto.is_host_transfer:
        opcode = f"{site.proto.opcode} with the host"
        raise UnsupportedOperator(opcode=opcode, nearest="", instruction=site.label, loc=site.loc)


def _receive_done(site: Site) -> Value:
    """The value received, and a token."""
    (value,) = site.expect_operands(1)
    assert isinstance(value, Node)
    return value, ()


def _send_done(site: Site) -> Value:
    site.expect_operands(1)
    return ()


CHANNELS: dict[str, Importer] = {
    "send": _send,
    "send-done": _send_done,
    "recv": _receive,
    "recv-done": _receive_done,
}
