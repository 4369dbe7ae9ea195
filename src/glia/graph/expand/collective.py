"""Collectives as the exchanges that the machine has, and operations of each rank around them.

An exchange is along the first dimension, in groups of one size, of elements of up to 32 bits, and
sums up or compares floats only. Collectives name ranks here (`number_ranks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from glia.base.dtype import BF16, F16, F32, S8, S16, S32, U8, U16, DType
from glia.graph.expand.reduce import fold_last
from glia.graph.ir import Graph, Node, TensorType, TupleType
from glia.graph.ops import Collective, results_of
from glia.graph.ops.scalar_regions import identity, monoid
from glia.graph.rules.collective_elements import with_exchanged_elements, with_exchanged_words
from glia.graph.rules.constructors import (
    apply,
    broadcast,
    constant,
    convert,
    dynamic_slice,
    move_last,
    pad,
    reduce,
    reshape,
    select,
    slice_along,
    splat,
    splat_like,
    stack,
    take,
    transpose,
)
from glia.graph.rules.driver import RewriteRule, apply_rules, results_as_node, rule, rules_of
from glia.graph.rules.inline_regions import inline_scalar_graph
from glia.graph.rules.ranks import is_one_of, rank_id
from glia.options import CompileOptions

Ranks = tuple[int, ...]

_SUMMED = (F32, BF16, F16)
_COMPARED = (*_SUMMED, U8, S8, U16, S16)  # numbers that float32 holds
_DIRECT = {"add": _SUMMED, "maximum": _COMPARED, "minimum": _COMPARED}
LARGE_BYTES = 1 << 18
"""What a rank receives from here on takes longer than a second exchange takes to begin."""


def expand_collective(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with exchanges as its only collectives."""
    words = () if options.native_int64 == "disabled" else (in_words,)
    return apply_rules(graph, (*RULES, *words))


@rule
def collective_of_one_participant(op: Collective) -> Node | None:
    """collective(x) among one = x"""
    if op.kind in ("collective-permute", "rank-id"):
        return None
    if max((len(group) for group in op.replica_groups), default=1) > 1:
        return None
    return results_as_node(op.args) if results_as_node(op.args).type == op.type else None


@rule
def collective_of_nothing(op: Collective) -> Node | None:
    """collective(x) of tensors without elements = such tensors"""
    results = _result_types(op)
    if op.kind == "rank-id" or all(kind.elements for kind in results):
        return None
    if any(kind.elements for kind in results):
        return _one_by_one(op)
    return results_as_node(splat(0, kind.dtype, kind.shape) for kind in results)


@rule
def permute_from_nobody(op: Collective) -> Node | None:
    """collective_permute(x) without pairs = 0"""
    if op.kind != "collective-permute" or op.pairs:
        return None
    return results_as_node(splat_like(0, arg) for arg in op.args)


@rule
def in_exchanged_elements(op: Collective) -> Node | None:
    """collective(x) = y of the elements of another dtype that hold those of x, converted back"""
    if _is_reduction(op) and not _is_comparison_of_truths(op):
        return None
    return with_exchanged_elements(op)


@rule
def broadcast_as_tree(op: Collective) -> Node | None:
    """collective_broadcast(x) = the first sends to the second, both to the next two, and so on"""
    if op.kind != "collective-broadcast":
        return None
    return results_as_node(_tree(op, arg) for arg in op.args)


@rule
def tuple_to_all(op: Collective) -> Node | None:
    """all_to_all(x, y) of a tensor for each rank = all_to_all(stack(x, y)) along dimension 0"""
    if op.kind != "all-to-all" or op.dimension >= 0:
        return None
    received = _exchange(op, "all-to-all", stack(op.args, 0))
    return results_as_node(take(received, 0, place) for place in range(len(op.args)))


