"""Convolutions of few channels: window rows are folded into channels.

A convolution sums over its channels along the partitions, one product for each position of the
window. With 3 channels 125 of 128 rows of the PE idle. The rows of a window (all its dimensions but
the last) can be channels too: the tensor is copied once for each row, shifted, and the sum is as
many times longer and the products as many times fewer. The last dimension stays, so that what is
copied is contiguous.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from glia.arch import Arch, get_target
from glia.graph.ir import Graph, Node
from glia.graph.ops import Convolution, ReducePrecision, Slice, Transpose
from glia.graph.rules.constructors import concatenate, constant, pad, reshape, reverse
from glia.graph.rules.driver import RewriteRule, apply_rules
from glia.options import CompileOptions

TRANSFERS = 3  # serial DMA transfers of the copies: read, written, read again


def fold_windows(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with window rows as channels wherever the target's PE gains more than copies cost.

    Results agree up to the order of float sums.
    """
    arch = get_target(options.target).arch

    def fold(op: Convolution) -> Node | None:
        """convolution(x, w) = convolution(shifted copies of x as channels, w reshaped)"""
        folded = foldable_dimensions(op, arch.partitions)
        if not folded or saved_ns(op, folded, arch) <= copying_ns(op, folded, arch):
            return None
        return with_rows_as_channels(op, folded)

    return apply_rules(graph, (RewriteRule("fold_windows", (Convolution,), fold),))


def foldable_dimensions(op: Convolution, partitions: int) -> tuple[int, ...]:
    """The spatial dimensions whose window rows fit beside the channels on the partitions."""
    if op.groups != 1 or op.batch_groups != 1 or any(step != 1 for step in op.x_dilation):
        return ()
    chosen, channels = [], op.x.shape[1]
    for d, extent in enumerate(op.kernel.shape[2:-1]):
        if extent > 1 and channels * extent <= partitions:
            chosen.append(d)
            channels *= extent
    return tuple(chosen)


def saved_ns(op: Convolution, folded: tuple[int, ...], arch: Arch) -> float:
    """The PE time of the products that folding removes, under the better of both mappings."""
    window = op.kernel.shape[2:]
    rows = math.prod(window[d] for d in folded)
    products = math.prod(window) * (1 - 1 / rows)
    positions, features = op.shape[0] * math.prod(op.shape[2:]), op.shape[1]
    least = arch.min_issue_cycles["tensor"]
    columns = min(
        max(positions, least) * math.ceil(features / arch.partitions),
        max(features, least) * math.ceil(positions / arch.partitions),
    )
    passes = arch.tensor_passes.get(op.x.dtype.name, 1.0)
    return arch.cycles_to_ns("tensor", products * columns * passes)


def copying_ns(op: Convolution, folded: tuple[int, ...], arch: Arch) -> float:
    """The DMA time of the copies, a descriptor for each contiguous run of the last dimension."""
    copies = math.prod(op.kernel.shape[2 + d] for d in folded)
    extents = [op.shape[2 + d] if d in folded else n for d, n in enumerate(op.x.shape[2:])]
    runs = math.prod(op.x.shape[:2]) * copies * math.prod(extents[:-1]) / arch.dma_engines
    run_ns = arch.dma_descriptor_ns + extents[-1] * op.x.dtype.bytes / arch.dma_bytes_per_ns
    waiting = (TRANSFERS + copies) * (arch.dma_start_ns + arch.dma_completion_ns)
    return TRANSFERS * runs * run_ns + waiting


def with_rows_as_channels(op: Convolution, folded: tuple[int, ...]) -> Node:
    """The same convolution over copies of x, one for each row of the folded dimensions.

    Copies are rounded, where x is, as the convolution reads them.
    """
    if isinstance(op.x, ReducePrecision):
        plain = with_rows_as_channels(dataclasses.replace(op, x=op.x.x), folded)
        assert isinstance(plain, Convolution)
        return dataclasses.replace(plain, x=op.x.with_operands((plain.x,)))
    window = op.kernel.shape[2:]
    offsets = itertools.product(*(range(window[d]) for d in folded))
    edges = [(op.low[d], op.high[d]) if d in folded else (0, 0) for d in range(len(window))]
    low, high = zip((0, 0), (0, 0), *edges, strict=True)
    padded = pad(op.x, constant(0, op.x.dtype), low, high)
    copies = [_shift_input(op, padded, dict(zip(folded, at, strict=True))) for at in offsets]

    def neutral_where_folded(values: tuple[int, ...], neutral: int) -> tuple[int, ...]:
        return tuple(neutral if d in folded else value for d, value in enumerate(values))

    return dataclasses.replace(
        op,
        x=concatenate(copies, 1),
        kernel=_fold_kernel(op, folded),
        stride=neutral_where_folded(op.stride, 1),
        low=neutral_where_folded(op.low, 0),
        high=neutral_where_folded(op.high, 0),
        kernel_dilation=neutral_where_folded(op.kernel_dilation, 1),
        kernel_reversal=tuple(
            is_reversed and d not in folded for d, is_reversed in enumerate(op.kernel_reversal)
        ),
    )


def _shift_input(op: Convolution, padded: Node, at: dict[int, int]) -> Node:
    """The input of one window row: every stride-th element from the row's offset on."""
    starts, limits, strides = [0, 0], list(padded.shape[:2]), [1, 1]
    for d, extent in enumerate(padded.shape[2:]):
        if d not in at:
            starts, limits, strides = [*starts, 0], [*limits, extent], [*strides, 1]
            continue
        start, stride = at[d] * op.kernel_dilation[d], op.stride[d]
        starts, strides = [*starts, start], [*strides, stride]
        limits.append(start + (op.shape[2 + d] - 1) * stride + 1)
    return Slice(padded, tuple(starts), tuple(limits), tuple(strides))


def _fold_kernel(op: Convolution, folded: tuple[int, ...]) -> Node:
    """The kernel with the folded dimensions beside the channels, in the order of the copies."""
    reversed_dimensions = tuple(2 + d for d in folded if op.kernel_reversal[d])
    kernel = reverse(op.kernel, reversed_dimensions)
    rest = [d for d in range(len(op.kernel.shape) - 2) if d not in folded]
    order = (0, *(2 + d for d in folded), 1, *(2 + d for d in rest))
    channels = math.prod(op.kernel.shape[2 + d] for d in folded) * op.kernel.shape[1]
    window = [1 if d in folded else n for d, n in enumerate(op.kernel.shape[2:])]
    return reshape(Transpose(kernel, order), (op.kernel.shape[0], channels, *window))
