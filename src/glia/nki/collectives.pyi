"""Written by tools/nki_stubs.py; the module itself holds the documentation."""

from collections.abc import Sequence as _Sequence
from glia.isa.rendezvous import Groups as _Groups
from glia.nki.names.operators import Op as _Op
from glia.nki.tensors.nki_object import NKIObject as _NKIObject
from glia.nki.tensors.nki_object import NkiInstruction as _NkiInstruction
from glia.nki.tensors.nki_tensor import NkiTensor as _NkiTensor
from glia.nki.tensors.registers import VirtualRegister as _VirtualRegister
from typing import Any as _Any

__all__ = ["ReplicaGroup", "all_gather", "all_gather_v", "all_reduce", "all_to_all", "all_to_all_v", "collective_permute", "collective_permute_implicit", "collective_permute_implicit_current_processing_rank_id", "collective_permute_implicit_reduce", "rank_id", "reduce_scatter"]

def all_gather(
    srcs: list[_NkiTensor],
    dsts: list[_NkiTensor],
    replica_group: _Groups,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """Every rank gets the srcs of its group one after the other along `collective_dim`."""
def all_gather_v(
    srcs: list[_NkiTensor],
    dsts: list[_NkiTensor],
    replica_group: _Groups,
    metadata_tensor: _NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """Every rank sends one piece of its src to all ranks of its group; sizes vary by rank."""
def all_reduce(
    srcs: list[_NkiTensor],
    dsts: list[_NkiTensor],
    replica_group: _Groups,
    op: _Op,
    priority: int | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """Every rank gets the srcs of its group combined with `op`, element by element."""
def all_to_all(
    srcs: list[_NkiTensor],
    dsts: list[_NkiTensor],
    replica_group: _Groups,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """Rank number i of a group gets piece i of every rank's src, in the order of ranks."""
def all_to_all_v(
    srcs: list[_NkiTensor],
    dsts: list[_NkiTensor],
    replica_group: _Groups,
    metadata_tensor: _NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """Every rank sends a piece of its src to each rank of its group; sizes vary by pair."""
def collective_permute(
    srcs: list[_NkiTensor],
    dsts: list[_NkiTensor],
    source_target_pairs: tuple[tuple[int, int], ...],
    priority: int | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """For each pair (source, target) of ranks: the target's dst takes the source's src."""
def collective_permute_implicit(
    srcs_by_channel: list[_NkiTensor],
    dsts_by_channel: list[_NkiTensor],
    replica_group: _Groups,
    channel_ids: tuple[int, ...] = ...,
    priority: int | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """Every rank sends its srcs to its successor in a ring and takes its predecessor's into dsts."""
def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int,
    replica_group: _ReplicaGroup,
    channel_id: int = 0,
    name: str | None = None,
) -> _VirtualRegister:
    """A register with the rank whose data this core has at step `iteration_id` of a ring."""
def collective_permute_implicit_reduce(
    srcs0_by_channel: list[_NkiTensor],
    srcs1_by_channel: list[_NkiTensor],
    dsts_by_channel: list[_NkiTensor],
    replica_group: _Groups,
    op: _Op,
    channel_ids: tuple[int, ...] = ...,
    priority: int | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """As collective_permute_implicit, of srcs0 `op` srcs1, which every rank combines before."""
def rank_id(name: str | None = None) -> _VirtualRegister:
    """A register with the rank of this core in the collective group."""
def reduce_scatter(
    srcs: list[_NkiTensor],
    dsts: list[_NkiTensor],
    replica_group: _Groups,
    collective_dim: int,
    op: _Op,
    priority: int | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """The srcs of a group are combined with `op`; rank number i of it gets piece i of the result."""
class ReplicaGroup(_NKIObject):
    def __init__(self: _Any, groups: _Sequence[_Sequence[int]]) -> None:
        """Initialize self.  See help(type(self)) for accurate signature."""
_ReplicaGroup = ReplicaGroup
