"""One legal example of every instruction, and small makers of tiles and patterns."""

from __future__ import annotations

import math

from glia.base.affine import Affine
from glia.base.dtype import BF16, F8E4M3FN_X4, F8E8M0FNU, F32, S32, U16, U32, DType
from glia.isa import (
    Activate2,
    Activation,
    AffineSelect,
    AllGather,
    AllGatherV,
    AllReduce,
    AllToAll,
    AllToAllV,
    Barrier,
    BnAggr,
    BnStats,
    CollectivePermute,
    CollectivePermuteImplicit,
    CollectivePermuteImplicitCurrentProcessingRankId,
    CollectivePermuteImplicitReduce,
    CoreBarrier,
    DmaCompute,
    DmaCopy,
    DmaGather,
    DmaGatherTranspose,
    DmaScatter,
    DmaTranspose,
    Dropout,
    Exponential,
    FindIndex8,
    Instr,
    Iota,
    LocalGather,
    MatchReplace8,
    Max8,
    Memory,
    Memset,
    NcMatmul,
    NcMatmulMx,
    NcNGather,
    NcTranspose,
    NonzeroWithCount,
    Pattern,
    QuantizeMx,
    Rand2,
    RandGetState,
    RandSetState,
    RangeSelect,
    RankId,
    Reciprocal,
    ReduceScatter,
    RegisterAlu,
    RegisterLoad,
    RegisterMove,
    RegisterStore,
    Rng,
    ScalarTensorTensor,
    SelectReduce,
    Sendrecv,
    SequenceBounds,
    SetRngSeed,
    StreamShuffle,
    TensorCopy,
    TensorCopyPredicated,
    TensorGather,
    TensorPartitionReduce,
    TensorReduce,
    TensorScalar,
    TensorScalarCumulative,
    TensorScalarReduce,
    TensorScatter,
    TensorTensor,
    TensorTensorScan,
    Tile,
    Topk,
)
from glia.isa.operand import row_major


def chip(
    name: str,
    *shape: int,
    dtype: DType = F32,
    memory: str = "SBUF",
    partition: int | Affine = 0,
    offset: int | Affine = 0,
) -> Pattern:
    """A contiguous on-chip pattern [partitions, ...] of a tile just large enough and 128 high."""
    tile = Tile(name, Memory(memory), dtype, 128, max(1, math.prod(shape[1:])))
    dims = ((1, shape[0]), *row_major(shape[1:]))
    return Pattern(tile, dtype, dims, Affine.of(offset), Affine.of(partition))


def hbm(name: str, *shape: int, dtype: DType = F32) -> Pattern:
    """A contiguous pattern over a whole HBM tile."""
    tile = Tile(name, Memory.HBM, dtype, 1, math.prod(shape))
    return Pattern(tile, dtype, row_major(shape))


def examples() -> dict[str, Instr]:
    """A legal instruction of every class on generation 3, by mnemonic."""
    a, b, out = chip("a", 64, 32), chip("b", 64, 32), chip("out", 64, 32)
    column, index = chip("column", 64, 1), chip("index", 64, 1, dtype=S32)
    eight = chip("eight", 64, 8)
    listed = (
        Activation(dst=out, data=a, function="exp", bias=column, scale=2.0, reduced=column),
        AffineSelect(dst=out, data=a, steps=(1,), compare_op="less", false_value=0.0),
        Barrier(),
        BnAggr(dst=chip("pair", 64, 2), data=chip("six", 64, 6)),
        BnStats(dst=chip("six", 64, 6), data=a),
        DmaCopy(dst=out, src=hbm("x", 64, 32), queue="q0"),
        DmaGather(dst=out, src=hbm("table", 100, 32), indices=index, queue="q0"),
        DmaScatter(dst=hbm("table", 100, 32), src=a, indices=index, combine="add", queue="q0"),
        FindIndex8(dst=chip("found", 64, 8, dtype=U32), data=a, vals=eight),
        Iota(dst=chip("count", 64, 32, dtype=S32), offset=3, channel_multiplier=32, steps=(1,)),
        MatchReplace8(dst=out, data=a, vals=eight, imm=0.0),
        Max8(dst=eight, data=a),
        Memset(dst=out, value=0.0),
        NcMatmul(dst=chip("sum", 32, 32, memory="PSUM"), stationary=a, moving=b),
        NcTranspose(dst=chip("turned", 32, 64, memory="PSUM"), data=a),
        Reciprocal(dst=out, data=a),
        RegisterAlu(register="n", op="add", a=1, b=2),
        RegisterLoad(register="n", src=chip("one", 1, 1, dtype=S32)),
        RegisterMove(register="n", value=4),
        ScalarTensorTensor(dst=out, data=a, operand0=column, op0="multiply", operand1=b, op1="add"),
        StreamShuffle(dst=out, src=a, mask=tuple(range(32))),
        TensorCopy(dst=out, src=a),
        TensorCopyPredicated(dst=out, src=a, predicate=chip("chosen", 64, 32, dtype=U16)),
        TensorPartitionReduce(dst=chip("row", 1, 32), data=a, op="add"),
        TensorReduce(dst=chip("column", 64, 1), data=a, op="add"),
        TensorScalar(dst=out, data=a, operand0=column, op0="multiply", operand1=1.0, op1="add"),
        TensorTensor(dst=out, data1=a, data2=b, op="add"),
        TensorTensorScan(dst=out, data0=a, data1=b, initial=0.0, op0="multiply", op1="add"),
    )
    everything = (*listed, *_moving(), *_meetings(), *_keeping_state())
    return {instr.mnemonic(): instr for instr in everything}


