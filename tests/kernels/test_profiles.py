"""Profiles of kernels: on the command line, by source line, and what tests say about them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from glia.cli.glia import main
from glia.kernels.matmul import matmul_fully_blocked
from glia.kernels.tensor_add import tensor_add
from glia.machine.builder.program_builder import ProgramBuilder
from glia.nki import beta1, jit
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.beta1 import language as beta1_nl
from glia.nki.run.check_kernel import check_kernel
from glia.nki.run.testing import assert_engine_busy, assert_latency, assert_no_spill, profile_kernel
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.profile.critical_path import critical_path
from glia.profile.report import profile_program

KERNEL = """
import glia.nki.isa as nisa
import glia.nki.language as nl
from glia.nki import jit

@jit
def double(x, factor=2.0):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out
"""


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    """The place of a kernel in a file."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    return f"{tmp_path / 'kernel.py'}::double"


def profile(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["profile", *arguments])


def test_a_kernel_in_a_file_is_profiled_by_its_lines(kernel: str, tmp_path: Path) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    files = "--perfetto", str(trace), "--html", str(page)
    result = profile(kernel, "--arg", "x=f32[128, 512]", "--arg", "factor=0.5", *files)
    assert result.exit_code == 0, result.output
    for wanted in ("latency", "engine vector", "kernel.py:9", "nisa.dma_copy(tile, x)"):
        assert wanted in result.output
    assert json.loads(trace.read_text()) and "<html" in page.read_text()


def test_json_holds_the_critical_path(kernel: str) -> None:
    result = profile(kernel, "--arg", "x=bf16[128,2048]", "--target", "trn1", "--json")
    found = json.loads(result.output)
    assert found["target"] == "trn1" and found["latency_us"] > 0
    assert {row["opcode"] for row in found["critical_path"]} == {"dma_copy", "tensor_scalar"}
    assert sum(row["share"] for row in found["critical_path"]) == pytest.approx(1)


def test_time_on_a_queue_belongs_to_the_transfer_that_took_it() -> None:
    def loads(x: NkiTensor) -> NkiTensor:
        turned = nl.ndarray((64, 128), x.dtype, nl.sbuf)
        nisa.dma_copy(turned, x.ap(pattern=[[1, 64], [64, 128]]))  # element by element
        tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(tile, x)
        nisa.tensor_copy(tile[0:64, 0:64], turned[:, 0:64])
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    found = profile_kernel(loads, np.ones((128, 64), np.float32))
    begin = loads.__code__.co_firstlineno
    shares = {row.loc.line - begin: row.share for row in critical_path(found.timing)}
    assert shares[2] > 5 * shares[4] > 0


def test_a_dtype_has_also_the_name_that_numpy_gives_it(kernel: str) -> None:
    for short, long in (("bf16", "bfloat16"), ("s32", "int32"), ("f8e4m3", "float8_e4m3")):
        found = [profile(kernel, "--arg", f"x={name}[128,64]") for name in (short, long)]
        assert found[0].exit_code == 0 and found[0].output == found[1].output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nowhere.py::f",), "there is no file nowhere.py"),
        (("--arg", "x"), "is not of the form"),
        (("--arg", "x=f33[4]"), "f33 is no dtype"),
        (("--arg", "y=f32[4]"), "no parameter 'y'; it takes x, factor"),
    ],
)
def test_what_is_wrong_is_said(kernel: str, arguments: tuple[str, ...], problem: str) -> None:
    given = arguments if "::" in arguments[0] else (kernel, *arguments)
    result = profile(*given)
    assert result.exit_code != 0 and problem in result.output


def test_a_file_that_fails_or_has_no_such_kernel_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    (tmp_path / "none.py").write_text("kernel = 3")
    assert "ZeroDivisionError" in profile(f"{tmp_path / 'bad.py'}::kernel").output
    assert "has no kernel 'kernel'" in profile(f"{tmp_path / 'none.py'}::kernel").output


