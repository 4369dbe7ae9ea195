"""Convolution of images and its gradients."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from ml_dtypes import bfloat16

import glia
from glia.kernels.images.conv2d import conv2d, conv2d_image_gradient
from glia.kernels.images.conv2d_layouts import conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh
from glia.kernels.images.conv2d_weights import conv2d_weight_gradient
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor
from support.kernel_checks import (
    assert_close,
    assert_reaches,
    engine_ns,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)

# image, output channels, filter side, stride, padding
CASES = [
    ((2, 3, 9, 11), 5, 3, 1, 1),
    ((1, 130, 8, 8), 140, 3, 1, 1),
    ((1, 64, 17, 15), 32, 3, 2, 1),
    ((1, 3, 20, 20), 8, 7, 2, 3),
    ((1, 50, 6, 700), 4, 1, 1, 0),
    ((1, 4, 5, 5), 4, 2, 3, 0),
    ((2, 128, 9, 9), 4, 7, 1, 3),
]


def reference(image: Any, weights: Any, stride: int, padding: int, dilation: int = 1) -> Any:
    sides = ((padding, padding), (padding, padding))
    return lax.conv_general_dilated(
        image, weights, (stride, stride), sides, rhs_dilation=(dilation, dilation),
        precision="highest",
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (bfloat16, 1e-2)])
def test_outputs_and_gradients_are_those_of_jax(case: Any, dtype: Any, tolerance: float) -> None:
    shape, outputs, side, stride, padding = case
    if dtype is bfloat16 and max(shape) > 128:
        shape = (*shape[:3], 40)
    image, weights = normal(*shape, dtype=dtype), normal(outputs, shape[1], side, side, dtype=dtype)
    wide = image.astype(np.float32), weights.astype(np.float32)
    expected, back = jax.vjp(lambda x, w: reference(x, w, stride, padding), *wide)
    gradient = normal(*expected.shape, dtype=dtype)
    steps = {"stride": stride, "padding": padding}
    of_image, of_weights = back(gradient.astype(np.float32))
    assert_close(run_both(conv2d, image, weights, **steps)[0], expected, tolerance)
    found = run_both(conv2d_image_gradient, gradient, weights, shape=shape, **steps)
    assert_close(found[0], of_image, tolerance)
    found = run_both(conv2d_weight_gradient, image, gradient, taps=(side, side), **steps)
    assert_close(found[0], of_weights, tolerance)


def in_layouts(image: NkiTensor, weights: NkiTensor, shape: Any, options: Any) -> NkiTensor:
    out = nl.ndarray(tuple(shape), image.dtype, buffer=nl.shared_hbm)
    return conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh(image, weights, out, **dict(options))


def test_one_function_does_the_three_convolutions_of_a_training_step() -> None:
    image, weights = normal(2, 6, 10, 12), normal(9, 6, 3, 3)
    expected, back = jax.vjp(lambda x, w: reference(x, w, 1, 1), image, weights)
    gradient = normal(*expected.shape)
    of_image, of_weights = back(gradient)
    same = (("stride", (1, 1)), ("padding", ((1, 1), (1, 1))), ("in_perm", (0, 1, 2, 3)))
    kernel = jit(in_layouts)

    def run(image: np.ndarray, weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        arrays = np.ascontiguousarray(image), np.ascontiguousarray(weights)
        return run_both(kernel, *arrays, shape=shape, options=same)[0]

    assert_close(run(image, weights, expected.shape), np.asarray(expected), 1e-5)
    turned = weights.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
    assert_close(run(gradient, turned, image.shape), np.asarray(of_image), 1e-5)
    found = run(image.swapaxes(0, 1), gradient.swapaxes(0, 1), (6, 9, 3, 3))
    assert_close(found.swapaxes(0, 1), np.asarray(of_weights), 1e-5)


@pytest.mark.parametrize("dilation", [1, 2])
def test_layouts_are_permutations_and_filters_may_be_dilated(dilation: int) -> None:
    image, weights = normal(2, 10, 12, 6), normal(3, 3, 6, 9)  # N, H, W, C and H, W, C, O
    canonical = image.transpose(0, 3, 1, 2), weights.transpose(3, 2, 0, 1)
    expected = np.asarray(reference(*canonical, 2, 1, dilation)).transpose(0, 2, 3, 1)
    options = (
        ("stride", (2, 2)), ("padding", ((1, 1), (1, 1))), ("rhs_dilation", (dilation, dilation)),
        ("in_perm", (0, 3, 1, 2)), ("kern_perm", (3, 2, 0, 1)), ("out_perm", (0, 3, 1, 2)),
    )  # fmt: skip
    found = run_both(jit(in_layouts), image, weights, shape=expected.shape, options=options)
    assert_close(found[0], expected, 1e-5)


@pytest.mark.parametrize(
    ("shape", "options", "text"),
    [
        ((1, 4, 6, 6), (("stride", (1, 1)),), "do not give"),
        ((1, 4, 5, 5), (("stride", (1, 2)),), "two equal positive integers"),
        ((1, 4, 5, 5), (("groups", 2),), "no option 'groups'"),
    ],
)
def test_what_it_cannot_do_is_told(shape: Any, options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        glia.simulate(in_layouts)(normal(1, 3, 5, 5), normal(4, 3, 1, 1), shape, options)


def test_convolutions_keep_the_tensor_engine_busy() -> None:
    image, weights = np.zeros((1, 128, 128, 128), bfloat16), np.zeros((128, 128, 3, 3), bfloat16)
    pixels = 128 * 128
    moved = transfer_ns(2 * image.nbytes)
    steps = {"stride": 1, "padding": 1}
    bounds = moved, engine_ns("tensor", 9 * pixels)
    assert_reaches(0.7, span_ns(conv2d, image, weights, **steps), bounds)
    span = span_ns(conv2d_image_gradient, image, weights, shape=image.shape, **steps)
    assert_reaches(0.7, span, bounds)
    span = span_ns(conv2d_weight_gradient, image, image, taps=(3, 3), **steps)
    assert_reaches(0.7, span, (moved, engine_ns("tensor", (9 + 3 + 1) * pixels)))
