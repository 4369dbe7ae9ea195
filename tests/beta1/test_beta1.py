"""Kernels of NKI Beta 1 give what NumPy gives."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest

from glia.isa.instructions.tensor import NcMatmul
from glia.machine.ir import walk
from glia.nki import beta1 as nki
from glia.nki.beta1 import compiler as ncc
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from glia.nki.beta1 import typing as nt
from glia.nki.beta1.run import current_generation as current
from support.beta1_ways import both

RNG = np.random.default_rng(7)


def _array(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@nki.jit(mode="simulation")
def _masked_exp(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = x.shape
    for i in nl.affine_range((rows + 127) // 128):
        i_p = i * 128 + nl.arange(128)[:, None]
        i_f = nl.arange(columns)[None, :]
        tile = nl.load(x[i_p, i_f], mask=(i_p < rows))
        nl.store(out[i_p, i_f], nl.exp(tile, mask=(i_p < rows)), mask=(i_p < rows))
    return out


def test_masks_leave_out_what_lies_outside() -> None:
    x = _array(300, 40)
    np.testing.assert_allclose(_masked_exp(x), np.exp(x), rtol=2e-6)


@nki.jit
def _both_masks(x):
    out = nl.ndarray((8, 8), dtype=x.dtype, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:8, 0:8]
    tile = nl.zeros((8, 8), dtype=x.dtype)
    tile[i_p, i_f] = nl.load(x[i_p, i_f], mask=(i_p < 4 and i_f < 6))
    nl.store(out, tile)
    return out


def test_and_of_masks_is_their_conjunction() -> None:
    x = _array(8, 8)
    expected = np.zeros((8, 8), np.float32)
    expected[:4, :6] = x[:4, :6]
    np.testing.assert_array_equal(_both_masks(x), expected)


@nki.jit
def _lower_triangle(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:16, 0:16]
    tile = nl.full((16, 16), -1.0, dtype=x.dtype)
    loaded = nl.load(x)
    tile[i_p, i_f] = nl.multiply(loaded, 2.0, mask=(i_f <= i_p))
    nl.store(out, tile)
    return out


def test_a_mask_that_is_no_box_keeps_the_rest_of_the_slot() -> None:
    x = _array(16, 16)
    expected = np.where(np.tri(16, dtype=bool), 2 * x, np.float32(-1))
    np.testing.assert_array_equal(_lower_triangle(x), expected)


@nki.jit
def _masked_sum(x):
    out = nl.ndarray((16, 2), dtype=x.dtype, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:16, 0:16]
    tile = nl.load(x)
    sums = nl.ndarray((16, 2), dtype=x.dtype)
    sums[:, 0] = nl.sum(tile, axis=[1], mask=(i_f < 5))
    sums[:, 1] = nl.max(tile, axis=1, mask=(i_f <= i_p))
    nl.store(out, sums)
    return out


def test_reductions_ignore_what_a_mask_leaves_out() -> None:
    x = _array(16, 16)
    found = _masked_sum(x)
    np.testing.assert_allclose(found[:, 0], x[:, :5].sum(axis=1), rtol=1e-5)
    most = np.where(np.tri(16, dtype=bool), x, -np.inf).max(axis=1)
    np.testing.assert_array_equal(found[:, 1], most)


@nki.jit
def _blocks(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    count, rows, columns = x.shape
    tiles = nl.ndarray((count, nl.par_dim(rows), columns), dtype=x.dtype, buffer=nl.sbuf)
    for b in nl.affine_range(count):
        tiles[b] = nl.load(x[b])
    for b in nl.affine_range(count):
        tiles[b] += 1.0
        nl.store(out[b], tiles[count - 1 - b] if b >= count // 2 else tiles[b])
    return out


def test_block_dimensions_number_tiles() -> None:
    x = _array(4, 16, 8)
    found = _blocks(x)
    np.testing.assert_array_equal(found[:2], x[:2] + 1)
    np.testing.assert_array_equal(found[2], x[1] + 1)


@nki.jit
def _huge_blocks(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = nl.ndarray((1 << 20, nl.par_dim(128), 4096), dtype=nl.float32, buffer=nl.sbuf)
    tiles[12345, 0:8, 0:8] = nl.load(x)
    nl.store(out, tiles[12345, 0:8, 0:8])
    return out


def test_blocks_that_no_memory_could_hold_cost_only_what_is_used() -> None:
    x = _array(8, 8)
    np.testing.assert_array_equal(_huge_blocks(x), x)


@nki.jit
def _matmul(a, b):
    rows, inner = a.shape[1], a.shape[0]
    out = nl.ndarray((rows, b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.zeros((nl.par_dim(rows), b.shape[1]), nl.float32, buffer=nl.psum)
    for k in nl.affine_range(inner // 128):
        left = nl.load(a[nl.ds(k * 128, 128), :])
        right = nl.load(b[nl.ds(k * 128, 128), :])
        acc[...] += nisa.nc_matmul(left, right)
    nl.store(out, acc)
    return out


def test_products_accumulate_in_psum() -> None:
    a, b = _array(384, 64), _array(384, 96)
    np.testing.assert_allclose(_matmul(a, b), a.T @ b, rtol=1e-4, atol=1e-4)


def test_bf16_tiles_keep_the_precision_of_float32() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.exp(nl.load(x), dtype=nl.bfloat16))
        return out

    x = _array(8, 8)
    np.testing.assert_allclose(kernel(x), np.exp(x), rtol=2e-6)


def test_results_have_the_dtype_of_their_tensor() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    x = _array(4, 4)
    found = kernel(x)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, x.astype(ml_dtypes.bfloat16))


def test_loop_reduce_assigns_in_the_first_iteration() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.shared_hbm)
        most = nl.ndarray(x.shape[1:], dtype=x.dtype)
        for i in nl.affine_range(x.shape[0]):
            most[...] = nl.loop_reduce(nl.load(x[i]), op=np.max, loop_indices=[i])
        nl.store(out, most)
        return out

    x = _array(3, 8, 8) - 10
    np.testing.assert_array_equal(kernel(x), x.max(axis=0))


def test_a_value_keeps_its_contents_when_the_slot_it_went_to_changes() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        slot = nl.ndarray(x.shape, dtype=x.dtype)
        doubled = nl.multiply(nl.load(x), 2.0)
        slot[...] = doubled
        slot[...] = 0.0
        nl.store(out[0], doubled)
        nl.store(out[1], slot)
        return out

    x = _array(4, 4)
    found = kernel(x)
    np.testing.assert_array_equal(found[0], 2 * x)
    np.testing.assert_array_equal(found[1], 0 * x)


def test_operators_promote_and_broadcast() -> None:
    @nki.jit
    def kernel(x, column):
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        tile, factor = nl.load(x), nl.load(column)
        small = nl.copy(tile, dtype=nl.float16)
        assert (small + 1.5).dtype == np.float32
        assert (small * 2).dtype == np.float16
        assert (small + nl.copy(tile, dtype=nl.bfloat16)).dtype == np.float32
        assert (tile > 0.0).dtype == np.bool_
        nl.store(out, (1.0 - tile * factor) / 4.0)
        return out

    x, column = _array(8, 6), _array(8, 1)
    np.testing.assert_allclose(kernel(x, column), (1 - x * column) / 4, rtol=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        (np.int8, np.uint8, np.int16),
        (np.int32, np.uint32, np.float32),
        (np.uint16, np.int32, np.int32),
        (nl.float8_e4m3, nl.float8_e5m2, nl.bfloat16),
        (nl.float8_e4m3, np.float16, np.float16),
        (np.int32, np.float16, np.float16),
    ],
)
def test_dtypes_promote_as_documented(first, second, result) -> None:
    @nki.jit
    def kernel():
        a = nisa.memset((4, 4), 1, first)
        b = nisa.memset((4, 4), 1, second)
        assert nl.add(a, b).dtype == result
        out = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.add(a, b))
        return out

    np.testing.assert_array_equal(kernel(), np.full((4, 4), 2, np.float32))


def test_rows_are_gathered_and_scattered_by_indices() -> None:
    @nki.jit
    def kernel(x, rows):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i_p = nl.arange(8)[:, None]
        i_f = nl.arange(x.shape[1])[None, :]
        chosen = nl.load(rows[i_p])
        tile = nl.load(x[chosen[i_p, 0], i_f], mask=(i_p < 6))
        nl.store(out[chosen, i_f], tile + 1.0, mask=(i_p < 6))
        return out

    x, rows = _array(16, 4), RNG.permutation(16)[:8].astype(np.int32)
    found = kernel(x, rows)
    np.testing.assert_array_equal(found[rows[:6]], x[rows[:6]] + 1)
    assert np.isnan(found[rows[6:]]).all()


def test_the_grid_runs_one_program_after_the_other() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i, j = nl.program_id(0), nl.program_id(axis=1)
        assert nl.program_ndim() == 2
        assert nl.num_programs() == 6
        nl.store(out[i, j], nl.load(x[i, j]) * (1 + 10 * i + j))
        return out

    x = _array(3, 2, 4, 4)
    factor = 1 + 10 * np.arange(3)[:, None] + np.arange(2)[None, :]
    expected = x * factor[:, :, None, None].astype(np.float32)
    np.testing.assert_allclose(kernel[3, 2](x), expected, rtol=1e-6)
    grid = (nl.spmd_dim(nl.nc(1), 3), 2 * nl.nc(1))
    np.testing.assert_allclose(kernel[grid](x), expected, rtol=1e-6)


def test_kernels_of_the_first_release_write_their_arguments() -> None:
    @nki.trace
    def kernel(x, out):
        nl.store(out, nl.square(nl.load(x)))

    x, out = _array(8, 8), np.zeros((8, 8), np.float32)
    assert nki.simulate_kernel(kernel, x, out) is None
    np.testing.assert_array_equal(out, x * x)


def test_mutable_parameters_change_the_array() -> None:
    @nki.jit
    def kernel(x: nt.mutable_tensor):
        nl.store(x, nl.load(x) + 1.0)
        return x

    x = _array(8, 8)
    before = x.copy()
    np.testing.assert_array_equal(kernel(x), before + 1)
    np.testing.assert_array_equal(x, before + 1)


def _alternating(tiles: int):
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        place = ncc.sbuf.mod_alloc(base_addr=1024, num_free_tiles=(tiles,))
        held = nl.ndarray((4, nl.par_dim(8), 8), dtype=x.dtype, buffer=place)
        for i in nl.affine_range(4):
            held[i] = nl.load(x[i])
        for i in nl.affine_range(4):
            nl.store(out[i], held[i])
        return out

    return kernel


def test_tiles_at_one_address_are_one_tile() -> None:
    x = _array(4, 8, 8)
    np.testing.assert_array_equal(_alternating(4)(x), x)
    np.testing.assert_array_equal(_alternating(2)(x), x[[2, 3, 2, 3]])


def test_tiles_at_overlapping_addresses_lose_their_contents() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 8, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        a = nl.ndarray((8, 8), dtype=x.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=0))
        b = nl.ndarray((8, 8), dtype=x.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=16))
        a[...] = nl.load(x)
        b[...] = nl.load(x)
        nl.store(out[0], a)
        nl.store(out[1], b)
        return out

    x = _array(8, 8)
    found = kernel(x)
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1], x)


def test_affine_select_takes_several_comparisons() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i_p, i_f = nl.mgrid[0:16, 0:16]
        pred = (i_p >= i_f) & (i_f > i_p - 4)
        nl.store(out, nisa.affine_select(pred, nl.load(x), nl.fp32.min))
        return out

    x = _array(16, 16)
    p, f = np.mgrid[0:16, 0:16]
    expected = np.where((p >= f) & (f > p - 4), x, np.finfo(np.float32).min)
    np.testing.assert_array_equal(kernel(x), expected)


def test_while_loops_of_the_form_do_while_run_on_scalars() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 1), dtype=x.dtype)
        tile[...] = nl.load(x)
        more = nt.scalar(True)
        while more:
            tile[...] = tile + 1
            more = nt.scalar(tile) < 10
        nl.store(out, tile)
        return out

    assert kernel(np.array([[3]], np.int32))[0, 0] == 10


def test_functions_of_numpy_compute_on_tiles() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nl.store(out, np.multiply(np.exp(tile), np.float32(2)))
        return out

    x = _array(4, 4)
    np.testing.assert_allclose(kernel(x), np.exp(x) * 2, rtol=2e-6)


def test_a_compiled_kernel_has_a_latency(tmp_path) -> None:
    @nki.benchmark(warmup=1, iters=2, save_neff_name=str(tmp_path / "k.neff"))
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.softmax(nl.load(x), axis=1))
        return out

    kernel(_array(128, 256))
    latency = kernel.benchmark_result.nc_latency
    assert latency.get_latency_percentile(99) == latency.get_latency_percentile(50) > 0
    assert (tmp_path / "k.neff").stat().st_size > 0
    with pytest.raises(ValueError, match="percentile 42"):
        latency.get_latency_percentile(42)


def test_profile_leaves_its_files(tmp_path) -> None:
    folder = tmp_path / "profiles"

    @nki.profile(
        working_directory=str(folder), save_trace_name="t.ntff", profile_nth=2, num_execs=4
    )
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    kernel(_array(8, 8))
    found = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert found == [
        "file.neff", "json_reports/t_exec_2.json", "json_reports/t_exec_4.json",
        "t_exec_2.ntff", "t_exec_4.ntff",
    ]  # fmt: skip


def test_kernels_of_the_current_generation_can_be_measured_alike(tmp_path) -> None:
    from glia.nki import language

    def kernel(x):
        out = language.ndarray(x.shape, x.dtype, buffer=language.shared_hbm)
        language.store(out, language.exp(language.load(x)))
        return out

    x = _array(8, 8)
    timed = current.benchmark(warmup=1)(kernel)
    timed(x)
    assert timed.benchmark_result.nc_latency.get_latency_percentile(50) > 0
    found = current.baremetal(kernel, save_neff_name=str(tmp_path / "k.neff"))(x)
    np.testing.assert_allclose(found, np.exp(x), rtol=2e-6)
    assert (tmp_path / "k.neff").exists()


def test_a_traced_loop_allocates_as_its_first_iteration_did() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        address = 0
        for i in nl.affine_range(3):
            place = ncc.sbuf.mod_alloc(base_addr=address)
            tile = nl.ndarray((8, 8), dtype=x.dtype, buffer=place)
            address += 100_000  # the third would be outside
            tile[...] = nl.load(x[i])
            nl.store(out[i], tile)
        return out

    x = _array(3, 8, 8)
    np.testing.assert_array_equal(kernel(x), x)


def test_allocators_are_asked_by_name() -> None:
    def place(banks, idx, pdim_size, fdim_size):
        return banks[idx], 0, 0

    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((2, 8, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        buffer = ncc.psum.alloc(functools.partial(place, banks={(0,): 3, (1,): 3}))
        sums = nl.ndarray((2, nl.par_dim(8), 8), dtype=nl.float32, buffer=buffer)
        for i in nl.affine_range(2):
            sums[i] += nisa.nc_matmul(nl.load(a), nl.load(b[i]))
            nl.store(out[i], sums[i])
        return out

    a, b = _array(8, 8), _array(2, 8, 8)
    np.testing.assert_allclose(kernel(a, b), a.T @ b, rtol=1e-5, atol=1e-5)


def test_tiles_of_many_dimensions_are_computed_in_parts() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray((4, 2, 3, 2, 3, 2), dtype=x.dtype, buffer=nl.shared_hbm)
        p, a, b, c, d, e = nl.mgrid[0:4, 0:2, 0:3, 0:2, 0:3, 0:2]
        tile = nl.load(x)
        nl.store(out, tile[p, 36 * a + 7 * b + 3 * c + d + 1 - e] * 2.0)
        return out

    x = _array(4, 80)
    a, b, c, d, e = np.mgrid[0:2, 0:3, 0:2, 0:3, 0:2]
    np.testing.assert_array_equal(kernel(x), 2 * x[:, 36 * a + 7 * b + 3 * c + d + 1 - e])


def test_two_rows_at_once_contract_both() -> None:
    @nki.jit(platform_target="trn2")
    def kernel(a, b):
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        acc = nl.zeros((128, 64), dtype=nl.float32, buffer=nl.psum)
        for _ in nl.affine_range(2):
            acc[...] += nisa.nc_matmul(nl.load(a), nl.load(b), perf_mode="double_row_gen3")
        nl.store(out, acc)
        return out

    a = RNG.integers(-2, 3, (64, 2, 128)).astype(ml_dtypes.float8_e5m2)
    b = RNG.integers(-2, 3, (64, 2, 64)).astype(ml_dtypes.float8_e5m2)
    expected = 2 * np.einsum("ktm,ktn->mn", a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(kernel(a, b), expected)
    timed = nki.benchmark(kernel)
    timed(a, b)
    body = timed.benchmark_result.profile.program.body
    assert sum(isinstance(each, NcMatmul) for each in walk(body)) == 2


def test_a_product_may_turn_bit_by_bit() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        identity = nl.load(nl.shared_identity_matrix(8, dtype=x.dtype))
        turned = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.psum)
        turned[...] = nisa.nc_matmul(nl.load(x), identity, is_transpose=True)
        nl.store(out, nl.copy(turned))
        return out

    x = _array(8, 16)
    np.testing.assert_array_equal(kernel(x), x.T)


def test_a_column_repeats_beside_a_tile() -> None:
    @nki.jit
    def kernel(x, column):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        product = nisa.tensor_tensor(nl.load(x), nl.load(column), nl.multiply)
        nl.store(out, nisa.tensor_scalar(product, np.add, nl.load(column, dtype=nl.bfloat16)))
        return out

    x, column = _array(8, 4), _array(8, 1)
    np.testing.assert_allclose(kernel(x, column), x * column + column, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "expected"), [(np.add, 2**24 + 2), (np.subtract, 2**24), (np.maximum, 2**24)]
)
def test_sums_and_products_of_integers_are_exact_and_nothing_else(op, expected) -> None:
    @nki.jit
    def kernel(a, b):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nisa.tensor_tensor(nl.load(a), nl.load(b), op))
        return out

    a, b = np.full((4, 8), 2**24 + 1, np.int32), np.ones((4, 8), np.int32)
    assert (kernel(a, b) == expected).all()


def test_windows_of_a_tile_reduce_over_inner_axes() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray((8, 3, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        p, i, a, j, b = nl.mgrid[0:8, 0:3, 0:2, 0:4, 0:2]
        nl.store(out, nl.max(nl.load(x)[p, 2 * i + a, 2 * j + b], axis=[2, 4]))
        return out

    x = _array(8, 6, 8)
    np.testing.assert_array_equal(kernel(x), x.reshape(8, 3, 2, 4, 2).max(axis=(2, 4)))


def test_direct_allocation_can_be_ignored() -> None:
    def kernel(x):
        out = nl.ndarray((2, 8, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        place = ncc.sbuf.mod_alloc(base_addr=0)
        held = nl.ndarray((2, nl.par_dim(8), 8), dtype=x.dtype, buffer=place)
        for i in nl.affine_range(2):
            held[i] = nl.load(x[i])
        for i in nl.affine_range(2):
            nl.store(out[i], held[i])
        return out

    x = _array(2, 8, 8)
    np.testing.assert_array_equal(nki.jit(kernel)(x), x[[1, 1]])
    np.testing.assert_array_equal(ncc.force_auto_alloc(nki.jit(kernel))(x), x)


def test_a_launched_benchmark_leaves_its_result_with_the_kernel() -> None:
    @nki.benchmark
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out[nl.program_id(0)], nl.load(x[nl.program_id(0)]))
        return out

    assert kernel.benchmark_result is None
    kernel[2](_array(2, 8, 8))
    assert kernel.benchmark_result.nc_latency.get_latency_percentile(0) > 0


def test_tiles_that_start_at_any_partition_are_computed() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile, result = nl.load(x), nl.ndarray(x.shape, dtype=x.dtype)
        for i in nl.affine_range(16):
            result[i * 8 : (i + 1) * 8, :] = nl.exp(tile[i * 8 : (i + 1) * 8, :])
        result[3, 2] = 7
        nl.store(out, result)
        return out

    x = _array(128, 8)
    expected = np.exp(x)
    expected[3, 2] = 7
    np.testing.assert_allclose(kernel(x), expected, rtol=2e-6)


def test_loads_and_stores_take_masks_that_are_no_box() -> None:
    @nki.jit
    def kernel(x, count):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i, j = nl.arange(8)[:, None], nl.arange(8)[None, :]
        tile = nl.zeros((8, 8), dtype=x.dtype)
        tile[i, j] = nl.load(x[i, j], mask=(i + j < count))
        nl.store(out[i, j], tile[i, j], mask=(i >= 2) & (i - j < 3))
        return out

    x = _array(8, 8)
    found = kernel(x, 7)
    i, j = np.mgrid[0:8, 0:8]
    stored = (i >= 2) & (i - j < 3)
    np.testing.assert_array_equal(found[stored], np.where(i + j < 7, x, 0)[stored])
    assert np.isnan(found[~stored]).all()


def test_uninitialised_psum_starts_over_and_integers_stay_exact() -> None:
    @nki.jit
    def kernel(x, words):
        out = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        bits = nl.ndarray((8, 8), dtype=words.dtype, buffer=nl.shared_hbm)
        sums, tile = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.psum), nl.load(x)
        for _ in range(2):
            sums += nl.matmul(tile, tile, transpose_x=True)
        nl.store(out, sums * 1.0 + sums)
        word = nl.load(words)
        nl.store(bits, (nl.bitwise_and(word, 3) | (word << 2)) ^ nl.invert(word))
        return out, bits

    x, words = _array(8, 8), RNG.integers(0, 1 << 28, (8, 8)).astype(np.int32)
    out, bits = kernel(x, words)
    np.testing.assert_allclose(out, 4 * x.T @ x, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(bits, ((words & 3) | (words << 2)) ^ ~words)


@pytest.mark.parametrize("start", [0, 3, 11])
def test_a_slice_starts_where_a_tile_says(start: int) -> None:
    def kernel(x, at):
        out = nl.ndarray((4, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        index, tile = nl.load(at), nl.load(x)
        columns = nl.ndarray((4, 8), dtype=x.dtype)
        columns[...] = nisa.tensor_copy_dynamic_src(tile[:, nl.ds(index, 8)])
        nl.store(out, nl.add(columns, nl.load(x[0:4, nl.ds(index[0, 0], 8)])))
        return out

    x, at = _array(4, 20), np.array([[start]], np.int32)
    np.testing.assert_array_equal(both(kernel, x, at), 2 * x[:, start : start + 8])


def test_where_takes_tiles_and_numbers_also_into_an_operand() -> None:
    def kernel(x, y):
        out = nl.ndarray((4, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        a, b = nl.load(x), nl.load(y)
        chosen = nl.greater(a, b)
        nl.store(out[0], nl.where(chosen, a, b))
        nl.store(out[1], nl.where(a > 0, a, 0.5))
        nl.store(out[2], nl.where(chosen, 2, b))
        b[...] = nl.where(chosen, b, a)
        nl.store(out[3], b)
        return out

    x, y = _array(8, 16), _array(8, 16)
    expected = [
        np.maximum(x, y), np.where(x > 0, x, 0.5), np.where(x > y, 2, y), np.minimum(x, y),
    ]  # fmt: skip
    np.testing.assert_array_equal(both(kernel, x, y), np.stack(expected).astype(np.float32))
