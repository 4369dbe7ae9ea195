"""Rules for results, control flow and run-time indices whose values are known."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from glia.base.dtype import PRED
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Node
from glia.graph.ops import (
    Bitcast,
    Collective,
    Concatenate,
    Conditional,
    Constant,
    Convert,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Get,
    Iota,
    Map,
    ReducePrecision,
    Reshape,
    Slice,
    While,
)
from glia.graph.rules.constructors import concatenate, dynamic_slice, reshape, take
from glia.graph.rules.driver import results_as_node, rule, rules_of
from glia.graph.rules.facts import integer, integers, uniform
from glia.graph.rules.inline_regions import inline


@rule
def get_of_loop_invariant(op: Get) -> Node | None:
    """get(while(s), i) = s[i] when the body returns the i-th state as it was"""
    match op:
        case Get(While(state, _, body), i) if body.results[i] is body.parameters[i]:
            return state[i]
    return None


@rule
def drop_identity_convert(op: Convert) -> Node | None:
    """convert(x, dtype of x) = x"""
    return op.x if op.x.dtype is op.to else None


@rule
def drop_identity_bitcast(op: Bitcast) -> Node | None:
    """bitcast(x, dtype of x) = x"""
    return op.x if op.x.dtype is op.to else None


@rule
def merge_bitcasts(op: Bitcast) -> Node | None:
    """bitcast(bitcast(x, a), b) = bitcast(x, b), or x when b is the dtype of x"""
    if not isinstance(op.x, Bitcast):
        return None
    x, middle = op.x.x, op.x.dtype.bits
    if x.dtype is op.to:
        return x if x.shape == op.shape else None
    return Bitcast(x, op.to) if middle in (x.dtype.bits, op.to.bits) else None


@rule
def drop_identity_precision(op: ReducePrecision) -> Node | None:
    """reduce_precision(x, at least the precision of x) = x"""
    formats = {"f32": (8, 23), "bf16": (8, 7), "f16": (5, 10)}
    exponent, mantissa = formats.get(op.dtype.name, (math.inf, math.inf))
    enough = op.exponent_bits >= exponent and op.mantissa_bits >= mantissa
    return op.x if enough else None


@rule
def drop_copy(op: Map) -> Node | None:
    """copy(x) = x"""
    match op:
        case Map("copy", (x,)):
            return x
    return None


@rule
def select_by_constant(op: Map) -> Node | None:
    """select(true, a, b) = a and select(false, a, b) = b"""
    match op:
        case Map("select", (predicate, a, b)):
            known = integer(predicate)
            return None if known is None else a if known else b
    return None


@rule
def dynamic_slice_at_constants(op: DynamicSlice) -> Node | None:
    """dynamic_slice(x, constants) = slice(x)"""
    starts = integers(op.starts)
    if starts is None:
        return None
    bounds = zip(starts, op.x.shape, op.slice_sizes, strict=True)
    first = tuple(min(max(start, 0), extent - taken) for start, extent, taken in bounds)
    limit = tuple(start + taken for start, taken in zip(first, op.slice_sizes, strict=True))
    return Slice(op.x, first, limit, (1,) * len(first))


@rule
def dynamic_slice_of_everything(op: DynamicSlice) -> Node | None:
    """dynamic_slice(x, anywhere, extents of x) = x"""
    return op.x if op.slice_sizes == op.x.shape else None


@rule
def dynamic_update_of_everything(op: DynamicUpdateSlice) -> Node | None:
    """dynamic_update_slice(x, u, anywhere) = u when u covers x"""
    return op.update if op.update.shape == op.x.shape else None


@rule
def lookup_of_conversion(op: Gather | DynamicSlice) -> Node | None:
    """gather(convert(x)) = convert(gather(x)) when x is not wider and no more elements are taken"""
    match op.x:
        case Convert(x, dtype) if x.dtype.bytes <= dtype.bytes:
            if math.prod(op.shape) <= math.prod(x.shape):
                return Convert(dataclasses.replace(op, x=x), dtype, loc=op.x.loc)
    return None


@rule
def gather_of_one_slice(op: Gather) -> Node | None:
    """gather(x, one index vector) = dynamic_slice(x, the index vector)"""
    count = len(op.start_index_map)
    if op.x_batch_dims or math.prod(op.indices.shape) != count or not op.x.shape or not count:
        return None
    vector = reshape(op.indices, (count,))
    starts = [_zero(op.indices)] * len(op.x.shape)
    for k, dimension in enumerate(op.start_index_map):
        starts[dimension] = take(vector, 0, k)
    return reshape(dynamic_slice(op.x, starts, op.slice_sizes), op.shape)


@rule
def gather_of_rows_in_turn(op: Gather) -> Node | None:
    """gather(x, (i, 0 1 2 ...)) = gather(x, i) of each row of x, where those that count are all"""
    vector = op.index_vector_dim
    if not isinstance(op.indices, Concatenate) or op.indices.dimension != vector:
        return None
    parts = op.indices.parts
    if len(parts) < 2 or any(part.shape[vector] != 1 for part in parts):
        return None
    for number, part in enumerate(parts):
        row, of_x = _counted_dimension(part, vector), op.start_index_map[number]
        if row is None or row in op.indices_batch_dims or of_x not in op.collapsed_dims:
            continue
        if op.x.shape[of_x] != op.indices.shape[row]:
            continue
        rest = [each for n, each in enumerate(parts) if n != number]
        return dataclasses.replace(
            op,
            indices=concatenate(rest, vector),
            start_index_map=tuple(d for n, d in enumerate(op.start_index_map) if n != number),
            collapsed_dims=tuple(d for d in op.collapsed_dims if d != of_x),
            x_batch_dims=(*op.x_batch_dims, of_x),
            indices_batch_dims=(*op.indices_batch_dims, row),
        )
    return None


def _counted_dimension(node: Node, unit: int) -> int | None:
    """The dimension along which a tensor of extent 1 along `unit` counts 0, 1, 2, ...; or None."""
    others = [d for d in range(len(node.shape)) if d != unit]
    within: list[int] = list(range(len(node.shape)))
    if isinstance(node, Reshape) and node.x.shape == tuple(node.shape[d] for d in others):
        node, within = node.x, others
    if isinstance(node, Iota):
        return within[node.dimension]
    if isinstance(node, Constant):
        for d in others:
            if _counts(np.asarray(node.value), within.index(d)):
                return d
    return None


def _counts(array: np.ndarray, dimension: int) -> bool:
    """Whether an array is 0, 1, 2, ... along a dimension, everywhere."""
    shape = [1] * array.ndim
    shape[dimension] = -1
    return bool(np.all(array == np.arange(array.shape[dimension]).reshape(shape)))


def _zero(like: Node) -> Node:
    array = np.zeros((), like.dtype.numpy)
    array.flags.writeable = False
    return Constant(array)


@rule
def branch_known(op: Conditional) -> Node | None:
    """conditional(constant, ...) = the branch it names"""
    index = integer(op.index)
    if index is None:
        return None
    last = len(op.branches) - 1
    chosen = 1 - index if op.index.dtype is PRED else index if 0 <= index <= last else last
    first = sum(op.operand_counts[:chosen])
    arguments = op.branch_operands[first : first + op.operand_counts[chosen]]
    return results_as_node(inline(op.branches[chosen], arguments))


@rule
def loop_never_entered(op: While) -> Node | None:
    """while(s) = s when the condition does not hold at first"""
    return results_as_node(op.state) if _initial_condition(op) is False else None


def _initial_condition(op: While) -> bool | None:
    """The condition evaluated on the initial state; None unless known scalars determine it."""
    values = []
    needed = set(op.condition.nodes)
    used = {operand for node in needed for operand in node.operands} | set(op.condition.results)
    for parameter, initial in zip(op.condition.parameters, op.state, strict=True):
        known = uniform(initial)
        if parameter in used and (known is None or initial.shape):
            return None
        value = known if known is not None else np.zeros((), initial.dtype.numpy)
        values.append(np.broadcast_to(value, initial.shape))
    if any(isinstance(node, While | Collective) for node in needed):
        return None
    return bool(evaluate(op.condition, values)[0])


@rule
def propagate_known_state(op: While) -> Node | None:
    """while(s) = while(s) with a known scalar in place of a state that never changes"""
    for index, (initial, parameter) in enumerate(zip(op.state, op.body.parameters, strict=True)):
        known = uniform(initial)
        if known is None or op.body.results[index] is not parameter:
            continue
        body, condition = _substitute_parameter(op.body, index, initial), op.condition
        condition = _substitute_parameter(condition, index, initial)
        if body is not op.body or condition is not op.condition:
            body = _return_parameter(body, index)
            return While(op.state, condition, body, loc=op.loc)
    return None


def _substitute_parameter(graph: Graph, index: int, value: Node) -> Graph:
    parameter = graph.parameters[index]
    if not graph.users[parameter]:
        return graph
    arguments: list[Node] = list(graph.parameters)
    arguments[index] = value
    results = inline(graph, arguments)
    return Graph(graph.name, graph.parameters, results, graph.result_names, graph.aliases)


def _return_parameter(graph: Graph, index: int) -> Graph:
    """The graph whose index-th result is again its index-th parameter."""
    results = list(graph.results)
    results[index] = graph.parameters[index]
    return Graph(graph.name, graph.parameters, tuple(results), graph.result_names, graph.aliases)


RULES = rules_of(globals())
