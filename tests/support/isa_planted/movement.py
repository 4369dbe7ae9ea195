"""Planted violations of the Tensor Engine's, GpSimd's and the DMA engines' rules."""

from __future__ import annotations

from typing import Any

from glia.base.dtype import (
    BF16,
    F4E2M1FN_X4,
    F8E4M3,
    F8E4M3FN,
    F8E4M3FN_X4,
    F16,
    S32,
    U8,
    U16,
    U32,
)
from glia.isa.examples import chip, hbm

psum = {"memory": "PSUM"}
rows = {
    "stationary": chip("a", 64, 2, 16, dtype=F8E4M3),
    "moving": chip("b", 64, 2, 32, dtype=F8E4M3),
    "dst": chip("sum", 16, 32, **psum),
    "perf_mode": "double_row",
}
thirds = {"stationary": chip("a", 64, 48), "moving": chip("b", 64, 32),
          "dst": chip("s", 48, 32, **psum)}  # fmt: skip

MATMUL: list[tuple[Any, ...]] = [
    ({"moving": chip("b", 64, 32, dtype=F8E4M3), "stationary": chip("a", 64, 32, dtype=F8E4M3FN)},
     "float8_e4m3 does not multiply float8_e4m3fn", "trn3"),
    ({"stationary": chip("a", 64, 32, dtype=S32), "moving": chip("b", 64, 32, dtype=BF16)},
     "stationary must be one of"),
    ({"moving": chip("a", 64, 32, dtype=S32), "stationary": chip("b", 64, 32, dtype=BF16)},
     "moving must be one of"),
    ({"moving": chip("b", 64, 513), "dst": chip("s", 32, 513, **psum)},
     "moving must have at most 512 columns"),
    ({"is_transpose": True, "dst": chip("s", 32, 32, dtype=BF16, **psum)}, "as stationary"),
    ({"is_transpose": True, "accumulate": True}, "transpose mode does not accumulate"),
    ({"perf_mode": "double_column"}, "perf_mode must be none or double_row"),
    ({**rows, "stationary": chip("a", 64, 2, 16, dtype=BF16)}, "double rows are of 8-bit floats"),
    ({**rows, "moving": chip("b", 64, 64, dtype=F8E4M3)}, "a first free dimension of 2"),
    ({**rows, "is_transpose": True, "dst": chip("s", 16, 32, dtype=F8E4M3, **psum)},
     "double rows need generation 3"),
    ({**rows, "tile_position": (0, 0), "tile_size": (128, 64)}, "double rows need generation 3"),
    ({"tile_position": (0, 0)}, "tile_position and tile_size must name a tile"),
    ({"tile_size": (64, 64)}, "tile_position and tile_size must name a tile"),
    ({"tile_position": (32, 0), "tile_size": (64, 64)}, "must name a tile of 64 or 128"),
    ({"tile_position": (96, 128), "tile_size": (32, 64)}, "must name a tile of 64 or 128"),
    ({"tile_position": (0, 0), "tile_size": (96, 64)}, "must name a tile of 64 or 128"),
    ({"tile_position": (0, 0), "tile_size": (32, 64)}, "as the tile of the array"),
    ({**thirds, "tile_position": (0, 0), "tile_size": (64, 32)}, "as the tile of the array"),
]  # fmt: skip
RULES: dict[str, list[tuple[Any, ...]]] = {
    "nc_matmul": MATMUL,
    "memset": [({"dst": chip("o", 64, 32, dtype=F8E4M3FN_X4), "value": 1.0},
                "packed floats are filled with 0", "trn3")],
    "nc_transpose": [({"on": "vector"}, "the Vector Engine 32 x 32")],
    "reciprocal": [({"data": chip("a", 64, 32, dtype=F8E4M3FN_X4)}, "packed floats are copied")],
    "tensor_copy": [({"src": chip("a", 64, 32, dtype=F8E4M3FN_X4)}, "packed floats are copied")],
    "dma_copy": [({"src": hbm("x", 64, 32, dtype=F8E4M3FN_X4)}, "packed floats are copied")],
}  # fmt: skip

