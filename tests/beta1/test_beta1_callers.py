"""Ways in which callers of Beta 1 kernels name arrays and grids."""

from __future__ import annotations

import numpy as np

from glia.nki import beta1 as nki
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from glia.nki.beta1 import typing as nt

RNG = np.random.default_rng(11)
ONES = np.ones((4, 8), np.float32)


def _twice(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x) * 2)
    return out


def test_a_type_with_a_shape_and_a_dtype_stands_for_an_array_that_is_timed() -> None:
    timed, known = nki.benchmark(_twice), nki.benchmark(_twice)
    timed(nt.tensor[[128, 512], nl.bfloat16])
    known(RNG.standard_normal((128, 512)).astype(nl.bfloat16))
    found, expected = timed.benchmark_result, known.benchmark_result
    assert found.nc_latency == expected.nc_latency
    assert found.profile.program.inputs[0].shape == (128, 512)


def test_a_type_in_brackets_is_still_a_shape_without_a_dtype() -> None:
    assert (nt.tensor[128, 512].shape, nt.tensor[128, 512].dtype) == ((128, 512), None)
    assert nt.tensor[[2, 3], nl.float32].shape == (2, 3)


def test_a_grid_of_zero_is_one_program_that_has_a_number() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out[nl.program_id(0)], nl.load(x[nl.program_id(0)]))
        return out

    x = RNG.standard_normal((1, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(kernel[0](x), x)


def test_a_measured_kernel_may_return_a_tensor_of_private_memory() -> None:
    @nki.benchmark
    def kernel(x):
        out = nl.ndarray((4, 4, 8), dtype=x.dtype, buffer=nl.hbm)
        nl.store(out[0], nl.load(x))
        return out.reshape((16, 8))

    kernel(np.ones((4, 8), np.float32))
    assert kernel.benchmark_result.profile.program.outputs[0].shape == (16, 8)


def test_a_product_of_a_window_is_added_to_a_tensor_of_the_window() -> None:
    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((8, 3, 5), dtype=x.dtype, buffer=nl.shared_hbm)
        sums = nl.zeros((8, 3, 5), dtype=nl.float32, buffer=nl.psum)
        image, weights = nl.load(x), nl.load(w)
        for row in nl.affine_range(2):
            sums += nisa.nc_matmul(weights[:, :, row], image[:, row : row + 3, 0:5])
        nl.store(out, sums)
        return out

    x = RNG.integers(-3, 3, (16, 4, 6)).astype(np.float32)
    w = RNG.integers(-3, 3, (16, 8, 2)).astype(np.float32)
    windows = np.stack([x[:, 0:3, 0:5], x[:, 1:4, 0:5]], axis=-1)
    np.testing.assert_array_equal(kernel(x, w), np.einsum("cowr,cxr->xow", windows, w))


def test_a_column_goes_with_a_tile_of_more_dimensions() -> None:
    @nki.jit
    def kernel(x, bias):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nisa.tensor_tensor(nl.load(x), nl.load(bias)[:, 0], nl.add))
        return out

    x = RNG.standard_normal((8, 3, 5)).astype(np.float32)
    bias = RNG.standard_normal((8, 2)).astype(np.float32)
    np.testing.assert_array_equal(kernel(x, bias), x + bias[:, :1, None])


def test_a_mode_measures_where_it_says_so() -> None:
    measured = nki.jit(mode="benchmark")(_twice)
    assert measured(ONES) is None
    latency = measured.benchmark_result.nc_latency.get_latency_percentile(50)
    timed = nki.benchmark(_twice)
    timed(ONES)
    assert latency == timed.benchmark_result.nc_latency.get_latency_percentile(50)
    np.testing.assert_array_equal(nki.jit(mode="baremetal")(_twice)(ONES), 2 * ONES)


def test_a_kernel_decorated_again_keeps_what_it_was_given() -> None:
    kernel = nki.jit(nki.jit(platform_target="trn1")(_twice)[2], show_compiler_tb=True)
    assert kernel.options["platform_target"] == "trn1" and kernel.grid == (2,)
    assert kernel.options["show_compiler_tb"]
