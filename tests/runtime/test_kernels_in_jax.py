"""Kernels of either generation called while JAX traces, batches or differentiates a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import glia
from glia import nki
from glia.frontend.errors import MalformedModule
from glia.frontend.hlo_import.hlo_proto import messages
from glia.frontend.registry import read_module
from glia.kernels.cumsum import cumsum
from glia.kernels.flash_attention import flash_attention
from glia.kernels.flash_attention_backward import flash_attention_backward
from glia.nki import beta1
from glia.nki import language as nl
from glia.nki.beta1 import language as nl1
from glia.nki.beta1.run.framework_calls import nki_call
from glia.nki.language import NkiTensor
from glia.nki.names.errors import BadLaunch, NoDerivative, NotInNki
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.plugins.jax import on_device

ROWS, COLUMNS = 128, 64
WAYS = {"on the device": on_device, "on the host": jax.jit}

Way = Callable[..., Any]


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def shape_of(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def tile() -> tuple[Any, Any]:
    """The rows and columns of a program of a grid."""
    rows = nl1.program_id(0) * ROWS + nl1.arange(ROWS)[:, None]
    return rows, nl1.program_id(1) * COLUMNS + nl1.arange(COLUMNS)[None, :]


def add_into(a: Any, b: Any, c: Any) -> None:
    """A kernel of the first release, which writes its result to an argument."""
    i, j = tile()
    nl1.store(c[i, j], value=nl1.load(a[i, j]) + nl1.load(b[i, j]))


@beta1.jit(mode="jax")
def add(a: Any, b: Any) -> Any:
    c = nl1.ndarray(a.shape, dtype=a.dtype, buffer=nl1.shared_hbm)
    add_into(a, b, c)
    return c


def scale_and_shift(x: Any, scaled: Any, shifted: Any, factor: float, offset: float = 1.0) -> None:
    held = nl1.load(x)
    nl1.store(scaled, value=held * factor)
    nl1.store(shifted, value=held + offset)


@pytest.fixture(params=WAYS.values(), ids=WAYS.keys())
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


# --- both generations, on the host and on the device ---------------------------------------------


def test_nki_call_on_a_grid(way: Way) -> None:
    def added(a: Any, b: Any) -> Any:
        return nki_call(add_into, a, b, grid=(2, 2), out_shape=shape_of(a))

    a, b = array(256, 128), array(256, 128, seed=1)
    expected = a * b * (a + b)
    np.testing.assert_allclose(way(lambda a, b: added(a, b) * a * b)(a, b), expected, rtol=1e-6)
    np.testing.assert_array_equal(added(jnp.asarray(a), b), a + b)


def test_nki_call_of_a_partial_kernel_with_several_results(way: Way) -> None:
    def both(x: Any) -> Any:
        kernel = functools.partial(scale_and_shift, factor=np.float64(3.0))
        return nki_call(kernel, x * 2, out_shape=(shape_of(x), shape_of(x)))

    x = array(8, 4)
    for found in (way(both)(x), both(x)):
        np.testing.assert_allclose(found[0], x * 6, rtol=1e-6)
        np.testing.assert_allclose(found[1], x * 2 + 1, rtol=1e-6)


def test_nki_call_of_a_kernel_that_returns_its_results(way: Way) -> None:
    a, b = array(256, 64), array(256, 64, seed=1)

    def added(a: Any, b: Any) -> Any:
        return nki_call(add, a, b, grid=(2, 1), out_shape=shape_of(a))

    np.testing.assert_array_equal(way(added)(a, b), a + b)


def test_nki_call_of_a_kernel_of_the_current_generation(way: Way) -> None:
    def summed(x: Any) -> Any:
        return nki_call(cumsum, x, grid=(1,), out_shape=shape_of(x))

    x = array(4, 6)
    np.testing.assert_allclose(way(summed)(x), np.cumsum(x, -1), rtol=1e-5, atol=1e-5)


def test_a_kernel_of_beta1_on_a_grid(way: Way) -> None:
    a, b = array(256, 128), array(256, 128, seed=1)
    found = way(lambda a, b: add[2, 2](a, b) * a * b)(a, b)
    np.testing.assert_allclose(found, (a + b) * a * b, rtol=1e-6)


def test_a_kernel_in_a_scan_and_in_a_branch(way: Way) -> None:
    def steps(x: Any, flags: Any) -> Any:
        def step(carry: Any, flag: Any) -> Any:
            carry = jax.lax.cond(flag, lambda h: cumsum(h) * 0.5, lambda h: h + 1, carry)
            return carry, cumsum(carry)[0]

        return jax.lax.scan(step, x, flags)

    x, flags = array(4, 6), np.array([True, False, True])
    h, rows = x, []
    for flag in flags:
        h = np.cumsum(h, -1) * 0.5 if flag else h + 1
        rows.append(np.cumsum(h, -1)[0])
    found, found_rows = way(steps)(x, flags)
    np.testing.assert_allclose(found, h, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found_rows, rows, rtol=1e-5, atol=1e-5)


DTYPES = (
    np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2,
    np.int32, np.int8, np.uint8, np.int16, np.uint16, np.uint32,
)  # fmt: skip


@nki.jit
def copied(x: NkiTensor, repeats: int = 1) -> tuple[NkiTensor, NkiTensor]:
    """x, and x next to itself."""
    width = x.shape[1]
    one = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    many = nl.ndarray((x.shape[0], repeats * width), x.dtype, buffer=nl.shared_hbm)
    held = nl.load(x)
    nl.store(one, held)
    for i in range(repeats):
        nl.store(many[:, i * width : (i + 1) * width], held)
    return one, many


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_operands_and_results_keep_their_dtypes(way: Way, dtype: Any) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    one, many = way(lambda x: copied(x, repeats=2))(x)
    assert one.dtype == many.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(np.asarray(one), x)
    np.testing.assert_array_equal(np.asarray(many), np.concatenate([x, x], axis=1))


def test_a_static_argument_is_a_constant_and_a_traced_scalar_is_refused(way: Way) -> None:
    x = array(3, 4)
    _, many = way(copied, static_argnames="repeats")(x, repeats=3)
    np.testing.assert_array_equal(many, np.tile(x, 3))
    with pytest.raises(BadLaunch, match="make it static"):
        way(copied)(x, 3)


# --- what is traced ------------------------------------------------------------------------------


def test_what_jax_lowers_for_a_device_is_the_documented_custom_call() -> None:
    a = array(256, 64)
    traced = jax.jit(lambda a: nki_call(add_into, a, a, grid=(2, 1), out_shape=shape_of(a)))
    text = traced.trace(a).lower(lowering_platforms=("tpu",)).as_text()
    assert "stablehlo.custom_call @AwsNeuronCustomNativeKernel(%arg0, %arg0)" in text
    assert "nki_call" in str(jax.make_jaxpr(traced)(a))


def test_what_jax_lowers_for_the_host_compiles_for_the_device() -> None:
    x = array(5, 7)
    lowered = jax.jit(lambda x: cumsum(x + 1) * 2).lower(x)
    assert 'composite "neuron.AwsNeuronCustomNativeKernel"' in lowered.as_text()
    (found,) = glia.load(glia.compile(lowered, target="trn2"))(x)
    np.testing.assert_allclose(found, np.cumsum(x + 1, -1) * 2, rtol=1e-5, atol=1e-5)


def test_a_composite_without_a_config_is_refused() -> None:
    lowered = jax.jit(cumsum).lower(array(5, 7))
    data = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    module = messages()["Module"].FromString(data)
    calls = [i for c in module.computations for i in c.instructions if i.opcode == "call"]
    for entry in calls[0].frontend_attributes.map:
        if entry.key == "composite.attributes":
            entry.value = "{}"
    with pytest.raises(MalformedModule, match="no config"):
        read_module(module.SerializeToString())


def test_a_failure_while_a_kernel_runs_on_the_host_is_told() -> None:
    @nki.jit
    def gathered(x: NkiTensor, rows: NkiTensor) -> NkiTensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        index = nl.load(rows)
        held = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nki.isa.dma_copy(held, x.ap([[x.shape[1], x.shape[0]], [1, x.shape[1]]],
                                    vector_offset=index, indirect_dim=0))  # fmt: skip
        nl.store(out, held)
        return out

    x, rows = array(4, 6), np.array([[0], [3], [1], [2]], np.int32)
    function = jax.jit(lambda x, rows: gathered(x, rows) + 0)
    np.testing.assert_array_equal(function(x, rows), x[rows[:, 0]])
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="index 9 is out of bounds"):
        jax.block_until_ready(function(x, rows + 9))


def test_a_kernel_is_traced_once_for_calls_of_equal_shapes() -> None:
    traces = []

    @nki.jit
    def kernel(x: NkiTensor) -> NkiTensor:
        traces.append(x.shape)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.add(nl.load(x), 1.0))
        return out

    def into(x: Any, out: Any) -> None:
        traces.append(x.shape)
        nl1.store(out, value=nl1.load(x) + 1)

    def model(x: Any) -> Any:
        for _ in range(5):
            x = nki_call(into, kernel(x), out_shape=shape_of(x))
        return x

    x = array(4, 4)
    np.testing.assert_allclose(on_device(model)(x), x + 10, rtol=1e-5)
    assert traces == [(4, 4), (4, 4)]
    assert jax.eval_shape(model, x) == shape_of(x)
    assert len(traces) == 2


def test_casts_of_a_model_reach_what_it_computes_and_not_what_kernels_are_given() -> None:
    @nki.jit
    def lost_by_casts(x: NkiTensor) -> NkiTensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.multiply(nl.subtract(nl.load(x), 1.0), 2.0**12))
        return out

    def model(x: Any) -> Any:
        moved = lost_by_casts(x.reshape(4, 8)[1:3].T)
        return moved, lost_by_casts(lost_by_casts(x) * 0 + 1 + 2**-12)

    x = np.full((8, 4), 1 + 2**-12, np.float32)
    lowered = jax.jit(model).trace(x).lower(lowering_platforms=("tpu",))
    options = CompileOptions(auto_cast="all", auto_cast_type="bf16")
    program = run_pipeline(read_module(lowered), options)
    given, computed = glia.load(glia.Neff((program,)))(x)
    np.testing.assert_array_equal(given, np.ones((8, 2)))
    np.testing.assert_array_equal(computed, np.zeros((8, 4)))


# --- transformations -----------------------------------------------------------------------------


def test_vmap_calls_a_kernel_for_each_element(way: Way) -> None:
    x, y = array(3, 4, 5), array(4, 5, 2, seed=1)

    def one(x: Any, y: Any) -> Any:
        return cumsum(x + y) * 2

    batched = jax.vmap(jax.vmap(one, in_axes=(None, 2), out_axes=1), in_axes=(0, None))
    expected = np.cumsum(x[:, :, None] + y.transpose(0, 2, 1), -1) * 2
    np.testing.assert_allclose(way(batched)(x, y), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batched(x, y), expected, rtol=1e-5, atol=1e-5)


def test_a_kernel_has_no_derivative_of_its_own(way: Way) -> None:
    def loss(x: Any, y: Any) -> Any:
        return (cumsum(x) * y).sum()

    x, y = array(3, 4), array(3, 4, seed=1)
    with pytest.raises(NoDerivative, match="custom_vjp"):
        way(jax.grad(loss))(x, y)
    found = way(jax.grad(loss, argnums=1))(x, y)
    np.testing.assert_allclose(found, np.cumsum(x, -1), rtol=1e-5, atol=1e-5)


@jax.custom_vjp
def attention(q: Any, k: Any, v: Any) -> Any:
    return flash_attention(q, k, v, with_lse=True)[0]


def _forward(q: Any, k: Any, v: Any) -> Any:
    out, lse = flash_attention(q, k, v, with_lse=True)
    return out, (q, k, v, out, lse)


attention.defvjp(_forward, lambda kept, gradient: _backward(*kept, gradient))


def _backward(q: Any, k: Any, v: Any, out: Any, lse: Any, gradient: Any) -> Any:
    dq, dk, dv = flash_attention_backward(q, k, v, out, gradient, lse)
    return jnp.swapaxes(dq, 2, 3), jnp.swapaxes(dk, 2, 3), dv


def plain_attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhds,bhdt->bhst", q, k) / np.sqrt(q.shape[2])
    hidden = jnp.triu(jnp.ones(scores.shape[-2:], bool), 1)
    return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(jnp.where(hidden, -1e9, scores)), v)


def test_attention_is_trained_by_its_two_kernels(way: Way) -> None:
    q, k, v = array(1, 1, 16, 128), array(1, 1, 16, 128, seed=1), array(1, 1, 128, 16, seed=2)

    def loss(function: Any) -> Any:
        return jax.grad(lambda q, k, v: (function(q, k, v) ** 2).sum(), argnums=(0, 1, 2))

    found, expected = way(loss(attention))(q, k, v), loss(plain_attention)(q, k, v)
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-3, atol=2e-3)


# --- what kernels write and give to other glue ----------------------------------------------------


@nki.jit
def shifted_into(x: NkiTensor, out: NkiTensor) -> None:
    nl.store(out, nl.add(nl.load(x), 1.0))


def test_a_kernel_that_only_writes_its_arguments_is_of_no_use_to_jax() -> None:
    for kernel in (shifted_into, nki.simulate(shifted_into)):
        x, out = array(4, 4), np.zeros((4, 4), np.float32)
        assert kernel(x, out) is None
        np.testing.assert_array_equal(out, x + 1)
    with pytest.raises(BadLaunch, match="lost in a function of JAX"):
        jax.jit(shifted_into)(x, out)


def test_a_kernel_that_prints_says_that_nobody_sees_it() -> None:
    @nki.jit
    def shown(x: NkiTensor) -> NkiTensor:
        held = nl.load(x)
        nl.device_print("held", held)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, held)
        return out

    x = array(4, 4)
    with pytest.warns(UserWarning, match="device_print"):
        found = on_device(lambda x: shown(x))(x)
    np.testing.assert_array_equal(found, x)


NEED_CONTENTS: dict[str, Way] = {
    "simulate": nki.simulate(cumsum),
    "simulate_kernel": lambda a: beta1.simulate_kernel(add[2, 1], a, a),
    "benchmark": lambda a: beta1.benchmark(add)[2, 1](a, a),
}


@pytest.mark.parametrize("name", NEED_CONTENTS)
def test_what_needs_contents_is_refused_where_jax_traces(name: str) -> None:
    with pytest.raises(NotInNki, match="an array that JAX traces"):
        jax.jit(lambda a: NEED_CONTENTS[name](a))(array(256, 64))


def test_the_config_of_a_framework_kernel_compiles_in_a_model() -> None:
    class Glue(beta1.FrameworkKernel):
        """As glue of other frameworks derives it."""

    a, b = array(256, 64), array(256, 64, seed=1)
    glue = Glue("added", add_into, (2, 1))
    config, inputs, outputs = glue.dump_config(a, b, np.zeros_like(a))
    assert (inputs, outputs) == (["a", "b", "c"], ["c"])
    called = jax.ffi.ffi_call(
        "AwsNeuronCustomNativeKernel",
        shape_of(a),
        custom_call_api_version=2,
        legacy_backend_config=config,
    )
    found = on_device(lambda a, b: called(a, b * 2, jnp.zeros_like(a)) + 1)(a, b)
    np.testing.assert_allclose(found, a + 2 * b + 1, rtol=1e-6)


@beta1.jit(mode="jax")
def differences(x: Any) -> Any:
    """Twelve banks of PSUM are live at one time, of which there are eight."""
    out = nl1.ndarray(x.shape, dtype=x.dtype, buffer=nl1.shared_hbm)
    held = nl1.ndarray((12, nl1.par_dim(8), 512), dtype=nl1.float32, buffer=nl1.psum)
    for i in range(12):
        held[i] = nl1.copy(nl1.load(x[i]))
    for i in range(12):
        nl1.store(out[i], nl1.subtract(held[i], nl1.copy(held[11 - i])))
    return out


def test_a_kernel_of_beta1_that_is_larger_than_psum(way: Way) -> None:
    x = array(12, 8, 512)
    np.testing.assert_allclose(way(lambda x: differences(x) * 2)(x), 2 * (x - x[::-1]), rtol=1e-6)
