"""Axes that become rows leave every value where it was, and every partition something to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.evaluate import evaluate
from glia.tile.ir import Program
from glia.tile.legal import verify
from glia.tile.passes.fill_partitions import fill_partitions
from glia.tile.split_dimensions import split_dimensions
from glia.tile.text import parse_program
from support.targets import CORES

Function = Callable[..., Any]

CASES: dict[str, tuple[Function, tuple[int, ...], type]] = {
    "total": (lambda x: x.sum(), (300, 100), np.float32),
    "total of integers": (lambda x: x.sum(), (300, 100), np.int32),
    "greatest of a prime number": (lambda x: x.max(), (20011,), np.float32),
    "rows of a prime number": (lambda x: x.sum(1), (3, 10007), np.float32),
    "few columns": (lambda x: x.sum(0), (5000, 3), np.float32),
    "outer and inner": (lambda x: x.sum((0, 2)), (150, 3, 80), np.float32),
    "any": (lambda x: (x > 3).any(), (30011,), np.float32),
    "position": (lambda x: x.argmax(), (1, 9001), np.float32),
    "mean of squares": (lambda x: ((x - x.mean()) ** 2).mean(), (128, 256), np.float32),
    "map": (lambda x: jnp.abs(x) * 2 + 1, (4096,), np.float32),
    "map of a prime number": (lambda x: jnp.abs(x) * 2 + 1, (4099,), np.int32),
    "map of triples": (lambda x: x * jnp.arange(3, dtype=np.float32), (2050, 3), np.float32),
    "triples turned": (lambda x: x.T + 1, (2050, 3), np.float32),
    "sums of triples": (lambda x: (x * x).sum(1), (2050, 3), np.float32),
    "neighbours": (lambda x: x[1:] - x[:-1], (4097,), np.float32),
    "padded": (lambda x: jnp.pad(x, (5, 6)) * 2, (3000,), np.float32),
    "rolled": (lambda x: jnp.roll(x, 7), (3001,), np.float32),
    "backwards": (lambda x: x[::-1] + 1, (2047,), np.float32),
    "every other": (lambda x: x[::2] + x[1::2], (6000,), np.float32),
    "softmax of a row": (lambda x: jax.nn.softmax(x), (1, 12001), np.float32),
    "softmax of an even row": (lambda x: jax.nn.softmax(x), (1, 12800), np.float32),
    "above the mean": (lambda x: jnp.where(x > x.mean(), x, 0), (12800,), np.float32),
    "a product with one result": (lambda x: jnp.vdot(x, x[::-1]), (20000,), np.float32),
    "columns of a long matrix": (lambda x: x.sum(0), (20000, 4), np.float32),
    "a product of a row": (lambda x: jnp.tanh(x @ jnp.ones((7, 2048), np.float32)), (1, 7),
                           np.float32),
}  # fmt: skip


def _scheduled(name: str, stop_after: str) -> tuple[Program, np.ndarray[Any, Any]]:
    function, shape, dtype = CASES[name]
    x = np.random.default_rng(3).integers(-9, 9, shape).astype(dtype)
    module = read_module(jax.jit(function).lower(x))
    return run_pipeline(module, CompileOptions(target="trn2"), stop_after=stop_after), x


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_nests_before(name: str) -> None:
    before, x = _scheduled(name, "merge_rows")
    after = fill_partitions(before, CompileOptions(target="trn2"))
    verify(after)
    wanted, found = evaluate(before, [x])[0], evaluate(after, [x])[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_every_target_computes_the_same(name: str) -> None:
    function, shape, dtype = CASES[name]
    x = np.random.default_rng(4).integers(-9, 9, shape).astype(dtype)
    lowered = jax.jit(function).lower(x)
    wanted = np.asarray(function(x))
    number = [*CASES].index(name)
    for target in (CORES[number % 3], CORES[(number + 1) % 3]):
        (found,) = glia.load(glia.compile(lowered, target=target, verify=True))(x)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if "of a row" not in name])
def test_nothing_large_is_left_to_a_few_partitions(name: str) -> None:
    program, _ = _scheduled(name, "schedule_nests")
    for nest in program.nests():
        schedule = program.schedules[nest.name]
        lanes = min(128, nest.extents.get(schedule.partition, 1))
        points = int(np.prod([axis.extent for axis in nest.axes], dtype=np.int64))
        assert points // lanes <= max(1024, points // 64), (nest.name, schedule)


def test_temporaries_between_rows_are_rows() -> None:
    program, _ = _scheduled("softmax of an even row", "fill_partitions")
    shapes = {b.shape for b in program.buffers.values() if b.role == "temporary"}
    assert (1, 128, 100) in shapes
    assert (1, 12800) not in shapes


PLACES_IN_ROWS = """\
program "places" {
  input x s32[4,8,16]
  input y f32[4,8,16]
  output z f32[32,64]
  temporary places s32[32,16,1]
  nest copy.0 [i0:4 i1:8 i2:16]
    places[8*i0 + i1, i2, 0] = x[i0, i1, i2]
  nest zeros.0 [i0:32 i1:64]
    z[i0, i1] = 0.0:f32
  nest scatter.0 [m:4 n0:8 n1:16]
    z[8*m + n0, 0] at (1: places[8*m + n0, n1, 0] <= 63 or drop) add= y[m, n0, n1]
}
"""


def test_places_of_a_scatter_are_read_in_rows_like_any_other_value() -> None:
    before = parse_program(PLACES_IN_ROWS)
    after = split_dimensions(before)
    verify(after)
    assert after.buffers["places"].shape == (4, 8, 16, 1)
    random = np.random.default_rng(5)
    inputs = [random.integers(0, 70, (4, 8, 16)).astype(np.int32),
              random.standard_normal((4, 8, 16)).astype(np.float32)]  # fmt: skip
    np.testing.assert_allclose(evaluate(after, inputs)[0], evaluate(before, inputs)[0])
