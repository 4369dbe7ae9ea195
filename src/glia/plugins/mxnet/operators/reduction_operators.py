"""Operators that combine elements along dimensions: sums, extremes, orders, products."""

from __future__ import annotations

from collections.abc import Callable

from glia.base.dtype import F32, S32, DType
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import HloWriter, product
from glia.plugins.mxnet.operators.operator_table import NodeCall, lowers, wide_dtype


def _dimensions(at: NodeCall, rank: int) -> list[int]:
    """The dimensions that a node reduces: all where it names none."""
    given = at.attributes.extents("axis", ())
    named = sorted({at.dimension(each, rank) for each in given}) or list(range(rank))
    if at.attributes.flag("exclude"):
        return [d for d in range(rank) if d not in named] if given else []
    return named


def _finished(at: NodeCall, found: HloValue, x: HloValue, reduced: list[int]) -> HloValue:
    """A reduction in MXNet's shape: a scalar is a vector of one element."""
    if at.attributes.flag("keepdims"):
        return at.reshape(found, [1 if d in reduced else n for d, n in enumerate(x.shape)])
    return at.reshape(found, found.shape or (1,))


def _reduction(opcode: str, init: Callable[[NodeCall, DType], HloValue]) -> Callable[..., HloValue]:
    def lower(at: NodeCall, x: HloValue) -> HloValue:
        reduced = _dimensions(at, x.rank)
        wide = at.wide(x)
        found = at.reduce(opcode, wide, init(at, wide.dtype), reduced)
        return _finished(at, at.convert(found, x.dtype), x, reduced)

    return lower


def _register() -> None:
    number = {"sum": 0, "prod": 1}
    lowers("sum", "sum_axis")(_reduction("add", lambda at, t: at.constant(number["sum"], t)))
    lowers("prod")(_reduction("multiply", lambda at, t: at.constant(number["prod"], t)))
    lowers("max", "max_axis")(_reduction("maximum", lambda at, t: at.lowest(t)))
    lowers("min", "min_axis")(_reduction("minimum", lambda at, t: at.highest(t)))


@lowers("mean")
def _mean(at: NodeCall, x: HloValue) -> HloValue:
    reduced = _dimensions(at, x.rank)
    found = at.mean(at.wide(x), reduced)
    return _finished(at, at.convert(found, x.dtype), x, reduced)


@lowers("norm")
def _norm(at: NodeCall, x: HloValue) -> HloValue:
    order = at.attributes.integer("ord", 2)
    if order not in (1, 2):
        raise at.attributes.refusal("ord", "is neither 1 nor 2")
    reduced = _dimensions(at, x.rank)
    wide = at.wide(x)
    if order == 1:
        found = at.sum(at.unary("abs", wide), reduced)
    else:
        found = at.unary("sqrt", at.sum(at.multiply(wide, wide), reduced))
    return _finished(at, at.convert(found, x.dtype), x, reduced)


# --- extremes and orders -------------------------------------------------------------------------


def _place_of_extreme(at: NodeCall, x: HloValue, direction: str) -> HloValue:
    """The first index of the extreme along a dimension, as a float: MXNet has it so."""
    chosen = at.attributes.optional_integer("axis")
    keeps = at.attributes.flag("keepdims")
    if chosen is None:
        x, chosen = at.reshape(x, (product(x.shape),)), 0
    dimension = at.dimension(chosen, x.rank)
    at.require(x.shape[dimension] > 0, "looks for an extreme among no elements")
    init = at.lowest(x.dtype) if direction == "GT" else at.highest(x.dtype)
    places = at.iota(TensorType(S32, x.shape), dimension)

    def better(
        b: HloWriter, value: HloValue, place: HloValue, other: HloValue, other_place: HloValue
    ) -> tuple[HloValue, HloValue]:
        wins, ties = b.compare(direction, other, value), b.compare("EQ", other, value)
        is_before = b.binary("and", ties, b.compare("LT", other_place, place))
        take = b.binary("or", wins, is_before)
        return b.select(take, other, value), b.select(take, other_place, place)

    inits = (init, at.constant(2**31 - 1, S32))
    found = at.convert(at.reduce_several((x, places), inits, [dimension], better)[1], F32)
    if keeps:
        return at.reshape(found, [1 if d == dimension else n for d, n in enumerate(x.shape)])
    return at.reshape(found, found.shape or (1,))


@lowers("argmax")
def _argmax(at: NodeCall, x: HloValue) -> HloValue:
    return _place_of_extreme(at, x, "GT")


@lowers("argmin")
def _argmin(at: NodeCall, x: HloValue) -> HloValue:
    return _place_of_extreme(at, x, "LT")


def _sorted(at: NodeCall, x: HloValue, is_ascending: bool) -> tuple[HloValue, HloValue, int]:
    """x in order along a dimension, where its elements were, and the dimension."""
    dimension = at.dimension(at.attributes.integer("axis", -1), x.rank)
    places = at.iota(TensorType(S32, x.shape), dimension)
    direction = "LT" if is_ascending else "GT"
    values, order = at.sort((x, places), dimension, lambda b, p, q: b.compare(direction, p, q))
    return values, order, dimension


