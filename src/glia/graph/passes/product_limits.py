"""What AWS's compiler would refuse (`--product-limits`), with its codes; glia compiles it all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glia.arch import get_target
from glia.base.dtype import F8E4M3FN, PRED
from glia.graph.ir import Graph, Node
from glia.graph.ops import (
    Broadcast,
    Collective,
    Convert,
    Convolution,
    Dot,
    Gather,
    Iota,
    Map,
    ReduceWindow,
    Reshape,
    RngBits,
    Scatter,
    Sort,
    monoid,
)
from glia.graph.passes.errors import NoIntegerDatapath, UnsupportedComplex
from glia.graph.passes.product_errors import (
    LimitedAllReduce,
    LimitedBaseDilation,
    LimitedDilations,
    LimitedFp8,
    LimitedGatherBounds,
    LimitedIntegerScatter,
    LimitedPower,
    LimitedRandomAlgorithm,
    LimitedReduceScatter,
    LimitedScatterBounds,
    LimitedScatterReduction,
    LimitedShift,
    LimitedStride,
    LimitedTopK,
    LimitedWindowDilation,
    LimitedWindowOperands,
)
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.options import DOWNCASTS, CompileOptions

_WIDE = 32  # bits of integers that float32 does not hold
Allowed = frozenset[str]  # operations that --implicit-integer-downcast names


def check_product_limits(graph: Graph, options: CompileOptions) -> Graph:
    """The graph itself; with `--product-limits` an error for what AWS's compiler refuses."""
    if not options.product_limits:
        return graph
    asked = options.implicit_integer_downcast
    allowed = frozenset(DOWNCASTS if asked == ("all",) else asked)
    has_e4m3fn = get_target(options.target).arch.capabilities.has_microscaling_dtypes
    for node in all_nodes(graph):
        for kind in tensor_types(node.type):
            if kind.dtype.is_complex:
                raise UnsupportedComplex(opcode=node.opcode, loc=node.loc)
            if kind.dtype is F8E4M3FN and not has_e4m3fn:
                raise LimitedFp8(opcode=node.opcode, target=options.target, loc=node.loc)
        check = _CHECKS.get(type(node))
        if check is not None:
            check(node, allowed)
    return graph


def _is_wide_integer(node: Node) -> bool:
    return node.dtype.is_integer and node.dtype.bits >= _WIDE


def _dot(node: Dot, allowed: Allowed) -> None:
    if _is_wide_integer(node.a) and "dot" not in allowed:
        raise NoIntegerDatapath(opcode="dot", bits=node.a.dtype.bits, loc=node.loc)


def _convolution(node: Convolution, _: Allowed) -> None:
    is_dilated = any(step > 1 for step in node.x_dilation)
    if is_dilated and any(step > 1 for step in node.kernel_dilation):
        raise LimitedDilations(
            x_dilation=node.x_dilation, kernel_dilation=node.kernel_dilation, loc=node.loc
        )
    if is_dilated and any(step > 1 for step in node.stride):
        raise LimitedStride(stride=node.stride, x_dilation=node.x_dilation, loc=node.loc)


def _reduce_window(node: ReduceWindow, _: Allowed) -> None:
    if len(node.xs) != 1:
        raise LimitedWindowOperands(count=len(node.xs), loc=node.loc)
    if any(step > 1 for step in node.x_dilation):
        raise LimitedBaseDilation(dilation=node.x_dilation, loc=node.loc)
    if any(step > 1 for step in node.window_dilation):
        raise LimitedWindowDilation(dilation=node.window_dilation, loc=node.loc)


def _map(node: Map, allowed: Allowed) -> None:
    if node.function == "shift_right_arithmetic" and node.dtype.bits != _WIDE:
        raise LimitedShift(dtype=node.dtype, loc=node.loc)
    is_wide = node.dtype.is_integer and node.dtype.bits > _WIDE
    if node.function == "power" and is_wide and "pow" not in allowed:
        raise LimitedPower(dtype=node.dtype, loc=node.loc)


def _random(node: RngBits, _: Allowed) -> None:
    if node.algorithm != "default":
        raise LimitedRandomAlgorithm(algorithm=node.algorithm, loc=node.loc)


def _sort(node: Sort, _: Allowed) -> None:
    """A sort of integers with their positions, which is what top-k is made of."""
    has_positions = len(node.xs) > 1 and isinstance(_source(node.xs[1]), Iota)
    if has_positions and node.xs[0].dtype.is_integer:
        raise LimitedTopK(dtype=node.xs[0].dtype, loc=node.loc)


def _scatter(node: Scatter, allowed: Allowed) -> None:
    x = node.xs[0]
    if monoid(node.body) is not None:
        if _is_wide_integer(x) and "scatter" not in allowed:
            raise LimitedIntegerScatter(dtype=x.dtype, loc=node.loc)
        if x.dtype is PRED or (x.dtype.is_integer and x.dtype.bits < _WIDE):
            raise LimitedScatterReduction(dtype=x.dtype, loc=node.loc)
    last = _last_counted(node.indices, len(node.scatter_dims))
    if last is not None and last >= x.shape[node.scatter_dims[0]]:
        extent = x.shape[node.scatter_dims[0]]
        raise LimitedScatterBounds(last=last, extent=extent, loc=node.loc)


def _gather(node: Gather, _: Allowed) -> None:
    last = _last_counted(node.indices, len(node.start_index_map))
    if last is not None and last >= node.x.shape[node.start_index_map[0]]:
        extent = node.x.shape[node.start_index_map[0]]
        raise LimitedGatherBounds(last=last, extent=extent, loc=node.loc)


def _last_counted(indices: Node, dimensions: int) -> int | None:
    """The greatest index, where indices of one dimension are counted up from 0."""
    source = _source(indices)
    if dimensions != 1 or not isinstance(source, Iota):
        return None
    return source.shape[source.dimension] - 1


def _source(node: Node) -> Node:
    while isinstance(node, Reshape | Broadcast | Convert):
        node = node.x
    return node


def _collective(node: Collective, allowed: Allowed) -> None:
    if not (node.args and _is_wide_integer(node.args[0])):
        return
    dtype = node.args[0].dtype
    if node.kind == "all-reduce" and "all_reduce" not in allowed:
        raise LimitedAllReduce(dtype=dtype, loc=node.loc)
    if node.kind == "reduce-scatter" and "reduce_scatter" not in allowed:
        raise LimitedReduceScatter(dtype=dtype, loc=node.loc)


_CHECKS: dict[type[Node], Callable[[Any, Allowed], None]] = {
    Collective: _collective,
    Convolution: _convolution,
    Dot: _dot,
    Gather: _gather,
    Map: _map,
    ReduceWindow: _reduce_window,
    RngBits: _random,
    Scatter: _scatter,
    Sort: _sort,
}