INDEX_PATTERN: list[tuple[Any, ...]] = [
    ({"steps": (1, 2)}, "steps must have one entry for each of counts"),
    ({"steps": (1, 2), "counts": (4, 9)}, "counts must multiply to the elements"),
    ({"steps": (1,) * 5, "counts": (2,) * 5}, "at most 4 dimensions"),
    ({"offset": 2**31}, "offset and channel_multiplier must be of 32 bits"),
    ({"channel_multiplier": -(2**31) - 1}, "offset and channel_multiplier must be of 32 bits"),
]
PRIORITY: list[tuple[Any, ...]] = [
    ({"priority": 0}, "priority must be 0 to 3 and needs generation 4"),
]
DESCRIBED = [
    *PRIORITY,
    ({"dge_mode": "static"}, "dge_mode must be unknown, none, swdge or hwdge"),
    (
        {"dge_mode": "hwdge", "on": "gpsimd", "src": hbm("x", 64, 32)},
        "hardware makes descriptors from generation 3 on",
    ),
    ({"dge_mode": "swdge", "on": "sync"}, "GpSimd issues the transfers whose descriptors it makes"),
]
GIVEN = {"given": (chip("given", 64, 1, dtype=S32),), "limits": (9,), "extents": (10,)}
CHECKED = [
    ({**GIVEN, "limits": (9, 9)}, "limits and extents must have a number for each of given"),
    ({**GIVEN, "given": (chip("given", 64, 2, dtype=S32),)}, "as many partitions as indices"),
    ({**GIVEN, "given": (chip("given", 64, 1),)}, "each of given must be an integer"),
]
INDEXED = [
    *PRIORITY,
    ({"dge_mode": "swdge", "on": "sync"}, "GpSimd issues the transfers whose descriptors it makes"),
    ({"dge_mode": "none"}, "dge_mode must be unknown or swdge"),
]
turned = {"dst": chip("t", 32, 16, dtype=BF16), "src": hbm("x", 16, 32, dtype=BF16)}
packed = chip("p", 64, 8, dtype=F8E4M3FN_X4)
RULES |= {
    "iota": INDEX_PATTERN,
    "affine_select": INDEX_PATTERN,
    "dma_copy": [
        *RULES["dma_copy"], *DESCRIBED,
        ({"dge_mode": "hwdge", "src": hbm("x", 64, 32, dtype=BF16)}, "must have the same dtype"),
    ],
    "dma_gather": [*INDEXED, *CHECKED, ({"combine": "maximum"}, "combine must be empty or add")],
    "dma_scatter": [*INDEXED, *CHECKED],
    "dma_transpose": [
        *PRIORITY,
        ({**turned, "dge_mode": "hwdge", "on": "gpsimd"}, "hardware makes descriptors from"),
        ({"axes": (0, 1)}, "axes must be empty, (1, 0), (2, 1, 0) or (3, 1, 2, 0)"),
        ({"src": hbm("x", 2048)}, "axes must be empty, (1, 0), (2, 1, 0) or (3, 1, 2, 0)"),
        ({"dst": chip("t", 64, 32)}, "dst must have the dimensions of src in the order"),
        ({"dst": chip("t", 32, 64, dtype=S32)}, "dst, src must have the same dtype"),
        ({"dge_mode": "swdge"}, "dge_mode must be unknown, none or hwdge"),
        ({**turned, "dge_mode": "hwdge", "src": hbm("x", 64, 32, dtype=BF16),
          "dst": chip("t", 32, 64, dtype=BF16)}, "in hardware src must have 16 rows"),
        ({"dge_mode": "hwdge", "src": hbm("x", 8, 3, 32, dtype=BF16),
          "dst": chip("t", 32, 3, 8, dtype=BF16)}, "in hardware src must have 16 rows"),
        ({"dge_mode": "hwdge", "src": hbm("x", 16, 32), "dst": chip("t", 32, 16)},
         "in hardware elements must have 2 bytes"),
    ],
    "dma_gather_transpose": [
        *INDEXED,
        ({"dst": chip("t", 32, 16, dtype=BF16)}, "the gathered rows of src, transposed"),
        ({"dst": chip("t", 64, 16, dtype=F16)}, "dst, src must have the same dtype"),
        ({"dst": chip("t", 64, 16), "src": hbm("x", 100, 64)}, "elements must have 2 bytes"),
        ({"src": hbm("x", 9, 129, dtype=BF16)}, "at most 128 elements innermost"),
        ({"src": hbm("x", 9, 2, 2, 8, dtype=BF16), "dst": chip("t", 8, 2, 2, 16, dtype=BF16)},
         "with 3 dimensions one of 1"),
        ({"indices": chip("i", 16, 1, dtype=S32)}, "indices must be one of u32"),
        ({"indices": chip("i", 24, 1, dtype=U32)}, "indices must have 16, 32, ... or 128"),
        ({"indices": chip("i", 64, 2, dtype=U32)}, "128 with more than one column"),
        ({"dst": chip("t", 64, 32, dtype=BF16)}, "there must be an index for each gathered row"),
        ({"dst": chip("t", 64, 8, dtype=BF16)}, "and a multiple of 16 rows"),
        ({"out_of_bounds": "wrap"}, "out_of_bounds must be error or skip"),
    ],
    "dma_compute": [
        ({"srcs": (hbm("x", 64, 31),)}, "dst and every source must have the same number"),
        ({"srcs": (hbm("x", 64, 32),) * 17}, "there are at most 16 sources"),
        ({"scales": (1.0, 2.0)}, "scales must be empty, or 1 for each source"),
        ({"scales": (1.0,)}, "scales must be empty, or 1 for each source"),
        ({"reduce_op": "maximum"}, "reduce_op must be add"),
        ({"srcs": (packed, packed)}, "packed floats are copied"),
    ],
    "local_gather": [
        ({"src_buffer": chip("a", 32, 32)}, "the same number of partitions, a multiple of 16"),
        ({"dst": chip("d", 24, 64), "src_buffer": chip("a", 24, 32),
          "index": chip("i", 24, 4, dtype=U16)}, "a multiple of 16"),
        ({"dst": chip("d", 64, 64, dtype=BF16)}, "dst, src_buffer must have the same dtype"),
        ({"index": chip("i", 64, 4, dtype=U32)}, "index must be one of u16"),
        ({"num_elem_per_idx": 3, "dst": chip("d", 64, 192)}, "must be 1, 2, 4, 8, 16 or 32"),
        ({"num_valid_indices": 65, "dst": chip("d", 64, 65)}, "num_valid_indices must be 1 to"),
        ({"num_valid_indices": 0}, "num_valid_indices must be 1 to"),
        ({"index": chip("i", 64, 257, dtype=U16), "dst": chip("d", 64, 4112)}, "at most 4096"),
        ({"dst": chip("d", 64, 63)}, "must hold num_elem_per_idx elements for each valid index"),
    ],
    "tensor_gather": [
        ({"dst": chip("d", 32, 5)}, "dst, src, index must have the same number of partitions"),
        ({"dst": chip("d", 64, 5, dtype=BF16)}, "dst, src must have the same dtype"),
        ({"dst": chip("d", 64, 17)}, "index must hold an offset for each element of a partition"),
        ({"group": 8}, "in whole groups of 16 or 32 partitions"),
        ({"index": chip("i", 64, 1, dtype=BF16)}, "index must be one of u16, u32, s32"),
        ({"dst": chip("d", 32, 5), "src": chip("a", 32, 32, partition=64),
          "index": chip("i", 32, 1, dtype=U16)}, "src and index must start on the same partition"),
    ],
    "tensor_scatter": [
        ({"src": chip("d", 32, 5)}, "dst, src, index must have the same number of partitions"),
        ({"src": chip("d", 64, 5, dtype=BF16)}, "dst, src must have the same dtype"),
        ({"src": chip("d", 64, 17)}, "index must hold an offset for each element of a partition"),
        ({"index": chip("i", 64, 1, dtype=BF16)}, "index must be one of u16, u32, s32"),
        ({"dst": chip("a", 64, 32, **psum), "on": "scalar"}, "the Scalar Engine scatters to SBUF"),
    ],
    "nc_n_gather": [
        ({"data": chip("a", 32, 32)}, "dst, data, indices must have the same number of partitions"),
        ({"dst": chip("d", 64, 6)}, "dst, indices must have the same number of partitions and"),
        ({"dst": chip("d", 64, 5, dtype=BF16)}, "dst, data must have the same dtype"),
        ({"indices": chip("i", 64, 5, dtype=S32)}, "indices must be one of u32"),
    ],
    "nonzero_with_count": [
        ({"dst": chip("d", 32, 33, dtype=S32)}, "dst, src must have the same number of partitions"),
        ({"dst": chip("d", 64, 32, dtype=S32)}, "one element per partition more than src"),
        ({"src": chip("a", 64, 32, dtype=BF16)}, "src must be one of f32, s32"),
        ({"dst": chip("d", 64, 33)}, "dst must be one of s32"),
        ({"padding_val": 2**31}, "index_offset and padding_val must be of 32 bits"),
    ],
    "sequence_bounds": [
        ({"dst": chip("d", 1, 32)}, "with twice as many elements"),
        ({"dst": chip("d", 2, 32), "segment_ids": chip("s", 2, 16)}, "must lie in one partition"),
        ({"segment_ids": chip("s", 1, 32, dtype=BF16)}, "segment_ids must be one of f32, s32"),
        ({"dst": chip("d", 1, 64, dtype=BF16)}, "dst must be one of f32, s32"),
    ],
    "topk": [
        ({"idx_dst": chip("i", 64, 9, dtype=U32)}, "val_dst, idx_dst must have the same number"),
        ({"src": chip("s", 32, 4, dtype=BF16)}, "the same number of partitions, a multiple of 16"),
        ({"src": chip("s", 64, 4)}, "src must be one of bf16"),
        ({"val_dst": chip("v", 64, 8)}, "val_dst must be one of bf16"),
        ({"idx_dst": chip("i", 64, 8, dtype=S32)}, "idx_dst must be one of u32"),
        ({"n": 7, "val_dst": chip("v", 64, 4, dtype=BF16),
          "idx_dst": chip("i", 64, 4, dtype=U32)}, "n must be 8 to 65535"),
        ({"val_dst": chip("v", 64, 43, dtype=BF16), "idx_dst": chip("i", 64, 43, dtype=U32)},
         "val_dst must have at most n elements per partition"),
        ({"n": 65}, "src must have room for n elements"),
    ],
    "quantize_mx": [
        ({"src": chip("a", 48, 32, dtype=BF16), "dst": chip("p", 48, 8, dtype=F8E4M3FN_X4)},
         "src must have 32, 64, 96 or 128 partitions"),
        ({"src": chip("a", 32, 32, dtype=BF16)}, "dst, src must have the same number of part"),
        ({"src": chip("a", 64, 28, dtype=BF16), "dst_scale": chip("s", 64, 7, dtype=U8)},
         "4 elements per partition for each of dst"),
        ({"src": chip("a", 64, 32)}, "src must be one of f16, bf16"),
        ({"dst": chip("p", 64, 8, dtype=F4E2M1FN_X4)}, "dst must be one of f8e4m3fn_x4"),
        ({"dst_scale": chip("s", 64, 8)}, "dst_scale must be one of f8e8m0fnu, u8"),
        ({"dst_scale": chip("s", 35, 8, dtype=U8)}, "must hold 4 partitions for each quadrant"),
        ({"dst_scale": chip("s", 64, 9, dtype=U8)}, "a column for each 4 values"),
        ({"dst_scale": chip("s", 40, 8, dtype=U8, partition=5)}, "at its partition 0, 4, 8 or 12"),
        ({"dst_scale": chip("s", 40, 8, dtype=U8, partition=16)}, "at its partition 0, 4, 8 or"),
    ],
    "nc_matmul_mx": [
        ({"stationary": chip("a", 48, 8, dtype=F8E4M3FN_X4),
          "moving": chip("b", 48, 8, dtype=F8E4M3FN_X4)}, "32, 64, 96 or 128 partitions"),
        ({"moving": chip("a", 32, 8, dtype=F8E4M3FN_X4)}, "stationary, moving must have the same"),
        ({"dst": chip("s", 8, 9, **psum)}, "dst must have a partition for each column"),
        ({"stationary": chip("a", 64, 7, dtype=F8E4M3FN_X4), "dst": chip("s", 7, 8, **psum),
          "stationary_scale": chip("c", 64, 7, dtype=U8)}, "an even number of columns"),
        ({"stationary": chip("a", 64, 130, dtype=F8E4M3FN_X4)}, "at most 128"),
        ({"moving": chip("a", 64, 4097, dtype=F8E4M3FN_X4), "dst": chip("s", 8, 4097, **psum),
          "moving_scale": chip("c", 64, 4097, dtype=U8)}, "as many columns as fit in PSUM"),
        ({"stationary": chip("a", 64, 8, dtype=F8E4M3FN)}, "stationary must be one of f8e4m3fn_x4"),
        ({"moving": chip("a", 64, 8, dtype=BF16)}, "moving must be one of f8e4m3fn_x4"),
        ({"stationary_scale": chip("s", 64, 8)}, "stationary_scale must be one of f8e8m0fnu"),
        ({"moving_scale": chip("s", 64, 8, dtype=S32)}, "moving_scale must be one of f8e8m0fnu"),
        ({"dst": chip("s", 8, 8, dtype=F16, **psum)}, "dst must be float32 or bfloat16"),
        ({"stationary_scale": chip("s", 32, 8, dtype=U8)}, "for each quadrant of stationary"),
        ({"moving_scale": chip("s", 64, 7, dtype=U8)}, "for each quadrant of moving"),
        ({"stationary_scale": chip("s", 64, 8, dtype=U8, partition=32)}, "quadrant of stationary"),
        ({"moving_scale": chip("s", 64, 8, dtype=U8, partition=2)}, "must start in the quadrant"),
        ({"tile_size": (64, 128)}, "must name rows of the array"),
        ({"tile_position": (0, 0), "tile_size": (64, 64)}, "with all its columns"),
        ({"tile_position": (0, 0), "tile_size": (32, 128)}, "as the tile of the array"),
    ],
}  # fmt: skip

PLANTED = [(name, *planted) for name, listed in RULES.items() for planted in listed]
