"""`check_kernel` advises what gains: each cure, applied by hand, gives what it promised."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from glia.arch import TARGETS, get_target
from glia.isa.operand import Memory
from glia.kernels.mlp import mlp
from glia.nki import beta1, jit
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.beta1 import language as nl1
from glia.nki.run.check_kernel import Check, check_kernel
from glia.nki.run.launch import bind
from glia.profile.report import Profile, profile_programs

PRODUCTS = "every product is read before the next replaces it"
WITH_NKI = sorted(n for n, t in TARGETS.items() if t.arch.capabilities.has_nki)
TWO_CORES = sorted(n for n in WITH_NKI if TARGETS[n].arch.generation >= 3)
A = np.ones((3, 128, 128), ml_dtypes.bfloat16)
B = np.ones((3, 128, 512), ml_dtypes.bfloat16)
X = np.ones((2, 128, 512), np.float32)
TILES = np.ones((8, 128, 512), np.float32)


def summed_products(accumulates: bool, clears: bool) -> Any:
    @jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        if clears:
            nisa.memset(dst=sums, value=0.0)
        for k in range(3):
            x = nl.ndarray((128, 128), a.dtype, buffer=nl.sbuf)
            y = nl.ndarray((128, 512), b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x, src=a[k])
            nisa.dma_copy(dst=y, src=b[k])
            nisa.nc_matmul(dst=sums, stationary=x, moving=y, accumulate=accumulates and k > 0)
        total = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=total, src=sums)
        nisa.dma_copy(dst=out, src=total)
        return out

    return kernel


def doubled(loads_more: bool, computes_more: bool, columns: int = 512) -> Any:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, columns), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[:, 0:512], src=x[0])
        if loads_more:
            more = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=more, src=x[1])
        if computes_more:
            unread = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=unread, data=tile[:, 0:512], op0=nl.add, operand0=1.0)
        nisa.tensor_scalar(dst=tile[:, 0:512], data=tile[:, 0:512], op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out, src=tile[:, 0:512])
        return out

    return kernel


def widened(dtype: Any) -> Any:
    """A bfloat16 input, copied to a tile of `dtype` and used from there."""

    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        loaded = nl.ndarray((128, 512), nl.bfloat16, buffer=nl.sbuf)
        copied = nl.ndarray((128, 512), dtype, buffer=nl.sbuf)
        result = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=loaded, src=x)
        nisa.tensor_copy(dst=copied, src=loaded)
        nisa.activation(dst=result, data=copied, op=nl.exp)
        nisa.dma_copy(dst=out, src=result)
        return out

    return kernel


def exponentials(loading: Any, storing: Any) -> Any:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        with nl.no_reorder():  # else loads move ahead of the stores that they would wait for
            for k in range(8):
                tile = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=tile, src=x[k], engine=loading)
                nisa.activation(dst=tile, data=tile, op=nl.exp)
                nisa.dma_copy(dst=out[k], src=tile, engine=storing)
        return out

    return kernel


def stored_last(trips: int) -> Any:
    """Of some inputs the exponentials, each stored where the one before was."""

    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        for k in range(8 - trips, 8):
            tile = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[k])
            nisa.activation(dst=tile, data=tile, op=nl.exp)
            nisa.dma_copy(dst=out, src=tile)
        return out

    return kernel


def products_after(fill: bool) -> Any:
    """Three products, PSUM filled before each of them or before the first."""

    @jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        for k in range(3):
            if fill or k == 0:
                nisa.memset(dst=sums, value=0.0)
            nisa.nc_matmul(dst=sums, stationary=nl.load(a[k]), moving=nl.load(b[k]))
        total = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=total, src=sums)
        nisa.dma_copy(dst=out, src=total)
        return out

    return kernel


def checks(kernel: Any, *arrays: np.ndarray, target: str = "trn2") -> list[Check]:
    return list(check_kernel(kernel, *arrays, target=target).checks)


def advice(kernel: Any, *arrays: np.ndarray, target: str = "trn2") -> list[Check]:
    return [c for c in checks(kernel, *arrays, target=target) if c.name == "advice"]


def profile(kernel: Any, *arrays: np.ndarray, target: str = "trn2") -> Profile:
    launch = bind(kernel.function, arrays, {})
    return profile_programs(kernel.traced_launch(launch, get_target(target)).programs, target)


def sbuf_bytes(of: Profile) -> int:
    """Bytes of a partition that the tiles of a kernel take together."""
    tiles = of.program.tiles.values()
    return sum(tile.bytes_per_partition for tile in tiles if tile.memory is Memory.SBUF)


def promised_us(check: Check) -> float:
    found = re.search(r"become ([\d.]+) us", check.detail)
    assert found, check.detail
    return float(found[1])


@pytest.mark.parametrize("target", WITH_NKI)
def test_a_forgotten_accumulate_flag_is_a_fault(target: str) -> None:
    kernel = summed_products(accumulates=False, clears=False)
    report = check_kernel(kernel, A, B, target=target)
    (fault,) = report.failures
    assert fault.name == PRODUCTS
    assert fault.detail.startswith("2 of 3 products are lost: nc_matmul at")
    assert fault.loc.line == summed_products.__code__.co_firstlineno + 12
    cured = check_kernel(summed_products(accumulates=True, clears=False), A, B, target=target)
    assert cured.passed, str(cured)


@pytest.mark.parametrize("accumulates", [False, True])
def test_lost_products_are_found_on_each_of_two_cores(accumulates: bool) -> None:
    """The cores hand their tiles over in HBM, whose other readers count."""

    @jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((2, 128, 512), nl.float32, buffer=nl.shared_hbm)
        both = nl.ndarray((2, 128, 512), nl.float32, buffer=nl.shared_hbm)
        sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        core = nl.program_id(0)
        for k in range(3):
            x, y = nl.load(a[k]), nl.load(b[k])
            nisa.nc_matmul(dst=sums, stationary=x, moving=y, accumulate=accumulates and k > 0)
        total = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=total, src=sums)
        nisa.dma_copy(dst=both[core], src=total)
        nisa.core_barrier(both, (0, 1))
        nisa.dma_copy(dst=total, src=both[1 - core])
        nisa.dma_copy(dst=out[core], src=total)
        return out

    report = check_kernel(kernel[2], A, B, target="trn2")
    assert [each.name for each in report.failures] == ([] if accumulates else [PRODUCTS])
    if not accumulates:
        assert report.failures[0].detail.startswith("4 of 6 products are lost")


def test_a_forgotten_sum_of_beta_1_is_a_fault() -> None:
    def kernel_with(adds: bool) -> Any:
        @beta1.jit
        def kernel(a: Any, b: Any) -> Any:
            out = nl1.ndarray((128, 512), dtype=nl1.float32, buffer=nl1.shared_hbm)
            sums = nl1.zeros((128, 512), dtype=nl1.float32, buffer=nl1.psum)
            for k in nl1.affine_range(3):
                product = nl1.matmul(nl1.load(a[k]), nl1.load(b[k]), transpose_x=True)
                if adds:
                    sums += product
                else:
                    sums[...] = product
            nl1.store(out, sums)
            return out

        return kernel

    assert not check_kernel(kernel_with(False), A, B).passed
    assert check_kernel(kernel_with(True), A, B).passed


@pytest.mark.parametrize("target", WITH_NKI)
@pytest.mark.parametrize(
    ("slow", "fast", "says"),
    [
        (doubled(True, False), doubled(False, False), "nothing reads what 1 load of dma_copy"),
        (doubled(False, True), doubled(False, False), "1 execution of tensor_scalar"),
        (
            exponentials(nisa.engine.sync, nisa.engine.sync),
            exponentials(nisa.engine.sync, nisa.engine.gpsimd),
            "engines wait",
        ),
    ],
    ids=["load", "store", "queue"],
)
def test_a_cure_takes_the_time_that_was_promised(
    slow: Any, fast: Any, says: str, target: str
) -> None:
    arrays = TILES if says == "engines wait" else X
    (found,) = advice(slow, arrays, target=target)
    assert says in found.detail
    assert found.loc.file == __file__
    before, after = (profile(each, arrays, target=target) for each in (slow, fast))
    assert after.latency_us <= before.latency_us
    assert promised_us(found) == pytest.approx(after.latency_us, abs=0.006)
    fewer = before.dma_bytes - after.dma_bytes
    assert fewer or after.latency_us < before.latency_us
    assert (f"{fewer} bytes fewer are moved" in found.detail) == (fewer > 0)
    assert advice(fast, arrays, target=target) == []


def on_two_cores(
    loads_more: bool = False, computes_more: bool = False, columns: int = 512, storing: Any = None
) -> Any:
    """Each of two cores doubles its inputs, waits for the other, and takes the other's sum."""

    @jit
    def kernel(x: Any) -> Any:
        core, count = nl.program_id(0), x.shape[0] // 2
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        both = nl.ndarray((2, 128, 512), nl.float32, buffer=nl.shared_hbm)
        total = nl.zeros((128, 512), nl.float32, buffer=nl.sbuf)
        for k in range(count):
            tile = nl.ndarray((128, columns), nl.float32, buffer=nl.sbuf)
            part = tile[:, 0:512]
            with nl.no_reorder():
                nisa.dma_copy(dst=part, src=x[core * count + k], engine=nisa.engine.sync)
                nisa.tensor_scalar(dst=part, data=part, op0=nl.multiply, operand0=2.0)
                nisa.dma_copy(
                    dst=out[core * count + k], src=part, engine=storing or nisa.engine.scalar
                )
            nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
            if loads_more:
                more = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=more, src=x[k], engine=nisa.engine.sync)
            if computes_more:
                unread = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(dst=unread, data=part, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=both[core], src=total, engine=nisa.engine.gpsimd)
        nisa.core_barrier(both, (0, 1))
        nisa.dma_copy(dst=total, src=both[1 - core], engine=nisa.engine.gpsimd)
        last = nl.ndarray((2, 128, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=last[core], src=total, engine=nisa.engine.gpsimd)
        return out, last

    return kernel[2]


@pytest.mark.parametrize("target", TWO_CORES)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"loads_more": True}, "nothing reads what 8 loads of dma_copy write"),
        ({"computes_more": True}, "nothing reads what 8 executions of tensor_scalar write"),
        ({"storing": nisa.engine.sync}, "engines wait"),
    ],
    ids=["load", "result", "queue"],
)
def test_a_cure_on_two_cores_takes_the_time_that_was_promised(
    wrong: dict[str, Any], says: str, target: str
) -> None:
    tiles = np.ones((32, 128, 512), np.float32) if says == "engines wait" else TILES
    report = check_kernel(on_two_cores(**wrong), tiles, target=target)
    assert report.passed, str(report)
    advised = [check for check in report.checks if check.name == "advice"]
    (found,) = (check for check in advised if says in check.detail)
    others = [check for check in advised if check is not found]  # what is for nothing waits too
    assert len(others) == (target == "trn2" and "loads_more" in wrong)
    assert all("engines wait" in check.detail for check in others)
    arch = get_target(target)
    launch = bind(on_two_cores().function, (tiles,), {})
    cured = profile_programs(on_two_cores().traced_launch(launch, arch).programs, arch)
    assert promised_us(found) == pytest.approx(cured.latency_us, abs=0.006)
    assert advice(on_two_cores(), tiles, target=target) == []


