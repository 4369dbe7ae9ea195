"""Networks of slices and sums whose results are running totals become scans.

Prefixes computed in logarithmic depth, as by `jax.lax.associative_scan` or by shifts and sums, are
slices, pads, concatenations, sums and products. Each element along one dimension is followed
through them as what it stands for: an element of a tensor, a product of neighbouring elements, the
state of a recurrence over neighbouring elements, or such a state times the factors of those that
follow it. Where every element i of a result is the state over elements 0 to i, the result is a
scan.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glia.base.dtype import S32
from glia.graph.ir import Node
from glia.graph.ops import Concatenate, Map, Pad, Scan, Slice
from glia.graph.rules.constructors import apply, broadcast, constant, iota, select, splat_like
from glia.graph.rules.driver import RewriteRule
from glia.graph.rules.facts import uniform

FEWEST_ELEMENTS = 8
MOST_ELEMENTS = 1 << 18  # along the dimension

_NUMBER, _ELEMENT, _PRODUCT, _STATE, _CARRIED, _UNKNOWN = range(6)
_IDENTITIES = {"add": 0.0, "maximum": -math.inf, "minimum": math.inf, "multiply": 1.0}
_MONOIDS = ("add", "maximum", "minimum")
_NONE = -1
# A number is `value`; all else is of elements `first` to `last` of `source`. A carried value is the
# state up to `middle` times the factors after it, which are elements of `factor`.
_MEANING = np.dtype(
    [
        ("kind", np.int8), ("monoid", np.int8), ("factor", np.int32), ("source", np.int32),
        ("first", np.int32), ("middle", np.int32), ("last", np.int32), ("value", np.float64),
    ]
)  # fmt: skip

Meanings = np.ndarray[Any, Any]  # one _MEANING for each element along the dimension


def prefix_rule() -> RewriteRule:
    """The rule for one graph: a network whose elements are states from the first on = a scan."""
    networks = _Networks()
    return RewriteRule("prefix_network", (Map, Concatenate), networks.scan_of)


class _Networks:
    """What the elements of tensors stand for along a dimension."""

    def __init__(self) -> None:
        self._meanings: dict[tuple[Node, int], Meanings] = {}
        self._sources: list[Node] = []
        self._numbers: dict[Node, int] = {}

    def scan_of(self, node: Node) -> Node | None:
        """The scan that computes a network's last operation; None where it is no prefix."""
        dimension = _joined_dimension(node)
        if dimension is None or not node.dtype.is_float:
            return None
        if not FEWEST_ELEMENTS <= node.shape[dimension] <= MOST_ELEMENTS:
            return None
        return self._prefix(self._meanings_of(node, dimension), node, dimension)

    def _prefix(self, found: Meanings, node: Node, dimension: int) -> Node | None:
        start, second, rest = found[0], found[1], found[1:]
        are_prefixes = (found["first"] == 0) & (found["last"] == np.arange(len(found)))
        if start["kind"] != _ELEMENT or not are_prefixes.all():
            return None
        if any((rest[name] != second[name]).any() for name in ("kind", "monoid", "factor")):
            return None
        source = self._sources[start["source"]]
        if (found["source"] != start["source"]).any() or source.shape != node.shape:
            return None
        if second["kind"] == _PRODUCT:
            return Scan(splat_like(1.0, source), source, "multiply", dimension)
        if second["kind"] != _STATE:
            return None
        factor = splat_like(1.0, source)
        if second["factor"] != _NONE:
            factor = self._sources[second["factor"]]
            if factor.shape != source.shape:
                return None
            factor = _without_first(factor, dimension)
        return Scan(factor, source, _MONOIDS[second["monoid"]], dimension)

    # --- what operations make of their operands' elements ----------------------------------------

    def _meanings_of(self, root: Node, dimension: int) -> Meanings:
        """The meanings of a tensor's elements; those of its operands are found first."""
        waiting = [root]
        while waiting:
            node = waiting[-1]
            if (node, dimension) in self._meanings:
                waiting.pop()
                continue
            operands = _followed(node, dimension)
            missing = [each for each in operands if (each, dimension) not in self._meanings]
            waiting.extend(missing)
            if not missing:
                waiting.pop()
                given = [self._meanings[each, dimension] for each in operands]
                found = self._meanings_through(node, dimension, given) if operands else None
                if found is None:
                    found = self._own_elements(node, node.shape[dimension])
                self._meanings[node, dimension] = found
        return self._meanings[root, dimension]

    def _own_elements(self, node: Node, count: int) -> Meanings:
        """The elements of a tensor that nothing is known of."""
        if node not in self._numbers:
            self._numbers[node] = len(self._sources)
            self._sources.append(node)
        found = np.zeros(count, _MEANING)
        found["kind"], found["monoid"], found["factor"] = _ELEMENT, _NONE, _NONE
        found["source"] = self._numbers[node]
        found["first"] = found["middle"] = found["last"] = np.arange(count)
        return found

    def _meanings_through(
        self, node: Node, dimension: int, given: list[Meanings]
    ) -> Meanings | None:
        match node:
            case Slice():
                at = node.start[dimension], node.limit[dimension], node.stride[dimension]
                return given[0][slice(*at)]
            case Pad():
                return _meanings_padded(node, dimension, given[0])
            case Concatenate():
                return np.concatenate(given)
            case Map() if all(each in self._numbers for each in node.args):
                return None  # of whole tensors, as all arithmetic beside a network
            case Map("multiply"):
                return _product(*given)
            case Map():
                return _sum_or_extreme(node.function, *given)
        return None


