"""Planted violations of the instructions at which cores meet, one for every rule."""

from __future__ import annotations

from typing import Any

from glia.base.affine import Affine
from glia.base.dtype import BF16, U32
from glia.isa.examples import chip, hbm

x, y = hbm("x", 8, 4), hbm("y", 8, 4)
other_size = hbm("z", 8, 5)
other_dtype = hbm("z", 8, 4, dtype=BF16)
on_chip, small = chip("x", 32, 4), chip("x", 8, 4)
overlapping = ((0, 1, 2, 3), (3, 4, 5, 6))

COMMON: list[tuple[Any, ...]] = [
    ({"srcs": (x, x)}, "as many dsts as srcs"),
    ({"groups": overlapping}, "groups must be of one size and share no rank"),
    ({"groups": ((0, 1, 2), (3,))}, "groups must be of one size and share no rank"),
    ({"priority": 1}, "priority must be 0 to 3 and needs generation 4"),
]
IN_SBUF: list[tuple[Any, ...]] = [
    ({"srcs": (chip("x", 8, 4),)}, "all tensors must be in HBM or all in SBUF"),
    ({"srcs": (on_chip, on_chip), "dsts": (on_chip, on_chip)}, "travel together only in HBM"),
]
SAME: list[tuple[Any, ...]] = [
    ({"srcs": (other_dtype,)}, "a dst must have the dtype of its src"),
]
OP: list[tuple[Any, ...]] = [
    ({"op": "subtract"}, "op must be add, maximum or minimum"),
]
DIM: list[tuple[Any, ...]] = [({"collective_dim": 1}, "collective_dim must be 0")]
SHAPE: list[tuple[Any, ...]] = [({"srcs": (other_size,)}, "must have the shape of its")]
CHANNELS: list[tuple[Any, ...]] = [
    ({"channel_ids": (1,)}, "channel_ids must count from 0"),
]
VARYING: list[tuple[Any, ...]] = [
    ({"srcs": (x, x), "dsts": (y, y)}, "one tensor travels at a time"),
    ({"metadata": hbm("m", 3, 4)}, "metadata must be one of u32"),
    ({"metadata": hbm("m", 4, 3, dtype=U32)}, "metadata must have 3 or 4 rows"),
    ({"metadata": chip("m", 3, 4, dtype=U32)}, "metadata must have 3 or 4 rows"),
    ({"has_rdispls": True}, "metadata must have 3 or 4 rows (4 with"),
]
RULES: dict[str, list[tuple[Any, ...]]] = {
    "sendrecv": [
        ({"send_to_rank": 2}, "send_to_rank and recv_from_rank must be 0 or 1"),
        ({"recv_from_rank": -1}, "send_to_rank and recv_from_rank must be 0 or 1"),
        ({"dst": chip("d", 64, 32, dtype=BF16)}, "dst, src must have the same dtype"),
        ({"dst": chip("d", 64, 16)}, "dst and src must have the same shape"),
        ({"dma_engine": "pe"}, "dma_engine must be dma or gpsimd_dma"),
        (
            {"dst": chip("d", 64, 257), "src": chip("s", 64, 257), "dma_engine": "gpsimd_dma"},
            "at most 256 elements per partition",
        ),
        ({"dma_engine": "gpsimd_dma", "on": "sync"}, "GpSimd triggers its own DMA"),
    ],
    "core_barrier": [({"cores": (0, 1, 2)}, "cores must be (0, 1)")],
    "collective_permute_implicit_current_processing_rank_id": [
        ({"iteration_id": -1}, "iteration_id must not be negative"),
        ({"iteration_id": Affine.of("i") + -2}, "iteration_id must not be negative"),
        ({"channel_id": 4}, "channel_id must be 0 to 3"),
    ],
    "all_reduce": [*COMMON, *IN_SBUF, *SAME, *OP, *SHAPE],
    "all_gather": [
        *COMMON, *IN_SBUF, *SAME, *SHAPE,
        ({"srcs": (small, small), "dsts": (chip("w", 32, 4),) * 2}, "together only in HBM"),
        (
            {"collective_dim": 1, "dsts": (hbm("wide", 8, 16),)},
            "collective_dim must be 0 in HBM, 0 or 1 in SBUF",
        ),
        ({"srcs": (chip("x", 8, 2, 2),), "dsts": (chip("y", 32, 2, 2),)}, "one free dimension"),
    ],
    "reduce_scatter": [
        *COMMON, *IN_SBUF, *SAME, *OP, *DIM,
        ({"srcs": (hbm("wide", 32, 4),) * 2}, "as many dsts as srcs"),
        ({"srcs": (chip("w", 32, 4),)}, "all tensors must be in HBM or all in SBUF"),
        ({"srcs": (chip("w", 32, 4),) * 2, "dsts": (small, small)}, "together only in HBM"),
        ({"srcs": (hbm("wide", 32, 4, dtype=BF16),)}, "a dst must have the dtype of its src"),
        ({"srcs": (hbm("wide", 8, 16),), "collective_dim": 1}, "collective_dim must be 0"),
        ({"srcs": (other_size,)}, "a src must have the shape of its dst"),
    ],
    "all_to_all": [
        *COMMON, *SAME, *DIM, *SHAPE,
        ({"groups": ((0, 1, 2),)}, "which falls into a piece for each rank"),
    ],
    "collective_permute": [
        ({"srcs": (x, x)}, "as many dsts as srcs"),
        ({"srcs": (x, x), "dsts": (y, y)}, "one tensor travels at a time"),
        ({"priority": 3}, "priority must be 0 to 3 and needs generation 4"),
        ({"source_target_pairs": ((0, 1), (2, 1))}, "no rank may be the source of two pairs"),
        *SAME, *SHAPE,
    ],
    "collective_permute_implicit": [
        *COMMON, *SAME, *SHAPE, *CHANNELS,
        (
            {"srcs": (x,) * 5, "dsts": (y,) * 5, "channel_ids": (0, 1, 2, 3, 4)},
            "there are at most 4 channels",
        ),
    ],
    "collective_permute_implicit_reduce": [
        ({"srcs0": (x, x)}, "as many dsts as srcs"), *COMMON[1:], *OP, *CHANNELS,
        ({"srcs1": (other_size,)}, "the shape and dtype of both its srcs"),
        (
            {"srcs0": (x,) * 5, "srcs1": (x,) * 5, "dsts": (y,) * 5,
             "channel_ids": (0, 1, 2, 3, 4)},
            "there are at most 4 channels",
        ),
    ],
    "all_gather_v": [
        *COMMON, *SAME, *VARYING,
        (
            {"has_rdispls": True, "metadata": hbm("m", 4, 4, dtype=U32)},
            "has_rdispls is not supported",
        ),
        ({"groups": ((0, 1),), "metadata": hbm("m", 3, 2, dtype=U32)}, "must have 4 ranks"),
    ],
    "all_to_all_v": [
        *COMMON, *SAME, *VARYING,
        (
            {"has_rdispls": True, "metadata": hbm("m", 4, 4, dtype=U32)},
            "has_rdispls needs generation 4",
        ),
    ],
}  # fmt: skip

PLANTED = [(name, *planted) for name, listed in RULES.items() for planted in listed]
