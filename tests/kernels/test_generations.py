"""The kernels of sequences, images and vocabularies on every generation: the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.cross_entropy import cross_entropy_backward, cross_entropy_forward
from glia.kernels.cumsum import cumsum
from glia.kernels.depthwise_conv1d import depthwise_conv1d
from glia.kernels.images.average_pool2d import average_pool2d
from glia.kernels.images.conv2d import conv2d, conv2d_image_gradient
from glia.kernels.images.conv2d_weights import conv2d_weight_gradient
from glia.kernels.images.resize_nearest import resize_nearest
from glia.kernels.images.select_and_scatter import select_and_scatter
from glia.kernels.mamba import mamba
from glia.kernels.moe_blocks import moe_blocks
from glia.kernels.top_k import top_k
from support.kernel_checks import assert_generations_agree, normal


def bf16(*shape: int) -> np.ndarray:
    return normal(*shape, dtype=bfloat16)


TARGETS = np.arange(5, dtype=np.int32)
LAYERS = bf16(20, 128), np.abs(bf16(40, 1)), bf16(2, 128, 2, 128), bf16(2, 128, 128)
BLOCKS = np.minimum(np.arange(128), 19).astype(np.int32), np.ones((1, 1), np.int32)
SCAN = np.abs(normal(1, 20, 30)), normal(1, 20, 30), -np.abs(normal(20, 4))

CASES: tuple[tuple[Any, tuple[np.ndarray, ...], dict[str, Any]], ...] = (
    (average_pool2d, (bf16(4, 8, 8),), {"pool": 2}),
    (conv2d, (bf16(1, 6, 9, 9), bf16(4, 6, 3, 3)), {"padding": 1}),
    (
        conv2d_image_gradient,
        (bf16(1, 4, 9, 9), bf16(4, 6, 3, 3)),
        {"shape": (1, 6, 9, 9), "padding": 1},
    ),
    (conv2d_weight_gradient, (bf16(1, 6, 9, 9), bf16(1, 4, 9, 9)), {"taps": (3, 3), "padding": 1}),
    (cross_entropy_forward, (bf16(5, 50), TARGETS), {}),
    (cross_entropy_backward, (bf16(5, 50), TARGETS, normal(5)), {"scale": 0.2}),
    (cumsum, (bf16(4, 50),), {}),
    (depthwise_conv1d, (bf16(1, 5, 50), bf16(5, 3)), {}),
    (mamba, (*SCAN, normal(1, 4, 30), normal(1, 4, 30)), {}),
    (moe_blocks, (*LAYERS, *BLOCKS), {"block": 128}),
    (resize_nearest, (bf16(1, 4, 5, 6),), {"shape": (7, 8)}),
    (select_and_scatter, (bf16(1, 3, 6, 8), bf16(1, 3, 3, 4)), {}),
    (top_k, (bf16(4, 512),), {"k": 9}),
)


@pytest.mark.parametrize(
    ("kernel", "arguments", "constants"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_generations_agree(
    kernel: Any, arguments: tuple[np.ndarray, ...], constants: dict[str, Any]
) -> None:
    assert_generations_agree(kernel, arguments, constants, 1e-5)
