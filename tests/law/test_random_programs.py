"""Random programs compute the same as graphs, as nests and on the machine, on every target.

Each seed is a program of a few operations with its inputs, target, optimisation level and casts.
`tools/random_programs.py` runs any range of seeds and makes a failing program small.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from glia.base.dtype import F32
from glia.graph import ops
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Parameter, TensorType
from glia.graph.ops.scalar_regions import combiner
from glia.graph.text import parse_graph
from support.random_graphs.cases import Case, random_case
from support.random_graphs.check import check
from support.random_graphs.grow import draw_array
from support.random_graphs.noise import mismatches, tolerances
from support.random_graphs.reduced import REDUCED
from support.random_graphs.shrink import shrink
from support.targets import CORES

SEEDS = 200
OF_REDUCED = 2  # a seed whose programs run on both executors, without alternatives of their own
NIGHTLY_SEEDS = 2000


def _failures(seeds: range) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = ((seed, check(random_case(seed))) for seed in seeds)
        return [f"seed {seed}: {failure}" for seed, failure in results if failure]


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_levels_agree_on_random_programs(first: int) -> None:
    assert _failures(range(first, first + 20)) == []


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", REDUCED)
def test_levels_agree_on_reduced_programs(name: str, target: str) -> None:
    graph = parse_graph(REDUCED[name])
    random = np.random.default_rng(1)
    arrays = tuple(draw_array(random, each.type, has_specials=True) for each in graph.parameters)
    for optlevel in (1, 2, 3):
        options = {"target": target, "optlevel": optlevel}
        assert check(Case(OF_REDUCED, graph, arrays, options)) is None


@pytest.mark.parametrize("seed", [4000837, 4002273, 4005466, 4005494, 5003729, 8037246])
def test_roundings_that_engines_leave_out_are_no_failure(seed: int) -> None:
    """What is left out, or rounded once, is far from the reference: in casts, and in a long sum."""
    assert _failures(range(seed, seed + 1)) == []


def test_a_product_that_leaves_the_range_beside_an_infinity_is_no_failure() -> None:
    """Whether the sum is infinite or none depends on the range of what is between."""
    assert _failures(range(5011338, 5011339)) == []


def test_a_complex_product_at_the_end_of_the_range_is_no_failure() -> None:
    """Both parts fit, the absolute value does not: the terms of a part may be infinite."""
    assert _failures(range(8054609, 8054610)) == []


def test_a_small_angle_of_complex_numbers_is_no_failure() -> None:
    """It is the logarithm of a number that is rounded near 1."""
    assert _failures(range(7012610, 7012611)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(SEEDS, NIGHTLY_SEEDS, 100))
def test_levels_agree_on_more_random_programs(first: int) -> None:
    assert _failures(range(first, first + 100)) == []


def test_a_seed_is_one_program() -> None:
    one, other = random_case(17), random_case(17)
    assert one.options == other.options
    for a, b in zip(one.arrays, other.arrays, strict=True):
        np.testing.assert_array_equal(a, b)


def test_programs_cover_the_operations() -> None:
    graphs = [random_case(seed).graph for seed in range(SEEDS)]
    found = {node.opcode for graph in graphs for node in graph.nodes}
    # Several devices, kernels, any value at all; a scan is made of windows and loops
    left_out = {"collective", "custom_call", "places", "rng", "scan"}
    assert {cls.opcode for cls in vars(ops).values() if hasattr(cls, "opcode")} - found <= left_out


def test_most_elements_of_random_programs_are_determined_closely() -> None:
    shares = []
    for seed in range(0, SEEDS, 10):
        case = random_case(seed)
        reference = [np.asarray(value) for value in _evaluated(case)]
        allowed = tolerances(case.graph, case.arrays, reference)
        for base, tolerance in zip(reference, allowed, strict=True):
            size = np.abs(base.astype(np.complex128)) if base.size else np.ones(1)
            near = tolerance <= 0.1 * np.where(np.isfinite(size), size, 1) + 1e-6
            shares.append(float(np.mean(near)) if base.size else 1.0)
    assert np.mean(shares) > 0.85


def _evaluated(case: Case) -> list[np.ndarray]:
    return evaluate(case.graph, case.arrays)


def _chain() -> Case:
    x = Parameter(0, TensorType(F32, (4, 3)), "x")
    total = ops.Map("subtract", (ops.Map("add", (x, x)), x))
    graph = Graph("chain", (x,), (ops.Map("floor", (total,)), ops.Map("exp", (total,))))
    values = np.array([[1.0, 2.5, -0.5], [1e8, 0.25, 3.0], [-7.25, 0.0, 9.5], [2, 4, 6]])
    return Case(0, graph, (values.astype(np.float32),), {})


def test_tolerances_are_wide_at_a_jump_and_narrow_elsewhere() -> None:
    case = _chain()
    whole, power = _evaluated(case)
    for_whole, for_power = tolerances(case.graph, case.arrays, [whole, power])
    assert for_whole[0, 0] >= 1, "1.0 may be a little less, and then its floor is 0"
    assert for_whole[0, 1] < 1e-4, "2.5 is far from a jump"
    assert for_power[0, 1] < 1e-3 * power[0, 1]
    assert not mismatches(power, power, for_power).any()
    assert mismatches(power * np.float32(1.01), power, for_power).any()


def test_a_product_is_undetermined_where_its_order_decides_whether_it_overflows() -> None:
    x = Parameter(0, TensorType(F32, (2, 4)), "x")
    one = ops.Constant(np.array(1, np.float32))
    graph = Graph("product", (x,), (ops.Reduce((x,), (one,), (1,), combiner("multiply", F32)),))
    values = np.array([[1e-20, 1e30, 1e-20, 1e30], [0.5, 2.0, 3.0, 4.0]], np.float32)
    (product,) = evaluate(graph, [values])
    (allowed,) = tolerances(graph, [values], [product])
    assert np.isinf(allowed[0])
    assert allowed[1] < 1e-3


def test_a_failing_program_is_made_small() -> None:
    case = next(c for c in map(random_case, range(1000)) if len(c.graph.nodes) > 9
                and any(n.opcode == "transpose" for n in c.graph.nodes))  # fmt: skip
    small = shrink(case, lambda c: any(n.opcode == "transpose" for n in c.graph.nodes))
    opcodes = [node.opcode for node in small.graph.nodes]
    assert "transpose" in opcodes
    assert len(opcodes) <= 4
    assert len(small.graph.parameters) == len(small.arrays)
    _evaluated(small)
