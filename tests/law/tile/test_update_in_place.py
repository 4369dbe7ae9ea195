"""Results in the place of donated inputs: same values, no copies where none are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.compiler import compile_graph
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.evaluate import evaluate
from glia.tile.passes.update_in_place import update_in_place
from support.targets import CORES

NO_CASTS = CompileOptions(auto_cast="none")
Function = Callable[..., Any]


def _adam(p: Any, m: Any, v: Any, g: Any) -> tuple[Any, ...]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-4), m, v


def _append(cache: Any, row: Any) -> tuple[Any, Any]:
    position = jnp.abs(row[0, 0]).astype(np.int32)
    cache = jax.lax.dynamic_update_slice(cache, row, (position, 0))
    return cache, cache.sum(0)


def _descend(w: Any, x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, w: w - 0.01 * (x.T @ (x @ w)), w)


def _read_again(x: Any, y: Any) -> tuple[Any, Any]:
    moved = x + y
    return moved, x * moved.sum(1)[:, None]


# By name: a function, its arguments, those that are donated, and the copies that stay
PROGRAMS: dict[str, tuple[Function, int, tuple[int, ...], int]] = {
    "element by element": (lambda x, y: x * 2 + y, 2, (0,), 0),
    "optimizer": (_adam, 4, (0, 1, 2), 0),
    "one row of a cache": (_append, 2, (0,), 0),
    "result of a contraction, in its last step": (lambda x, y: x - y @ y, 2, (0,), 0),
    "state of a loop": (_descend, 2, (0,), 0),
    "read before by a sum of rows": (lambda x: x + x.sum(0), 1, (0,), 0),
    "rolled, then scaled": (lambda x: jnp.roll(x, 1, 1) * 3, 1, (0,), 0),
    "reversed": (lambda x: x[::-1] + 1, 1, (0,), 1),
    "transposed": (lambda x: x.T + x, 1, (0,), 1),
    "read by a contraction": (lambda x: x @ x, 1, (0,), 1),
    "read later": (_read_again, 2, (0,), 1),
    "exchanged": (lambda x, y: (y + 1, x * 2), 2, (0, 1), 1),
    "both read by both": (lambda x, y: (x + y, x - y), 2, (0, 1), 1),
}


def _arguments(function: Function, count: int, edge: int) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    arrays = [generator.standard_normal((edge, edge)).astype(np.float32) for _ in range(count)]
    if function is _append:
        arrays[1] = np.full((1, edge), 3, np.float32)
    return [*map(np.abs, arrays)]


def _lowered(name: str, edge: int) -> tuple[Any, list[np.ndarray]]:
    function, count, donated, _ = PROGRAMS[name]
    arrays = _arguments(function, count, edge)
    return jax.jit(function, donate_argnums=donated).lower(*arrays), arrays


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_donation_changes_no_value(name: str, target: str) -> None:
    lowered, arrays = _lowered(name, 72)
    graph, options = (
        read_module(lowered),
        CompileOptions(target=target, auto_cast="none", verify=True),
    )
    wanted = jax.tree.leaves(jax.jit(PROGRAMS[name][0])(*arrays))
    nests = run_pipeline(graph, options, stop_after="update_in_place")
    neff = compile_graph(graph, options)
    before = [array.copy() for array in arrays]
    for found in (
        evaluate(nests, arrays),
        glia.load(neff)(*arrays),
        glia.load(neff, device="adversarial")(*arrays),
    ):
        for value, goal in zip(found, wanted, strict=True):
            np.testing.assert_allclose(value, goal, rtol=2e-5, atol=1e-4)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)  # the caller's arrays stay


@pytest.mark.parametrize("name", PROGRAMS)
def test_copies_stay_only_where_old_elements_are_needed_elsewhere(name: str) -> None:
    graph = read_module(_lowered(name, 72)[0])
    nests = update_in_place(run_pipeline(graph, NO_CASTS, stop_after="schedule_nests"))
    ends = {output for output, _ in nests.aliases}
    copies = [n for n in nests.nests() if n.name.startswith("copy") and n.target.buffer in ends]
    assert len(copies) == PROGRAMS[name][3]


def test_an_output_and_the_input_it_aliases_are_one_tensor_of_the_machine() -> None:
    lowered, _ = _lowered("optimizer", 72)
    neff = glia.compile(lowered)
    tiles = [[each.tile for each in bindings] for bindings in (neff.inputs, neff.outputs)]
    assert tiles[0][:3] == tiles[1]
    assert len({tile.name for tile in tiles[0]}) == 4


def test_a_large_cache_is_not_copied() -> None:
    """A nest that moves so much that it is a group of its own is a copy like others."""
    cache = jax.ShapeDtypeStruct((4096, 1024), np.float32)
    row = jax.ShapeDtypeStruct((1, 1024), np.float32)
    graph = read_module(jax.jit(_append, donate_argnums=0).lower(cache, row))
    before = run_pipeline(graph, NO_CASTS, stop_after="choose_layouts")
    assert any(n.name.startswith("copy") for n in before.nests()) and before.groups
    after = update_in_place(before)
    names = {nest.name for nest in after.nests()}
    assert not any(name.startswith("copy") for name in names)
    assert names >= {member.nest for group in after.groups for _, member in group.members()}
