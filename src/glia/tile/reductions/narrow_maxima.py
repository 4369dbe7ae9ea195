"""Maxima of bfloat16 values are kept in bfloat16: the Vector Engine finds them twice as fast.

A model that widens before it reduces, as softmax in float32 of bfloat16 scores, asks for
max(convert(x)). The greatest of some numbers is one of them, so convert(max(x)) is the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glia.base.dtype import BF16, F32
from glia.options import CompileOptions
from glia.tile.contraction import contraction_operands
from glia.tile.ir import Apply, Buffer, Expr, Load, Nest, Program, control_buffers
from glia.tile.nest_rewriting import map_leaves, map_nests


def narrow_maxima(program: Program, options: CompileOptions) -> Program:
    """Give temporaries that hold maxima of bfloat16 values that dtype."""
    names = _narrow_names(program)
    if not names:
        return program

    def widened(leaf: Expr) -> Expr:
        if not isinstance(leaf, Load) or leaf.buffer not in names:
            return leaf
        return Apply("convert", (replace(leaf, dtype=BF16),), F32)

    def narrowed(nest: Nest) -> Nest:
        body, finish = map_leaves(nest.body, widened), nest.finish
        nest = replace(nest, body=body, finish=finish and map_leaves(finish, widened))
        if nest.target.buffer not in names:
            return nest
        assert isinstance(nest.body, Apply) and nest.reduction is not None
        reduction = replace(nest.reduction, dtype=BF16)
        return replace(nest, body=nest.body.args[0], reduction=reduction)

    buffers: dict[str, Buffer] = {
        name: replace(buffer, dtype=BF16) if name in names else buffer
        for name, buffer in program.buffers.items()
    }
    return replace(map_nests(program, narrowed), buffers=buffers)


def _narrow_names(program: Program) -> set[str]:
    """The temporaries that hold nothing else, and of which every reader can widen a value."""
    names = {
        name
        for name, buffer in program.buffers.items()
        if buffer.role == "temporary" and buffer.dtype is F32
    }
    names -= {*program.outputs, *control_buffers(program.body)}
    names -= {name for pair in program.aliases for name in pair}
    nests = [*program.nests()]
    names &= {nest.target.buffer for nest in nests}
    for nest in nests:
        if not _is_narrow_maximum(nest):
            names.discard(nest.target.buffer)
        is_product = contraction_operands(nest) is not None
        for load in nest.loads:
            if is_product or load.dtype is not F32 or not _is_exact(load):
                names.discard(load.buffer)
    return names


def _is_narrow_maximum(nest: Nest) -> bool:
    """Whether a nest writes maxima of widened bfloat16 values, and nothing else."""
    reduction, body = nest.reduction, nest.body
    return (
        reduction is not None
        and reduction.function == "maximum"
        and reduction.dtype is F32
        and nest.finish is None
        and not nest.target.combine
        and isinstance(body, Apply)
        and body.function == "convert"
        and body.args[0].dtype is BF16
    )


def _is_exact(load: Load) -> bool:
    """Whether what stands for the value outside of the buffer is one of bfloat16."""
    fill = np.float32(load.fill)
    return not load.guards or bool(fill == fill.astype(BF16.numpy).astype(np.float32))
