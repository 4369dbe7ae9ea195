"""Errors in machine programs written with `ProgramBuilder`."""

from __future__ import annotations

from glia.base.errors import CompileError


class IllegalInstruction(CompileError):
    """An instruction of a hand-written program breaks a rule of its declaration.

    Cause: operands whose shapes, dtypes, memories or partitions are not legal, an engine that
    does not have the instruction, or a name that is not one of its operands.
    Fix: change the operand that the message names; the numbers after "here" are the actual ones.
    Example: ProgramBuilder().nc_matmul(total, left, right) with 1024 columns in right
    """

    code = "GLIA311"
    message = "{problem}"
    help = "docs/isa/instructions.md lists the operands and rules of every instruction"


class IllegalView(CompileError):
    """An index, a reshape or a broadcast asks for elements that a view does not have.

    Cause: an index outside the extent, a slice whose length depends on a loop variable, or a
    reshape of elements that are not at a constant step.
    Fix: index within the shape; slices may start anywhere but hold a constant number of elements.
    Example: ProgramBuilder().sbuf((128, 512), "f32")[:, 500:600]
    """

    code = "GLIA312"
    message = "{problem}; the view has shape {shape}"
    help = "slice as view[:, start : start + count], where start may name loop variables"


class BrokenProgram(CompileError):
    """A hand-written program breaks a rule of the machine level.

    Cause: an access that leaves its tile in some iteration, a tile that its memory cannot hold,
    tensors that share an address, a register that is never set, or a block that is still open.
    Fix: correct what the message lists; each line names the instruction and its source.
    Example: a loop of 5 trips over view[128 * i : 128 * i + 128], where view has 512 rows
    """

    code = "GLIA313"
    message = "{program} is not a legal program for {target}: {problem}"
    help = "every access must stay in its tile for every value of the loop variables"
