"""Every change of a signature between NKI 0.2 and 0.6, in its first form and in its last one.

A row is what a kernel of that release writes: it runs on `X` and `Y` in HBM, and on what `extra`
holds, and returns what `expected` says of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import normal, stored

LEAST = -3.4028235e38
X, Y = normal(8, 16), normal(8, 16, seed=1)
COLUMN = np.arange(8, dtype=np.float32)[:, None]
ROWS_8, COLUMNS_16 = np.arange(8)[:, None], np.arange(16)[None, :]


@dataclass(frozen=True)
class Row:
    """One form of a call; `is_old` where a KernelAdvice says what to write in its place."""

    symbol: str
    release: str
    kernel: Callable[..., Any]
    expected: Callable[..., Any]
    is_old: bool = False
    ranks: int = 0
    target: str = "trn2"


RELEASES: list[Row] = []


def row(symbol: str, release: str, expected: Callable[..., Any], **options: Any) -> Any:
    """Enter the kernel as a row."""

    def enter(kernel: Callable[..., Any]) -> Callable[..., Any]:
        RELEASES.append(Row(symbol, release, kernel, expected, **options))
        return kernel

    return enter


def _tile(x: NkiTensor) -> NkiTensor:
    return nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)


def _is_lower(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(ROWS_8 - COLUMNS_16 >= 0, x, 0)


# --- transfers -----------------------------------------------------------------------------------


@row("dma_copy", "0.2", lambda x, y: y + x, is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    total = nl.load(x)
    nisa.dma_copy(dst=total, src=y, dst_rmw_op=nl.add, unique_indices=True)
    return stored(total)


@row("dma_copy", "0.6", lambda x, y: y + x)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    total, again = nl.load(x), _tile(x)
    nisa.dma_compute(total, [total, y], nl.add)
    nisa.dma_copy(again, total, None, engine=nisa.engine.gpsimd)
    return stored(again)


@row("dma_compute", "0.2", lambda x, y: x + y, is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    total = _tile(x)
    nisa.dma_compute(total, [x, y], [1.0, 1.0], nl.add)
    return stored(total)


@row("dma_compute", "0.2 without scales", lambda x, y: x + y, is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    total = _tile(x)
    nisa.dma_compute(total, [x, y], None, reduce_op=nl.add)
    return stored(total)


@row("dma_compute", "0.6", lambda x, y: x + y)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    total = _tile(x)
    nisa.dma_compute(total, [x, y], nl.add, [1.0, 1.0], True, oob_mode=nisa.oob_mode.error)
    return stored(total)


# --- GpSimd and the Vector Engine ----------------------------------------------------------------


@row("affine_select", "0.2", _is_lower, is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    dst = _tile(x)
    nisa.affine_select(dst, [[-1, 16]], 0, 1, nl.load(x), 0.0, nl.greater_equal)
    return stored(dst)


@row("affine_select", "0.2 by keyword", _is_lower, is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    dst = _tile(x)
    nisa.affine_select(
        dst, [[-1, 16]], 0, channel_multiplier=1, on_true_tile=nl.load(x), on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )  # fmt: skip
    return stored(dst)


@row("affine_select", "0.6", _is_lower)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    dst = _tile(x)
    nisa.affine_select(dst, [[-1, 16]], 1, nl.load(x), 0.0, nl.greater_equal)
    return stored(dst)


@row("iota", "0.2", lambda x, y: 3 + ROWS_8 * 16 + COLUMNS_16)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    dst = nl.ndarray((8, 16), nl.int32, buffer=nl.sbuf)
    nisa.iota(dst, [[1, 16]], 3, 16)
    return stored(dst)


@row("iota", "0.6", lambda x, y: ROWS_8 * 16 + COLUMNS_16)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    dst = nl.ndarray((8, 16), nl.int32, buffer=nl.sbuf)
    nisa.iota(dst, [[1, 16]], channel_multiplier=16)
    return stored(dst)


def _in_range(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where((COLUMNS_16 >= 2) & (COLUMNS_16 < 9), x, np.float32(LEAST))


def _bounds() -> tuple[NkiTensor, NkiTensor]:
    return nl.full((8, 1), 2, nl.float32), nl.full((8, 1), 9, nl.float32)


@row("range_select", "0.2", _in_range)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    dst, (low, high) = _tile(x), _bounds()
    nisa.range_select(
        dst=dst, on_true_tile=nl.load(x), comp_op0=nl.greater_equal, comp_op1=nl.less,
        bound0=low, bound1=high, reduce_cmd=nisa.reduce_cmd.idle, on_false_value=LEAST,
    )  # fmt: skip
    return stored(dst)


@row("range_select", "0.6", lambda x, y: _in_range(x, y).max(axis=1, keepdims=True))
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    dst, greatest, (low, high) = _tile(x), nl.ndarray((8, 1), nl.float32), _bounds()
    nisa.range_select(
        dst=dst, on_true_tile=nl.load(x), comp_op0=nl.greater_equal, comp_op1=nl.less,
        bound0=low, bound1=high, reduce_res=greatest,
    )  # fmt: skip
    return stored(greatest)


@row("tensor_scalar_reduce", "0.2", lambda x, y: (2 * x).sum(1, keepdims=True))
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    total = nl.ndarray((8, 1), nl.float32)
    nisa.tensor_scalar_reduce(_tile(x), nl.load(x), nl.multiply, 2.0, nl.add, total)
    return stored(total)


@row("tensor_scalar_reduce", "0.6", lambda x, y: -(2 * x).sum(1, keepdims=True))
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    total, dst = nl.ndarray((8, 1), nl.float32), _tile(x)
    nisa.tensor_scalar_reduce(dst, nl.load(x), nl.multiply, 2.0, nl.add)
    nisa.tensor_scalar_reduce(
        dst, nl.load(x), nl.multiply, 2.0, nl.add, reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res_negate=True,
    )  # fmt: skip
    return stored(total)


def _same_bits(x: np.ndarray, y: np.ndarray) -> None:
    """What no document says: only that both ways to run agree."""


@row("rng, rand_set_state, rand_get_state", "0.2", _same_bits)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    bits, state = nl.ndarray((128, 6), nl.uint32), nl.ndarray((128, 6), nl.uint32)
    unknown = nisa.engine.unknown
    nisa.rand_set_state(nl.full((128, 6), 7, nl.uint32), unknown)
    nisa.rng(bits, unknown)
    nisa.rand_get_state(state, unknown)
    return stored(bits), stored(state)


@row("rng, rand_set_state, rand_get_state", "0.6", _same_bits)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    bits, state = nl.ndarray((128, 6), nl.uint32), nl.ndarray((128, 6), nl.uint32)
    nisa.rand_set_state(nl.full((128, 6), 7, nl.uint32))
    nisa.rand_get_state(state)
    nisa.rng(bits, engine=nisa.engine.gpsimd)
    return stored(state), stored(bits)


@row("tensor_copy_dynamic_src, tensor_copy_dynamic_dst", "0.2", lambda x, y: x[:, 3:4])
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    tile, at, moved = nl.load(x), nl.full((1, 1), 3, nl.int32), nl.zeros((8, 2), nl.float32)
    nisa.tensor_copy_dynamic_src(dst=moved[:, 0:1], src=tile.select(1, at))
    nisa.tensor_copy_dynamic_dst(dst=tile.select(1, at), src=moved[:, 0:1])
    return stored(tile[:, 3:4])


@row("tensor_copy_dynamic_src, tensor_copy_dynamic_dst", "0.6", lambda x, y: x[:, 3:4])
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    tile, at, moved = nl.load(x), nl.full((1, 1), 3, nl.int32), nl.zeros((8, 1), nl.float32)
    nisa.tensor_copy(moved, tile.select(1, at))
    return stored(moved)


# --- the Tensor Engine ---------------------------------------------------------------------------


@row("nc_matmul", "0.2", lambda x, y: x.T @ y, is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    dst = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst, nl.load(x), nl.load(y), False, False, False, (0, 0), (32, 128))
    return stored(dst)


@row("nc_matmul", "0.6", lambda x, y: x.T @ y)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    dst = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst, nl.load(x), nl.load(y), False, False, False, False, (0, 0), (32, 128))
    return stored(dst)


def _scaled_product(*accumulate: Any, **given: Any) -> NkiTensor:
    """[2, 2] of the sum of 128 products of ones, scaled by 4."""
    ones = nl.full((32, 8), 1, nl.bfloat16)
    packed = nl.ndarray((32, 2), nl.float8_e4m3fn_x4)
    scale, dst = nl.zeros((32, 2), nl.uint8), nl.ndarray((2, 2), nl.float32, buffer=nl.psum)
    nisa.quantize_mx(packed, ones, scale)
    nisa.nc_matmul_mx(dst, packed, packed, scale, scale, *accumulate, **given)
    return stored(dst)


@row(
    "nc_matmul_mx", "0.3", lambda x, y: np.full((2, 2), 128, np.float32), is_old=True, target="trn3"
)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return _scaled_product(False)


@row("nc_matmul_mx", "0.2", lambda x, y: np.full((2, 2), 128, np.float32), target="trn3")
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return _scaled_product((0, 0), (32, 128))


@row("nc_matmul_mx", "0.6", lambda x, y: np.full((2, 2), 128, np.float32), target="trn3")
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return _scaled_product(accumulate=False)


# --- registers, loops, the grid ------------------------------------------------------------------


@row("register_move", "0.2", lambda x, y: x[:, 5:7], is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    register = nisa.register_alloc()
    nisa.register_move(register, imm=5)
    return stored(nl.load(x)[:, nl.ds(register, 2)])


@row("register_move", "0.6", lambda x, y: x[:, 5:7])
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    register = nisa.register_alloc()
    nisa.register_move(register, src=nisa.register_alloc(5))
    return stored(nl.load(x)[:, nl.ds(register, 2)])


def _swapped(**given: Any) -> Callable[..., NkiTensor]:
    def kernel(x: NkiTensor, y: NkiTensor) -> NkiTensor:
        rank = nl.program_id(0)
        own, other = nl.load(x if rank == 0 else y), nl.ndarray((8, 16), nl.float32)
        out = nl.ndarray((2, 8, 16), nl.float32, buffer=nl.shared_hbm)
        nisa.sendrecv(own, other, 1 - rank, 1 - rank, 0, **given)
        nisa.dma_copy(out[rank], other)
        return out

    return kernel


def _in_step(*given: Any) -> Callable[..., NkiTensor]:
    def kernel(x: NkiTensor, y: NkiTensor) -> NkiTensor:
        rank = nl.program_id(0)
        shared = nl.ndarray((2, 8, 16), nl.float32, buffer=nl.shared_hbm)
        out = nl.ndarray((2, 8, 16), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(shared[rank], nl.load(x if rank == 0 else y))
        nisa.core_barrier(shared, (0, 1), *given)
        nisa.dma_copy(out[rank], nl.load(shared[1 - rank]))
        return out

    return kernel


def _exchanged(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([y, x])


row("sendrecv", "0.2", _exchanged, ranks=2)(_swapped())
row("sendrecv", "0.6", _exchanged, ranks=2)(_swapped(dma_engine=nisa.dma_engine.dma))
row("core_barrier", "0.2", _exchanged, ranks=2)(_in_step(nisa.engine.unknown))
row("core_barrier", "0.6", _exchanged, ranks=2)(_in_step())


@row("num_programs, program_id", "0.2", lambda x, y: np.full((2, 1, 1), 2, np.float32), ranks=2)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    out = nl.ndarray((2, 1, 1), nl.float32, buffer=nl.shared_hbm)
    count = nl.num_programs(axes=None) * nl.num_programs((0,)) // nl.num_programs([0])
    nisa.dma_copy(out[nl.program_id(axis=0)], nl.full((1, 1), count, nl.float32))
    return out


@row("num_programs, program_id", "0.6", lambda x, y: np.full((2, 1, 1), 2, np.float32), ranks=2)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    out = nl.ndarray((2, 1, 1), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out[nl.program_id()], nl.full((1, 1), nl.num_programs(), nl.float32))
    return out


def _summed(steps: Any, x: NkiTensor) -> NkiTensor:
    total = nl.zeros((8, 1), nl.float32)
    tile = nl.load(x)
    for i in steps:
        nisa.tensor_tensor(total, total, tile[:, i : i + 1], nl.add)
    return stored(total)


@row("sequential_range", "0.2", lambda x, y: x[:, 0:1] + x[:, 1:2] + x[:, 2:3])
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return _summed(nl.sequential_range(0, 3, 1), x)


@row("sequential_range", "0.6", lambda x, y: x[:, 0:1] + x[:, 1:2] + x[:, 2:3])
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return _summed(nl.sequential_range(3), x)


# --- tensors and nl ------------------------------------------------------------------------------


@row("comparisons", "0.2", lambda x, y: (x < y) & (x != 0))
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    one, two = nl.load(x), nl.load(y)
    less = nl.less(one, two, dtype=bool)
    return stored(nl.logical_and(less, nl.not_equal(one, 0.0, dtype=bool), dtype=np.bool_))


@row("comparisons", "0.6", lambda x, y: (x < y).astype(np.float32))
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return stored(nl.less(nl.load(x), nl.load(y)))


@row("buffers", "0.2", lambda x, y: x.T @ x + 1, is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    tile = nl.ndarray((8, 16), nl.float32, "sbuf")
    product = nl.zeros((16, 16), nl.float32, buffer="psum")
    ones = nl.full((16, 16), 1, nl.float32, buffer="sbuf")
    kept = nl.ndarray((16, 16), nl.float32, buffer="private_hbm")
    again = nl.ndarray((16, 16), nl.float32, buffer="hbm")
    out = nl.ndarray((16, 16), nl.float32, buffer="shared_hbm")
    nisa.dma_copy(tile, x)
    nisa.nc_matmul(product, tile, tile)
    nisa.tensor_tensor(ones, ones, product, nl.add)
    nisa.dma_copy(kept, ones)
    nisa.dma_copy(again, kept)
    nisa.dma_copy(out, again)
    return out


@row("buffers", "0.6", lambda x, y: x)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    assert nl.hbm is nl.private_hbm is nl.MemoryRegion.private_hbm
    kept = nl.ndarray((8, 16), nl.float32, nl.hbm)
    nisa.dma_copy(kept, x)
    return stored(nl.load(kept))


@row("ndarray, zeros", "0.2", lambda x, y: x + 0, is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    tile, nothing = (
        nl.ndarray((8, 16), nl.float32, None),
        nl.zeros([8, 16], nl.float32, buffer=None),
    )
    nisa.dma_copy(tile, x)
    nisa.tensor_tensor(tile, tile, nothing, nl.add)
    return stored(tile)


@row("ndarray, zeros", "0.6", lambda x, y: x + 0)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    tile, nothing = nl.ndarray((8, 16), nl.float32, address=(0, 4096)), nl.zeros((8, 16), "float32")
    nisa.dma_copy(tile, x)
    nisa.tensor_tensor(tile, tile, nothing, nl.add)
    return stored(tile)


@row("shared_constant", "0.2", lambda x, y: COLUMN.astype(ml_dtypes.bfloat16), is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return stored(nl.load(nl.shared_constant(COLUMN, nl.bfloat16)))


@row("shared_constant", "0.2 by keyword", lambda x, y: COLUMN.astype(np.int32), is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return stored(nl.load(nl.shared_constant(constant=COLUMN, dtype=np.int32)))


@row("shared_constant", "0.6", lambda x, y: COLUMN)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return stored(nl.load(nl.shared_constant(COLUMN)))


@row("NkiTensor.ap", "0.2", lambda x, y: x[:, ::2])
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return stored(nl.load(x).ap([[16, 8], [2, 8]], 0))


@row("NkiTensor.ap", "0.6", lambda x, y: x[:, ::2])
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return stored(nl.load(x).ap([[16, 8], [2, 8]], offset=None))


@row("NkiTensor.reshape", "0.4", lambda x, y: x.reshape(8, 4, 4), is_old=True)
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return stored(nl.load(x).reshape(new_shape=(8, 4, 4)))


@row("NkiTensor.reshape", "0.6", lambda x, y: x.reshape(8, 4, 4))
def _(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    return stored(nl.load(x).reshape((8, 4, 4)))