def _joined_dimension(node: Node) -> int | None:
    """The dimension along which the parts of a result lie, for what may end a network."""
    if isinstance(node, Concatenate):
        return node.dimension
    if not isinstance(node, Map) or node.function not in _IDENTITIES or len(node.args) != 2:
        return None
    for part in node.args:
        if isinstance(part, Concatenate):
            return part.dimension
        if isinstance(part, Pad):
            return _only_padded(part)
    return None


def _only_padded(node: Pad) -> int | None:
    padding = zip(node.low, node.high, node.interior, strict=True)
    padded = [dimension for dimension, amounts in enumerate(padding) if any(amounts)]
    return padded[0] if len(padded) == 1 else None


def _followed(node: Node, dimension: int) -> tuple[Node, ...]:
    """The operands whose elements a node's consist of; none where it is not looked into."""
    match node:
        case Slice():
            others = zip(node.start, node.limit, node.stride, node.x.shape, strict=True)
            is_along = all(
                d == dimension or at == (0, at[3], 1, at[3]) for d, at in enumerate(others)
            )
            return (node.x,) if is_along else ()
        case Pad():
            is_padding = min(*node.low, *node.high) >= 0 and uniform(node.value) is not None
            return (node.x,) if is_padding and _only_padded(node) == dimension else ()
        case Concatenate():
            return node.parts if node.dimension == dimension else ()
        case Map() if node.function in _IDENTITIES and len(node.args) == 2:
            return node.args if node.dtype.is_float else ()
    return ()


def _meanings_padded(node: Pad, dimension: int, given: Meanings) -> Meanings:
    found = np.zeros(node.shape[dimension], _MEANING)
    number = uniform(node.value)
    assert number is not None
    found["kind"], found["value"] = _NUMBER, float(number)
    found["source"] = found["factor"] = found["monoid"] = _NONE
    if len(given):
        step = node.interior[dimension] + 1
        low = node.low[dimension]
        found[low : low + (len(given) - 1) * step + 1 : step] = given
    return found


def _in_order(a: Meanings, b: Meanings) -> tuple[Meanings, Meanings]:
    """Of each two elements the one that begins earlier, and the other."""
    exchanged = a["first"] > b["first"]
    return np.where(exchanged, b, a), np.where(exchanged, a, b)


def _beside_identities(
    function: str, a: Meanings, b: Meanings, made: Meanings, is_known: Any
) -> Meanings | None:
    """The operand beside a number that changes nothing, or `made`; None where one is not known."""
    made["kind"] = np.where(is_known, made["kind"], _UNKNOWN)
    identity = _IDENTITIES[function]
    a_is, b_is = ((x["kind"] == _NUMBER) & (x["value"] == identity) for x in (a, b))
    found = np.where(a_is, b, np.where(b_is, a, made))
    return None if (found["kind"] == _UNKNOWN).any() else found


def _product(a: Meanings, b: Meanings) -> Meanings | None:
    """Products of neighbours, and states times the factors that follow; None for anything else."""
    early, late = _in_order(a, b)
    is_factor = np.isin(late["kind"], (_ELEMENT, _PRODUCT))
    follows = (early["last"] + 1 == late["first"]) & is_factor
    alike = early["source"] == late["source"]
    multiplies = follows & alike & np.isin(early["kind"], (_ELEMENT, _PRODUCT))
    has_factor = np.isin(early["kind"], (_STATE, _CARRIED)) & (early["factor"] == late["source"])
    is_state = ((early["kind"] == _ELEMENT) & ~alike) | has_factor
    made = early.copy()
    made["last"] = late["last"]
    made["kind"] = np.where(multiplies, _PRODUCT, _CARRIED)
    made["factor"] = np.where(multiplies, _NONE, late["source"])
    made["middle"] = np.where(early["kind"] == _CARRIED, early["middle"], early["last"])
    return _beside_identities("multiply", a, b, made, multiplies | (follows & is_state))


def _sum_or_extreme(function: str, a: Meanings, b: Meanings) -> Meanings | None:
    """States over neighbouring elements, of a sum or an extreme; None for anything else."""
    monoid = _MONOIDS.index(function)
    early, late = _in_order(a, b)
    carries = early["kind"] == _CARRIED
    factor = np.where(carries, early["factor"], _NONE)

    def is_state(x: Meanings, factor: Any) -> Any:
        found = (x["kind"] == _STATE) & (x["monoid"] == monoid) & (x["factor"] == factor)
        return found | (x["kind"] == _ELEMENT)

    # An extreme of negative numbers times a negative factor would be the other extreme.
    of_early = is_state(early, _NONE) | (carries & (function == "add"))
    of_late = is_state(late, factor)
    end = np.where(carries, early["middle"], early["last"])
    follows = (end + 1 == late["first"]) & (early["source"] == late["source"])
    follows &= ~carries | (early["last"] == late["last"])
    made = early.copy()
    made["kind"], made["monoid"], made["factor"] = _STATE, monoid, factor
    made["middle"] = made["last"] = late["last"]
    return _beside_identities(function, a, b, made, of_early & of_late & follows)


def _without_first(factor: Node, dimension: int) -> Node:
    """Factors, of which the first is 0: none is applied to the state before the first element."""
    at = iota(S32, factor.shape, dimension)
    is_first = apply("equal", at, broadcast(constant(0, S32), factor.shape))
    return select(is_first, splat_like(0.0, factor), factor)
