"""Sums that are scattered where ranks take pieces of them, and exchanges that leave their loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, shard_map
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import glia
from glia.frontend.registry import read_module
from glia.graph.ir import Graph
from glia.graph.ops import Collective, While
from glia.graph.participants import evaluate_participants
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from ranks.jax_programs import piece, random

RANKS = 8
MESH = AbstractMesh((RANKS,), ("r",))
GRID = AbstractMesh((2, 4), ("d", "m"))
TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
Local = Callable[..., Any]


def lowered(local: Local, specs: tuple[P, ...], out: P, *shapes: tuple[int, ...], mesh=MESH) -> Any:
    mapped = shard_map(local, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    kinds = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return jax.jit(mapped).trace(*kinds).lower(lowering_platforms=("cpu",))


def moved(module: Any, strategy: str) -> Graph:
    options = CompileOptions("trn2", auto_cast="none", distribution_strategy=strategy)
    found = run_pipeline(read_module(module), options, stop_after="move_exchanges")
    assert isinstance(found, Graph)
    return found


def kinds_in(graph: Graph) -> list[str]:
    """The collectives of a graph, without those of its loops."""
    found = [node.kind for node in graph.nodes if isinstance(node, Collective)]
    return sorted(kind for kind in found if kind != "rank-id")


def bodies(graph: Graph) -> list[Graph]:
    return [node.body for node in graph.nodes if isinstance(node, While)]


def check_values(module: Any, specs: tuple[P, ...], strategy: str, mesh: Any = MESH) -> None:
    """The moved graph gives every rank what the module gives it."""
    graph = read_module(module)
    whole = [random(*parameter_shape(p, spec, mesh)) for p, spec in zip(
        graph.parameters, specs, strict=True)]  # fmt: skip
    inputs = [[piece(array, spec, mesh, rank) for array, spec in zip(whole, specs, strict=True)]
              for rank in range(RANKS)]  # fmt: skip
    before = evaluate_participants(moved(module, ""), inputs)
    after = evaluate_participants(moved(module, strategy), inputs)
    for ours, theirs in zip(after, before, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def parameter_shape(parameter: Any, spec: P, mesh: Any) -> tuple[int, ...]:
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    names = [*spec, *[None] * (len(parameter.shape) - len(spec))]
    return tuple(
        extent * sizes.get(name, 1) for extent, name in zip(parameter.shape, names, strict=True)
    )


# --- pieces ---------------------------------------------------------------------------------------


def own_piece(dimension: int, shift: int = 0, scale: float = 0.125) -> Local:
    def local(x: Any) -> Any:
        total = lax.psum(x, "r") * scale
        size = x.shape[dimension] // RANKS
        place = (lax.axis_index("r") + shift) % RANKS
        return lax.dynamic_slice_in_dim(total, place * size, size, dimension)

    return local


@pytest.mark.parametrize("strategy", ["llm-training", "fsdp", "nemo"])
@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("shift", [0, 3])
def test_a_sum_of_which_each_rank_takes_a_piece_is_scattered(
    dimension: int, shift: int, strategy: str
) -> None:
    specs = (P(),)
    module = lowered(own_piece(dimension, shift), specs, P("r"), (16, 24))
    assert kinds_in(moved(module, strategy)) == ["reduce-scatter"]
    check_values(module, specs, strategy)


def test_pieces_are_in_the_order_of_their_ranks_in_every_group() -> None:
    def local(x: Any) -> Any:
        total = lax.psum(x, "m")
        return lax.dynamic_slice_in_dim(total, (3 - lax.axis_index("m")) * 4, 4, 0)

    module = lowered(local, (P("d"),), P(("d", "m")), (32, 8), mesh=GRID)
    (scatter,) = [
        node for node in moved(module, "llm-training").nodes
        if isinstance(node, Collective) and node.kind == "reduce-scatter"
    ]  # fmt: skip
    assert scatter.replica_groups == ((3, 2, 1, 0), (7, 6, 5, 4))
    check_values(module, (P("d"),), "llm-training", GRID)


def same_piece(x: Any) -> Any:
    return lax.dynamic_slice_in_dim(lax.psum(x, "r"), 2, 2, 0)


def overlapping(x: Any) -> Any:
    return lax.dynamic_slice_in_dim(lax.psum(x, "r"), lax.axis_index("r"), 2, 0)


def also_whole(x: Any) -> Any:
    total = lax.psum(x, "r")
    return lax.dynamic_slice_in_dim(total, lax.axis_index("r") * 2, 2, 0) + total.sum()


def by_data(x: Any) -> Any:
    place = x[0, 0].astype(jnp.int32)
    return lax.dynamic_slice_in_dim(lax.psum(x, "r"), place * 2, 2, 0)


def greatest(x: Any) -> Any:
    total = lax.pmax(x, "r")
    return lax.dynamic_slice_in_dim(total, lax.axis_index("r") * 2, 2, 0)


def placed_by_a_sum(x: Any) -> Any:
    place = lax.psum(x[0, 0], "r").astype(jnp.int32)
    return lax.dynamic_slice(x, (lax.axis_index("r") * 2, place), (2, 8))


@pytest.mark.parametrize("local", [same_piece, overlapping, also_whole, by_data, placed_by_a_sum])
def test_a_sum_that_is_needed_whole_or_elsewhere_stays(local: Local) -> None:
    module = lowered(local, (P(),), P("r"), (16, 8))
    assert kinds_in(moved(module, "llm-training")) == ["all-reduce"]


def test_greatest_values_are_scattered_as_sums_are() -> None:
    module = lowered(greatest, (P(),), P("r"), (16, 8))
    assert kinds_in(moved(module, "llm-training")) == ["reduce-scatter"]
    check_values(module, (P(),), "llm-training")


# --- loops ----------------------------------------------------------------------------------------


def gradients(x: Any, w: Any) -> Any:
    """Sums over ranks, added up in a loop."""

    def step(i: Any, state: Any) -> Any:
        slope = jnp.tanh(x * (i + 1.0))
        return state + lax.psum(slope, "r") / RANKS

    return lax.fori_loop(0, 3, step, w)


def scattered_gradients(x: Any, w: Any) -> Any:
    def step(state: Any, row: Any) -> Any:
        slope = jnp.outer(row, row)
        return state + lax.psum_scatter(slope, "r", scatter_dimension=0, tiled=True), None

    return lax.scan(step, w, x)[0]


def gathered_weights(x: Any, w: Any) -> Any:
    def step(_: Any, state: Any) -> Any:
        return jnp.tanh(state @ lax.all_gather(jnp.sin(w), "r", axis=0, tiled=True))

    return lax.fori_loop(0, 3, step, x)


SUMMED = (lowered, gradients, (P("r"), P()), P(), (64, 16), (8, 16))
SCATTERED = (lowered, scattered_gradients, (P("r"), P("r")), P("r"), (24, 32), (32, 32))
GATHERED = (lowered, gathered_weights, (P("r"), P("r")), P("r"), (64, 32), (32, 32))


def module_of(case: tuple[Any, ...]) -> Any:
    make, local, specs, out, *shapes = case
    return make(local, specs, out, *shapes)


@pytest.mark.parametrize("strategy", ["llm-training", "fsdp", "nemo"])
def test_what_a_loop_adds_to_a_sum_is_exchanged_after_it(strategy: str) -> None:
    graph = moved(module_of(SUMMED), strategy)
    assert kinds_in(graph) == ["all-reduce"]
    assert [kinds_in(body) for body in bodies(graph)] == [[]]
    check_values(module_of(SUMMED), SUMMED[2], strategy)


@pytest.mark.parametrize("case", [SCATTERED, GATHERED], ids=["scattered", "gathered"])
def test_what_needs_more_memory_outside_of_a_loop_leaves_it_only_without_fsdp(case: Any) -> None:
    module = module_of(case)
    out, inside = (moved(module, strategy) for strategy in ("llm-training", "fsdp"))
    assert [kinds_in(body) for body in bodies(out)] == [[]] and len(kinds_in(out)) == 1
    assert [len(kinds_in(body)) for body in bodies(inside)] == [1] and kinds_in(inside) == []
    check_values(module, case[2], "llm-training")


def read_in_the_loop(x: Any, w: Any) -> Any:
    """What has been added so far is read by the next iteration."""

    def step(_: Any, state: Any) -> Any:
        return state + lax.psum(jnp.tanh(x + state), "r")

    return lax.fori_loop(0, 3, step, w)


def read_as_well(x: Any, w: Any) -> Any:
    def step(_: Any, state: Any) -> Any:
        total, most = state
        found = lax.psum(x, "r") * total[0, 0]
        more = lax.psum(x * most, "r")
        return total + more, most + jnp.max(more + found)

    return lax.fori_loop(0, 3, step, (w, w))[1]


def multiplied(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, state: state * lax.psum(x * i, "r"), w)


def of_a_function(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, s: s + jnp.tanh(lax.psum(x * i, "r")), w)


def greatest_so_far(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, state: state + lax.pmax(x * i, "r"), w)


@pytest.mark.parametrize("local", [read_in_the_loop, multiplied, of_a_function, greatest_so_far])
def test_an_exchange_that_iterations_depend_on_stays_in_its_loop(local: Local) -> None:
    module = lowered(local, (P("r"), P()), P(), (64, 16), (8, 16))
    graph = moved(module, "llm-training")
    assert [kinds_in(body) for body in bodies(graph)] == [["all-reduce"]]
    assert kinds_in(graph) == []


def test_only_what_is_alike_leaves_a_loop_of_several_exchanges() -> None:
    module = lowered(read_as_well, (P("r"), P()), P(), (64, 16), (8, 16))
    graph = moved(module, "llm-training")
    assert [kinds_in(body) for body in bodies(graph)] == [["all-reduce"]]
    assert kinds_in(graph) == ["all-reduce"]
    check_values(module, (P("r"), P()), "llm-training")


@pytest.mark.parametrize("number", range(6))
def test_moved_exchanges_run_on_every_target(number: int) -> None:
    case, target = (SUMMED, SCATTERED, GATHERED)[number % 3], TARGETS[number % len(TARGETS)]
    make, local, specs, out, *shapes = case
    whole = [random(*shape) for shape in shapes]
    inputs = [[piece(array, spec, MESH, rank) for array, spec in zip(whole, specs, strict=True)]
              for rank in range(RANKS)]  # fmt: skip
    found = []
    for strategy in ("", "llm-training"):
        neff = glia.compile(
            make(local, specs, out, *shapes), target=target, auto_cast="none",
            distribution_strategy=strategy,
        )  # fmt: skip
        assert neff.report["precision"]["distribution_strategy"] == strategy
        found.append(glia.load(neff, ranks=RANKS).run_ranks(inputs))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-4)
