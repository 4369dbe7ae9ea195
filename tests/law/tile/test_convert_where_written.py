"""A result that one copy alone reads is written as the copy, bit for bit the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.isa.instructions.vector import TensorCopy
from glia.machine.emit.groups import convert_where_written as pass_module
from glia.machine.ir import Program, walk
from glia.pass_runner import PassResult
from glia.tile.passes import group_nests
from support.targets import CORES


def weights(q: Any, k: Any, v: Any) -> Any:
    """Exponentials are added up in float32 and multiplied as bfloat16."""
    scores = jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores).astype(q.dtype), v)


def read_twice(x: Any) -> Any:
    """The float32 exponentials are a result as well."""
    found = jnp.exp(x - x.max(-1, keepdims=True))
    return found, found.astype(jnp.bfloat16), found.sum(-1)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], Any]] = {
    "weights": (weights, ((2, 384, 32),) * 3, jnp.bfloat16),
    "weights of odd sizes": (weights, ((1, 401, 24),) * 3, jnp.bfloat16),
    "float32": (weights, ((2, 256, 32),) * 3, np.float32),
    "read twice": (read_twice, ((300, 260),), np.float32),
}


@pytest.fixture(autouse=True)
def groups_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups pay however little they save: what nests exchange is a tile of an iteration."""
    monkeypatch.setattr(group_nests, "LEAST_SAVED_BYTES", -1)


def compiled(name: str, target: str, programs: dict[str, Program]) -> list[np.ndarray]:
    """The results of a function; the program on both sides of the pass is put into `programs`."""
    function, shapes, dtype = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]

    def keep(result: PassResult) -> None:
        if result.name in ("emit", "convert_where_written"):
            programs[result.name] = result.ir

    neff = glia.compile(
        jax.jit(function).lower(*arguments),
        target=target, auto_cast="none", no_cache=True, verify=True, observer=keep,
    )  # fmt: skip
    return [np.asarray(each, np.float32) for each in glia.load(neff)(*arguments)]


def copies(program: Program) -> int:
    return sum(isinstance(each, TensorCopy) for each in walk(program.body))


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_the_same_bits(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    programs: dict[str, Program] = {}
    found = compiled(name, target, programs)
    monkeypatch.setattr(pass_module, "convert_where_written", lambda program, options: program)
    for one, other in zip(found, compiled(name, target, {}), strict=True):
        np.testing.assert_array_equal(one, other)
    before, after = programs["emit"], programs["convert_where_written"]
    assert copies(after) <= copies(before)
    if name == "weights":
        assert copies(after) < copies(before)