def test_a_tile_that_is_too_large_on_two_cores_is_named_once() -> None:
    (found,) = advice(on_two_cores(columns=2048), TILES)
    assert "have 8192 bytes" in found.detail and "only 2048 of them are" in found.detail


@pytest.mark.parametrize("target", WITH_NKI)
def test_a_product_that_a_fill_replaces_is_a_fault(target: str) -> None:
    (fault,) = check_kernel(products_after(fill=True), A, B, target=target).failures
    assert fault.detail.startswith("2 of 3 products are lost: memset at")
    assert "let memset write to another tile, or once before all products" in fault.detail
    assert check_kernel(products_after(fill=False), A, B, target=target).passed


@pytest.mark.parametrize("target", WITH_NKI)
def test_some_executions_of_a_line_and_what_only_they_read_are_for_nothing(target: str) -> None:
    found = [each.detail for each in advice(stored_last(8), TILES, target=target)]
    assert found[0].startswith("nothing reads what 7 of 8 executions of dma_copy write")
    assert any("read what 7 of 8 executions of activation" in each for each in found)
    assert found[-1].startswith("only instructions of which nothing is read read what 7 of 8 loads")
    promised = re.findall(r"become ([\d.]+) us .*?, (\d+) bytes fewer", found[-1])
    before, after = (profile(stored_last(n), TILES, target=target) for n in (8, 1))
    assert float(promised[0][0]) == pytest.approx(after.latency_us, abs=0.006)
    assert int(promised[0][1]) == before.dma_bytes - after.dma_bytes
    assert advice(stored_last(1), TILES, target=target) == []


