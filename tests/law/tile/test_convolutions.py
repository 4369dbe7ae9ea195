"""Convolutions of ordinary shapes run under the schedule that was chosen, whatever the layout."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia
from support.targets import CORES

LAYOUTS = {"NCHW": ("NCHW", "OIHW", "NCHW"), "NHWC": ("NHWC", "HWIO", "NHWC")}


@dataclass(frozen=True)
class Case:
    """A convolution of square images with square windows; `pad` elements are added at each side."""

    channels: int
    extent: int
    outputs: int
    window: int
    stride: int = 1
    pad: int = 0
    groups: int = 1
    dilation: int = 1


PATCHES = (Case(3, 32, 20, 16, 16), Case(3, 28, 20, 14, 14), Case(3, 32, 20, 8, 8),
           Case(24, 16, 20, 4, 4), Case(24, 16, 20, 2, 2), Case(160, 8, 20, 2, 2))  # fmt: skip
STRIDED = (Case(3, 24, 16, 7, 2, 3), Case(3, 24, 16, 16, 8), Case(3, 24, 16, 11, 4, 2),
           Case(3, 20, 16, 7, 4), Case(20, 12, 16, 3, 2, 1), Case(20, 12, 16, 1, 2),
           Case(3, 18, 16, 5, 3, 2), Case(20, 15, 16, 3, 3))  # fmt: skip
DENSE = (Case(20, 12, 136, 1), Case(20, 12, 16, 3, 1, 1), Case(3, 17, 16, 13),
         Case(3, 17, 16, 16), Case(136, 9, 16, 3, 1, 1), Case(20, 16, 16, 5, 1, 2),
         Case(3, 12, 16, 7, 1, 3))  # fmt: skip
DILATED = (Case(16, 12, 16, 3, 1, 2, 1, 2), Case(16, 14, 16, 5, 1, 4, 1, 2),
           Case(16, 14, 16, 3, 2, 4, 1, 4))  # fmt: skip
GROUPED = (Case(16, 9, 32, 3, 1, 1, 2), Case(32, 9, 32, 3, 1, 1, 8), Case(32, 9, 32, 3, 2, 1, 4),
           Case(32, 9, 32, 1, 1, 0, 4), Case(16, 9, 16, 3, 1, 2, 4, 2))  # fmt: skip
DEPTHWISE = (Case(16, 9, 16, 3, 1, 1, 16), Case(16, 9, 16, 3, 2, 1, 16),
             Case(136, 7, 136, 3, 1, 1, 136), Case(16, 9, 16, 7, 1, 3, 16),
             Case(16, 9, 32, 5, 1, 2, 16), Case(16, 9, 16, 3, 1, 2, 16, 2),
             Case(16, 8, 16, 4, 4, 0, 16))  # fmt: skip
CASES = (*PATCHES, *STRIDED, *DENSE, *DILATED, *GROUPED, *DEPTHWISE)
WAYS = itertools.product(CASES, LAYOUTS, (1, 8), (np.float32, bfloat16))


def _shapes(case: Case, layout: str, batch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    x, w = (batch, case.channels), (case.outputs, case.channels // case.groups)
    image, window = (case.extent,) * 2, (case.window,) * 2
    if layout == "NCHW":
        return (*x, *image), (*w, *window)
    return (x[0], *image, x[1]), (*window, *reversed(w))


def _function(case: Case, layout: str) -> Any:
    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (case.stride,) * 2, ((case.pad,) * 2,) * 2, rhs_dilation=(case.dilation,) * 2,
            dimension_numbers=LAYOUTS[layout], feature_group_count=case.groups,
        )  # fmt: skip

    return convolve


@pytest.mark.parametrize(
    ("case", "layout", "batch", "dtype", "target"),
    [(*way, target) for way, target in zip(WAYS, itertools.cycle(CORES), strict=False)],
)
def test_ordinary_convolutions_run_as_scheduled(
    case: Case, layout: str, batch: int, dtype: Any, target: str
) -> None:
    random = np.random.default_rng(0)
    x, w = (
        random.standard_normal(shape, np.float32).astype(dtype)
        for shape in _shapes(case, layout, batch)
    )
    convolve = _function(case, layout)
    neff = glia.compile(jax.jit(convolve).lower(x, w), target=target, auto_cast="none", optlevel=1)
    assert not [note for note in neff.programs[0].notes if "slower way" in note]
    (found,) = glia.load(neff)(x, w)
    wanted = np.asarray(convolve(x.astype(np.float32), w.astype(np.float32)))
    error = 1e-5 if dtype is np.float32 else 8e-3
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found.astype(np.float32) / scale, wanted / scale, atol=error)