def test_a_kernel_that_is_not_named_or_misspelt_is_found_in_the_file(kernel: str) -> None:
    file = kernel.partition("::")[0]
    assert f"; name one: {kernel}" in profile(f"{file}::").output
    assert "did you mean double?" in profile(f"{file}::dubble").output


def test_arguments_without_a_kernel_are_refused() -> None:
    told = profile("model.neff", "--arg", "x=f32[4]").output
    assert "--arg, --grid and --as-written need a KERNEL.py::NAME" in told


CLEARED = """
from glia import nki
from glia.nki import isa as nisa, language as nl


@nki.jit
def cleared(x):
    out = nl.ndarray((128, 128), nl.float32, buffer=nl.shared_hbm)
    tile, total = nl.ndarray((128, 128), nl.float32), nl.ndarray((128, 128), nl.float32)
    nisa.dma_copy(tile, x)
    for _ in range(8):
        bank = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
        nisa.memset(bank, 0.0)
        nisa.nc_matmul(bank, tile, tile)
        nisa.tensor_copy(total, bank)
    nisa.dma_copy(out, total)
    return out
"""


def test_a_neff_takes_no_target(tmp_path: Path) -> None:
    file = tmp_path / "cleared.py"
    file.write_text(CLEARED)
    neff = tmp_path / "cleared.neff"
    kernel = runpy.run_path(str(file))["cleared"]
    kernel.compile(np.zeros((128, 128), np.float32)).save(neff)
    assert profile(str(neff)).exit_code == 0
    refused = profile(str(neff), "--target", "trn1")
    assert refused.exit_code == 1 and "compiled for one already" in refused.stderr


def test_what_the_back_end_changed_is_said_and_can_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "cleared.py"
    file.write_text(CLEARED)
    arguments = (f"{file}::cleared", "--arg", "x=f32[128,128]")
    text = profile(*arguments).output
    assert "changed by the back end: memsets removed: 8" in text and "as written  " in text
    as_written = profile(*arguments, "--as-written").output
    assert "back end" not in as_written and "as written" not in as_written
    found = [
        json.loads(profile(*arguments, *more, "--json").output) for more in ((), ("--as-written",))
    ]
    assert found[0]["as_written_us"] == found[1]["latency_us"] > found[0]["latency_us"]
    assert found[1]["as_written_us"] is None


def test_the_path_leads_from_the_first_load_to_the_last_store() -> None:
    a = np.zeros((128, 512), np.float32)
    found = profile_kernel(tensor_add, a, a, target="trn2")
    rows = critical_path(found.timing)
    assert {row.opcode for row in rows} == {"dma_copy", "tensor_tensor"}
    last = max(event.end_ns for event in found.timing.events)
    assert sum(row.ns for row in rows) == pytest.approx(last - found.timing.begin_ns)


def test_repeated_iterations_count_for_the_lines_of_their_loop() -> None:
    left, right = np.zeros((512, 4096), np.float32), np.zeros((512, 2048), np.float32)
    found = profile_kernel(
        matmul_fully_blocked, left, right, target="trn2", tiles=(2, 1, 4), as_written=True
    )
    assert found.timing.skips
    first = critical_path(found.timing)[0]
    assert first.opcode == "nc_matmul" and first.share > 0.8


def test_nothing_has_no_path() -> None:
    empty = ProgramBuilder("nothing", target="trn2").finish()
    assert critical_path(profile_program(empty, "trn2").timing) == ()


def test_latency_is_held_between_bounds() -> None:
    a = np.zeros((128, 512), np.float32)
    found = profile_kernel(tensor_add, a, a, target="trn2")
    assert_latency(found, at_most_us=30)
    with pytest.raises(AssertionError, match="tensor_add takes"):
        assert_latency(found, at_most_us=1)
    with pytest.raises(AssertionError, match="not between"):
        assert_latency(found, at_least_us=100, at_most_us=200)