@rule
def of_first_dimension(op: Collective) -> Node | None:
    """collective(x) along a dimension = that of x transposed, transposed back"""
    along = op.dimension
    if op.kind not in ("all-gather", "all-to-all", "reduce-scatter") or along == 0:
        return None
    count = _largest(op)
    if op.kind == "all-gather":
        rows = [reshape(arg, (1, *arg.shape)) for arg in op.args]
        gathered = _exchanges(op, rows, [(count, *arg.shape) for arg in op.args])
        return results_as_node(_joined(each, along) for each in gathered)
    rows = [_split(arg, along, count) for arg in op.args]
    if op.kind == "all-to-all":
        received = _exchanges(op, rows, [row.shape for row in rows])
        return results_as_node(_joined(each, along) for each in received)
    totals = _exchanges(op, rows, [(1, *row.shape[1:]) for row in rows])
    kinds = zip(totals, _result_types(op), strict=True)
    return results_as_node(reshape(total, kind.shape) for total, kind in kinds)


@rule
def reduction_in_unequal_groups(op: Collective) -> Node | None:
    """all_reduce(x) in groups of several sizes = the members of everyone's x, combined"""
    if op.kind != "all-reduce" or len({len(group) for group in op.replica_groups}) == 1:
        return None
    return results_as_node(_combined_by_rank(op, arg) for arg in op.args)


@rule
def reduction_by_each_rank(op: Collective) -> Node | None:
    """all_reduce(x) = x of all ranks, combined; of much data in pieces, of which each has one"""
    if not _is_reduction(op) or _is_direct(op):
        return None
    if op.kind == "reduce-scatter":
        return results_as_node(_piece(op, arg) for arg in op.args)
    return results_as_node(_total(op, arg) for arg in op.args)


def _elements_as_words(op: Collective) -> Node | None:
    """collective(x) of 64-bit integers = y of their words"""
    return None if _is_reduction(op) else with_exchanged_words(op)


in_words = RewriteRule("in_words", (Collective,), _elements_as_words)


def _is_reduction(op: Collective) -> bool:
    return op.kind in ("all-reduce", "reduce-scatter")


def _is_comparison_of_truths(op: Collective) -> bool:
    """Whether a reduction is an `and` or `or`, the least or greatest of bytes."""
    return op.args[0].dtype.name == "pred" and monoid(op.body[0]) in ("and", "or")


def _is_direct(op: Collective) -> bool:
    """Whether the machine's instruction combines so."""
    dtypes: Sequence[DType] = _DIRECT.get(monoid(op.body[0]) or "", ())
    return all(arg.dtype in dtypes for arg in op.args)


def _largest(op: Collective) -> int:
    return max(len(group) for group in op.replica_groups)


def _result_types(op: Collective) -> list[TensorType]:
    kinds = op.type.elements if isinstance(op.type, TupleType) else (op.type,)
    return [kind for kind in kinds if isinstance(kind, TensorType)]


def _one_by_one(op: Collective) -> Node:
    """The collective of each of its tensors by itself."""
    pairs = zip(op.args, _result_types(op), strict=True)
    return results_as_node(replace(op, args=(arg,), result=kind) for arg, kind in pairs)


def _exchanges(op: Collective, args: Sequence[Node], shapes: Sequence[Ranks]) -> Sequence[Node]:
    """The results of the same kind of collective along dimension 0 of other tensors."""
    pairs = zip(args, shapes, strict=True)
    kinds = tuple(TensorType(arg.dtype, tuple(shape)) for arg, shape in pairs)
    result = TupleType(kinds) if isinstance(op.type, TupleType) else kinds[0]
    return results_of(replace(op, args=tuple(args), result=result, dimension=0))


def _exchange(op: Collective, kind: str, x: Node) -> Node:
    """x gathered, or its pieces exchanged, along dimension 0 in the groups of `op`."""
    extent = x.shape[0] * (_largest(op) if kind == "all-gather" else 1)
    result = TensorType(x.dtype, (extent, *x.shape[1:]))
    return Collective((x,), kind, result, 0, op.replica_groups, (), (), loc=op.loc)


