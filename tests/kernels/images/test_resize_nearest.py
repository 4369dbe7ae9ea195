"""The resizing kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.images.resize_nearest import resize_nearest, runs_between
from support.kernel_checks import (
    assert_close,
    assert_reaches,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)


@pytest.mark.parametrize(
    ("shape", "size", "dtype"),
    [
        ((2, 5, 4, 8), (9, 7), np.float32),
        ((1, 6, 6, 16), (3, 11), bfloat16),
        ((3, 50, 4, 8), (75, 4), np.float32),
        ((1, 130, 2, 3), (131, 1), np.float32),
        ((1, 7, 5, 3), (20, 3), np.int32),
    ],
)
def test_every_pixel_is_the_nearest_of_the_image(
    shape: tuple[int, ...], size: tuple[int, int], dtype: Any
) -> None:
    image = (normal(*shape) * 100).astype(dtype)
    rows, columns = (np.arange(n) * extent // n for n, extent in zip(size, shape[1:3], strict=True))
    expected = image[:, rows][:, :, columns]
    assert_close(run_both(resize_nearest, image, shape=size)[0], expected, 0)


@pytest.mark.parametrize(("extent", "outputs"), [(30, 59), (20, 38), (7, 3), (5, 5), (4, 9)])
def test_runs_name_every_output_and_its_input_once(extent: int, outputs: int) -> None:
    pairs = [
        (run.output + i * run.output_step, first + run.start + i * run.step)
        for first in range(0, extent, 3)
        for run in runs_between(extent, outputs, first, min(3, extent - first))
        for i in range(run.count)
    ]
    assert sorted(pairs) == [(output, output * extent // outputs) for output in range(outputs)]


@pytest.mark.parametrize(("batch", "dtype"), [(10, np.float32), (1, bfloat16)])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_it_moves_near_the_rate_of_the_machine(batch: int, dtype: Any, target: str) -> None:
    image = np.zeros((batch, 30, 20, 1280), dtype)
    moved = image.nbytes * (1 + 59 * 38 / (30 * 20))
    span = span_ns(resize_nearest, image, target=target, shape=(59, 38))
    assert_reaches(0.7, span, (transfer_ns(moved, target),))