def _keeping_state() -> tuple[Instr, ...]:
    """Instructions that use accumulators or random generators, and register_store."""
    a, out, column = chip("a", 64, 32), chip("out", 64, 32), chip("column", 64, 1)
    bits = chip("bits", 64, 32, dtype=U16)
    state = chip("state", 64, 6, dtype=U32)
    return (
        Activate2(
            dst=out, data=a, function="gelu", operand0=2.0, op0="multiply", operand1=column,
            op1="add", reduced=column, command="reset_reduce", reduce_op="maximum",
        ),
        Dropout(dst=out, data=a, probability=0.5),
        Exponential(dst=out, data=a, most=column, reduced=column, command="reset_reduce"),
        Rand2(dst=out, low=0.0, high=1.0),
        RandGetState(dst=state),
        RandSetState(seeds=state),
        RangeSelect(
            dst=out, data=a, bound0=column, compare0="greater_equal", bound1=column,
            compare1="less", reduced=column,
        ),
        RegisterStore(dst=chip("one", 1, 1, dtype=S32), value=3),
        Rng(dst=bits),
        SelectReduce(dst=out, data=a, predicate=bits, on_false=0.0),
        SetRngSeed(seed=chip("seed", 1, 1, dtype=U32)),
        TensorScalarCumulative(dst=out, data=a, operand0=1.0, op0="multiply", op1="add"),
        TensorScalarReduce(
            dst=out, data=a, operand0=column, op0="subtract", reduce_op="add", reduced=column
        ),
    )  # fmt: skip


def _moving() -> tuple[Instr, ...]:
    """Gathers, searches, transposing transfers and microscaled floats."""
    a, ids = chip("a", 64, 32), chip("ids", 1, 32)
    snake, halves = chip("snake", 64, 4, dtype=BF16), chip("halves", 64, 32, dtype=BF16)
    table, scales = hbm("table", 100, 64, dtype=BF16), chip("scales", 64, 8, dtype=F8E8M0FNU)
    packed = chip("packed", 64, 8, dtype=F8E4M3FN_X4)
    return (
        DmaCompute(dst=a, srcs=(hbm("x", 64, 32), chip("b", 64, 32)), queue="q0"),
        DmaGatherTranspose(
            dst=chip("columns", 64, 16, dtype=BF16), src=table,
            indices=chip("rows", 16, 1, dtype=U32), queue="q0",
        ),
        DmaTranspose(dst=chip("turned", 32, 64), src=hbm("x", 64, 32), queue="q0"),
        LocalGather(
            dst=chip("got", 64, 64), src_buffer=a, index=chip("places", 64, 4, dtype=U16)
        ),
        NcMatmulMx(
            dst=chip("sum", 8, 8, memory="PSUM"), stationary=packed, moving=packed,
            stationary_scale=scales, moving_scale=scales,
        ),
        NcNGather(dst=chip("got", 64, 5), data=a, indices=chip("places", 64, 5, dtype=U32)),
        NonzeroWithCount(dst=chip("found", 64, 33, dtype=S32), src=a),
        QuantizeMx(dst=packed, src=halves, dst_scale=scales),
        SequenceBounds(dst=chip("bounds", 1, 2, 32), segment_ids=ids),
        TensorGather(dst=chip("got", 64, 5), src=a, index=chip("places", 64, 1, dtype=U16)),
        TensorScatter(dst=a, src=chip("put", 64, 5), index=chip("places", 64, 1, dtype=U16)),
        Topk(
            val_dst=chip("most", 64, 8, dtype=BF16), idx_dst=chip("where", 64, 8, dtype=U32),
            src=snake, n=42,
        ),
    )  # fmt: skip


def _meetings() -> tuple[Instr, ...]:
    """Instructions at which cores meet."""
    x, y, wide = hbm("x", 8, 4), hbm("y", 8, 4), hbm("wide", 32, 4)
    one = {"srcs": (x,), "dsts": (y,), "groups": ((0, 1, 2, 3), (4, 5, 6, 7)), "queue": "q0"}
    sizes = hbm("sizes", 3, 4, dtype=U32)
    return (
        AllGather(**{**one, "dsts": (wide,)}, collective_dim=0),
        AllGatherV(**one, metadata=sizes),
        AllReduce(**one, op="add"),
        AllToAll(**one, collective_dim=0),
        AllToAllV(**one, metadata=sizes),
        CollectivePermute(
            srcs=(x,), dsts=(y,), source_target_pairs=((0, 1), (1, 0)), queue="q0"
        ),
        CollectivePermuteImplicit(**one),
        CollectivePermuteImplicitCurrentProcessingRankId(
            register="n", iteration_id=1, groups=((0, 1),)
        ),
        CollectivePermuteImplicitReduce(
            srcs0=(x,), srcs1=(x,), dsts=(y,), op="add", groups=((0, 1),), queue="q0"
        ),
        CoreBarrier(data=x),
        RankId(register="n"),
        ReduceScatter(**{**one, "srcs": (wide,)}, collective_dim=0, op="add"),
        Sendrecv(
            dst=chip("got", 64, 32), src=chip("given", 64, 32), send_to_rank=1,
            recv_from_rank=1, pipe_id=0, queue="q0",
        ),
    )  # fmt: skip
