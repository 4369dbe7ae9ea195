"""The kernels of rows and of products on every generation: the same kernel, the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.flash_attention import flash_attention
from glia.kernels.flash_attention_backward import flash_attention_backward
from glia.kernels.layernorm import layernorm
from glia.kernels.matmul import matmul_blocked_free, matmul_fully_blocked
from glia.kernels.mlp import swiglu
from glia.kernels.rmsnorm import rmsnorm, rmsnorm_quantized
from glia.kernels.rope import rope
from glia.kernels.softmax import softmax
from glia.kernels.tensor_add import tensor_add
from glia.kernels.transpose2d import transpose2d
from support.kernel_checks import assert_generations_agree, normal


def bf16(*shape: int) -> np.ndarray:
    return normal(*shape, dtype=bfloat16)


CASES: tuple[tuple[Any, tuple[np.ndarray, ...], dict[str, Any]], ...] = (
    (tensor_add, (bf16(3, 700), bf16(3, 700)), {}),
    (transpose2d, (bf16(5, 12),), {"shape": (3, 4)}),
    (softmax, (bf16(130, 60),), {}),
    (layernorm, (bf16(130, 60), bf16(60), bf16(60)), {}),
    (rmsnorm, (bf16(130, 60), bf16(60)), {}),
    (rmsnorm_quantized, (bf16(130, 60), bf16(60)), {}),
    (rope, (bf16(130, 4, 16), bf16(130, 8), bf16(130, 8)), {}),
    (matmul_blocked_free, (bf16(256, 256), bf16(256, 512)), {"tiles": (2, 1)}),
    (matmul_fully_blocked, (bf16(256, 256), bf16(256, 512)), {"tiles": (2, 1, 1)}),
    (swiglu, (bf16(130, 64), bf16(64, 96), bf16(64, 96), bf16(96, 64)), {}),
    (flash_attention, (bf16(1, 2, 32, 200), bf16(1, 1, 32, 200), bf16(1, 1, 200, 32)), {}),
    (
        flash_attention_backward,
        (
            bf16(1, 1, 32, 256), bf16(1, 1, 32, 256), bf16(1, 1, 256, 32), bf16(1, 1, 256, 32),
            bf16(1, 1, 256, 32), 4 + normal(1, 1, 256) ** 2,
        ),
        {},
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "arguments", "constants"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_generations_agree(
    kernel: Any, arguments: tuple[np.ndarray, ...], constants: dict[str, Any]
) -> None:
    assert_generations_agree(kernel, arguments, constants, 2e-2)
