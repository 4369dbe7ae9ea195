"""The four steps of matrix multiplication."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia
from glia.kernels.matmul import (
    matmul_blocked_free,
    matmul_fully_blocked,
    matmul_hoisted,
    matmul_tiled,
)
from support.kernel_checks import (
    assert_close,
    assert_reaches,
    engine_ns,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)

STEPS = (
    (matmul_tiled, {}),
    (matmul_hoisted, {}),
    (matmul_blocked_free, {"tiles": (2, 1)}),
    (matmul_fully_blocked, {"tiles": (2, 1, 2)}),
    (matmul_fully_blocked, {"tiles": (1, 1, 1)}),
)


@pytest.mark.parametrize(("step", "options"), STEPS)
@pytest.mark.parametrize(
    ("sizes", "dtype", "tolerance"),
    [((256, 256, 512), np.float32, 1e-5), ((256, 512, 1024), bfloat16, 1e-2)],
)
def test_every_step_gives_the_product(
    step: Any, options: dict[str, Any], sizes: tuple[int, ...], dtype: Any, tolerance: float
) -> None:
    rows, depth, columns = sizes
    left, right = normal(depth, rows, dtype=dtype), normal(depth, columns, dtype=dtype)
    expected = left.astype(np.float32).T @ right.astype(np.float32)
    assert_close(run_both(step, left, right, **options)[0], expected, tolerance)


def test_sums_of_many_blocks_of_k_are_exact_for_integers() -> None:
    left = np.arange(1024 * 128).reshape(1024, 128).astype(np.float32) % 7
    right = np.arange(1024 * 512).reshape(1024, 512).astype(np.float32) % 5
    product = glia.simulate(matmul_fully_blocked)(left, right, tiles=(1, 1, 2))
    np.testing.assert_array_equal(product, left.T @ right)


def test_a_shape_that_blocks_do_not_divide_is_refused() -> None:
    left, right = normal(256, 384), normal(256, 512)
    with pytest.raises(AssertionError, match="m is 384, not a multiple of 256"):
        glia.simulate(matmul_fully_blocked)(left, right, tiles=(2, 1, 1))
    with pytest.raises(AssertionError, match="do not fit the 8 banks"):
        glia.simulate(matmul_blocked_free)(left, right, tiles=(8, 2))


def operands(rows: int, depth: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((depth, rows), bfloat16), np.zeros((depth, columns), bfloat16)


def array_ns(rows: int, depth: int, columns: int, target: str) -> float:
    """One column of a moving tile each cycle."""
    return engine_ns("tensor", rows // 128 * (depth // 128) * columns, target)


def test_a_square_keeps_the_array_busy_on_trn2() -> None:
    span = span_ns(matmul_fully_blocked, *operands(2048, 2048, 2048), tiles=(8, 1, 4))
    assert_reaches(0.93, span, [array_ns(2048, 2048, 2048, "trn2")])


def test_the_published_product_takes_about_as_long_as_published_on_trn1() -> None:
    sizes = 4096, 8192, 8192
    span = span_ns(matmul_fully_blocked, *operands(*sizes), target="trn1", tiles=(32, 1, 4))
    assert span == pytest.approx(6.97e6, rel=0.15)
    assert_reaches(0.7, span, [array_ns(*sizes, "trn1")])


@pytest.mark.parametrize(
    ("step", "reads_of_left", "reads_of_right"),
    [(matmul_tiled, 4, 16), (matmul_hoisted, 1, 16), (matmul_blocked_free, 1, 4)],
)
def test_each_step_is_bound_by_what_it_reads(
    step: Any, reads_of_left: int, reads_of_right: int
) -> None:
    left, right = operands(2048, 2048, 2048)
    count = left.nbytes * reads_of_left + right.nbytes * reads_of_right + left.nbytes
    bounds = transfer_ns(count), array_ns(2048, 2048, 2048, "trn2")
    assert_reaches(0.7, span_ns(step, left, right), bounds)
