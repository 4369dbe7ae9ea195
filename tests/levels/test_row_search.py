"""Nests that search rows: their law and text, and what they find on every target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import glia
from glia.base.affine import Affine
from glia.base.dtype import BF16, F16, F32, S32, U32, DType, from_numpy
from glia.base.errors import InternalError
from glia.compiler import compile_graph
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.rules.constructors import apply, pick, places, reshape, splat_like
from glia.isa.instructions.gpsimd_gather import NcNGather
from glia.machine.ir import walk
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile import evaluate as tile_evaluate
from glia.tile.ir import Nest, Program
from glia.tile.legal import verify
from glia.tile.row_search import picked, search_tiles
from glia.tile.text import parse_program, print_program
from support.targets import CORES

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(8)


def graph_of(build: Callable[..., Node], *arrays: Array) -> Graph:
    kinds = [TensorType(from_numpy(each.dtype), each.shape) for each in arrays]
    parameters = tuple(Parameter(i, kind, f"x{i}") for i, kind in enumerate(kinds))
    return Graph("rows", parameters, (build(*parameters),))


def equals(*shape: int) -> Array:
    """Whole numbers, many of them equal."""
    return RNG.integers(-9, 9, shape).astype(np.float32)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize(
    ("shape", "count"), [((128, 64), 64), ((5, 3), 2), ((200, 40), 9), ((2, 3, 20), 7), ((30,), 8)]
)
def test_places_are_found_and_what_is_there(
    target: str, shape: tuple[int, ...], count: int
) -> None:
    x = equals(*shape)
    graph = graph_of(lambda x: pick(x, places(x, count)), x)
    neff = compile_graph(graph, CompileOptions(target=target, verify=True))
    assert any(isinstance(each, NcNGather) for each in walk(neff.program.body))
    (found,) = glia.load(neff)(x)
    np.testing.assert_array_equal(found, -np.sort(-x, axis=-1)[..., :count])
    np.testing.assert_array_equal(found, evaluate(graph, [x])[0])


def test_long_searches_are_loops() -> None:
    x = equals(4, 300)
    (found,) = glia.load(compile_graph(graph_of(lambda x: places(x, 290), x), CompileOptions()))(x)
    np.testing.assert_array_equal(found, np.argsort(-x, kind="stable")[:, :290])


@pytest.mark.parametrize("dtype", [F32, BF16, F16, S32, U32], ids=repr)
def test_elements_keep_their_bits(dtype: DType) -> None:
    bits = RNG.integers(0, 1 << min(32, dtype.bits), (40, 64), np.uint64)
    x = bits.astype(f"u{dtype.bytes}").view(dtype.numpy)
    graph = graph_of(lambda x, y: pick(x, places(y, 20)), x, order := equals(40, 64))
    (found,) = glia.load(compile_graph(graph, CompileOptions(verify=True)))(x, order)
    assert found.tobytes() == evaluate(graph, [x, order])[0].tobytes()


def program_of(build: Callable[..., Node], *arrays: Array) -> Program:
    """Its nests under their schedules."""
    options = CompileOptions()
    found = run_pipeline(graph_of(build, *arrays), options, stop_after="schedule_nests")
    assert isinstance(found, Program)
    return found


def test_searches_are_read_back_and_evaluate_as_graphs() -> None:
    x = equals(6, 40)
    graph = graph_of(lambda x: pick(x, places(x, 9)), x)
    program = run_pipeline(graph, CompileOptions(), stop_after="schedule_nests")
    assert print_program(parse_program(print_program(program))) == print_program(program)
    (found,) = tile_evaluate.evaluate(program, [x])
    np.testing.assert_array_equal(found, evaluate(graph, [x])[0])


def test_a_place_that_may_be_outside_is_left_to_dma() -> None:
    """DMA reports it."""
    x, at = equals(40, 64), RNG.integers(0, 64, (40, 20)).astype(np.int32)
    assert not any(picked(nest) for nest in program_of(pick, x, at).nests())

    def inside(x: Node, at: Node) -> Node:
        return pick(
            x, apply("minimum", apply("maximum", at, splat_like(0, at)), splat_like(63, at))
        )

    assert any(picked(nest) for nest in program_of(inside, x, at).nests())


def test_ranks_that_are_reshaped_stay_one_axis() -> None:
    x = equals(6, 40)
    graph = graph_of(lambda x: reshape(places(x, 8), (3, 2, 2, 4)), x)
    (found,) = glia.load(compile_graph(graph, CompileOptions(verify=True)))(x)
    np.testing.assert_array_equal(found, evaluate(graph, [x])[0])


def searching_nest() -> tuple[Program, Nest]:
    program = program_of(lambda x: places(x, 8), equals(6, 40))
    (nest,) = program.nests()
    return program, nest


def broken(change: Callable[[Nest], Nest]) -> None:
    program, nest = searching_nest()
    verify(program)
    with pytest.raises(InternalError):
        verify(replace(program, body=(change(nest),)))


def test_a_search_has_a_rank_that_its_rows_do_not_depend_on() -> None:
    def of_rank(nest: Nest) -> Nest:
        assert nest.reduction is not None
        row = replace(nest.body, index=(Affine.of(nest.reduction.rank) * 0 + "i1", Affine.of("k")))
        return replace(nest, body=row)

    broken(of_rank)


@pytest.mark.parametrize(
    "change", [{"rank": "k"}, {"rank": "missing"}, {"dtype": F32}, {"function": "maximum"}]
)
def test_ranks_count_places_of_floats_along_an_axis_that_stays(change: dict[str, Any]) -> None:
    broken(lambda nest: replace(nest, reduction=replace(nest.reduction, **change)))


def test_a_row_is_never_cut() -> None:
    _, nest = searching_nest()
    tiles = search_tiles(nest, "i0")
    assert tiles == {"i0": 6, "i1": 8, "k": 40}
