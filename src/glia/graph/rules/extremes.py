"""Recognise computations that keep the greater (or lesser) value together with its position."""

from __future__ import annotations

import itertools
import math

import numpy as np

from glia.base.dtype import PRED
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Node, Parameter
from glia.graph.ops import Broadcast, Convert, Iota, Map, Reshape

_ORDER_FUNCTIONS = frozenset(
    {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
    | {"and", "or", "not", "xor", "select", "maximum", "minimum"}
)


def extreme_with_position(body: Graph) -> str | None:
    """Which of "maximum" and "minimum" the body keeps; None for neither.

    The greatest (least) value wins and, among equals, the first position; NaN wins over any number.
    `body` takes (value, position, later value, later position). It must consist of comparisons,
    logic and selections of its parameters, so that its results follow from the order of the values
    alone; then trying every order proves what it does.
    """
    if len(body.parameters) != 4 or len(body.results) != 2:
        return None
    value, position = body.parameters[0].dtype, body.parameters[1].dtype
    if not position.is_integer or value.is_complex or not _depends_on_order_only(body):
        return None
    for kind, sign in (("maximum", 1), ("minimum", -1)):
        if all(
            _selects_extreme(body, sign, a, b)
            for a, b in itertools.product(_samples(body), repeat=2)
        ):
            return kind
    return None


def counts_up(position: Node, dimension: int) -> bool:
    """Whether a tensor of positions counts up along a dimension."""
    while isinstance(position, (Broadcast, Convert, Reshape)):
        if isinstance(position, Reshape):
            dimension = _same_dimension(position, dimension)
            if dimension < 0:
                return False
        elif isinstance(position, Broadcast):
            if dimension not in position.dimensions:
                return False
            dimension = position.dimensions.index(dimension)
        elif position.x.dtype.bits > position.dtype.bits or not position.x.dtype.is_integer:
            return False
        position = position.x
    return isinstance(position, Iota) and position.dimension == dimension


def _same_dimension(node: Reshape, dimension: int) -> int:
    """The dimension of a reshape's operand that is one of its result; -1 if none is."""
    before, extent = math.prod(node.shape[:dimension]), node.shape[dimension]
    shape = node.x.shape
    found = (d for d, n in enumerate(shape) if n == extent and math.prod(shape[:d]) == before)
    return next(found, -1)


def _depends_on_order_only(body: Graph) -> bool:
    """Whether only values are compared with values, and positions with positions."""
    kinds: dict[Node, set[int]] = {}
    for node in body.nodes:
        if isinstance(node, Parameter) and node.shape == ():
            kinds[node] = {node.index % 2}
        elif isinstance(node, Map) and node.function in _ORDER_FUNCTIONS:
            data = node.args[1:] if node.function == "select" else node.args
            together = set().union(*(kinds[arg] for arg in data))
            if node.function != "select" and len(together) > 1:
                return False
            kinds[node] = set() if node.dtype is PRED else together
        else:
            return False
    return True


def _samples(body: Graph) -> list[float]:
    """One value of every kind that an order distinguishes."""
    dtype = body.parameters[0].dtype
    if dtype.is_integer:
        return [1, 2]
    return [-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf, np.nan] if dtype.is_float else [0, 1]


def _selects_extreme(body: Graph, sign: int, a: float, b: float) -> bool:
    """Whether the body keeps the extreme of an earlier a and a later b."""
    value, position = body.parameters[0].dtype.numpy, body.parameters[1].dtype.numpy
    inputs = [np.asarray(a).astype(value), np.asarray(3).astype(position),
              np.asarray(b).astype(value), np.asarray(5).astype(position)]  # fmt: skip
    first, second = float(inputs[0]), float(inputs[2])
    later = not np.isnan(first) and (np.isnan(second) or sign * second > sign * first)
    best, place = evaluate(body, inputs)
    wanted = second if later else first
    same = float(best) == wanted or (np.isnan(float(best)) and np.isnan(wanted))
    return same and int(place) == (5 if later else 3)
