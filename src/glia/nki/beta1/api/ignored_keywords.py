"""Keywords that functions of Beta 1 take and that change no result.

The documentation allows most functions any keyword. Accepted are those that public kernels pass;
any other is reported as misspelt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glia.nki.issue.signature_checks import check_arguments

NAME = ("name",)  # of an instruction or tensor
LAZY = ("lazy_initialization",)  # sums in PSUM always begin with what is written first
SPLIT = ("max_free_vec_size",)  # how the compiler splits a tile
HINTS = {
    **dict.fromkeys(("ndarray", "zeros", "ones", "full", "zeros_like", "empty_like"), LAZY),
    **dict.fromkeys(("add", "subtract", "multiply", "divide"), (*NAME, *SPLIT)),
    **dict.fromkeys(("affine_range", "sequential_range"), ("precise_schedule",)),
}
# Functions that create no instruction take no name.
NAMELESS = frozenset((
    "arange", "ds", "finfo", "gemm_grid", "gemm_stationary_grid", "get_nc_version", "nc",
    "num_programs", "program_id", "program_ndim", "spmd_dim", "static_cast", "static_range",
))  # fmt: skip


def with_hints(function: Callable[..., Any], name: str, module: str) -> Callable[..., Any]:
    """The function, accepting the hints listed for it; WrongArguments for any other keyword."""
    hints = HINTS.get(name, () if name in NAMELESS else NAME)
    return check_arguments(function, f"{module}.{name}", ignored=hints, has_masks=True)
