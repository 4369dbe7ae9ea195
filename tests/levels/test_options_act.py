"""Every option changes the program, its numbers or what is written, where it is meant to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import glia
from glia.alternatives import latency_us
from glia.isa.instructions.tensor import NcTranspose
from glia.neff.archive import unpack_archive
from glia.neff.layout import HEADER_BYTES

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def lowered(function: Callable[..., Any], *arrays: np.ndarray) -> Any:
    return jax.jit(function).lower(*arrays)


def time_of(neff: glia.Neff) -> float:
    found = latency_us(neff.programs, neff.target)
    assert found is not None
    return found


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_a_transformer_is_unrolled_further(target: str) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", q, k)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v)

    module = lowered(attention, *(floats(12, 128, 32).astype(jnp.bfloat16) for _ in range(3)))
    generic, transformer = (
        glia.compile(module, target=target, model_type=kind) for kind in ("generic", "transformer")
    )
    assert transformer.report["precision"]["model_type"] == "transformer"
    assert time_of(transformer) < 0.99 * time_of(generic)
    assert len(list(transformer.program.instructions())) > len(list(generic.program.instructions()))


def test_iterations_of_a_unets_blocks_overlap_more() -> None:
    def attention(pixels: Any) -> Any:
        return jax.nn.softmax(pixels @ pixels.T, -1) @ pixels

    module = lowered(attention, floats(2048, 40))
    generic, unet = (
        glia.compile(module, target="trn1", model_type=kind)
        for kind in ("generic", "unet-inference")
    )
    assert unet.report["precision"]["model_type"] == "unet-inference"
    assert time_of(unet) < 0.9 * time_of(generic)


def test_infinities_saturate_before_transposes_on_trn1() -> None:
    x = floats(64, 48)
    x[3, 5], x[:, 40] = np.inf, -np.inf
    module = lowered(lambda x: jnp.max(jax.lax.cummax(x, 1), 0), x)  # what SBUF holds is turned
    kept, saturated = (
        glia.compile(module, target="trn1", saturate_infinity=on) for on in (False, True)
    )

    def on_pe(neff: glia.Neff) -> list[bool]:
        found = neff.program.instructions()
        return [each.runs_on == "tensor" for each in found if isinstance(each, NcTranspose)]

    assert on_pe(kept) == [False] * 4
    assert on_pe(saturated) == [True]
    largest = np.maximum.accumulate(x, 1)
    np.testing.assert_array_equal(glia.load(kept)(x)[0], largest.max(0))
    greatest = np.finfo(np.float32).max
    wanted = np.clip(largest, -greatest, greatest).max(0)
    np.testing.assert_array_equal(glia.load(saturated)(x)[0], wanted)


def test_saturation_changes_nothing_where_transposes_keep_bits() -> None:
    module = lowered(lambda x: jnp.max(x, 0), floats(64, 48))
    programs = [
        glia.compile(module, target="trn2", saturate_infinity=on).program for on in (False, True)
    ]
    assert programs[0] == programs[1]


def test_sums_of_low_precision_accumulate_as_asked() -> None:
    x = np.ones((4, 65536), ml_dtypes.bfloat16)
    module = lowered(lambda x: jax.lax.reduce(x, jnp.bfloat16(0), jax.lax.add, (1,)), x)
    wide, narrow = (glia.compile(module, mixed_precision_accumulation=on) for on in (True, False))
    np.testing.assert_array_equal(glia.load(wide)(x)[0], np.full(4, 65536, ml_dtypes.bfloat16))
    dtypes = [
        {p.dtype.name for i in neff.program.instructions() for p in i.written_patterns()}
        for neff in (wide, narrow)
    ]
    assert "f32" in dtypes[0]
    assert "f32" not in dtypes[1]
    exact = floats(64, 5000).astype(ml_dtypes.bfloat16)
    module = lowered(lambda x: jax.lax.reduce(x, jnp.bfloat16(0), jax.lax.add, (1,)), exact)
    errors = [
        np.abs(glia.load(glia.compile(module, mixed_precision_accumulation=on))(exact)[0]
               .astype(np.float64) - exact.astype(np.float64).sum(1)).mean()
        for on in (True, False)
    ]  # fmt: skip
    assert errors[0] < errors[1]


@pytest.mark.parametrize(
    ("function", "note"),
    [
        (lambda x: jax.lax.reduce(x, jnp.bfloat16(0), jax.lax.add, (1,)), ""),
        (lambda x: x @ x, "contractions of 16-bit floats accumulate in float32"),
        (lambda x: jnp.exp(x), "no effect"),
        (lambda x: x.astype(np.float32).sum(1), "no effect"),
        (lambda x: x.max(1), "no effect"),
        (lambda x: jnp.cumsum(x, 1), "no effect"),
    ],
)
def test_what_sums_in_float32_nevertheless_is_said(
    function: Callable[[Any], Any], note: str
) -> None:
    module = lowered(function, np.ones((64, 64), ml_dtypes.bfloat16))
    for target in ("trn1", "trn2", "trn3"):
        narrow = glia.compile(module, target=target, mixed_precision_accumulation=False)
        said = [each for each in narrow.notes if "mixed-precision" in each]
        assert (not said) if not note else len(said) == 1 and note in said[0]
        assert not any("mixed" in each for each in glia.compile(module, target=target).notes)


def member(neff: glia.Neff, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        bytes(unpack_archive(memoryview(neff.to_bytes())[HEADER_BYTES:])[name])
    )
    return found


def test_large_weights_are_deferred_for_fast_context_switches() -> None:
    large, small = floats(256, 256), floats(256, 4)
    module = lowered(lambda x: (x @ large) @ small, floats(8, 256))
    early, late = (glia.compile(module, fast_context_switch=on) for on in (False, True))
    models = [glia.load(neff) for neff in (early, late)]
    assert (models[0].deferred_bytes, models[1].deferred_bytes) == (0, large.nbytes)
    assert models[0].loaded_bytes - models[1].loaded_bytes == large.nbytes
    marked = Counter(
        entry.get("load", "model") for entry in member(late, "sg00/def.json")["var"].values()
        if entry["type"] == "file"
    )  # fmt: skip
    assert marked == {"execution": 1, "model": 1}
    assert "execution" not in json.dumps(member(early, "sg00/def.json"))
    assert any("262144 bytes of weights" in text for text in models[1].profile().not_modelled)
    again = glia.load(glia.Neff.from_bytes(late.to_bytes()))
    assert again.deferred_bytes == large.nbytes


def test_an_uncompressed_archive_is_larger_and_the_same_model() -> None:
    module = lowered(jnp.tanh, floats(8, 8))
    packed, plain = (glia.compile(module, fast_loading_neuron_binaries=on) for on in (False, True))
    assert len(plain.to_bytes()) > len(packed.to_bytes())
    assert packed.program == plain.program


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_a_product_is_divided_among_two_cores(target: str) -> None:
    arrays = [floats(1024, 1024).astype(ml_dtypes.bfloat16) for _ in range(2)]
    module = lowered(lambda a, b: jnp.tanh(a @ b), *arrays)
    one, two = (glia.compile(module, target=target, logical_nc_config=n) for n in (1, 2))
    assert (len(one.programs), len(two.programs)) == (1, 2)
    assert time_of(two) < 0.9 * time_of(one)  # both with the launch, two cores with more of it
    found = [glia.load(neff)(*arrays)[0].astype(np.float32) for neff in (one, two)]
    np.testing.assert_allclose(found[0], found[1], atol=0.01)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_what_is_around_a_loop_is_divided_and_the_loop_is_not(target: str) -> None:
    def grown(x: Any, y: Any) -> Any:
        product = jnp.tanh(x @ y)
        corner = product[:8, :8].astype(jnp.float32)
        rounds = jax.lax.while_loop(lambda z: jnp.sum(z) < 100, lambda z: z + 1, corner)
        return product @ x, rounds

    arrays = [floats(1024, 1024).astype(ml_dtypes.bfloat16) for _ in range(2)]
    module = lowered(grown, *arrays)
    one, two = (glia.compile(module, target=target, logical_nc_config=n) for n in (1, 2))
    assert len(two.programs) == 2 and time_of(two) < 0.9 * time_of(one)
    assert any("kernels and exchanges: 1" in note for note in two.notes)
    for alone, divided in zip(*(glia.load(neff)(*arrays) for neff in (one, two)), strict=True):
        np.testing.assert_allclose(alone.astype(float), divided.astype(float), atol=0.05)


def test_rows_that_are_all_summed_stay_on_one_core() -> None:
    module = lowered(lambda x: x / jnp.sum(x), floats(4, 8))
    one, two = (glia.compile(module, logical_nc_config=n) for n in (1, 2))
    assert time_of(two) <= time_of(one)
    cores = two.report["cores"]
    assert (cores["asked"], cores["compiled"], len(cores["alternatives"])) == (2, 1, 1)
