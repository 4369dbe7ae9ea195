"""The whole stack in about a second: a module in, a NEFF, numbers and a profile out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glia
from glia.pass_runner import text_of
from glia.sim.order.concurrent import run_concurrently, streams_of
from support.hlo_text import entry


def dense(columns: int) -> bytes:
    """relu(x @ w) with so many columns, as a module."""
    return entry(
        f"""
  x = f32[130,200] parameter(0)
  w = f32[200,{columns}] parameter(1)
  product = f32[130,{columns}] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  zero = f32[] constant(0)
  zeros = f32[130,{columns}] broadcast(zero), dimensions={{}}
  ROOT y = f32[130,{columns}] maximum(product, zeros)
"""
    )


DENSE = dense(60)


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((130, 200)).astype(np.float32)
    return x, rng.standard_normal((200, 60)).astype(np.float32)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("target", ["inf2", "trn1", "trn1n", "trn2", "trn3"])
def test_a_dense_layer_compiles_is_stored_loads_and_runs(target: str, tmp_path: Path) -> None:
    x, w = arrays()
    path = tmp_path / "dense.neff"
    glia.compile(DENSE, target=target, verify=True).save(path)
    model = glia.load(path)
    (y,) = model(x, w)
    assert (y.shape, y.dtype) == ((130, 60), np.float32)
    assert relative_error(y, np.maximum(x @ w, 0)) < 1e-6


def test_a_smaller_type_on_the_tensor_engine_is_nearly_as_exact() -> None:
    x = arrays()[0]
    w = np.random.default_rng(4).standard_normal((200, 700)).astype(np.float32)  # a cast pays
    (y,) = glia.load(glia.compile(dense(700), auto_cast="matmult"))(x, w)
    assert 1e-6 < relative_error(y, np.maximum(x @ w, 0)) < 2e-2


def test_the_profile_accounts_for_every_flop_and_byte() -> None:
    neff = glia.compile(DENSE)
    profile = glia.load(neff).profile()
    assert profile.flops == 2 * 130 * 200 * 60
    assert profile.timing.hbm_read_bytes >= 4 * (130 * 200 + 200 * 60)
    assert profile.timing.hbm_written_bytes == 4 * 130 * 60
    assert 0 < profile.engines["tensor"].busy_us < profile.latency_us


def test_engines_running_concurrently_give_the_same_bits() -> None:
    program = glia.compile(DENSE).program
    inputs = dict(zip((b.name for b in program.inputs), arrays(), strict=True))
    (expected,) = glia.load(glia.compile(DENSE), device="reference")(*inputs.values())
    for seed in range(len(streams_of(program))):
        (found,) = run_concurrently(program, inputs, seed=seed).values()
        np.testing.assert_array_equal(found, expected)


def test_the_same_module_compiles_to_the_same_program() -> None:
    first, second = glia.compile(DENSE).program, glia.compile(DENSE).program
    assert text_of("machine", first) == text_of("machine", second)