@pytest.mark.parametrize(
    ("large", "small", "arrays", "bytes_", "says"),
    [
        (doubled(False, False, 2048), doubled(False, False), X, 6144, "only 2048 of them are"),
        (widened(nl.float32), widened(nl.bfloat16), B[0], 1024, "each of its values is a bf16"),
    ],
    ids=["columns", "dtype"],
)
def test_a_tile_of_half_the_size_frees_the_bytes_that_were_promised(
    large: Any, small: Any, arrays: np.ndarray, bytes_: int, says: str
) -> None:
    (found,) = advice(large, arrays)
    assert says in found.detail
    assert f"{bytes_} bytes of each partition become free" in found.detail
    assert sbuf_bytes(profile(large, arrays)) - sbuf_bytes(profile(small, arrays)) == bytes_
    assert advice(small, arrays) == []
    one, other = (check_kernel(each, arrays).results[0] for each in (large, small))
    np.testing.assert_array_equal(one, other)


def test_a_fill_that_the_back_end_removes_is_not_advised() -> None:
    assert advice(summed_products(accumulates=True, clears=True), A, B) == []


def test_sums_that_only_a_run_tells_are_read() -> None:
    """Without a flag a product is added where the tile holds one already."""

    @jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        for k in range(3):
            x = nl.load(a[k])
            nisa.nc_matmul(dst=sums, stationary=x, moving=nl.load(b[k]))
        total = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=total, src=sums)
        nisa.dma_copy(dst=out, src=total)
        return out

    assert check_kernel(kernel, A, B).passed


