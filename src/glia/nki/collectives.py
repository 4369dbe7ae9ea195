"""What a kernel imports as `nki.collectives`: what logical cores of a group compute together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glia.base.suggestions import nearest
from glia.isa.instructions.multicore import CollectivePermuteImplicitCurrentProcessingRankId, RankId
from glia.nki.issue.functions import make_function
from glia.nki.issue.instruction import Arguments, attribute
from glia.nki.issue.register_functions import issue_setting
from glia.nki.names.errors import NoSuchName, NotInNki
from glia.nki.session.session import Session, caller, current
from glia.nki.tensors.nki_object import NKIObject
from glia.nki.tensors.registers import VirtualRegister

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
]

MODULE = "nki.collectives"


class ReplicaGroup(NKIObject):
    """Groups of ranks; the ranks of each compute together, in the order of its list."""

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self.groups = tuple(tuple(int(rank) for rank in group) for group in groups)


def _groups(given: Arguments, _: Session) -> Arguments:
    group = given.get("replica_group")
    if isinstance(group, ReplicaGroup):
        return {**given, "replica_group": group.groups}
    raise NotInNki(feature=f"a replica group of type {type(group).__name__}", loc=caller())


def _collective(name: str, parameters: str, **defaults: Any) -> Any:
    return make_function(
        name,
        parameters,
        renamed={"replica_group": "groups", "metadata_tensor": "metadata"},
        defaults=defaults,
        prepare=_groups if "replica_group" in parameters else None,
        module=MODULE,
    )


all_reduce = _collective("all_reduce", "srcs dsts replica_group op priority")
all_gather = _collective("all_gather", "srcs dsts replica_group collective_dim priority")
reduce_scatter = _collective("reduce_scatter", "srcs dsts replica_group collective_dim op priority")
all_to_all = _collective("all_to_all", "srcs dsts replica_group collective_dim priority")
all_gather_v = _collective(
    "all_gather_v",
    "srcs dsts replica_group metadata_tensor recv_counts_known has_rdispls priority",
)
all_to_all_v = _collective(
    "all_to_all_v",
    "srcs dsts replica_group metadata_tensor recv_counts_known has_rdispls priority",
)
collective_permute = _collective("collective_permute", "srcs dsts source_target_pairs priority")


def _flatten_channels(given: Arguments, session: Session) -> Arguments:
    """Flatten lists of one tensor for each channel to one list."""
    flat = dict(given)
    for name in ("srcs_by_channel", "srcs0_by_channel", "srcs1_by_channel", "dsts_by_channel"):
        if name in flat:
            flat[name] = [_channel_tensor(name, each) for each in flat[name]]
    return _groups(flat, session)


def _channel_tensor(name: str, tensors: Any) -> Any:
    """The one tensor of a channel, given directly or as a list of one."""
    if not isinstance(tensors, list | tuple):
        return tensors
    if len(tensors) != 1:
        raise NotInNki(feature=f"{name} with {len(tensors)} tensors in a channel", loc=caller())
    return tensors[0]


collective_permute_implicit = make_function(
    "collective_permute_implicit",
    "srcs_by_channel dsts_by_channel replica_group channel_ids priority",
    renamed={"srcs_by_channel": "srcs", "dsts_by_channel": "dsts", "replica_group": "groups"},
    defaults={"channel_ids": [0]},
    prepare=_flatten_channels,
    module=MODULE,
)
collective_permute_implicit_reduce = make_function(
    "collective_permute_implicit_reduce",
    "srcs0_by_channel srcs1_by_channel dsts_by_channel replica_group op channel_ids priority",
    renamed={
        "srcs0_by_channel": "srcs0", "srcs1_by_channel": "srcs1", "dsts_by_channel": "dsts",
        "replica_group": "groups",
    },
    defaults={"channel_ids": [0]},
    prepare=_flatten_channels,
    module=MODULE,
)  # fmt: skip


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int,
    replica_group: ReplicaGroup,
    channel_id: int = 0,
    name: str | None = None,
) -> VirtualRegister:
    """A register with the rank whose data this core has at step `iteration_id` of a ring."""
    function = "collective_permute_implicit_current_processing_rank_id"
    session = current(f"{MODULE}.{function}")
    register = VirtualRegister(session.new_register("rank"))
    fields = {
        "register": register.writable_name(),
        "iteration_id": attribute(iteration_id, caller()),
        "groups": _groups({"replica_group": replica_group}, session)["replica_group"],
        "channel_id": channel_id,
    }
    issue_setting(session, function, CollectivePermuteImplicitCurrentProcessingRankId, fields)
    return register


def rank_id(name: str | None = None) -> VirtualRegister:
    """A register with the rank of this core in the collective group."""
    session = current(f"{MODULE}.rank_id")
    register = VirtualRegister(session.new_register("rank"))
    issue_setting(session, "rank_id", RankId, {"register": register.writable_name()})
    return register


def __getattr__(name: str) -> object:
    if name == "NKIObject":  # a name here in releases up to 0.3
        return NKIObject
    if name.startswith("__"):
        raise AttributeError(name)
    hint = nearest(name, __all__)
    raise NoSuchName(module=MODULE, name=name, hint=hint, loc=caller())
