"""Kernels take float16 as well: the result is that of float32, rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.kernels.cross_entropy import cross_entropy_backward, cross_entropy_forward
from glia.kernels.depthwise_conv1d import depthwise_conv1d
from glia.kernels.flash_attention import flash_attention
from glia.kernels.images.conv2d import conv2d, conv2d_image_gradient
from glia.kernels.images.conv2d_weights import conv2d_weight_gradient
from glia.kernels.images.select_and_scatter import select_and_scatter
from glia.kernels.layernorm import layernorm
from glia.kernels.mlp import swiglu
from glia.kernels.moe_blocks import moe_blocks
from glia.kernels.rmsnorm import rmsnorm
from glia.kernels.rope import rope
from glia.kernels.softmax import softmax
from support.kernel_checks import assert_close, normal, run_both

ROW, LSE = normal(67), normal(5).astype(np.float32) + 9
ANSWERS = np.array([0, 3, 40, 7, 66], np.int32)
POSITIONS, EXPERT = np.arange(128, dtype=np.int32) % 9, np.ones((1, 1), np.int32)
POSITIONS[8:] = 8  # the token that fills up blocks
CASES: list[tuple[Any, tuple[np.ndarray, ...], dict[str, Any]]] = [
    (softmax, (normal(131, 67),), {}),
    (layernorm, (normal(131, 67), ROW, ROW), {}),
    (rmsnorm, (normal(131, 67), ROW), {}),
    (rope, (normal(131, 3, 10), normal(131, 5), normal(131, 5)), {}),
    (swiglu, (normal(7, 130), normal(130, 67) / 8, normal(130, 67) / 8, normal(67, 130) / 8), {}),
    (cross_entropy_forward, (normal(5, 67), ANSWERS), {}),
    (cross_entropy_backward, (normal(5, 67), ANSWERS, LSE), {"scale": 0.2}),
    (depthwise_conv1d, (normal(2, 131, 67), normal(131, 4)), {}),
    (select_and_scatter, (normal(1, 131, 6, 10), normal(1, 131, 3, 5)), {}),
    (conv2d, (normal(2, 3, 9, 7), normal(5, 3, 3, 3)), {"padding": 1}),
    (conv2d_image_gradient, (normal(2, 5, 9, 7), normal(5, 3, 3, 3)),
     {"padding": 1, "shape": (2, 3, 9, 7)}),
    (conv2d_weight_gradient, (normal(2, 3, 9, 7), normal(2, 5, 9, 7)),
     {"padding": 1, "taps": (3, 3)}),
    (flash_attention, (normal(1, 2, 16, 131), normal(1, 1, 16, 131), normal(1, 1, 131, 16)), {}),
    (moe_blocks, (normal(9, 128), normal(18, 1), normal(2, 128, 2, 128) / 8,
                  normal(2, 128, 128) / 8, POSITIONS, EXPERT), {"block": 128}),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "arguments", "constants"), CASES)
def test_float16_is_float32_rounded(
    kernel: Any, arguments: tuple[np.ndarray, ...], constants: dict[str, Any]
) -> None:
    narrow = [
        a.astype(np.float16) if a.dtype == np.float32 and a is not LSE else a for a in arguments
    ]
    wide = [a.astype(np.float32) if a.dtype == np.float16 else a for a in narrow]
    results, expected = (run_both(kernel, *given, **constants) for given in (narrow, wide))
    for result, other in zip(results, expected, strict=True):
        assert_close(result, other, 6e-3)
