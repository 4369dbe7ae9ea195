"""Every equation of the graph level applies to its example and keeps every value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from glia.base.dtype import BF16, F32, PRED, S8, S16, S32, U8, U32, DType
from glia.base.errors import InternalError
from glia.base.loc import Loc
from glia.graph.evaluate import evaluate, random_inputs
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import (
    Bitcast,
    Broadcast,
    Concatenate,
    Conditional,
    Constant,
    Convert,
    Convolution,
    Dot,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Get,
    Iota,
    Map,
    Pad,
    Reduce,
    ReducePrecision,
    ReduceWindow,
    Reshape,
    Reverse,
    Slice,
    Transpose,
    While,
)
from glia.graph.ops.scalar_regions import combiner, identity, scalar_graph
from glia.graph.passes import cast_dtypes
from glia.graph.rules import algebra, control_flow, dot, movement, reduction
from glia.graph.rules.constructors import broadcast, constant, counted_loop, splat
from glia.graph.rules.driver import LONGEST_CHAIN, RewriteRule, apply_rules, rule
from support.graph_passes_kit import assert_same, check_rule, graph_of

RULES = {
    each.name: each
    for module in (movement, control_flow, algebra, reduction, dot, cast_dtypes)
    for each in module.RULES
}


@dataclass(frozen=True)
class Example:
    """Parameter types and what to build from them so that a rule applies."""

    types: tuple[TensorType, ...]
    build: Callable[..., Node | tuple[Node, ...]]
    tolerance: float = 0.0


EXAMPLES: dict[str, list[Example]] = {}


def t(*shape: int, dtype: DType = F32) -> TensorType:
    """A tensor type, float32 unless told."""
    return TensorType(dtype, shape)


def example(name: str, build: Callable[..., object], *types: TensorType, close: float = 0) -> None:
    """Enter an example of the rule `name`."""
    EXAMPLES.setdefault(name, []).append(Example(types, build, close))  # type: ignore[arg-type]


def f(function: str, *args: Node) -> Node:
    """A scalar function of tensors."""
    return Map(function, args)


def like(value: float, x: Node) -> Node:
    """A constant of the type of x."""
    return splat(value, x.dtype, x.shape)


def movement_examples() -> None:
    """One for each rule of `movement`."""
    box = t(2, 3, 4)
    example("drop_identity_transpose", lambda x: Transpose(x, (0, 1, 2)), box)
    example("merge_transposes", lambda x: Transpose(Transpose(x, (1, 2, 0)), (0, 2, 1)), box)
    example(
        "transpose_of_broadcast",
        lambda x: Transpose(Broadcast(x, (2, 3, 4, 5), (0, 1, 2)), (3, 1, 0, 2)),
        box,
    )
    example("transpose_that_keeps_order", lambda x: Transpose(x, (1, 0, 2)), t(2, 1, 4))
    example("drop_identity_reshape", lambda x: Reshape(x, (2, 3, 4)), box)
    example("merge_reshapes", lambda x: Reshape(Reshape(x, (6, 4)), (3, 8)), box)
    example("reshape_of_splat", lambda x: Reshape(Broadcast(x, (2, 6), ()), (3, 4)), t())
    example(
        "reshape_of_broadcast",
        lambda x: Reshape(Broadcast(x, (2, 1, 5, 3), (0, 3)), (1, 2, 5, 3, 1)),
        t(2, 3),
    )
    example("reshape_of_broadcast", lambda x: Reshape(Broadcast(x, (1, 4), (0, 1)), (4,)), t(1, 1))
    example("drop_identity_broadcast", lambda x: Broadcast(x, (2, 3, 4), (0, 1, 2)), box)
    example(
        "merge_broadcasts",
        lambda x: Broadcast(Broadcast(x, (2, 3), (0, 1)), (3, 5, 2), (2, 0)),
        t(2, 1),
    )
    example("broadcast_that_adds_ones", lambda x: Broadcast(x, (3, 1, 2), (2, 0)), t(2, 3))
    example("sort_broadcast_dimensions", lambda x: Broadcast(x, (3, 5, 2), (2, 0)), t(2, 3))
    example("squeeze_broadcast_operand", lambda x: Broadcast(x, (2, 4, 3), (0, 1, 2)), t(2, 1, 3))
    example("drop_identity_slice", lambda x: Slice(x, (0, 0), (2, 3), (1, 1)), t(2, 3))
    example("drop_identity_slice", lambda x: Slice(x, (0, 0), (1, 3), (4, 1)), t(1, 3))
    example(
        "merge_slices",
        lambda x: Slice(Slice(x, (1, 2), (9, 12), (2, 3)), (1, 0), (4, 4), (2, 2)),
        t(9, 12),
    )
    example(
        "slice_of_broadcast",
        lambda x: Slice(Broadcast(x, (4, 5, 6), (0, 2)), (1, 0, 2), (4, 3, 6), (2, 1, 3)),
        t(1, 6),
    )


def edge_examples() -> None:
    """One for each rule of `movement` on slices of wholes, paddings and parts."""
    for start, limit, stride in ((0, 2, 1), (1, 8, 3), (2, 9, 2), (5, 9, 1), (4, 5, 7)):
        example(
            "slice_of_concatenation",
            lambda x, y, z, a=start, b=limit, s=stride: Slice(
                Concatenate((x, y, z), 1), (0, a), (2, b), (1, s)
            ),
            t(2, 3),
            t(2, 1),
            t(2, 5),
        )
    zero = constant(0.5, F32)
    for start, limit in ((0, 2), (2, 5), (5, 7)):
        example(
            "slice_of_padding",
            lambda x, a=start, b=limit: Slice(Pad(x, zero, (2,), (2,), (0,)), (a,), (b,), (1,)),
            t(3),
        )
    example(
        "slice_of_reshape",
        lambda x: Slice(Reshape(x, (4, 1, 6)), (1, 0, 2), (4, 1, 6), (2, 1, 1)),
        t(4, 6),
    )
    example("reverse_without_effect", lambda x: Reverse(x, (0, 1)), t(1, 3))
    example("merge_reverses", lambda x: Reverse(Reverse(x, (0, 1)), (1,)), t(2, 3))
    example("reverse_of_broadcast", lambda x: Reverse(Broadcast(x, (2, 3), (1,)), (0, 1)), t(3))
    example("drop_identity_padding", lambda x: Pad(x, zero, (0,), (0,), (2,)), t(1))
    example("padding_of_nothing", lambda x: Pad(x, zero, (1, 0), (1, 0), (0, 0)), t(0, 2))
    example("padding_that_crops", lambda x: Pad(x, zero, (-1, 2), (3, -4), (2, 1)), t(3, 4))
    example("padding_that_crops", lambda x: Pad(x, zero, (-2,), (-3,), (0,)), t(8))
    example(
        "merge_paddings",
        lambda x: Pad(Pad(x, zero, (1,), (0,), (0,)), zero, (2,), (3,), (0,)),
        t(3),
    )
    example("concatenation_of_one", lambda x, y: Concatenate((x, y), 0), t(2, 3), t(0, 3))
    example(
        "merge_concatenations", lambda x, y: Concatenate((Concatenate((x, y), 0), x), 0), t(2), t(3)
    )
    example(
        "rejoin_slices",
        lambda x: Concatenate((Slice(x, (0,), (3,), (1,)), Slice(x, (3,), (5,), (1,))), 0),
        t(6),
    )
    example(
        "concatenation_of_splats",
        lambda: Concatenate((splat(2, F32, (2,)), splat(2, F32, (3,))), 0),
    )
    example("constant_of_one_value", lambda: constant(np.full((2, 3), -0.0), F32))
    example("tensor_without_elements", lambda x: f("exp", x), t(0, 3))


def _counting(extra: TensorType, limit: int = 3) -> Callable[..., Node]:
    """A loop over (i, extra) that adds the second state, which it keeps, to the first."""

    def build(x: Node) -> Node:
        kinds = (TensorType(S32), TensorType(S32), extra)
        p = tuple(Parameter(i, kind) for i, kind in enumerate(kinds))
        body = Graph("body", p, (f("add", p[0], p[1]), p[1], p[2]))
        q = tuple(Parameter(i, kind) for i, kind in enumerate(kinds))
        more = Graph("more", q, (f("less", q[0], constant(limit, S32)),))
        return While((constant(0, S32), constant(1, S32), x), more, body)

    return build


def structure_examples() -> None:
    """One for each rule of `structure`."""
    example("get_of_loop_invariant", lambda x: Get(_counting(t(2))(x), 2), t(2))
    example("propagate_known_state", lambda x: Get(_counting(t(2))(x), 0), t(2))
    example("loop_never_entered", lambda x: _counting(t(2), limit=0)(x), t(2))
    example("drop_identity_convert", lambda x: Convert(x, F32), t(3))
    example("drop_identity_bitcast", lambda x: Bitcast(x, F32), t(3))
    example("merge_bitcasts", lambda x: Bitcast(Bitcast(x, U32), S32), t(3))
    example("merge_bitcasts", lambda x: Bitcast(Bitcast(x, U32), U8), t(3))
    example("merge_bitcasts", lambda x: Bitcast(Bitcast(x, U8), S8), t(3))
    example("merge_bitcasts", lambda x: Bitcast(Bitcast(x, U8), F32), t(3))
    example("drop_identity_precision", lambda x: ReducePrecision(x, 8, 23), t(9))
    example("drop_copy", lambda x: f("copy", x), t(3))
    for truth in (True, False):
        example(
            "select_by_constant",
            lambda x, y, p=truth: f("select", splat(p, PRED, (3,)), x, y),
            t(3),
            t(3),
        )
    for first in (-5, 1, 9):
        example(
            "dynamic_slice_at_constants",
            lambda x, s=first: DynamicSlice(x, (constant(s, S32), constant(0, S32)), (2, 3)),
            t(4, 3),
        )
    start = t(dtype=S32)
    example("dynamic_slice_of_everything", lambda x, i: DynamicSlice(x, (i,), (4,)), t(4), start)
    example(
        "dynamic_update_of_everything",
        lambda x, y, i: DynamicUpdateSlice(x, y, (i,)),
        t(4),
        t(4),
        start,
    )
    example(
        "lookup_of_conversion",
        lambda x, i: DynamicSlice(Convert(x, F32), (i,), (3,)),
        t(4, dtype=BF16),
        start,
    )
    example(
        "lookup_of_conversion",
        lambda x, i: Gather(Convert(x, F32), i, (1,), (0,), (), (), (0,), 1, (1, 5)),
        t(4, 5, dtype=S32),
        t(3, 1, dtype=S32),
    )
    example(
        "gather_of_one_slice",
        lambda x, i: Gather(x, i, (0,), (0,), (), (), (1, 0), 0, (1, 2)),
        t(4, 5),
        t(2, dtype=S32),
    )

    counted = Reshape(Iota(t(3, dtype=S32), 0), (3, 1))
    turned = constant(np.broadcast_to(np.arange(5), (3, 5))[..., None], S32)
    example(
        "gather_of_rows_in_turn",
        lambda x, i: Gather(
            x, Concatenate((i, counted), 1), (1,), (0, 1), (), (), (0, 1), 1, (1, 1, 6)
        ),
        t(4, 3, 6),
        t(3, 1, dtype=S32),
    )
    example(
        "gather_of_rows_in_turn",
        lambda x, i: Gather(x, Concatenate((turned, i), 2), (), (0, 1), (), (), (1, 0), 2, (1, 1)),
        t(4, 5),
        t(3, 5, 1, dtype=S32),
    )

    def branches(index: Node, x: Node, y: Node) -> Node:
        one = scalar_graph("one", [F32], lambda a: f("negate", a))
        two = scalar_graph("two", [F32], lambda a: f("exp", a))
        return Conditional(index, (x, y), (1, 1), (one, two))

    for known in (constant(True, PRED), constant(False, PRED), constant(-3, S32), constant(1, S32)):
        example("branch_known", lambda x, y, i=known: branches(i, x, y), t(), t())


def part_examples() -> None:
    """Real and imaginary parts of what is real."""
    example("parts_of_reals", lambda x: f("real", x), t(5))
    example("parts_of_reals", lambda x: f("imag", x), t(5))


def algebra_examples() -> None:
    """One for each rule of `algebra`."""
    v, n, p = t(12), t(12, dtype=S32), t(12, dtype=PRED)
    example("constant_on_the_right", lambda x: f("add", like(2, x), x), v)
    example("fold_splats", lambda: f("add", splat(2, F32, (3,)), splat(3, F32, (3,))))
    example("fold_convert_of_splat", lambda: Convert(splat(2.5, F32, (3,)), S32))
    for function in ("add", "multiply", "maximum", "minimum", "and", "or", "xor"):
        is_bits = function in ("and", "or", "xor")
        for kind in (n,) if is_bits else (n, v, t(12, dtype=BF16)):
            neutral = -0.0 if function == "add" else identity(function, kind.dtype)
            example("neutral_operand", lambda x, g=function, e=neutral: f(g, x, like(e, x)), kind)
    example("subtract_zero", lambda x: f("subtract", x, like(0, x)), v)
    example("divide_by_one", lambda x: f("divide", x, like(1, x)), v)
    example("absorbing_operand", lambda x: f("multiply", x, like(0, x)), n)
    example("absorbing_operand", lambda x: f("and", x, like(0, x)), p)
    example("absorbing_operand", lambda x: f("or", x, like(-1, x)), n)
    example("operand_with_itself", lambda x: f("maximum", x, x), v)
    example("operand_with_itself", lambda x: f("xor", x, x), n)
    for function in ("equal", "less", "greater_equal", "not_equal"):
        example("compare_with_itself", lambda x, g=function: f(g, x, x), n)
    example("double_inverse", lambda x: f("negate", f("negate", x)), v)
    example("double_inverse", lambda x: f("not", f("not", x)), p)
    example("repeated_magnitude", lambda x: f("abs", f("negate", x)), v)
    example("repeated_rounding", lambda x: f("floor", f("ceil", x)), v)
    example("add_of_negation", lambda x, y: f("add", x, f("negate", y)), v, v)
    example("add_of_negation", lambda x, y: f("subtract", x, f("negate", y)), v, v)
    example("not_of_comparison", lambda x, y: f("not", f("less", x, y)), n, n)
    example("not_of_comparison", lambda x, y: f("not", f("equal", x, y)), v, v)
    example("select_of_equals", lambda c, x: f("select", c, x, x), p, v)
    example("select_by_negation", lambda c, x, y: f("select", f("not", c), x, y), p, v, v)
    example("select_of_truth", lambda c: f("select", c, like(True, c), like(False, c)), p)
    example("select_of_truth", lambda c: f("select", c, like(False, c), like(True, c)), p)
    example("nested_select", lambda c, x, y: f("select", c, f("select", c, x, y), y), p, v, v)
    example("nested_select", lambda c, x, y: f("select", c, x, f("select", c, x, y)), p, v, v)
    for divisor in (4.0, -0.125, 2.0**100):
        example("divide_by_power_of_two", lambda x, d=divisor: f("divide", x, like(d, x)), v)
    for exponent in (0, 1, 2, 7):
        example("known_power", lambda x, e=exponent: f("power", x, like(e, x)), n)
        if exponent < 3:
            example("known_power", lambda x, e=exponent: f("power", x, like(e, x)), v)
    example("multiply_by_itself", lambda x: f("multiply", x, x), v)
    example("one_over", lambda x: f("divide", like(1, x), x), v)
    example("one_over", lambda x: f("divide", like(1, x), f("sqrt", x)), v)
    example(
        "one_over",
        lambda x: f("divide", like(1, x), f("add", f("exp", f("negate", x)), like(1, x))),
        v,
    )
    example("logistic_reciprocal", lambda x: f("reciprocal", f("sqrt", x)), v)
    example(
        "logistic_reciprocal",
        lambda x: f("reciprocal", f("add", f("exp", f("negate", x)), like(1, x))),
        v,
    )
    example("merge_converts", lambda x: Convert(Convert(x, S32), S8), t(300, dtype=S16))
    example("merge_converts", lambda x: Convert(Convert(x, F32), BF16), t(12, dtype=BF16))
    example("merge_converts", lambda x: Convert(Convert(x, F32), S8), t(12, dtype=BF16))
    example("merge_converts", lambda x: Convert(Convert(x, S8), F32), p)
    example("convert_of_iota", lambda: Convert(Iota(t(3, 5, dtype=S32), 1), F32))
    example(
        "map_of_broadcasts",
        lambda x, y: f("add", Broadcast(x, (3, 12), (1,)), Broadcast(y, (3, 12), (1,))),
        v,
        v,
    )
    example(
        "map_of_broadcasts",
        lambda x: f("add", Broadcast(x, (3, 12), (1,)), splat(2, F32, (3, 12))),
        v,
    )
    row = t(1, 12)
    example(
        "map_of_reshapes",
        lambda x, y: f("add", Reshape(x, (12, 1)), Reshape(y, (12, 1))),
        row,
        row,
    )
    example("map_of_reshapes", lambda x: f("add", Reshape(x, (12,)), splat(2, F32, (12,))), row)
    example("convert_of_reshape", lambda x: Convert(Reshape(x, (12,)), BF16), row)
    example("convert_of_broadcast", lambda x: Convert(Broadcast(x, (3, 12), (1,)), S32), v)


def _reduced(kind: str, x: Node, *dimensions: int) -> Node:
    start = constant(identity(kind, x.dtype), x.dtype)
    return Reduce((x,), (start,), dimensions, combiner(kind, x.dtype))


def reduction_examples() -> None:
    """One for each rule of `reduction`."""
    box = t(2, 3, 4)
    example("reduce_of_reduce", lambda x: _reduced("maximum", _reduced("maximum", x, 1), 0), box)
    example(
        "reduce_of_reduce", lambda x: _reduced("add", _reduced("add", x, 0), 1), box, close=1e-5
    )
    example("reduce_of_extent_one", lambda x: _reduced("add", x, 1), t(3, 1, 5))
    example("reduce_of_transpose", lambda x: _reduced("maximum", Transpose(x, (2, 0, 1)), 1), box)
    example(
        "reduce_of_broadcast",
        lambda x: _reduced("maximum", Broadcast(x, (5, 3, 4, 2), (1, 3)), 0, 2, 3),
        t(3, 2),
    )
    example(
        "sum_of_broadcast",
        lambda x: _reduced("add", Broadcast(x, (5, 3), (1,)), 0),
        t(3, dtype=S32),
    )
    example(
        "reduce_of_unit_reshape",
        lambda x: _reduced("maximum", Reshape(x, (3, 1, 4)), 1, 2),
        t(3, 4),
    )
    ones = (1, 1)
    example(
        "whole_window",
        lambda x: ReduceWindow(
            (x,),
            (constant(0, F32),),
            (3, 1),
            (2, 1),
            (0, 0),
            (0, 0),
            ones,
            ones,
            combiner("add", F32),
        ),
        t(3, 4),
        close=1e-6,
    )


def contraction_examples() -> None:
    """One for each rule of `contraction` and of accumulation."""
    ones = (1, 1)
    line = ((1,), (1,), (1,), (1,), (1,), (False,), 1, 1)
    for first, second, result in ((S8, S16, S32), (BF16, U8, F32), (PRED, S16, S16)):
        example("dot_of_two_dtypes", lambda x, y, to=result: Dot(x, y, (), (), (1,), (0,), to),
                t(3, 4, dtype=first), t(4, 2, dtype=second), close=1e-5)  # fmt: skip
        example("convolution_of_two_dtypes",
                lambda x, y, to=result: Convolution(x, y, *line, to),
                t(1, 2, 5, dtype=first), t(3, 2, 3, dtype=second), close=1e-5)  # fmt: skip
    for first, result in ((U32, U32), (S32, U32), (U32, S32)):
        example("dot_of_words", lambda x, y, to=result: Dot(x, y, (), (), (1,), (0,), to),
                t(3, 4, dtype=first), t(4, 2, dtype=U32))  # fmt: skip
        example("convolution_of_words", lambda x, y, to=result: Convolution(x, y, *line, to),
                t(1, 2, 5, dtype=first), t(3, 2, 3, dtype=U32))  # fmt: skip
    example(
        "dot_of_transposed_left",
        lambda x, y: Dot(Transpose(x, (0, 2, 1)), y, (0,), (0,), (1,), (1,), F32),
        t(2, 3, 4),
        t(2, 4, 5),
        close=1e-5,
    )
    example(
        "dot_of_transposed_right",
        lambda x, y: Dot(x, Transpose(y, (0, 2, 1)), (0,), (0,), (2,), (2,), F32),
        t(2, 3, 4),
        t(2, 4, 5),
        close=1e-5,
    )
    example(
        "dot_of_unit_reshape_left",
        lambda x, y: Dot(Reshape(x, (1, 3, 4)), y, (), (), (2,), (0,), F32),
        t(3, 4),
        t(4, 2),
        close=1e-5,
    )
    example(
        "dot_of_unit_reshape_right",
        lambda x, y: Dot(x, Reshape(y, (4, 1, 2)), (), (), (1,), (0,), F32),
        t(3, 4),
        t(4, 2),
        close=1e-5,
    )
    example(
        "convolution_of_reversed_kernel",
        lambda x, k: Convolution(
            x, Reverse(k, (2,)), (1,), (0,), (0,), (1,), (1,), (False,), 1, 1, F32
        ),
        t(1, 2, 6),
        t(3, 2, 3),
        close=1e-5,
    )
    half = t(40, 3, dtype=BF16)
    example("accumulate_sum", lambda x: _reduced("add", x, 0), half)
    example("accumulate_contraction", lambda x, y: Dot(x, y, (), (), (0,), (0,), BF16), half, half)
    example(
        "accumulate_sum",
        lambda x: ReduceWindow(
            (x,),
            (constant(0, BF16),),
            (4, 1),
            ones,
            (0, 0),
            (0, 0),
            ones,
            ones,
            combiner("add", BF16),
        ),
        half,
        close=1e-2,
    )


for _family in (
    movement_examples,
    edge_examples,
    structure_examples,
    algebra_examples,
    part_examples,
    reduction_examples,
    contraction_examples,
):
    _family()

_FLAT = [(name, number) for name, found in EXAMPLES.items() for number in range(len(found))]


@pytest.mark.parametrize(("name", "number"), _FLAT)
def test_rule_keeps_values(name: str, number: int) -> None:
    chosen = EXAMPLES[name][number]
    graph = graph_of(chosen.build, chosen.types)
    if chosen.tolerance:
        check_finite(RULES[name], graph, chosen.tolerance)
    else:
        check_rule(RULES[name], graph)


def check_finite(rule: RewriteRule, graph: Graph, tolerance: float) -> None:
    """Like check_rule for a rule that may add in another order."""
    changed = apply_rules(graph, (rule,))
    assert changed is not graph, f"{rule.name} does not fire"
    inputs = random_inputs(graph)
    assert_same(evaluate(changed, inputs), evaluate(graph, inputs), tolerance)


def test_every_rule_has_an_example_and_an_equation() -> None:
    assert set(RULES) == set(EXAMPLES)
    assert all("=" in each.equation for each in RULES.values())


@rule
def forget_the_sign_of_zero(op: Map) -> Node | None:
    """x + 0.0 = x, which is wrong for -0.0"""
    return op.args[0] if op.function == "add" else None


@rule
def change_the_shape(op: Transpose) -> Node | None:
    """transpose(x) = x, which is wrong for another shape"""
    return op.x


@rule
def turn_left(op: Transpose) -> Node | None:
    """transpose(x) = transpose(transpose(x)), which never ends"""
    return Transpose(Transpose(op.x, (1, 0)), (0, 1))


def test_a_wrong_value_is_caught() -> None:
    graph = graph_of(lambda x: f("add", x, like(0.0, x)), (t(12),))
    with pytest.raises(AssertionError):
        check_rule(forget_the_sign_of_zero, graph)


def test_a_wrong_type_is_caught() -> None:
    graph = graph_of(lambda x: Transpose(x, (1, 0)), (t(2, 3),))
    with pytest.raises(InternalError, match="change_the_shape"):
        apply_rules(graph, (change_the_shape,))


def test_rules_without_end_are_caught() -> None:
    graph = graph_of(lambda x: Transpose(x, (0, 1)), (t(2, 2),))
    with pytest.raises(InternalError, match="do not terminate"):
        apply_rules(graph, (turn_left,))


def test_rules_reach_into_regions() -> None:
    def body(i: Node, x: Node) -> tuple[Node, ...]:
        return (f("negate", f("negate", f("exp", x))),)

    graph = graph_of(lambda x: counted_loop("loop", 2, (x,), body), (t(3),))
    check_rule(RULES["double_inverse"], graph)


def test_new_nodes_take_the_location_of_what_they_replace() -> None:
    where = Loc("model.py", 7, "sum")
    x = Parameter(0, t(3), "x")
    product = Map("multiply", (x, broadcast(constant(2, F32), (3,))), loc=where)
    power = Map("power", (product, broadcast(constant(2, F32), (3,))), loc=where)
    changed = apply_rules(Graph("g", (x,), (power,)), algebra.RULES)
    assert changed.results[0].function == "square"
    assert changed.results[0].loc == where


def test_a_chain_longer_than_the_interpreters_stack_is_rewritten() -> None:
    def chain(x: Node) -> Node:
        for _ in range(5 * LONGEST_CHAIN):
            x = f("negate", f("negate", f("exp", x)))
        return x

    graph = graph_of(chain, (t(2),))
    changed = apply_rules(graph, algebra.RULES)
    assert len(changed.nodes) == 5 * LONGEST_CHAIN + 1


def test_an_unchanged_graph_is_the_same_object() -> None:
    graph = graph_of(lambda x: f("exp", x), (t(2),))
    assert apply_rules(graph, (*algebra.RULES, *movement.RULES)) is graph


def test_constants_are_not_copied() -> None:
    weights = Constant(np.arange(6, dtype=np.float32))
    graph = graph_of(lambda x: f("add", x, weights), (t(6),))
    changed = apply_rules(graph, algebra.RULES)
    assert any(node is weights for node in changed.nodes)
