"""Operations that StableHLO's client dialect brought to HLO: mulhi, scan and ragged-dot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from glia.compiler import compile_graph
from glia.frontend.errors import VerificationFailed
from glia.frontend.stablehlo import import_stablehlo
from glia.graph.evaluate import evaluate
from glia.options import CompileOptions
from glia.runtime.model import load
from support.targets import CORES

WIDTHS = {np.dtype(f"{kind}{size}"): f"{'u' if kind == 'u' else ''}i{8 * size}"
          for kind in "iu" for size in (1, 2, 4, 8)}  # fmt: skip
ROWS = np.random.default_rng(0).standard_normal((11, 5)).astype(np.float32)
TABLE = np.random.default_rng(1).standard_normal((3, 5, 7)).astype(np.float32)


def run(text: str, inputs: Sequence[np.ndarray], target: str) -> list[np.ndarray]:
    options = CompileOptions(target=target, auto_cast="none")
    model = load(compile_graph(import_stablehlo(text), options))
    names = (binding.name for binding in model.inputs)
    return list(model.run(dict(zip(names, inputs, strict=True))).values())


def multiply_high(dtype: np.dtype) -> tuple[str, list[np.ndarray], np.ndarray]:
    limits = np.iinfo(dtype)
    edges = [limits.min, limits.min + 1, -1 if limits.min else 1, 0, 1, 3, limits.max]
    generator = np.random.default_rng(2)
    a = np.array([x for x in edges for _ in edges], dtype)
    b = np.array(edges * len(edges), dtype)
    more = generator.integers(limits.min, limits.max, (2, 40), dtype, endpoint=True)
    a, b = np.concatenate([a, more[0]]), np.concatenate([b, more[1]])
    kind = f"tensor<{len(a)}x{WIDTHS[dtype]}>"
    text = f"""func.func @main(%a: {kind}, %b: {kind}) -> {kind} {{
      %0 = "chlo.mulhi"(%a, %b) : ({kind}, {kind}) -> {kind}
      return %0 : {kind}
    }}"""
    bits = 8 * dtype.itemsize
    wanted = [int(x) * int(y) >> bits for x, y in zip(a, b, strict=True)]
    return text, [a, b], np.array(wanted, dtype)


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
def test_mulhi_is_the_upper_half_of_a_product(dtype: np.dtype) -> None:
    text, inputs, wanted = multiply_high(dtype)
    assert np.array_equal(evaluate(import_stablehlo(text), inputs)[0], wanted)


@pytest.mark.parametrize("target", CORES)
def test_mulhi_of_words_on_every_target(target: str) -> None:
    for dtype in (np.dtype("i4"), np.dtype("u4")):
        text, inputs, wanted = multiply_high(dtype)
        assert np.array_equal(run(text, inputs, target)[0], wanted)


def scan(shape: str, carry: str, dimension: int, attributes: str = "") -> str:
    """A cumulative sum that also gives every element's double."""
    result = f"(tensor<{shape}xf32>, tensor<{shape}xf32>, tensor<{carry}f32>)"
    return f"""func.func @main(%x: tensor<{shape}xf32>, %c: tensor<{carry}f32>) -> {result} {{
      %0:3 = chlo.scan(%x) inits(%c) dimension={dimension} {attributes} {{
      ^bb0(%e: tensor<{carry}f32>, %s: tensor<{carry}f32>):
        %sum = stablehlo.add %e, %s : tensor<{carry}f32>
        %two = stablehlo.add %e, %e : tensor<{carry}f32>
        stablehlo.return %sum, %two, %sum
          : tensor<{carry}f32>, tensor<{carry}f32>, tensor<{carry}f32>
      }} : (tensor<{shape}xf32>, tensor<{carry}f32>) -> {result}
      return %0#0, %0#1, %0#2 : tensor<{shape}xf32>, tensor<{shape}xf32>, tensor<{carry}f32>
    }}"""


@pytest.mark.parametrize("target", CORES)
def test_scan_hands_its_carry_from_step_to_step(target: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    start = np.array([1, 2, 3], np.float32)
    sums, doubles, last = run(scan("3x4", "3x", 1), [x, start], target)
    np.testing.assert_array_equal(sums, start[:, None] + np.cumsum(x, axis=1))
    np.testing.assert_array_equal(doubles, 2 * x)
    np.testing.assert_array_equal(last, sums[:, -1])


def test_scan_runs_backwards() -> None:
    x, start = np.array([1, 2, 4, 8], np.float32), np.float32(0.5)
    text = scan("4", "", 0, "attributes {is_reverse = true}")
    sums, _, last = evaluate(import_stablehlo(text), [x, np.asarray(start)])
    np.testing.assert_array_equal(sums, [15.5, 14.5, 12.5, 8.5])
    assert last == 15.5


def ragged(a: str, b: str, result: str, numbers: str) -> str:
    return f"""func.func @main(%a: tensor<{a}xf32>, %b: tensor<{b}xf32>, %s: tensor<3xi32>)
        -> tensor<{result}xf32> {{
      %0 = "chlo.ragged_dot"(%a, %b, %s) {{
        ragged_dot_dimension_numbers = #chlo.ragged_dot<{numbers}>,
        precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>]
      }} : (tensor<{a}xf32>, tensor<{b}xf32>, tensor<3xi32>) -> tensor<{result}xf32>
      return %0 : tensor<{result}xf32>
    }}"""


OF_ROWS = ragged(
    "11x5",
    "3x5x7",
    "11x7",
    """
    lhs_batching_dimensions = [], rhs_batching_dimensions = [],
    lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1],
    lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]""",
)
OF_DEPTH = ragged(
    "4x11",
    "11x7",
    "3x4x7",
    """
    lhs_batching_dimensions = [], rhs_batching_dimensions = [],
    lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0],
    lhs_ragged_dimensions = [1], rhs_group_dimensions = []""",
)


@pytest.mark.parametrize("target", CORES)
def test_every_group_of_rows_has_its_own_matrix(target: str) -> None:
    table = TABLE.copy()
    table[1, 0, 0] = np.inf  # of a group that has no rows
    sizes = np.array([4, 0, 5], np.int32)
    wanted = np.concatenate([ROWS[:4] @ table[0], ROWS[4:9] @ table[2], np.zeros((2, 7))])
    (found,) = run(OF_ROWS, [ROWS, table, sizes], target)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_every_group_of_the_contracted_dimension_has_its_own_product() -> None:
    a, b = ROWS.reshape(5, 11)[:4], np.tile(ROWS[:, :1], (1, 7))
    b[9:] = np.nan  # of no group
    (found,) = evaluate(import_stablehlo(OF_DEPTH), [a, b, np.array([4, 0, 5], np.int32)])
    wanted = [a[:, :4] @ b[:4], np.zeros((4, 7)), a[:, 4:9] @ b[4:9]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_sizes_of_groups_for_each_batch_are_refused() -> None:
    numbers = """
        lhs_batching_dimensions = [0], rhs_batching_dimensions = [1],
        lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2],
        lhs_ragged_dimensions = [1], rhs_group_dimensions = [0]"""
    text = ragged("2x11x5", "3x2x5x7", "2x11x7", numbers)
    with pytest.raises(VerificationFailed, match=r"sizes s32\[2,3\]"):
        import_stablehlo(text.replace("tensor<3xi32>", "tensor<2x3xi32>"))
