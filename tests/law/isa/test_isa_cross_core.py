"""What cores do together, against an independent statement of its meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import BF16, F32, S32, U32, DType
from glia.base.errors import Unspecified
from glia.isa.examples import chip, hbm
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
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.multicore import (
    CollectivePermuteImplicitCurrentProcessingRankId,
    CoreBarrier,
    RankId,
    Sendrecv,
)
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Loop, Program
from glia.sim.policy import AccessOutOfBounds, ExecutionFault, Policy
from glia.sim.run import Executor, run
from support.isa_cores import program_of, run_together

Array = np.ndarray[Any, Any]
GROUPS = ((2, 0, 3, 1),)  # the order of the list is not the order of ranks
PAIRS = ((0, 2), (3, 1))


def filled(count: int, names: dict[str, Pattern], seed: int) -> list[dict[str, Array]]:
    """Random contents of tiles for each core."""
    random = np.random.default_rng(seed)

    def values(pattern: Pattern) -> Array:
        shape = (pattern.tile.partitions, pattern.tile.elements)
        if pattern.dtype.is_integer:
            return random.integers(0, 1000, shape).astype(pattern.dtype.numpy)
        return random.normal(0, 1, shape).astype(pattern.dtype.numpy)

    return [{name: values(pattern) for name, pattern in names.items()} for _ in range(count)]


def together(instrs: list[Instr], inputs: list[dict[str, Array]]) -> list[dict[str, Array]]:
    return run_together([program_of(instr) for instr in instrs], inputs)


def combine(op: str, values: list[float]) -> float:
    return {"add": sum, "maximum": max, "minimum": min}[op](values)


@pytest.mark.parametrize("op", ["add", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", [F32, BF16, S32], ids=str)
def test_all_reduce(op: str, dtype: DType) -> None:
    x, y, u, v = (hbm(name, 3, 4, dtype=dtype) for name in "xyuv")
    inputs = filled(4, {"x": x, "y": y, "u": u, "v": v}, 1)
    instr = AllReduce(srcs=(x, u), dsts=(y, v), op=op, groups=GROUPS, queue="q")
    after = together([instr] * 4, inputs)
    for source, target in (("x", "y"), ("u", "v")):
        columns = zip(*(each[source].reshape(-1).tolist() for each in inputs), strict=True)
        wanted = np.array([combine(op, list(values)) for values in columns])
        for each in after:
            found = each[target].reshape(-1).astype(np.float64)
            np.testing.assert_allclose(found, wanted, rtol=1e-2 if dtype is BF16 else 1e-6,
                                       atol=1e-2 if dtype is BF16 else 1e-6)  # fmt: skip


def test_an_all_reduce_rounds_once() -> None:
    x, y = hbm("x", 1, dtype=BF16), hbm("y", 1, dtype=BF16)
    parts = [256.0, 1.0, 1.0, 1.0]  # 256 + 1 is no bfloat16
    inputs = [{"x": np.array([[p]], BF16.numpy), "y": np.zeros((1, 1), BF16.numpy)} for p in parts]
    instr = AllReduce(srcs=(x,), dsts=(y,), op="add", groups=((0, 1, 2, 3),), queue="q")
    assert [float(each["y"][0, 0]) for each in together([instr] * 4, inputs)] == [260.0] * 4


def test_integers_that_float32_cannot_hold_are_not_combined() -> None:
    x, y = hbm("x", 1, dtype=S32), hbm("y", 1, dtype=S32)
    inputs = [{"x": np.array([[2**24]], np.int32), "y": np.zeros((1, 1), np.int32)}] * 2
    instr = AllReduce(srcs=(x,), dsts=(y,), op="add", groups=((0, 1),), queue="q")
    with pytest.raises(Unspecified, match="integers that float32 cannot hold"):
        together([instr] * 2, inputs)


@pytest.mark.parametrize("values", [(2**23, 2**23), (-(2**23), -(2**23)), (2**24, -1)], ids=str)
def test_integers_that_float32_just_holds_are_combined(values: tuple[int, int]) -> None:
    x, y = hbm("x", 1, dtype=S32), hbm("y", 1, dtype=S32)
    zero = np.zeros((1, 1), np.int32)
    inputs = [{"x": np.array([[value]], np.int32), "y": zero} for value in values]
    instr = AllReduce(srcs=(x,), dsts=(y,), op="add", groups=((0, 1),), queue="q")
    assert [int(each["y"][0, 0]) for each in together([instr] * 2, inputs)] == [sum(values)] * 2


@pytest.mark.parametrize("values", [(2**23, 2**23 + 1), (-(2**23), -(2**23) - 1)], ids=str)
def test_nor_those_whose_sum_it_cannot_hold(values: tuple[int, int]) -> None:
    x, y = hbm("x", 1, dtype=S32), hbm("y", 1, dtype=S32)
    zero = np.zeros((1, 1), np.int32)
    inputs = [{"x": np.array([[value]], np.int32), "y": zero} for value in values]
    instr = AllReduce(srcs=(x,), dsts=(y,), op="add", groups=((0, 1),), queue="q")
    with pytest.raises(Unspecified, match="integers that float32 cannot hold"):
        together([instr] * 2, inputs)


def test_groups_meet_by_themselves() -> None:
    x, y = hbm("x", 2), hbm("y", 2)
    inputs = filled(4, {"x": x, "y": y}, 2)
    instr = AllReduce(srcs=(x,), dsts=(y,), op="add", groups=((0, 3), (1, 2)), queue="q")
    after = together([instr] * 4, inputs)
    for rank, other in ((0, 3), (1, 2), (2, 1), (3, 0)):
        np.testing.assert_allclose(after[rank]["y"], inputs[rank]["x"] + inputs[other]["x"])


@pytest.mark.parametrize("dim", [0, 1])
def test_all_gather_in_sbuf(dim: int) -> None:
    x = chip("x", 8, 5)
    y = chip("y", *((32, 5) if dim == 0 else (8, 20)))
    inputs = filled(4, {"x": x, "y": y}, 3)
    instr = AllGather(srcs=(x,), dsts=(y,), collective_dim=dim, groups=GROUPS, queue="q")
    after = together([instr] * 4, inputs)
    for each in after:
        for place, rank in enumerate(GROUPS[0]):
            found = each["y"][8 * place : 8 * place + 8, :5]
            if dim == 1:
                found = each["y"][:8, 5 * place : 5 * place + 5]
            np.testing.assert_array_equal(found, inputs[rank]["x"][:8])


def test_all_gather_reduce_scatter_and_all_to_all_in_hbm() -> None:
    small, large, other = hbm("small", 2, 3), hbm("large", 8, 3), hbm("other", 8, 3)
    inputs = filled(4, {"small": small, "large": large, "other": other}, 4)
    common = {"groups": GROUPS, "collective_dim": 0, "queue": "q"}
    gather = AllGather(srcs=(small,), dsts=(large,), **common)
    scatter = ReduceScatter(srcs=(large,), dsts=(small,), op="add", **common)
    swap = AllToAll(srcs=(large,), dsts=(other,), **common)
    wholes = [each["large"].reshape(4, 6) for each in inputs]
    gathered = together([gather] * 4, [_only(each, gather) for each in inputs])
    scattered = together([scatter] * 4, [_only(each, scatter) for each in inputs])
    swapped = together([swap] * 4, [_only(each, swap) for each in inputs])
    for rank in range(4):
        place = GROUPS[0].index(rank)
        pieces = [inputs[other]["small"].reshape(-1) for other in GROUPS[0]]
        np.testing.assert_array_equal(gathered[rank]["large"].reshape(-1), np.concatenate(pieces))
        total = sum(whole[place].astype(np.float64) for whole in wholes)
        np.testing.assert_allclose(scattered[rank]["small"].reshape(-1), total, rtol=1e-5)
        taken = np.concatenate([wholes[other][place] for other in GROUPS[0]])
        np.testing.assert_array_equal(swapped[rank]["other"].reshape(-1), taken)


def _only(inputs: dict[str, Array], instr: Instr) -> dict[str, Array]:
    return {p.tile.name: inputs[p.tile.name] for _, _, p in instr.operands()}


def test_collective_permute_leaves_who_is_no_target() -> None:
    x, y = hbm("x", 2, 3), hbm("y", 2, 3)
    inputs = filled(4, {"x": x, "y": y}, 5)
    instr = CollectivePermute(srcs=(x,), dsts=(y,), source_target_pairs=PAIRS, queue="q")
    after = together([instr] * 4, inputs)
    expected = [inputs[0]["y"], inputs[3]["x"], inputs[0]["x"], inputs[3]["y"]]
    for found, wanted in zip(after, expected, strict=True):
        np.testing.assert_array_equal(found["y"], wanted)


def test_a_ring_passes_on_and_says_whose_data_it_is() -> None:
    x, y = hbm("x", 3), hbm("y", 3)
    inputs = filled(4, {"x": x, "y": y}, 6)
    instr = CollectivePermuteImplicit(srcs=(x,), dsts=(y,), groups=GROUPS, queue="q")
    after = together([instr] * 4, inputs)
    for rank in range(4):
        before = GROUPS[0][GROUPS[0].index(rank) - 1]
        np.testing.assert_array_equal(after[rank]["y"], inputs[before]["x"])
        for step in range(6):
            place = (GROUPS[0].index(rank) - step) % 4
            assert _register_of(_rank_at(step), rank) == GROUPS[0][place]


def _rank_at(step: int) -> Instr:
    return CollectivePermuteImplicitCurrentProcessingRankId(
        register="n", iteration_id=step, groups=GROUPS
    )


def _register_of(instr: Instr, rank: int) -> int:
    executor = Executor(program_of(instr))
    executor.indices = {"cores": 0, "ranks": rank}
    environment: dict[str, int] = {}
    executor.step(instr, environment)
    return environment["$n"]


def test_a_core_knows_its_rank() -> None:
    assert _register_of(RankId(register="n"), 0) == 0
    assert _register_of(RankId(register="n"), 5) == 5


def test_a_ring_combines_before_it_passes_on() -> None:
    a, b, y = hbm("a", 3), hbm("b", 3), hbm("y", 3)
    inputs = filled(2, {"a": a, "b": b, "y": y}, 7)
    instr = CollectivePermuteImplicitReduce(
        srcs0=(a,), srcs1=(b,), dsts=(y,), op="maximum", groups=((0, 1),), queue="q"
    )
    after = together([instr] * 2, inputs)
    for rank in (0, 1):
        pairs = zip(inputs[1 - rank]["a"][0], inputs[1 - rank]["b"][0], strict=True)
        assert after[rank]["y"][0].tolist() == [max(p) for p in pairs]


COUNTS = [[1, 2, 0, 3], [2, 2, 2, 2], [0, 0, 0, 4], [4, 3, 2, 1]]
PLACES = [[0, 1, 0, 5], [8, 6, 4, 2], [0, 0, 0, 4], [6, 7, 8, 9]]


@pytest.mark.parametrize("recv_counts_known", [False, True])
@pytest.mark.parametrize("has_rdispls", [False, True])
def test_all_to_all_v(recv_counts_known: bool, has_rdispls: bool) -> None:
    x, y, m = hbm("x", 10), hbm("y", 16), hbm("m", 4, 4, dtype=U32)
    inputs = filled(4, {"x": x, "y": y, "m": m}, 8)
    for rank in range(4):
        rows = [COUNTS[rank], PLACES[rank], [77] * 4, [12, 8, 4, 0]]
        inputs[rank]["m"] = np.array(rows, np.uint32).reshape(1, 16)
    instr = AllToAllV(
        srcs=(x,), dsts=(y,), metadata=m, groups=((0, 1, 2, 3),), queue="q",
        recv_counts_known=recv_counts_known, has_rdispls=has_rdispls,
    )  # fmt: skip
    after = together([instr] * 4, inputs)
    for rank in range(4):
        wanted = inputs[rank]["y"][0].copy()
        for sender in range(4):
            place = [12, 8, 4, 0][sender] if has_rdispls else 4 * sender
            for k in range(COUNTS[sender][rank]):
                wanted[place + k] = inputs[sender]["x"][0, PLACES[sender][rank] + k]
        np.testing.assert_array_equal(after[rank]["y"][0], wanted)
        received = [77] * 4 if recv_counts_known else [COUNTS[s][rank] for s in range(4)]
        assert after[rank]["m"].reshape(4, 4)[2].tolist() == received


def test_all_gather_v_reads_the_first_column() -> None:
    x, y, m = hbm("x", 5), hbm("y", 12), hbm("m", 3, 4, dtype=U32)
    inputs = filled(4, {"x": x, "y": y, "m": m}, 9)
    for rank in range(4):
        rows = [[rank, 9, 9, 9], [1, 9, 9, 9], [0] * 4]
        inputs[rank]["m"] = np.array(rows, np.uint32).reshape(1, 12)
    instr = AllGatherV(srcs=(x,), dsts=(y,), metadata=m, groups=((0, 1, 2, 3),), queue="q")
    after = together([instr] * 4, inputs)
    for rank in range(4):
        wanted = inputs[rank]["y"][0].copy()
        for sender in range(4):
            wanted[3 * sender : 4 * sender] = inputs[sender]["x"][0, 1 : 1 + sender]
        np.testing.assert_array_equal(after[rank]["y"][0], wanted)
        assert after[rank]["m"].reshape(3, 4)[2].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("counts,places,said", [
    ([5, 0], [0, 0], "sends 5 elements to rank 0, whose slots have 4"),
    ([4, 0], [7, 0], r"elements 7..10 of the src of rank 0, which has 10"),
])  # fmt: skip
def test_a_piece_that_leaves_its_tensor_is_a_fault(
    counts: list[int], places: list[int], said: str
) -> None:
    x, y, m = hbm("x", 10), hbm("y", 8), hbm("m", 3, 2, dtype=U32)
    inputs = filled(2, {"x": x, "y": y, "m": m}, 10)
    for each in inputs:
        each["m"] = np.array([counts, places, [0, 0]], np.uint32).reshape(1, 6)
    instr = AllToAllV(srcs=(x,), dsts=(y,), metadata=m, groups=((0, 1),), queue="q")
    with pytest.raises(AccessOutOfBounds, match=said):
        together([instr] * 2, inputs)


def test_sendrecv_swaps_halves_of_one_buffer() -> None:
    tile = Tile("t", Memory.SBUF, F32, 128, 8)
    halves = [Pattern(tile, F32, ((1, 32), (1, 4)), Affine.of(4 * i)) for i in range(2)]
    inputs = filled(2, {"t": halves[0]}, 11)
    instrs: list[Instr] = [
        Sendrecv(src=halves[r], dst=halves[1 - r], send_to_rank=1 - r, recv_from_rank=1 - r,
                 pipe_id=0, queue="q")
        for r in range(2)
    ]  # fmt: skip
    after = together(instrs, inputs)
    for rank in range(2):
        wanted = inputs[rank]["t"].copy()
        other = inputs[1 - rank]["t"]
        wanted[:32, 4 * (1 - rank) : 8 - 4 * rank] = other[:32, 4 * (1 - rank) : 8 - 4 * rank]
        np.testing.assert_array_equal(after[rank]["t"], wanted)


def test_sendrecv_meets_once_for_each_iteration() -> None:
    src, dst = chip("s", 32, 1), chip("d", 32, 3)
    one = Pattern(dst.tile, F32, ((1, 32), (1, 1)), Affine.of("i"))
    inputs = filled(2, {"s": src, "d": dst}, 12)
    programs = []
    for rank in range(2):
        exchange = Sendrecv(src=src, dst=one, send_to_rank=1 - rank, recv_from_rank=1 - rank,
                            pipe_id=3, queue="q")  # fmt: skip
        again = DmaCopy(dst=src, src=one, queue="q")
        programs.append(program_of(Loop("i", 3, (exchange, again))))
    after = run_together(programs, inputs)
    for rank in range(2):
        mine, theirs = inputs[rank]["s"][:32, 0], inputs[1 - rank]["s"][:32, 0]
        for i, wanted in enumerate((theirs, mine, theirs)):
            np.testing.assert_array_equal(after[rank]["d"][:32, i], wanted)


def test_sendrecv_with_one_who_sends_elsewhere_is_not_specified() -> None:
    a, b = chip("a", 32, 1), chip("b", 32, 1)
    instrs: list[Instr] = [
        Sendrecv(src=a, dst=b, send_to_rank=0, recv_from_rank=1, pipe_id=0, queue="q"),
        Sendrecv(src=a, dst=b, send_to_rank=1, recv_from_rank=0, pipe_id=0, queue="q"),
    ]
    with pytest.raises(Unspecified, match="receives from core"):
        together(instrs, filled(2, {"a": a, "b": b}, 13))


def test_a_core_barrier_changes_nothing_and_reads_nothing() -> None:
    x = hbm("x", 4)
    inputs = filled(2, {"x": x}, 14)
    after = together([CoreBarrier(data=x)] * 2, inputs)
    for before, now in zip(inputs, after, strict=True):
        np.testing.assert_array_equal(now["x"], before["x"])


def test_a_core_alone_meets_nobody() -> None:
    instr = CoreBarrier(data=hbm("x", 4))
    with pytest.raises(ExecutionFault, match="cores 0, 1 synchronize here"):
        run(program_of(instr), {"x": np.zeros((1, 4), np.float32)})


def test_a_core_barrier_may_be_over_memory_that_the_other_core_writes() -> None:
    data = hbm("x", 4)
    instr = CoreBarrier(data=data)
    program = Program("p", "trn3", {"x": data.tile}, (), (), {}, (instr,))
    executor = Executor(program, policy=Policy(check_initialized=True))
    executor.exchange = lambda _, own: CoreBarrier.compute([own])[0]
    executor.execute()
    np.testing.assert_array_equal(executor.memories.view(data, {}), np.full(4, np.nan))


def test_a_rank_outside_every_group_is_not_specified() -> None:
    instr = AllReduce(srcs=(hbm("x", 4),), dsts=(hbm("y", 4),), op="add", groups=((1, 2),),
                      queue="q")  # fmt: skip
    with pytest.raises(Unspecified, match="in none of the groups"):
        instr.ranks(0)
