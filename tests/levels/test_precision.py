"""Precision below float32: rounding by the PE, the alternatives, and what is said about them."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
import glia.alternatives
from glia.base.child_process import ChildProcess
from glia.base.dtype import F16, F32, TF32
from glia.base.errors import InternalError
from glia.frontend.registry import read_module
from glia.graph.evaluate import evaluate as evaluate_graph
from glia.isa.instructions.tensor import NcMatmul, NcTranspose
from glia.options import CompileOptions
from glia.pass_runner import PassResult, run_pipeline
from glia.tile.evaluate import evaluate as evaluate_tile
from glia.tile.legal import verify
from glia.tile.text import parse_program, print_program
from support.targets import CORES

RNG = np.random.default_rng(0)


def lowered(function: Callable[..., object], *arrays: np.ndarray) -> object:
    return jax.jit(function).lower(*arrays)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def rounded(array: np.ndarray) -> np.ndarray:
    """float32 with 10 bits of mantissa, to nearest even."""
    words = array.view(np.uint32).astype(np.uint64)
    words = words + 0xFFF + ((words >> 13) & 1)
    return (words & 0xFFFFE000).astype(np.uint32).view(np.float32)


def tf32_options(target: str = "trn2") -> CompileOptions:
    return CompileOptions(target=target, auto_cast="matmult", auto_cast_type="tf32")


def convolution(x: jax.Array, kernel: jax.Array) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (2, 1), "SAME", dimension_numbers=layout)


CASES = {
    "product": (jnp.matmul, (floats(70, 40), floats(40, 30))),
    "batch": (jnp.matmul, (floats(3, 17, 8), floats(3, 8, 9))),
    "transposed": (lambda a, b: a.T @ b.T, (floats(40, 70), floats(30, 40))),
    "shared": (lambda a, b: jnp.concatenate([a @ b, a @ b.T]), (floats(32, 32), floats(32, 32))),
    "convolution": (convolution, (floats(2, 9, 7, 5), floats(3, 3, 5, 4))),
    "whole numbers": (lambda a: a @ np.arange(12, dtype=np.float32).reshape(4, 3), (floats(5, 4),)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", CORES)
def test_the_pe_rounds_to_tf32_as_it_reads(name: str, target: str) -> None:
    function, arrays = CASES[name]
    options = tf32_options(target)
    graph = read_module(lowered(function, *arrays))
    wanted = np.asarray(function(*map(rounded, arrays)))
    for level, evaluate in (("simplify_live", evaluate_graph), ("choose_layouts", evaluate_tile)):
        (found,) = evaluate(run_pipeline(graph, options, stop_after=level), list(arrays))
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    program = run_pipeline(graph, dataclasses.replace(options, verify=True))
    products = [each for each in program.instructions() if isinstance(each, NcMatmul)]
    assert products
    assert {each.moving.dtype for each in products} == {TF32}
    (found,) = glia.load(glia.Neff((program,)))(*arrays)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    assert not np.allclose(found, np.asarray(function(*arrays)), rtol=2e-5, atol=2e-5)


def test_one_factor_in_tf32_alone_is_rounded_before() -> None:
    a, b = floats(16, 16), floats(16, 16)
    graph = read_module(lowered(lambda a, b: jax.lax.reduce_precision(a, 8, 10) @ b, a, b))
    program = run_pipeline(graph, CompileOptions(auto_cast="none"))
    products = [each for each in program.instructions() if isinstance(each, NcMatmul)]
    assert {each.moving.dtype for each in products} == {F32}
    (found,) = glia.load(glia.Neff((program,)))(a, b)
    np.testing.assert_allclose(found, rounded(a) @ b, rtol=2e-5, atol=2e-5)


def test_a_load_in_tf32_is_written_and_read() -> None:
    graph = read_module(lowered(jnp.matmul, floats(8, 8), floats(8, 8)))
    program = run_pipeline(graph, tf32_options(), stop_after="choose_layouts")
    text = print_program(program)
    assert text.count(" as tf32") == 2
    assert print_program(parse_program(text)) == text


def test_only_float32_is_read_as_tf32() -> None:
    graph = read_module(lowered(jnp.matmul, floats(8, 8), floats(8, 8)))
    program = run_pipeline(graph, tf32_options(), stop_after="choose_layouts")
    verify(program)
    buffers = {
        name: dataclasses.replace(buffer, dtype=F16) if buffer.role == "input" else buffer
        for name, buffer in program.buffers.items()
    }
    with pytest.raises(InternalError, match="mistypes"):
        verify(dataclasses.replace(program, buffers=buffers))


@pytest.mark.parametrize("target", CORES)
def test_eight_bit_tiles_are_transposed_on_the_pe(target: str) -> None:
    a, b = floats(64, 64), floats(64, 64)
    options = CompileOptions(target=target, auto_cast="matmult", auto_cast_type="fp8_e4m3")
    program = run_pipeline(read_module(lowered(jnp.matmul, a, b)), options)
    instructions = list(program.instructions())
    assert any(isinstance(each, NcTranspose) and each.runs_on == "tensor" for each in instructions)
    (found,) = glia.load(glia.Neff((program,)))(a, b)
    assert np.corrcoef(found.ravel(), (a @ b).ravel())[0, 1] > 0.99


def mlp(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ first) @ second


MLP = (floats(128, 256), floats(256, 512), floats(512, 256))


@pytest.mark.parametrize(
    ("function", "arrays", "kind", "compiled"),
    [
        (mlp, MLP, "matmult", "matmult/bf16"),
        (mlp, MLP, "all", "matmult/bf16"),
        (jnp.matmul, (floats(129, 127), floats(127, 3)), "matmult", "none"),
    ],
)
def test_any_number_of_processes_gives_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., object],
    arrays: tuple[np.ndarray, ...],
    kind: str,
    compiled: str,
) -> None:
    monkeypatch.setattr(glia.alternatives, "SMALLEST_PARALLEL", 0)
    neffs = [
        glia.compile(lowered(function, *arrays), auto_cast=kind, num_parallel_jobs=jobs)
        for jobs in (1, 2, 8)
    ]
    assert neffs[0].report["precision"]["compiled"] == compiled
    assert len({neff.to_bytes() for neff in neffs}) == 1


@pytest.mark.parametrize(("jobs", "started"), [(1, 0), (2, 1), (8, 2)])
def test_alternatives_are_compiled_in_processes_beside_the_first(
    monkeypatch: pytest.MonkeyPatch, jobs: int, started: int
) -> None:
    monkeypatch.setattr(glia.alternatives, "SMALLEST_PARALLEL", 0)
    compiled: list[ChildProcess] = []

    def recorded(work: Callable[[], tuple[float, Callable[[], bytes]]]) -> ChildProcess:
        compiled.append(ChildProcess(work))
        return compiled[-1]

    monkeypatch.setattr(glia.alternatives, "ChildProcess", recorded)
    glia.compile(lowered(mlp, *MLP), auto_cast="all", num_parallel_jobs=jobs)
    assert len(compiled) == started


def test_an_observer_sees_the_passes_of_the_program_that_is_kept() -> None:
    seen: list[PassResult] = []
    module = lowered(jnp.matmul, floats(129, 127), floats(127, 3))
    neff = glia.compile(module, auto_cast="matmult", optlevel=1, observer=seen.append)
    assert neff.report["precision"]["compiled"] == "none"
    assert [step.name for step in seen].count("emit") == 2
    assert seen[-1].ir.body == neff.program.body


def test_a_child_process_gives_a_number_and_bytes_when_asked() -> None:
    with ChildProcess(lambda: (2.5, lambda: b"x" * 3_000_000)) as child:
        assert child.number(30) == 2.5
        assert child.result() == b"x" * 3_000_000
    with ChildProcess(lambda: (1.0, lambda: b"never asked for")) as child:
        assert child.number(30) == 1.0


def test_a_child_process_that_fails_has_neither(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> tuple[float, Callable[[], bytes]]:
        raise ValueError("in the child")

    def wait() -> tuple[float, Callable[[], bytes]]:
        time.sleep(60)
        return 0.0, lambda: b""

    with ChildProcess(fail) as child:
        assert child.number(30) is None
        assert child.result() is None
    with ChildProcess(wait) as child:
        os.kill(child.pid, 9)
        assert child.number(30) is None


def test_the_report_says_what_was_cast_and_why() -> None:
    report = glia.compile(lowered(mlp, *MLP), auto_cast="matmult").report
    contractions = report["casts"]["contractions"]
    assert [each["dtype"] for each in contractions] == ["bf16", "bf16"]
    assert all("the PE saves" in each["reason"] for each in contractions)
    names = {nest["name"]: nest for nest in report["nests"]}
    assert names["dot.0"]["engine"] == "tensor"
    assert names["dot.0"]["instructions"]["nc_matmul"] > 0
    plain = glia.compile(lowered(mlp, *MLP), auto_cast="none").report
    assert {each["reason"] for each in plain["casts"]["contractions"]} == {"--auto-cast none"}
    assert plain["casts"]["other"]["cast"] == 0


def test_the_report_names_what_stays_and_why() -> None:
    module = lowered(jnp.matmul, floats(129, 127), floats(127, 3))
    (each,) = glia.compile(module, auto_cast="matmult").report["casts"]["contractions"]
    assert each["dtype"] == ""
    assert "whole program would be slower" in each["reason"]
    half = lowered(jnp.matmul, floats(8, 8).astype(np.float16), floats(8, 8).astype(np.float16))
    (each,) = glia.compile(half, auto_cast="matmult").report["casts"]["contractions"]
    assert each["reason"] == "its operands are f16 and f16"