@lowers("sort")
def _sort(at: NodeCall, x: HloValue) -> HloValue:
    return _sorted(at, x, at.attributes.flag("is_ascend", True))[0]


@lowers("argsort")
def _argsort(at: NodeCall, x: HloValue) -> HloValue:
    dtype = at.attributes.dtype("dtype", F32)
    return at.convert(_sorted(at, x, at.attributes.flag("is_ascend", True))[1], dtype)


@lowers("topk")
def _top(at: NodeCall, x: HloValue) -> HloValue | tuple[HloValue, HloValue]:
    """The first of an order, as values, places or both; k of 0 takes all."""
    dtype = at.attributes.dtype("dtype", F32)
    wanted = at.attributes.choice("ret_typ", ("value", "indices", "both"), "indices")
    values, order, dimension = _sorted(at, x, at.attributes.flag("is_ascend"))
    count = at.attributes.integer("k", 1) or x.shape[dimension]
    if not 0 < count <= x.shape[dimension]:
        raise at.attributes.refusal("k", f"is no number of {x.shape[dimension]} elements")
    values, order = (at.slice_dimension(each, dimension, 0, count) for each in (values, order))
    order = at.convert(order, dtype)
    return {"value": values, "indices": order}.get(wanted, (values, order))


# --- products ------------------------------------------------------------------------------------


@lowers("dot")
def _dot(at: NodeCall, x: HloValue, y: HloValue) -> HloValue:
    """The last dimension of x with the first of y, or those that transposing makes so."""
    at.require(x.rank > 0 and y.rank > 0, "takes no scalars")
    from_x = 0 if at.attributes.flag("transpose_a") else x.rank - 1
    from_y = y.rank - 1 if at.attributes.flag("transpose_b") else 0
    _check_depth(at, x, y, from_x, from_y)
    found = at.dot(x, y, (from_x, from_y))
    return at.reshape(found, found.shape or (1,))


@lowers("batch_dot", "_linalg_gemm2", "linalg_gemm2")
def _batch_dot(at: NodeCall, x: HloValue, y: HloValue) -> HloValue:
    at.require(x.rank == y.rank and x.rank > 1 and x.shape[:-2] == y.shape[:-2],
               f"takes batches of matrices, not {list(x.shape)} and {list(y.shape)}")  # fmt: skip
    at.attributes.fixed("axis", "-2")
    factor = at.attributes.number("alpha", 1.0)
    from_x = x.rank - 2 if at.attributes.flag("transpose_a") else x.rank - 1
    from_y = y.rank - 1 if at.attributes.flag("transpose_b") else y.rank - 2
    _check_depth(at, x, y, from_x, from_y)
    found = at.dot(x, y, (from_x, from_y), list(range(x.rank - 2)))
    return found if factor == 1 else at.scaled(found, factor)


def _check_depth(at: NodeCall, x: HloValue, y: HloValue, from_x: int, from_y: int) -> None:
    at.require(
        x.shape[from_x] == y.shape[from_y] and x.dtype is y.dtype, f"takes no {x.type} and {y.type}"
    )


@lowers("_contrib_interleaved_matmul_selfatt_qk")
def _attention_scores(at: NodeCall, x: HloValue) -> HloValue:
    """Queries by keys, of [length, batch, heads * 3 * width] with the three side by side."""
    queries, keys, _ = _query_key_value(at, x)
    wide = wide_dtype(x.dtype)
    scaled = at.scaled(queries, queries.shape[-1] ** -0.5)
    return at.convert(at.dot(scaled, keys, (2, 2), [0], wide), x.dtype)


@lowers("_contrib_interleaved_matmul_selfatt_valatt")
def _attention_values(at: NodeCall, x: HloValue, scores: HloValue) -> HloValue:
    """Scores [batch * heads, length, length] by values, as [length, batch, heads * width]."""
    *_, values = _query_key_value(at, x)
    length, batch, _ = x.shape
    count, _, width = values.shape
    at.require(scores.shape == (count, length, length), f"takes no scores of {list(scores.shape)}")
    found = at.reshape(at.dot(scores, values, (2, 1), [0]), (batch, count // batch, length, width))
    turned = at.transpose(found, (2, 0, 1, 3))
    return at.reshape(turned, (length, batch, count // batch * width))


def _query_key_value(at: NodeCall, x: HloValue) -> list[HloValue]:
    """Queries, keys and values, each [batch * heads, length, width]."""
    heads = at.attributes.integer("heads")
    at.require(x.rank == 3 and heads > 0 and not x.shape[2] % (3 * heads), f"takes no {x.type}")
    length, batch, depth = x.shape
    width = depth // (3 * heads)
    parted = at.reshape(x, (length, batch * heads, 3, width))
    turned = at.transpose(parted, (2, 1, 0, 3))
    parts = (at.slice_dimension(turned, 0, part, part + 1) for part in range(3))
    return [at.reshape(each, (batch * heads, length, width)) for each in parts]


_register()
