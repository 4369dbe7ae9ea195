"""Sums over all free elements of a partition, by the accumulators of the Scalar Engine.

They add up in float32 what an activation computes, before it is rounded. So a sum costs nothing
beside the instruction that computes the values, where that can be an activation, and else one
that copies them: often less than the Vector Engine takes, which has more other work.
"""

from __future__ import annotations

from dataclasses import replace

from glia.base.affine import ZERO
from glia.base.dtype import BF16, F32
from glia.isa.cost import stream_cycles
from glia.isa.instructions.scalar import Activation
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, row_major
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.emit.covering import InstructionCosts, strip_widening
from glia.machine.emit.layout import fold_dims
from glia.machine.emit.selection import Selector
from glia.machine.ir import Statement
from glia.machine.legal_instruction import violations
from glia.tile.ir import Expr

MOVES = ("copy", "identity")
COMMAND = "reset_reduce"  # of the accumulators, for a sum that begins and ends with an instruction


def sum_row(
    builder: BlockBuilder, costs: InstructionCosts, selector: Selector, body: Expr, total: Pattern
) -> bool:
    """Write the sum of an expression over all free axes, added up in float32, to a column, `total`.

    False where only the Vector Engine can, or is faster, as it is where the sum is rounded to
    bfloat16 and nothing else computes what is added up; that may have been computed by then.
    """
    summed = strip_widening(body)
    value = selector.placeholder(summed)
    least = min(_vector_ns(costs, value), _scalar_ns(costs, value))
    if summed.dtype is F32 and selector.reduce_with(
        summed, Activation, least, reduced=total, command=COMMAND
    ):
        return True
    value = fold_dims((selector.pattern(summed),))[0]
    if _reduces_where_computed(builder.block, value, total):
        return True
    if total.dtype is BF16:
        return False
    unused = builder.tile("unused", Memory.SBUF, BF16, value.partitions, value.free)
    dst = replace(value, tile=unused, dtype=BF16, dims=(value.dims[0], *row_major(value.shape[1:])))
    dst = replace(dst, offset=ZERO, partition=ZERO)
    copy = Activation(
        dst=dst,
        data=value,
        function="copy",
        on="scalar",
        loc=builder.loc,
        reduced=total,
        command=COMMAND,
    )
    if _scalar_ns(costs, value) > _vector_ns(costs, value) or violations(copy, costs.arch):
        del builder.tiles[unused.name]
        return False
    builder.emit(copy)
    return True


def _vector_ns(costs: InstructionCosts, value: Pattern) -> float:
    cycles = stream_cycles(costs.arch, "vector", value.free)
    return cycles / costs.arch.clocks_ghz["vector"]


def _scalar_ns(costs: InstructionCosts, value: Pattern) -> float:
    cycles = stream_cycles(costs.arch, "scalar", value.free) + costs.arch.accumulator_read_cycles
    return cycles / costs.arch.clocks_ghz["scalar"]


def _reduces_where_computed(block: list[Statement], value: Pattern, total: Pattern) -> bool:
    """Let the activation that has written all of a value reduce it as well.

    It adds up what it computes, so that the sum of a function's values in bfloat16 is nearer to
    what was meant; values that are only copied are rounded on purpose.
    """
    for position in reversed(range(len(block))):
        each = block[position]
        if not isinstance(each, Instr):
            return False
        if all(written.tile is not value.tile for written in each.written_patterns()):
            continue
        if not isinstance(each, Activation) or each.reduced is not None or each.command != "idle":
            return False
        is_precise = value.dtype is F32 or (value.dtype is BF16 and each.function not in MOVES)
        if not is_precise or fold_dims((each.dst,))[0] != value:
            return False
        block[position] = replace(each, reduced=total, command=COMMAND)
        return True
    return False
