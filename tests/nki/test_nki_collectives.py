"""Functions of nki.collectives give the instruction what their parameters say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia.isa.instructions.collectives import (
    AllGather,
    AllGatherV,
    AllReduce,
    AllToAll,
    AllToAllV,
    CollectivePermute,
    CollectivePermuteImplicit,
    CollectivePermuteImplicitReduce,
    ReduceScatter,
)
from glia.isa.instructions.multicore import CollectivePermuteImplicitCurrentProcessingRankId
from glia.isa.kit import Instr
from glia.machine.ir import Program
from glia.nki import collectives as groups
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.collectives import ReplicaGroup
from glia.nki.names.errors import NotInNki
from glia.nki.run.trace import trace
from glia.nki.tensors.nki_tensor import NkiTensor

GROUPS = ((0, 1), (2, 3))
GROUP = ReplicaGroup([[0, 1], [2, 3]])
WORLD = ReplicaGroup([[0, 1, 2, 3]])


def tensors(*rows: int, dtype: str = "float32") -> list[NkiTensor]:
    return [nl.ndarray((each, 4), dtype, buffer=nl.shared_hbm) for each in rows]


def issued(call: Callable[[], Any], kind: type[Instr], target: str = "trn3") -> Any:
    """The instruction of a kind that a call issues in a kernel."""

    def kernel(x: NkiTensor) -> NkiTensor:
        call()
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        return out

    program: Program = trace(kernel, np.zeros((2, 2), np.float32), target=target)
    (found,) = [each for each in program.instructions() if isinstance(each, kind)]
    return found


def rows_of(instr: Any, *names: str) -> list[list[int]]:
    """The rows of every tensor of an instruction's operands."""
    return [[p.shape[0] for p in getattr(instr, name)] for name in names]


def test_all_reduce() -> None:
    def call() -> None:
        sources, targets = tensors(2, 6), tensors(2, 6)
        groups.all_reduce(sources, targets, GROUP, nl.maximum, 2)

    found = issued(call, AllReduce)
    assert rows_of(found, "srcs", "dsts") == [[2, 6], [2, 6]]
    assert (found.groups, found.op, found.priority) == (GROUPS, "maximum", 2)


def test_gathering_and_scattering_collectives_know_their_sides() -> None:
    def gather() -> None:
        groups.all_gather(tensors(2), tensors(4), GROUP, 0, 3)

    def scatter() -> None:
        groups.reduce_scatter(tensors(4), tensors(2), GROUP, 0, nl.minimum)

    def exchange() -> None:
        groups.all_to_all(tensors(4), tensors(4), GROUP, collective_dim=0, priority=1)

    found = issued(gather, AllGather)
    assert rows_of(found, "srcs", "dsts") == [[2], [4]]
    assert (found.groups, found.collective_dim, found.priority) == (GROUPS, 0, 3)
    found = issued(scatter, ReduceScatter)
    assert rows_of(found, "srcs", "dsts") == [[4], [2]]
    assert (found.op, found.collective_dim, found.priority) == ("minimum", 0, None)
    found = issued(exchange, AllToAll)
    assert (found.groups, found.collective_dim, found.priority) == (GROUPS, 0, 1)


def test_all_gather_in_sbuf_goes_along_a_dimension() -> None:
    def call() -> None:
        source, target = nl.ndarray((8, 4), nl.float32), nl.ndarray((8, 8), nl.float32)
        nisa.memset(source, 0.0)
        groups.all_gather([source], [target], GROUP, 1)

    assert issued(call, AllGather).collective_dim == 1


@pytest.mark.parametrize("name", ["all_gather_v", "all_to_all_v"])
@pytest.mark.parametrize("known", [False, True])
def test_collectives_of_varying_sizes(name: str, known: bool) -> None:
    def call() -> None:
        metadata = nl.ndarray((3, 4), nl.uint32, buffer=nl.shared_hbm)
        getattr(groups, name)(tensors(3), tensors(5), WORLD, metadata, known)

    kind = {"all_gather_v": AllGatherV, "all_to_all_v": AllToAllV}[name]
    found = issued(call, kind)
    assert rows_of(found, "srcs", "dsts") == [[3], [5]]
    assert (found.metadata.shape, found.recv_counts_known) == ((3, 4), known)
    assert (found.has_rdispls, found.groups) == (False, ((0, 1, 2, 3),))


def test_all_to_all_v_takes_places_of_what_it_receives() -> None:
    def call() -> None:
        metadata = nl.ndarray((4, 4), nl.uint32, buffer=nl.shared_hbm)
        groups.all_to_all_v(tensors(3), tensors(5), WORLD, metadata, has_rdispls=True)

    assert issued(call, AllToAllV).has_rdispls is True


def test_permutations_name_pairs_or_go_round_a_ring() -> None:
    def pairs() -> None:
        groups.collective_permute(tensors(2), tensors(2), [(0, 1), (1, 0)], 1)

    def ring() -> None:
        sources, targets = tensors(2, 6), tensors(2, 6)
        groups.collective_permute_implicit(
            [[each] for each in sources], [[each] for each in targets], GROUP, [0, 1], 2
        )

    def reduction() -> None:
        (left,), (right,), (target,) = tensors(2), tensors(2), tensors(2)
        groups.collective_permute_implicit_reduce([[left]], [[right]], [[target]], GROUP, nl.add)

    found = issued(pairs, CollectivePermute)
    assert (found.source_target_pairs, found.priority) == (((0, 1), (1, 0)), 1)
    found = issued(ring, CollectivePermuteImplicit)
    assert rows_of(found, "srcs", "dsts") == [[2, 6], [2, 6]]
    assert (found.channel_ids, found.groups, found.priority) == ((0, 1), GROUPS, 2)
    found = issued(reduction, CollectivePermuteImplicitReduce)
    names = [p.tile.name for name in ("srcs0", "srcs1", "dsts") for p in getattr(found, name)]
    assert len(set(names)) == 3 and names == sorted(names)
    assert (found.op, found.channel_ids, found.priority) == ("add", (0,), None)


def test_a_channel_has_one_tensor() -> None:
    def call() -> None:
        groups.collective_permute_implicit([tensors(2, 2)], [tensors(2, 2)], GROUP, [0, 1])

    with pytest.raises(NotInNki, match="2 tensors in a channel"):
        issued(call, CollectivePermuteImplicit)


def test_the_rank_of_a_step_is_that_of_a_channel() -> None:
    def call() -> None:
        groups.collective_permute_implicit_current_processing_rank_id(3, GROUP, 1)

    found = issued(call, CollectivePermuteImplicitCurrentProcessingRankId)
    assert (found.iteration_id, found.groups, found.channel_id) == (3, GROUPS, 1)
