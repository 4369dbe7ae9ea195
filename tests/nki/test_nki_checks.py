"""`check_kernel` finds what is wrong with a kernel, and nothing in one that is sound."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from glia.cli.glia import main
from glia.nki import beta1, jit
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.beta1 import language as nl1
from glia.nki.names.errors import UnsoundKernel
from glia.nki.run.check_kernel import assert_sound, check_kernel

X = np.arange(128 * 8, dtype=np.float32).reshape(128, 8)


@jit
def doubled(x: Any) -> Any:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


@jit
def half_loaded(x: Any, rows: int) -> Any:
    """The last rows of the tile are never written; `rows` of the result are stored."""
    out = nl.ndarray((rows, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[0:64], src=x[0:64])
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile[0:rows])
    return out


@jit
def handed_over(x: Any, meets: bool) -> Any:
    """Core 0 leaves its tile where core 1 reads it."""
    shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    if nl.program_id(0) == 0:
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=shared, src=tile)
    if meets:
        nisa.core_barrier(shared, (0, 1))
    if nl.program_id(0) == 1:
        nisa.dma_copy(dst=tile, src=shared)
        nisa.dma_copy(dst=out, src=tile)
    return out


@jit
def unstable(x: Any) -> Any:
    """Does one thing the first time, another the next."""
    calls.append(1)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=float(len(calls)))
    nisa.dma_copy(dst=out, src=tile)
    return out


calls: list[int] = []


@beta1.jit
def masked_rows(x: Any) -> Any:
    out = nl1.ndarray(x.shape, dtype=x.dtype, buffer=nl1.shared_hbm)
    column = nl1.arange(x.shape[1])[None, :]
    for i in nl1.affine_range((x.shape[0] + 127) // 128):
        row = i * 128 + nl1.arange(128)[:, None]
        tile = nl1.load(x[row, column], mask=(row < x.shape[0]))
        nl1.store(out[row, column], value=tile * 2.0, mask=(row < x.shape[0]))
    return out


def failed(report: Any) -> list[str]:
    return [check.name for check in report.failures]


def test_a_sound_kernel_passes_every_check() -> None:
    report = check_kernel(doubled, X, expected=[2 * X], other_targets=True)
    assert report.passed, str(report)
    assert [check.name for check in report.checks if not check.is_remark] == [
        "step by step",
        "compile for trn3",
        "compiled gives the same",
        "memory is written before it is read",
        "any order of engines and queues",
        "every product is read before the next replaces it",
        "output 0 as expected",
    ]
    assert np.array_equal(report.results[0], 2 * X)


def test_a_refused_kernel_is_reported_once_with_its_line() -> None:
    report = check_kernel(doubled, np.zeros((256, 8), np.float32))
    assert failed(report) == ["step by step", "compile for trn3"]
    assert "partition dimension 256 exceeds maximum 128" in report.checks[0].detail
    assert report.checks[0].loc.line == doubled.function.__code__.co_firstlineno + 4
    assert report.checks[1].detail == "refused likewise"


def test_memory_that_nothing_wrote_matters_only_where_an_output_depends_on_it() -> None:
    used = check_kernel(half_loaded, X, rows=128)
    assert failed(used) == ["memory is written before it is read"]
    assert "never written" in used.failures[0].detail
    assert used.failures[0].loc.line == half_loaded.function.__code__.co_firstlineno + 6
    unused = check_kernel(half_loaded, X, rows=64)
    assert unused.passed, str(unused)
    remarks = [check.detail for check in unused.checks if check.is_remark]
    assert any("no output depends on it" in remark for remark in remarks)


def test_cores_that_do_not_synchronise_are_found() -> None:
    together = check_kernel(handed_over[2], X, meets=True, target="trn2")
    assert together.passed, str(together)
    apart = check_kernel(handed_over[2], X, meets=False, target="trn2")
    assert "any order of engines and queues" in failed(apart)
    assert "core_barrier" in next(c.detail for c in apart.failures if "race" in c.detail)


def test_a_kernel_that_is_not_the_same_twice_is_found() -> None:
    report = check_kernel(unstable, X)
    assert "compiled gives the same" in failed(report)


def test_other_values_than_expected_are_found() -> None:
    wrong = 2 * X
    wrong[5, 3] += 1
    report = check_kernel(doubled, X, expected=[wrong])
    assert failed(report) == ["output 0 as expected"]
    assert report.failures[0].detail == "1 of 1024 elements differ, most at [5, 3] by 1"
    assert failed(check_kernel(doubled, X, expected=[wrong[:4]])) == ["output 0 as expected"]
    assert failed(check_kernel(doubled, X, expected=[wrong, wrong])) == ["as expected"]


def test_kernels_of_beta1_are_checked_too() -> None:
    x = np.ones((200, 8), ml_dtypes.bfloat16)
    report = check_kernel(masked_rows, x, target="trn2", expected=[2 * x])
    assert report.passed, str(report)
    assert check_kernel(masked_rows, x, target="trn2", expected=[x]).failures


def test_targets_that_refuse_are_named() -> None:
    @jit
    def throttled(x: Any) -> Any:
        tile = nl.ndarray((128, 4), nl.float32, buffer=nl.sbuf)
        seen = nl.ndarray((128, 4), nl.float32, buffer=nl.sbuf)
        out = nl.ndarray((128, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.exponential(dst=seen, src=tile)
        nisa.dma_copy(dst=out, src=seen)
        return out

    report = check_kernel(throttled, np.ones((128, 4), np.float32), other_targets=True)
    on = {check.name: check.detail for check in report.checks if check.is_remark}
    assert "does not exist on generation 2" in on["on trn1"]
    assert "on trn1" not in failed(report)


def test_assert_sound_raises_at_the_line() -> None:
    assert assert_sound(doubled, X).passed
    with pytest.raises(UnsoundKernel, match="never written") as caught:
        assert_sound(half_loaded, X, rows=128)
    assert caught.value.loc.line == half_loaded.function.__code__.co_firstlineno + 6


KERNELS = """\
from glia import nki
from glia.nki import isa as nisa, language as nl