def unread_sum(products: int) -> Any:
    """Products that add up in PSUM, of which the last sum is not read."""

    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
        sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        nisa.dma_copy(dst=tile, src=x[0])
        for _ in range(products):
            nisa.nc_matmul(dst=sums, stationary=tile[:, 0:128], moving=tile)
        nisa.dma_copy(dst=out, src=tile)
        return out

    return kernel


@pytest.mark.parametrize("target", WITH_NKI)
def test_a_sum_that_nothing_reads_is_for_nothing_with_all_its_products(target: str) -> None:
    (found,) = (each.detail for each in advice(unread_sum(40), X, target=target))
    assert found.startswith("nothing reads what 40 executions of nc_matmul write to ")
    spared = re.search(r": ([\d.]+) us become ([\d.]+) us", found)
    assert spared is not None
    before, after = (profile(unread_sum(n), X, target=target).latency_us for n in (40, 0))
    assert (float(spared[1]), float(spared[2])) == pytest.approx((before, after), abs=0.006)


def test_one_dead_product_is_told_though_nothing_waits_for_it() -> None:
    (found,) = (each.detail for each in advice(unread_sum(1), X))
    assert "nothing reads what 1 execution of nc_matmul writes" in found
    assert "that takes as long on these arguments" in found


def test_tiles_that_take_a_bank_of_psum_each_are_not_too_large() -> None:
    half = [np.ones(shape, ml_dtypes.bfloat16) for shape in ((512, 512), (512, 1024), (1024, 512))]
    assert not advice(mlp, *half)
