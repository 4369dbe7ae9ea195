"""The mixture of experts in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.moe_blocks import moe_blocks
from support.kernel_checks import (
    RANDOM,
    assert_close,
    assert_reaches,
    engine_ns,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)


def arguments(
    tokens: int, width: int, inner: int, experts: int, blocks: int, block: int, dtype: Any
) -> list[np.ndarray]:
    """Blocks of random tokens for random experts, filled up with the last token."""
    chosen = RANDOM.integers(0, experts, (blocks, 1)).astype(np.int32)
    positions = np.full((blocks, block), tokens, np.int32)
    used = min(tokens, block) - 5
    for row in positions:
        row[:used] = RANDOM.permutation(tokens)[:used]
    return [
        normal(tokens + 1, width, dtype=dtype),
        RANDOM.random(((tokens + 1) * experts, 1)).astype(dtype),
        (normal(experts, width, 2, inner) / np.sqrt(width)).astype(dtype),
        (normal(experts, inner, width) / np.sqrt(inner)).astype(dtype),
        positions.reshape(-1),
        chosen,
    ]


def reference(
    hidden: np.ndarray,
    affinities: np.ndarray,
    gate_up: np.ndarray,
    down: np.ndarray,
    positions: np.ndarray,
    experts: np.ndarray,
) -> np.ndarray:
    wide = [each.astype(np.float64) for each in (hidden, affinities, gate_up, down)]
    hidden, affinities, gate_up, down = wide
    out = np.zeros(hidden.shape)
    for tokens, (expert,) in zip(positions.reshape(len(experts), -1), experts, strict=True):
        gate, up = (hidden[tokens] @ gate_up[expert, :, which] for which in range(2))
        result = (gate / (1 + np.exp(-gate)) * up) @ down[expert]
        np.add.at(out, tokens, result * affinities[tokens * len(down) + expert])
    out[-1] = 0
    return out


@pytest.mark.parametrize(
    ("sizes", "dtype", "tolerance"),
    [
        ((100, 128, 128, 3, 2, 128), np.float32, 1e-5),
        ((300, 256, 384, 2, 3, 256), bfloat16, 2e-2),
        ((700, 640, 128, 2, 1, 640), np.float32, 1e-5),
    ],
)
def test_each_token_gets_what_its_experts_make_of_it(
    sizes: tuple[int, ...], dtype: Any, tolerance: float
) -> None:
    given = arguments(*sizes, dtype)
    found = run_both(moe_blocks, *given, block=sizes[-1])[0]
    assert_close(np.asarray(found), reference(*given), tolerance)


def test_it_keeps_the_tensor_engine_busy() -> None:
    block, width, blocks = 512, 1024, 4
    given = [
        np.zeros((1025, width), bfloat16),
        np.zeros((1025 * 2, 1), bfloat16),
        np.zeros((2, width, 2, width), bfloat16),
        np.zeros((2, width, width), bfloat16),
        np.zeros(blocks * block, np.int32),
        np.zeros((blocks, 1), np.int32),
    ]
    columns = blocks * (3 * block * width**2 / 128**2 + width * block / 128)
    moved = blocks * (6 * width**2 + 6 * block * width)
    bounds = engine_ns("tensor", columns), transfer_ns(moved)
    assert_reaches(0.7, span_ns(moe_blocks, *given, block=block), bounds)
