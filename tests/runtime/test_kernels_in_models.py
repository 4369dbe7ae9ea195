"""Kernels called inside JAX models become part of the model's program."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
import glia.nki.isa as nisa
import glia.nki.language as nl
from glia.frontend.errors import BadCustomCall, KernelOfAnotherTarget
from glia.frontend.registry import read_module
from glia.kernels.cumsum import cumsum
from glia.kernels.images.average_pool2d import average_pool2d
from glia.machine.aliased_tiles import join_overlapping
from glia.nki import jit
from glia.nki.language import NkiTensor
from glia.nki.run.trace import trace
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.plugins.jax import on_device
from glia.tile.text import parse_program, print_program

RANDOM = np.random.default_rng(5)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@jit
def scale_and_sum(x: NkiTensor, factor: float) -> tuple[NkiTensor, NkiTensor]:
    """(x * factor, sums of its rows), by a loop on the device."""
    scaled = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    sums = nl.ndarray((x.shape[0], 1), x.dtype, buffer=nl.shared_hbm)
    tile, total = nl.ndarray((1, x.shape[1]), x.dtype), nl.ndarray((1, 1), x.dtype)

    def row(i: nisa.VirtualRegister) -> None:
        nisa.dma_copy(tile, x[nl.ds(i, 1)])
        nisa.tensor_scalar(tile, tile, nl.multiply, factor)
        nisa.tensor_reduce(total, nl.add, tile, axis=1)
        nisa.dma_copy(scaled[nl.ds(i, 1)], tile)
        nisa.dma_copy(sums[nl.ds(i, 1)], total)

    nl.fori_loop(0, x.shape[0], row)
    return scaled, sums


@jit
def add_in_place(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    left, right = nl.load(x), nl.load(y)
    nisa.tensor_tensor(left, left, right, nl.add)
    nisa.dma_copy(x, left)
    return x


def model(x: Any, w: Any) -> Any:
    """Two different kernels, one of them twice, between operations of JAX."""
    h = jnp.tanh(x @ w)
    sums = cumsum(h)
    again = cumsum(sums * 0.5)
    scaled, totals = scale_and_sum(again + h, 3.0)
    return scaled - totals, h


def reference(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    h = np.tanh(x @ w)
    again = np.cumsum(np.cumsum(h, -1) * 0.5, -1)
    scaled = (again + h) * 3.0
    return scaled - scaled.sum(-1, keepdims=True), h


@pytest.mark.parametrize("optlevel", [1, 2])
def test_a_model_with_three_calls_of_kernels_runs(optlevel: int) -> None:
    x, w = array(40, 30), array(30, 50)
    found = on_device(model, optlevel=optlevel)(x, w)
    for actual, expected in zip(found, reference(x, w), strict=True):
        np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-4, atol=2e-3)


def test_a_kernel_alone_reads_and_writes_the_models_own_tensors() -> None:
    image = array(4, 6, 6)
    function = on_device(lambda image: average_pool2d(image, pool=2))
    expected = image.reshape(4, 3, 2, 3, 2).mean((2, 4))
    np.testing.assert_allclose(np.asarray(function(image)), expected, rtol=1e-6, atol=1e-6)


def test_an_argument_that_the_kernel_changes_is_a_copy() -> None:
    def doubled(x: Any, y: Any) -> Any:
        return add_in_place(x, y), x

    x, y = array(8, 8), array(8, 8)
    changed, same = on_device(doubled)(x, y)
    np.testing.assert_array_equal(np.asarray(changed), x + y)
    np.testing.assert_array_equal(np.asarray(same), x)


def test_kernels_run_inside_the_loops_of_a_model() -> None:
    def repeated(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, h: cumsum(h) * 0.25, x)

    x = array(5, 9)
    expected = x
    for _ in range(3):
        expected = np.cumsum(expected, -1) * 0.25
    found = np.asarray(on_device(repeated)(x))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_model_is_compiled_from_hlo_as_from_jax_for_the_target_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    lowered = jax.jit(model).trace(array(8, 6), array(6, 10)).lower(lowering_platforms=("tpu",))
    data = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    x, w = array(8, 6), array(6, 10)
    found = glia.load(glia.compile(data, target="trn1"))(x, w)
    np.testing.assert_allclose(found[0], reference(x, w)[0], rtol=1e-4, atol=1e-3)
    with pytest.raises(KernelOfAnotherTarget, match=r"traced for trn1, and the model .* for trn2"):
        glia.compile(data, target="trn2")


def test_calls_have_a_text_form_that_parses_back() -> None:
    lowered = jax.jit(model).trace(array(8, 6), array(6, 10)).lower(lowering_platforms=("tpu",))
    program = run_pipeline(read_module(lowered), CompileOptions(), stop_after="choose_layouts")
    text = print_program(program, with_locations=True)
    assert text.count(" call call.") == 3
    again = parse_program(text, program.constants)
    assert print_program(again, with_locations=True) == text


def call_with(config: str, *arguments: np.ndarray, shape: tuple[int, ...] = (4, 4)) -> Any:
    """A model that is nothing but a custom call with this config."""
    result = jax.ShapeDtypeStruct(shape, np.float32)
    called = jax.ffi.ffi_call(
        "AwsNeuronCustomNativeKernel", result,
        custom_call_api_version=2, legacy_backend_config=config,
    )  # fmt: skip
    return jax.jit(called).trace(*arguments).lower(lowering_platforms=("tpu",))


def config_of(kernel: Any, *arguments: np.ndarray) -> str:
    lowered = jax.jit(kernel).trace(*arguments).lower(lowering_platforms=("tpu",))
    graph = read_module(lowered)
    return next(node.config for node in graph.nodes if node.opcode == "custom_call")


def encoded(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def test_operands_of_another_shape_are_refused() -> None:
    config = config_of(cumsum, array(4, 4))
    with pytest.raises(BadCustomCall, match=r"has the inputs f32\[4, 4\]; here f32\[4, 5\]"):
        glia.compile(call_with(config, array(4, 5)))
    with pytest.raises(BadCustomCall, match=r"has the results f32\[4, 4\]; here f32\[2, 8\]"):
        glia.compile(call_with(config, array(4, 4), shape=(2, 8)))
    with pytest.raises(BadCustomCall, match="has the inputs"):
        glia.compile(call_with(config, array(4, 4), array(4, 4)))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("%%%", "not JSON in base64"),
        (encoded([1]), "not a JSON object"),
        (encoded({"klir_binary": {"binary": "kernel.klir"}}), "no program of glia"),
        (encoded({"neff": "?"}), "not base64"),
        (encoded({"neff": encoded("text")}), "damaged"),
        (encoded({"neff": "", "fixed": [1]}), "not text"),
    ],
)
def test_a_config_that_holds_no_kernel_is_refused(config: str, text: str) -> None:
    with pytest.raises(BadCustomCall, match=text):
        glia.compile(call_with(config, array(4, 4)))


def overlapping(x: NkiTensor, memory: Any, start: int, width: int) -> NkiTensor:
    """Zeros in `width` columns of x through another tensor at an address inside its own."""
    one = nl.ndarray((4, width + 2), nl.float32, memory, address=(0, 64))
    other = nl.ndarray((4, width), nl.bfloat16, memory, address=(0, 64 + start))
    held = nl.load(x)
    nisa.tensor_copy(one, held)
    nisa.memset(other, 0)
    nisa.tensor_copy(held, one)
    out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, held)
    return out


@pytest.mark.parametrize("memory", [nl.sbuf, nl.psum])
def test_tensors_that_overlap_on_purpose_stay_together(memory: Any) -> None:
    kernel, x = jit(overlapping), array(4, 6)
    found = np.asarray(on_device(lambda x: kernel(x + 1, memory, 8, 4) * 2)(x))
    expected = (x + 1) * 2
    expected[:, 2:4] = 0
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_tensors_that_cannot_stay_together_are_refused() -> None:
    kernel = jit(overlapping)
    with pytest.raises(BadCustomCall, match="more than one bank"):
        on_device(lambda x: kernel(x, nl.psum, 2000, 500))(array(4, 502))
    program = trace(overlapping, array(4, 6), memory=nl.sbuf, start=-2, width=4)
    fixed = [name for name, at in program.addresses.items() if at in (62, 64)]
    assert "+" in str(join_overlapping(program, fixed).tiles)
    addresses = {n: 63 if at == 62 else at for n, at in program.addresses.items()}
    with pytest.raises(ValueError, match="not at an element"):
        join_overlapping(replace(program, addresses=addresses), fixed)