def test_engines_are_held_to_their_part_of_the_time() -> None:
    left, right = np.zeros((512, 512), np.float32), np.zeros((512, 2048), np.float32)
    found = profile_kernel(matmul_fully_blocked, left, right, target="trn2", tiles=(2, 1, 4))
    assert_engine_busy(found, "tensor", at_least=0.7)
    with pytest.raises(AssertionError, match="gpsimd is busy"):
        assert_engine_busy(found, "gpsimd", at_least=0.7)
    with pytest.raises(AssertionError, match="'array' is none of"):
        assert_engine_busy(found, "array", at_least=0.1)


def by_hbm(x):
    tile, other = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
    between = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm, name="between")
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for dst, src in ((tile, x), (between, tile), (other, between), (out, other)):
        nisa.dma_copy(dst, src)
    return out


def test_a_tensor_that_goes_to_hbm_and_back_is_a_spill() -> None:
    x = np.zeros((128, 16), np.float32)
    assert_no_spill(profile_kernel(tensor_add, x, x))
    with pytest.raises(AssertionError, match="spills 8192 bytes: between"):
        assert_no_spill(profile_kernel(by_hbm, x))


@jit
def _by_way_of_hbm(x: NkiTensor, core: int) -> NkiTensor:
    """Of two cores one takes the way through HBM; the other has more to do otherwise."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    half = nl.ds(64 * nl.program_id(0), 64)
    tile = nl.load(x[half])
    if nl.program_id(0) == core:
        away = nl.ndarray(tile.shape, x.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(away, tile)
        nisa.dma_copy(tile, away)
    else:
        for _ in range(40):
            nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nl.store(out[half], tile)
    return out


@pytest.mark.parametrize("core", [0, 1])
def test_no_core_of_several_may_spill(core: int) -> None:
    found = profile_kernel(_by_way_of_hbm[2], np.ones((128, 512), np.float32), core=core)
    with pytest.raises(AssertionError, match="spills 131072 bytes"):
        assert_no_spill(found)


def _negative(x):  # type: ignore[no-untyped-def]
    out = beta1_nl.ndarray(x.shape, dtype=x.dtype, buffer=beta1_nl.shared_hbm)
    beta1_nl.store(out, value=beta1_nl.negative(beta1_nl.load(x)))
    return out


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [
        (None, None, "trn2"),
        (None, "trn1", "trn1"),
        ("trn1", None, "trn1"),
        ("trn1", "trn2", "trn1"),
    ],
)
def test_a_kernel_of_beta1_is_timed_where_it_would_run(
    own: str | None, asked: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    x = np.ones((128, 512), np.float32)
    kernel = beta1.jit(platform_target=own)(_negative) if own else beta1.jit(_negative)
    found = profile_kernel(kernel, x, target=asked)
    plain = profile_kernel(_negative_of(expected), x, target=expected)
    assert (found.target.name, found.latency_us) == (expected, plain.latency_us)
    (compiled,) = (c for c in check_kernel(kernel, x, target=asked).checks if "us" in c.detail)
    assert compiled.name == f"compile for {expected}"
    assert f"{plain.latency_us:.2f} us" in compiled.detail


def _negative_of(target: str) -> beta1.launch.Kernel:
    return beta1.jit(platform_target=target)(_negative)


def test_of_several_cores_it_is_said_whose_program_changed(tmp_path: Path) -> None:
    """Core 0, which ends last, has addresses that keep it as written."""
    file = tmp_path / "by_core.py"
    text = CLEARED
    for old, new in (
        ("out = nl.ndarray((", "out = nl.ndarray((2, "),
        ("buffer=nl.psum)", "buffer=nl.psum, **place)"),
        (
            "    for",
            "    core = nl.program_id(0)\n    place = {} if core else {'address': (0, 0)}\n    for",
        ),
        ("dma_copy(out, total)", "dma_copy(out[core], total)"),
    ):
        text = text.replace(old, new)
    file.write_text(text)
    arguments = (f"{file}::cleared", "--arg", "x=f32[128,128]", "--grid", "2")
    assert "core 1: changed by the back end: memsets removed: 8" in profile(*arguments).output
    assert json.loads(profile(*arguments, "--json").output)["as_written_us"] is not None
