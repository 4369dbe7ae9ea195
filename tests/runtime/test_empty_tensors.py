"""Tensors without elements: through compiling, saving, loading, running and timing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from support.targets import CORES

NO_ROWS, ROWS = np.zeros((0, 4), np.float32), np.ones((2, 4), np.float32)
NOTHING = jnp.zeros((0,), jnp.int32)

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, y: x.sum() + y.sum(),
    "concatenate": lambda x, y: jnp.concatenate([x, y]),
    "map": lambda x, y: (x * 2, y + 1),
    "product without rows": lambda x, y: (x @ y.T, y @ x.T),
    "product over nothing": lambda x, y: x.T @ x,
    "maximum": lambda x, y: jnp.max(x, axis=0, initial=-1.0),
    "constant": lambda x, y: (jnp.zeros((0, 3)), y),
    "gather": lambda x, y: (y[NOTHING], x),
    "scatter": lambda x, y: y.at[NOTHING].add(x),
    "sort": lambda x, y: (jnp.sort(x, 0), jnp.cumsum(x, 0)),
    "pad": lambda x, y: jnp.pad(x, ((1, 1), (0, 0)), constant_values=2.0),
    "softmax": lambda x, y: (jax.nn.softmax(x, 0), jax.nn.softmax(x, 1)),
}


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_saved_model_takes_and_gives_tensors_without_elements(
    name: str, target: str, tmp_path: Path
) -> None:
    function = jax.jit(FUNCTIONS[name], keep_unused=True)
    glia.compile(function.lower(NO_ROWS, ROWS), target=target).save(tmp_path / "model.neff")
    wanted = jax.tree.leaves(function(NO_ROWS, ROWS))
    for device in ("reference", "host"):
        model = glia.load(tmp_path / "model.neff", device=device)
        for found, want in zip(jax.tree.leaves(model(NO_ROWS, ROWS)), wanted, strict=True):
            assert found.shape == want.shape
            np.testing.assert_allclose(found, want, rtol=1e-5)
        assert model.profile().latency_us > 0
