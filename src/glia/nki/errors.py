"""What a user can do wrong in a kernel."""

from __future__ import annotations

from glia.base.errors import CompileError


class BrokenRule(CompileError):
    """A call of an nki.isa function breaks a law of its instruction.

    Cause: operands whose shapes, dtypes, memories or partitions the hardware does not take.
    Fix: change the operand that the rule names; the numbers after "here" are those of the call.
    Example: nki.isa.nc_matmul with a moving tensor of 1024 columns.
    """

    code = "GLIA601"
    message = "{rule}"
    help = "see nki.isa.{function} in docs/isa/instructions.md for all of its rules"


class IndexOutsideTensor(CompileError):
    """An index or slice of a tensor names elements that it does not have.

    Cause: a slice that ends after the last element (slices are not clamped), holds no element, or
    more indices than dimensions.
    Fix: bound the slice by the tensor's shape, with min() for the last tile of a loop.
    Example: tile[:, 0:600] where tile has 512 columns.
    """

    code = "GLIA602"
    message = "index {index} is outside dimension {dimension} of a tensor of shape {shape}"
    help = "every slice must lie within the tensor and hold at least one element"


class NotAnOutput(CompileError):
    """A kernel returns something that the caller cannot read.

    Cause: a tensor in SBUF, PSUM or private HBM, a part of a tensor, or no tensor at all.
    Fix: allocate the result with buffer=nl.shared_hbm, copy into it with nki.isa.dma_copy and
    return the whole of it.
    Example: a kernel that ends in `return tile` where tile is nl.ndarray(..., buffer=nl.sbuf).
    """

    code = "GLIA603"
    message = "kernel {kernel} returns {value}, which is not a whole tensor in shared_hbm"
    help = "copy it with nki.isa.dma_copy into nl.ndarray(..., buffer=nl.shared_hbm), return that"


class NotInNki(CompileError):
    """A kernel uses a part of NKI that glia does not trace, or a name NKI does not have.

    Cause: an nl or nisa name, a parameter, an index or a value outside what glia.nki covers.
    Fix: write the step with the nki.isa functions that `glia.nki.trace` lists.
    Example: nl.add(a, b) called as a function; as the operator of nki.isa.tensor_tensor it works.
    """

    code = "GLIA604"
    message = "{feature} is not supported in a kernel"
    help = "the docstring of glia.nki.trace lists what a kernel can use"


class ImpossibleTensor(CompileError):
    """A tensor that no memory can hold, or a view that the layout does not allow.

    Cause: more than 128 partitions, an extent below 1, an unknown dtype, fewer than two dimensions
    on chip, or a reshape that moves elements between partitions or changes their number.
    Fix: tile the tensor; on chip the first dimension is the partitions, at most nl.tile_size.pmax.
    Example: nl.ndarray((256, 512), nl.float32, buffer=nl.sbuf).
    """

    code = "GLIA605"
    message = "{dtype} tensor of shape {shape} in {buffer}: {reason}"
    help = "on chip a tensor is (partitions, elements, ...), with at most {partitions} partitions"


class OutsideKernel(CompileError):
    """A kernel's function is called while no kernel is being traced.

    Cause: nl.ndarray or an nki.isa function in plain Python, or a kernel called directly.
    Fix: run the kernel with glia.simulate(kernel)(*arrays).
    Example: nl.ndarray((128, 512), nl.float32) at the top of a module.
    """

    code = "GLIA606"
    message = "{function} is called outside a kernel"
    help = "run the kernel with glia.simulate(kernel)(*arrays)"
