"""What is just legal: every limit of a rule, from the side where it holds.

`test_isa_rules` breaks every rule; here each limit is reached and not passed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glia.arch import get_target
from glia.base.dtype import (
    BF16,
    F8E4M3,
    F8E4M3FN_X4,
    F16,
    F32,
    S8,
    S16,
    S32,
    U8,
    U16,
    U32,
    DType,
)
from glia.isa.examples import chip, examples, hbm
from glia.machine.legal_instruction import violations

EXAMPLES = examples()
Changes = dict[str, Any]
psum = {"memory": "PSUM"}


def _product(rows: int, left: int, right: int, to: DType = F32, of: DType = BF16) -> Changes:
    return {
        "stationary": chip("a", rows, left, dtype=of), "moving": chip("b", rows, right, dtype=of),
        "dst": chip("s", left, right, dtype=to, **psum),
    }  # fmt: skip


def _scaled_product(rows: int, left: int, right: int, start: int = 0, to: DType = F32) -> Changes:
    def scales(name: str, columns: int) -> Any:
        return chip(name, (rows - 1) // 32 * 32 + 4, columns, dtype=U8, partition=start)

    changes = _product(rows, left, right, to, F8E4M3FN_X4)
    names = {"stationary_scale": scales("c", left), "moving_scale": scales("d", right)}
    return {**changes, **names}


def _turned(*shape: int, order: tuple[int, ...], dtype: DType = BF16) -> Changes:
    dst = chip("t", *(shape[axis] for axis in order), dtype=dtype)
    return {"src": hbm("x", *shape, dtype=dtype), "dst": dst}


def _tile(row: int, column: int, rows: int, columns: int) -> Changes:
    return {"tile_position": (row, column), "tile_size": (rows, columns)}


def _gathered(indices: tuple[int, int], rows: int, *row: int) -> Changes:
    order = {1: (1, 0), 2: (2, 1, 0), 3: (3, 1, 2, 0)}[len(row)]
    shape = (rows, *row)
    return {
        "src": hbm("x", 9, *row, dtype=BF16),
        "dst": chip("t", *(shape[axis] for axis in order), dtype=BF16),
        "indices": chip("i", *indices, dtype=U32),
    }  # fmt: skip


def _snake(n: int, count: int) -> Changes:
    return {
        "n": n, "src": chip("s", 16, -(-n // 16), dtype=BF16),
        "val_dst": chip("v", 16, count, dtype=BF16), "idx_dst": chip("i", 16, count, dtype=U32),
    }  # fmt: skip


def _picked(index: int, valid: int | None, run: int, free: int) -> Changes:
    return {
        "index": chip("i", 16, index, dtype=U16), "src_buffer": chip("a", 16, 64),
        "dst": chip("d", 16, free), "num_valid_indices": valid, "num_elem_per_idx": run,
    }  # fmt: skip


_NAMES = ("a", "b", "c", "d")
_FOUR = {
    "srcs": tuple(hbm(f"x{n}", 8, 4) for n in _NAMES), "channel_ids": (0, 1, 2, 3),
    "dsts": tuple(hbm(f"y{n}", 8, 4) for n in _NAMES),
}  # fmt: skip
_PRIORITIES: list[tuple[Changes, str]] = [({"priority": 0}, "trn3"), ({"priority": 3}, "trn3")]
_ALL_BITS = [({"offset": 2**31 - 1, "channel_multiplier": -(2**31)}, "trn2"),
             ({"offset": -(2**31), "channel_multiplier": 2**31 - 1}, "trn2"),
             ({"steps": (1,) * 4, "counts": (2, 2, 2, 4)}, "trn2")]  # fmt: skip
_METADATA: list[tuple[Changes, str]] = [
    ({"metadata": chip("m", 1, 3, 4, dtype=U32)}, "trn3"),
    ({"metadata": chip("m", 1, 4, 4, dtype=U32)}, "trn3"),
    ({"metadata": hbm("m", 4, 4, dtype=U32)}, "trn3"),
]
_PRIORITISED = (
    "all_gather", "all_reduce", "all_to_all", "collective_permute", "dma_copy", "dma_gather",
    "dma_gather_transpose", "dma_scatter", "dma_transpose", "reduce_scatter",
)  # fmt: skip
TRANSFERS: dict[str, list[tuple[Changes, str]]] = {
    **dict.fromkeys(_PRIORITISED, _PRIORITIES),
    "all_gather_v": _METADATA,
    "all_to_all_v": [
        *_METADATA, ({"metadata": hbm("m", 4, 4, dtype=U32), "has_rdispls": True}, "trn3"),
    ],
    "collective_permute_implicit": [(_FOUR, "trn2")],
    "dma_compute": [({"srcs": (hbm("x", 64, 32),) * 16}, "trn2"),
                    ({"srcs": (hbm("x", 64, 32),) * 2, "scales": (1.0, 1.0)}, "trn2")],
    "sendrecv": [
        ({"src": chip("a", 64, 256, dtype=dtype), "dst": chip("b", 64, 256, dtype=dtype),
          "dma_engine": "gpsimd_dma", "on": "gpsimd"}, "trn2")
        for dtype in (F32, BF16, U8)
    ],
}  # fmt: skip
TRANSFERS["dma_transpose"] = [
    *_PRIORITIES,
    ({**_turned(16, 128, order=(1, 0)), "dge_mode": "hwdge", "on": "sync"}, "trn2"),
    ({**_turned(1, 16, 128, order=(2, 1, 0)), "dge_mode": "hwdge", "on": "scalar"}, "trn2"),
    ({**_turned(2, 3, 8, 16, order=(3, 1, 2, 0)), "dge_mode": "hwdge", "on": "sync"}, "trn2"),
    ({**_turned(16, 5, 64, order=(2, 1, 0), dtype=F32)}, "trn1"),
]
TRANSFERS["dma_gather_transpose"] = [
    *_PRIORITIES,
    (_gathered((128, 1), 128, 128), "trn2"), (_gathered((128, 2), 256, 128), "trn2"),
    (_gathered((128, 3), 272, 16), "trn2"), (_gathered((16, 1), 16, 3, 8), "trn2"),
    (_gathered((32, 1), 32, 1, 5, 8), "trn2"), (_gathered((32, 1), 16, 5, 1, 8), "trn2"),
]  # fmt: skip
ARRAY: dict[str, list[tuple[Changes, str]]] = {
    "nc_matmul": [
        (_product(128, 128, 512), "trn2"), (_product(128, 128, 4096), "trn3"),
        (_product(128, 128, 8192, BF16), "trn3"), (_product(1, 1, 1), "trn1"),
        ({**_product(64, 64, 8), **_tile(64, 0, 64, 64)}, "trn1"),
        ({**_product(32, 32, 8), **_tile(96, 96, 32, 32)}, "trn2"),
        ({**_product(64, 128, 8), **_tile(64, 0, 64, 128)}, "trn1"),
    ],
    "nc_matmul_mx": [
        (_scaled_product(128, 128, 4096), "trn3"), (_scaled_product(128, 2, 8192, 0, BF16), "trn3"),
        *((_scaled_product(32, 2, 1, start), "trn3") for start in (0, 4, 8, 12)),
        ({**_scaled_product(32, 2, 1), **_tile(96, 0, 32, 128)}, "trn3"),
        ({**_scaled_product(64, 2, 1), **_tile(64, 0, 64, 128)}, "trn3"),
    ],
    "nc_transpose": [
        ({"data": chip("a", 128, 128), "dst": chip("t", 128, 128, **psum)}, "trn1"),
        ({"data": chip("a", 32, 32, dtype=S32), "dst": chip("t", 32, 32, dtype=S32),
          "on": "vector"}, "trn1"),
        ({"data": chip("a", 64, 3, 2, dtype=S16),
          "dst": chip("t", 6, 64, dtype=S16, **psum)}, "trn2"),
        *(({"data": chip("a", 64, 32, dtype=narrow), "dst": chip("t", 32, 64, **psum)}, target)
          for narrow in (BF16, F16) for target in ("trn1", "trn2", "trn3")),
    ],
}  # fmt: skip
COMPUTE: dict[str, list[tuple[Changes, str]]] = {
    "iota": [*_ALL_BITS], "affine_select": [*_ALL_BITS],
    "local_gather": [
        (_picked(256, None, 1, 4096), "trn1"), (_picked(4, 64, 1, 64), "trn1"),
        (_picked(4, 1, 32, 32), "trn1"),
        *((_picked(1, 5, run, 5 * run), "trn1") for run in (1, 2, 4, 8, 16, 32)),
    ],
    "nonzero_with_count": [
        ({"index_offset": 2**31 - 1, "padding_val": -(2**31)}, "trn2"),
        ({"index_offset": -(2**31), "padding_val": 2**31 - 1}, "trn2"),
    ],
    "rng": [({"on": "gpsimd"}, "trn2"), ({"dst": chip("o", 64, 3, dtype=S8, **psum)}, "trn1")],
    "topk": [(_snake(8, 8), "trn1"), (_snake(65535, 32767), "trn1"), (_snake(16, 1), "trn1")],
    "memset": [
        ({"dst": chip("o", 64, 32, dtype=dtype), "value": value}, "trn1")
        for dtype, value in ((S8, 127), (S8, -128), (S8, 255), (U8, 255), (S32, 2**32 - 1),
                             (U16, -1))
    ],
    "bn_stats": [({"data": chip("a", 64, count)}, "trn1") for count in (1, 512)],
    "bn_aggr": [({"data": chip("a", 64, count)}, "trn1") for count in (3, 300)],
    "max8": [({"data": chip("a", 64, count)}, "trn1") for count in (8, 16384)],
    "find_index8": [({"data": chip("a", 64, count)}, "trn1") for count in (8, 16384)],
    "match_replace8": [
        ({"data": chip("a", 64, n), "dst": chip("o", 64, n, dtype=F16)}, "trn1")
        for n in (8, 16384)
    ],
    "range_select": [({"start": (1 << 24) - 31}, "trn2"), ({"start": -(1 << 24)}, "trn2")],
    "exponential": [({"dst": chip("o", 64, 2, 4, 4), "data": chip("a", 64, 2, 4, 4)}, "trn3")],
    "stream_shuffle": [
        ({"dst": chip("o", 32, 32, partition=96), "src": chip("a", 32, 32, partition=32)}, "trn1"),
        ({"dst": chip("o", 33, 32, partition=64), "src": chip("a", 64, 32)}, "trn1"),
    ],
    "tensor_scalar": [
        ({"op0": "abs", "operand0": 0}, "trn1"), ({"op0": "abs", "operand0": None}, "trn1"),
        ({"on": "scalar"}, "trn2"), ({"on": "scalar", "op1": "", "operand1": None}, "trn2"),
        ({"on": "scalar", "op0": "add", "op1": "", "operand1": None}, "trn2"),
        ({"on": "gpsimd", "op0": "rsqrt", "operand0": 0.0}, "trn1"),
    ],
    "reciprocal": [
        ({"data": replace(chip("a", 1, 32), dims=((3, 1), (1, 32))),
          "dst": chip("o", 1, 32)}, "trn1"),
        ({"data": replace(chip("a", 64, 32), dims=((1, 64), (0, 32)))}, "trn1"),
        ({"dst": chip("o", 1, 2, 2, 2, 4, partition=96), "data": chip("a", 1, 2, 2, 2, 4)}, "trn1"),
        ({"dst": chip("o", 128, 32), "data": chip("a", 128, 32)}, "trn1"),
    ],
    "tensor_copy": [({"on": "scalar"}, "trn2"), ({"on": "gpsimd"}, "trn1")],
    "tensor_scalar_reduce": [({"initial": 0.0}, "trn1"),
                             ({"initial": 2.0, "command": "load_reduce"}, "trn1"),
                             ({"op0": "abs", "operand0": 0}, "trn1")],
    "tensor_reduce": [({"op": "abs_max"}, "trn3"),
                      ({"data": chip("a", 64, 2, 3), "axes": 2}, "trn1")],
    "activation": [({"bias": 1.0}, "trn2"), ({"bias": 0}, "trn1"),
                   ({"function": "reciprocal", "bias": 0}, "trn1"),
                   ({"function": "reciprocal", "bias": None}, "trn1"),
                   ({"function": "reciprocal"}, "trn2")],
}  # fmt: skip
ROWS = {
    "stationary": chip("a", 64, 2, 128, dtype=F8E4M3), "perf_mode": "double_row",
    "moving": chip("b", 64, 2, 512, dtype=F8E4M3), "dst": chip("s", 128, 512, **psum),
}  # fmt: skip
ARRAY["nc_matmul"] += [(ROWS, "trn2"), ({**ROWS, **_tile(64, 0, 64, 128)}, "trn2")]

LEGAL = [
    (name, changes, target)
    for table in (TRANSFERS, ARRAY, COMPUTE)
    for name, listed in table.items()
    for changes, target in listed
]


@pytest.mark.parametrize("legal", LEGAL, ids=lambda each: f"{each[0]} {sorted(each[1])} {each[2]}")
def test_a_limit_may_be_reached(legal: tuple[str, Changes, str]) -> None:
    name, changes, target = legal
    assert violations(replace(EXAMPLES[name], **changes), get_target(target).arch) == []


PASSED: list[tuple[str, Changes, str, str]] = [
    *((name, {"priority": wrong}, "trn3", "priority must be 0 to 3")
      for name in ("all_reduce", "collective_permute", "dma_copy") for wrong in (-1, 4)),
    ("all_to_all_v", {"metadata": chip("m", 2, 3, 4, dtype=U32)}, "trn3", "metadata must have"),
    ("all_gather_v", {"metadata": hbm("m", 5, 4, dtype=U32)}, "trn3", "metadata must have"),
    ("nc_matmul", _product(128, 128, 4097), "trn3", "moving must have at most 512"),
    ("nc_matmul", _product(128, 128, 8193, BF16), "trn3", "moving must have at most 512"),
    ("nc_matmul", {**_product(32, 64, 8), **_tile(0, 0, 32, 64)}, "trn1", "must name a tile"),
    ("nc_transpose", {"data": chip("a", 33, 32), "dst": chip("t", 32, 33), "on": "vector"},
     "trn1", "the Vector Engine 32 x 32"),
    ("range_select", {"start": -(1 << 24) - 1}, "trn2", "must be within 2**24"),
    ("range_select", {"start": (1 << 24) - 30}, "trn2", "must be within 2**24"),
    ("memset", {"dst": chip("o", 64, 32, dtype=S8), "value": 256}, "trn1", "fits its dtype"),
    ("reciprocal", {"data": replace(chip("a", 2, 32), dims=((2, 2), (1, 32))),
                    "dst": chip("o", 2, 32)}, "trn1", "neighbouring partitions"),
    ("reciprocal", {"dst": replace(chip("o", 64, 2, **psum), dims=((1, 64), (0, 2))),
                    "data": chip("a", 64, 2)}, "trn1", "through a step of 0"),
    ("nonzero_with_count", {"index_offset": 2**31}, "trn2", "must be of 32 bits"),
    ("nonzero_with_count", {"padding_val": -(2**31) - 1}, "trn2", "must be of 32 bits"),
    ("local_gather", _picked(257, 4097, 1, 4097), "trn1", "at most 4096 indices"),
    ("dma_gather_transpose", _gathered((32, 1), 32, 129), "trn2", "at most 128 elements innermost"),
    ("dma_gather_transpose", _gathered((144, 1), 144, 8), "trn2", "or 128 partitions"),
    ("nc_matmul_mx", _scaled_product(32, 130, 1), "trn3", "at most 128"),
    ("max8", {"data": chip("a", 64, 16385)}, "trn1", "8 to 16384 elements"),
    ("topk", _snake(65536, 8), "trn1", "n must be 8 to 65535"),
    ("topk", _snake(65535, 32768), "trn1", "and at most 32767"),
    ("sendrecv", {"src": chip("a", 64, 257), "dst": chip("b", 64, 257),
                  "dma_engine": "gpsimd_dma", "on": "gpsimd"}, "trn2", "at most 256 elements"),
    ("dma_transpose", {**_turned(16, 129, order=(1, 0)), "dge_mode": "hwdge", "on": "sync"},
     "trn2", "in hardware src must have 16 rows"),
]  # fmt: skip


@pytest.mark.parametrize("passed", PASSED, ids=lambda each: f"{each[0]}: {each[3]}")
def test_and_no_further(passed: tuple[str, Changes, str, str]) -> None:
    name, changes, target, said = passed
    broken = violations(replace(EXAMPLES[name], **changes), get_target(target).arch)
    assert any(said in text for text in broken), broken
