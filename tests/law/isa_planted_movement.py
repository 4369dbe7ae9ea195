"""Planted violations of the Tensor Engine's, GpSimd's and the DMA engines' rules."""

from __future__ import annotations

from typing import Any

from glia.base.dtype import BF16, F8E4M3, F8E4M3FN, F8E4M3FN_X4
from law.isa_examples import chip, hbm

psum = {"memory": "PSUM"}
rows = {
    "stationary": chip("a", 64, 2, 16, dtype=F8E4M3),
    "moving": chip("b", 64, 2, 32, dtype=F8E4M3),
    "dst": chip("sum", 16, 32, **psum),
    "perf_mode": "double_row",
}
thirds = {"stationary": chip("a", 64, 48), "moving": chip("b", 64, 32),
          "dst": chip("s", 48, 32, **psum)}  # fmt: skip

MATMUL: list[tuple[dict[str, Any], str]] = [
    ({"moving": chip("b", 64, 32, dtype=F8E4M3), "stationary": chip("a", 64, 32, dtype=F8E4M3FN)},
     "float8_e4m3 does not multiply float8_e4m3fn"),
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
    ({"tile_position": (32, 0), "tile_size": (64, 64)}, "must name a tile of 32, 64 or 128"),
    ({"tile_position": (96, 128), "tile_size": (32, 64)}, "must name a tile of 32, 64 or 128"),
    ({"tile_position": (0, 0), "tile_size": (96, 64)}, "must name a tile of 32, 64 or 128"),
    ({"tile_position": (0, 0), "tile_size": (32, 64)}, "must fit in the tile of the array"),
    ({**thirds, "tile_position": (0, 0), "tile_size": (64, 32)}, "must fit in the tile"),
]  # fmt: skip
RULES: dict[str, list[tuple[dict[str, Any], str]]] = {
    "nc_matmul": MATMUL,
    "memset": [({"dst": chip("o", 64, 32, dtype=F8E4M3FN_X4), "value": 1.0},
                "packed floats are filled with 0")],
    "reciprocal": [({"data": chip("a", 64, 32, dtype=F8E4M3FN_X4)}, "packed floats are copied")],
    "tensor_copy": [({"src": chip("a", 64, 32, dtype=F8E4M3FN_X4)}, "packed floats are copied")],
    "dma_copy": [({"src": hbm("x", 64, 32, dtype=F8E4M3FN_X4)}, "packed floats are copied")],
}  # fmt: skip

PLANTED = [(name, changes, said) for name, listed in RULES.items() for changes, said in listed]