def _split(x: Node, along: int, count: int) -> Node:
    """x in `count` pieces along a dimension, which a new first dimension counts."""
    shape = (*x.shape[:along], count, x.shape[along] // count, *x.shape[along + 1 :])
    rest = [d for d in range(len(shape)) if d != along]
    return transpose(reshape(x, shape), (along, *rest))


def _joined(pieces: Node, along: int) -> Node:
    """The inverse of `_split`."""
    count, *shape = pieces.shape
    order = [*range(1, along + 1), 0, *range(along + 1, len(shape) + 1)]
    whole = [count * extent if d == along else extent for d, extent in enumerate(shape)]
    return reshape(transpose(pieces, order), whole)


def _tree(op: Collective, x: Node) -> Node:
    """x of the first member of a rank's group, which reaches twice as many at every step."""
    distance, value = 1, x
    while distance < _largest(op):
        pairs = tuple(
            (source, target)
            for group in op.replica_groups
            for source, target in zip(group[:distance], group[distance:], strict=False)
        )
        sent = Collective((value,), "collective-permute", x.type, -1, (), pairs, (), loc=op.loc)
        value = select(is_one_of([target for _, target in pairs], x), sent, value)
        distance *= 2
    return value


def _folded(body: Graph, parts: Node) -> Node:
    """Parts, which the first dimension counts, combined in their order."""
    function = monoid(body)
    if function is not None:
        return reduce(function, parts, identity(function, parts.dtype), (0,))
    shape = parts.shape[1:]
    (total,) = fold_last(body, [move_last(parts, 0)])
    return reshape(total, shape)


def _total(op: Collective, x: Node) -> Node:
    """x of all members combined, of which each rank combines all, or a piece of much data."""
    count = _largest(op)
    received = (count - 2) * math.prod(x.shape) * x.dtype.bytes
    if received < LARGE_BYTES:
        row = reshape(x, (1, *x.shape))
        return _folded(op.body[0], _exchange(op, "all-gather", row))
    elements = math.prod(x.shape)
    each = -(-elements // count)
    flat = reshape(x, (elements,))
    padded = pad(flat, constant(0, x.dtype), (0,), (count * each - elements,))
    pieces = _exchange(op, "all-to-all", reshape(padded, (count, each)))
    own = reshape(_folded(op.body[0], pieces), (1, each))
    totals = reshape(_exchange(op, "all-gather", own), (count * each,))
    return reshape(slice_along(totals, 0, 0, elements), x.shape)


def _piece(op: Collective, x: Node) -> Node:
    """This rank's piece of what all members' x are, combined."""
    count = _largest(op)
    parts = _exchange(op, "all-to-all", x)
    shape = (x.shape[0] // count, *x.shape[1:])
    return _folded(op.body[0], reshape(parts, (count, *shape)))


def _combined_by_rank(op: Collective, x: Node) -> Node:
    """x of everyone, of which a rank combines those of its group."""
    groups = op.replica_groups
    everyone = tuple(sorted(rank for group in groups for rank in group))
    row = reshape(x, (1, *x.shape))
    gathered = _exchange(replace(op, replica_groups=(everyone,)), "all-gather", row)
    group_of = {rank: group for group in groups for rank in group}
    most = _largest(op)
    places = {rank: place for place, rank in enumerate(everyone)}
    members = [
        [places[group_of[rank][min(k, len(group_of[rank]) - 1)]] for k in range(most)]
        for rank in everyone
    ]
    sizes = [len(group_of[rank]) for rank in everyone]
    rank, zero = convert(rank_id(), S32), constant(0, S32)
    listed = dynamic_slice(constant(members, S32), (rank, zero), (1, most))
    size = reshape(dynamic_slice(constant(sizes, S32), (rank,), (1,)), ())
    total = _member(gathered, listed, 0)
    for k in range(1, most):
        (more,) = inline_scalar_graph(op.body[0], (total, _member(gathered, listed, k)))
        is_member = apply("less", constant(k, S32), size)
        total = select(broadcast(is_member, x.shape), more, total)
    return total


def _member(gathered: Node, listed: Node, k: int) -> Node:
    """What the k-th of the listed ranks gave."""
    zero, shape = constant(0, S32), gathered.shape[1:]
    place = reshape(slice_along(listed, 1, k, k + 1), ())
    row = dynamic_slice(gathered, (place, *[zero] * len(shape)), (1, *shape))
    return reshape(row, shape)


RULES = tuple(each for each in rules_of(globals()) if each is not in_words)
