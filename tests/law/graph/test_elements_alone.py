"""What is computed for single elements of rows alone has the same bits as where all is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.frontend.registry import read_module
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph
from glia.graph.ops import Gather, Map, Reduce, Scatter
from glia.graph.passes.compute_elements_alone import compute_elements_alone
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from support.targets import CORES

ROWS, COLUMNS = 6, 96
BEFORE = "eliminate_common_subexpressions"


def _loss(x: Any, at: Any) -> Any:
    chosen = jax.nn.log_softmax(x)
    return -jnp.take_along_axis(chosen, at[:, None], -1).mean()


def _gradient(x: Any, at: Any) -> Any:
    return jax.grad(_loss)(x, at)


def _loss_and_gradient(x: Any, at: Any) -> Any:
    return jax.value_and_grad(_loss)(x[:, 1:], at)


def _rounded_gradient(x: Any, at: Any) -> Any:
    """In bfloat16, of all rows but the first, with zeros in its place."""
    found = jax.grad(_loss)(x[1:].astype(jnp.float32), at[1:])
    return jnp.pad(found.astype(jnp.bfloat16), ((1, 0), (0, 0)))


def _one_hot(x: Any, at: Any) -> Any:
    """One of each row of zeros, scaled, added to and compared."""
    hot = jnp.zeros_like(x).at[jnp.arange(len(at)), at].add(2.5)
    return (hot * 3 + x, (-hot).sum(1), jnp.where(x > 0, hot, x))


def _replaced(x: Any, at: Any) -> Any:
    """One of each row replaced, of a result that nothing else reads."""
    y = jnp.tanh(x).at[jnp.arange(len(at)), at].set(7.0)
    return jnp.exp(y)


def _of_scaled_rows(x: Any, at: Any) -> Any:
    return jnp.take_along_axis(x * 2 - x.max(1, keepdims=True), at[:, None], 1), x.sum(1)


def _several_of_a_row(x: Any, at: Any) -> Any:
    """Two elements of each row, so that some meet."""
    both = jnp.stack([at, at[::-1]], 1)
    return jnp.zeros_like(x).at[jnp.arange(len(at))[:, None], both].add(1.5) * 2 + x


def _of_no_places(x: Any, at: Any) -> Any:
    return jnp.take_along_axis(x * 2, at[:, None][:, :0], 1), x.sum(1)


def _of_two_tensors(x: Any, at: Any) -> Any:
    return jnp.take_along_axis(jnp.sin(x) * jnp.cos(x[::-1]), at[:, None], 1)


CASES: dict[str, Callable[..., Any]] = {
    function.__name__.strip("_"): function
    for function in (_gradient, _loss_and_gradient, _rounded_gradient, _one_hot, _replaced,
                     _of_scaled_rows, _several_of_a_row, _of_no_places, _of_two_tensors)
}  # fmt: skip


@dataclass(frozen=True)
class Places:
    """Columns that are asked for; some may lie outside."""

    name: str
    low: int
    high: int

    def drawn(self) -> np.ndarray:
        return np.random.default_rng(3).integers(self.low, self.high, ROWS).astype(np.int32)


PLACES = (Places("inside", 0, COLUMNS - 1), Places("some outside", -2 * COLUMNS, 2 * COLUMNS))


def _inputs(places: Places) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).standard_normal((ROWS, COLUMNS), np.float32)
    x[2, 5] = -0.0
    return x, places.drawn()


def _graph(name: str) -> Graph:
    x = jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32)
    at = jax.ShapeDtypeStruct((ROWS,), jnp.int32)
    graph = read_module(jax.jit(CASES[name]).lower(x, at))
    found = run_pipeline(graph, CompileOptions(), stop_after=BEFORE)
    assert isinstance(found, Graph)
    return found


@pytest.mark.parametrize("places", PLACES, ids=lambda each: each.name)
@pytest.mark.parametrize("name", CASES)
def test_every_bit_of_a_result_is_kept(name: str, places: Places) -> None:
    graph, inputs = _graph(name), _inputs(places)
    changed = compute_elements_alone(graph, CompileOptions())
    for found, wanted in zip(evaluate(changed, inputs), evaluate(graph, inputs), strict=True):
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


@pytest.mark.filterwarnings("ignore::glia.runtime.model.OutOfBoundAccess")
@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", CASES)
def test_devices_compute_what_jax_computes(name: str, target: str) -> None:
    for places in PLACES:
        x, at = _inputs(places)
        neff = glia.compile(jax.jit(CASES[name]).lower(x, at), target=target, verify=True)
        wanted = jax.tree.leaves(CASES[name](x, at))
        for found, right in zip(glia.load(neff)(x, at), wanted, strict=True):
            a, b = (np.asarray(each).astype(np.float32) for each in (found, right))
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def _whole(graph: Graph, kind: type) -> list[Any]:
    """The operations of a kind on as many elements as there are, or nearly."""
    sizes = [(node, node.operands[0].shape) for node in graph.nodes if isinstance(node, kind)]
    return [node for node, shape in sizes if np.prod(shape) >= ROWS * (COLUMNS - 1)]


def test_a_loss_and_its_gradient_take_no_row_of_logarithms_and_no_row_of_zeros() -> None:
    graph = _graph("loss_and_gradient")
    changed = compute_elements_alone(graph, CompileOptions())
    assert len(_whole(graph, Reduce)) == 3 and len(_whole(changed, Reduce)) == 2
    (scatter,) = (node for node in changed.nodes if isinstance(node, Scatter))
    assert isinstance(scatter.xs[0], Map)  # all but the ones: no zeros are written and read
    for gather in (node for node in changed.nodes if isinstance(node, Gather)):
        assert not isinstance(gather.x, Map)
        assert str(gather.loc)  # what reports a place outside names the line


@pytest.mark.parametrize("name", ["several_of_a_row", "of_two_tensors"])
def test_what_would_take_more_reads_or_another_order_stays(name: str) -> None:
    graph = _graph(name)
    assert compute_elements_alone(graph, CompileOptions()) is graph


def test_places_outside_are_reported_as_before() -> None:
    x, at = _inputs(PLACES[1])
    at[0] = 3 * COLUMNS
    model = glia.load(glia.compile(jax.jit(_gradient).lower(x, at)))
    with pytest.warns(glia.runtime.model.OutOfBoundAccess):
        model(x, at)
    assert {note.index for note in model.notifications} >= {3 * COLUMNS}