@nki.jit
def scaled(x, factor=2.0):
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "k.py").write_text(KERNELS)
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "y.npz", 3 * X)
    return str(tmp_path / "k.py")


def test_the_command_prints_each_check_and_says_by_its_status_what_came_of_them(
    place: str, tmp_path: Path
) -> None:
    given = ["--arg", f"x={tmp_path}/x.npy", "--expect", f"{tmp_path}/y.npz"]
    wrong = CliRunner().invoke(main, ["check", f"{place}::scaled", *given])
    assert wrong.exit_code == 1
    assert "FAIL output 0 as expected: 1023 of 1024 elements differ" in wrong.output
    assert "[GLIA210] 1 of 7 checks of kernel scaled failed" in wrong.output
    right = CliRunner().invoke(main, ["check", f"{place}::scaled", *given, "--arg", "factor=3.0"])
    assert right.exit_code == 0, right.output
    assert "ok   output 0 as expected" in right.output


def test_the_command_fills_tensors_from_the_seed(place: str) -> None:
    found = CliRunner().invoke(
        main, ["check", f"{place}::scaled", "--arg", "x=bf16[64,8]", "--json"]
    )
    assert found.exit_code == 0, found.output
    assert '"passed": true' in found.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--grid", "0"], "is not of the form N or N,N"),
        (["--grid", "3"], "the grid [3] is neither [1] nor [2]"),
        (["--arg", "x"], "is not of the form NAME=DTYPE[N,N]"),
        (["--arg", "x=f31[2]"], "f31 is no dtype"),
        (["--arg", "x=/no/such.npy"], "No such file"),
    ],
)
def test_a_wrong_command_line_is_explained(place: str, arguments: list[str], said: str) -> None:
    found = CliRunner().invoke(main, ["check", f"{place}::scaled", *arguments])
    assert found.exit_code == 1
    assert said in found.output


@jit
def _half_stored(x: Any) -> Any:
    out = nl.ndarray((256, 8), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[0:128], src=x)
    return out


def test_an_output_that_nothing_wrote_is_named_with_its_first_element() -> None:
    (failure,) = check_kernel(_half_stored, X).failures
    assert "output 0 changes" in failure.detail
    assert failure.detail.endswith("1024 of 2048 elements, the first at [128, 0]")


def test_a_race_is_reported_once_and_not_as_a_read_of_unwritten_memory() -> None:
    report = check_kernel(handed_over[2], X, meets=False)
    told = [check for check in report.checks if "race: " in check.detail]
    assert len(told) == 1 and not told[0].is_remark


def test_references_that_grow_without_measure_are_refused(place: str, tmp_path: Path) -> None:
    bomb = str(tmp_path / "bomb.npz")
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", bytes(100 << 20))
    given = ["check", f"{place}::scaled", "--arg", "x=f32[4,4]", "--expect", bomb]
    found = CliRunner().invoke(main, given)
    assert found.exit_code == 1
    assert "bytes when unpacked" in found.output


@jit
def _handed_back(x: Any) -> Any:
    return x


def test_a_kernel_without_instructions_ends_in_any_order() -> None:
    assert check_kernel(_handed_back, X).passed
