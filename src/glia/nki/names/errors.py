"""The user errors of kernels.

Each error is also an instance of the Python exception that the documentation promises, so that
`except AssertionError` or `except IndexError` around a kernel catches it.
"""

from __future__ import annotations

from glia.base.errors import CompileError


class NkiValidationError(Exception):
    """A call breaks a constraint of the hardware; glia raises one of its subclasses."""


class BrokenRule(CompileError, NkiValidationError, AssertionError):
    """A call of an nki.isa function violates a rule of its instruction.

    Cause: operands with shapes, dtypes, memories or partitions that the hardware does not support.
    Fix: change the operand that the rule names; the numbers after "here" are those of the call.
    Example: nki.isa.nc_matmul with a moving tensor of 1024 columns.
    """

    code = "GLIA601"
    message = "{rule}"
    help = "`glia explain {function}` prints all its rules"


class IndexOutsideTensor(CompileError, NkiValidationError, IndexError, AssertionError):
    """An index or slice of a tensor is out of bounds.

    Cause: a slice that ends after the last element (slices are not clamped) or before its start, or
    more indices than dimensions.
    Fix: bound the slice by the tensor's shape, with min() for the last tile of a loop.
    Example: tile[:, 0:600] where tile has 512 columns.
    """

    code = "GLIA602"
    message = "index {index} is outside dimension {dimension} of a tensor of shape {shape}"
    help = "slices are not clamped; bound the last one of a loop with min()"


class NotAnOutput(CompileError, NkiValidationError):
    """A kernel returns a value that is not a readable output.

    Cause: a tensor in SBUF or PSUM, in a compiled kernel also one in private HBM or a view of part
    of a tensor, or no tensor at all.
    Fix: allocate the result with buffer=nl.shared_hbm, copy into it with nki.isa.dma_copy and
    return the whole of it.
    Example: a kernel that ends in `return tile` where tile is nl.ndarray(..., buffer=nl.sbuf).
    """

    code = "GLIA603"
    message = "kernel {kernel} returns {value}, which is not a whole tensor in shared_hbm"
    help = "copy it with nki.isa.dma_copy into nl.ndarray(..., buffer=nl.shared_hbm), return that"


class NotInNki(CompileError, TypeError):
    """A kernel uses a name, parameter or value that NKI does not support.

    Cause: a misspelt nl or nisa name, a wrong parameter, or an argument of the wrong type.
    Fix: compare the call with the documented signature, which help(nki.isa.<function>) prints.
    Example: nki.isa.register_move(register, 1.5), since registers hold integers.
    """

    code = "GLIA604"
    message = "{feature} is not supported in a kernel"
    help = "compare with the documented signature: help(nki.isa.<function>), help(nki.language)"


class ImpossibleTensor(CompileError, NkiValidationError, AssertionError):
    """A tensor does not fit its memory, or a view does not fit its tensor's layout.

    Cause: more bytes than the memory has, an extent below 1, an unknown dtype, or a view that
    moves elements between partitions, merges dimensions that are not contiguous or changes the
    number of elements.
    Fix: tile the tensor; on chip the first dimension is the partitions, at most nl.tile_size.pmax.
    Example: tile.reshape((64, 1024)) where tile has the shape (128, 512) in SBUF.
    """

    code = "GLIA605"
    message = "{dtype} tensor of shape {shape} in {buffer}: {reason}"
    help = "{cure}"


class OutsideKernel(CompileError):
    """A function of nl or nki.isa is called outside a kernel.

    Cause: nl.ndarray or an nki.isa function in plain Python.
    Fix: put the call into a kernel and run that with nki.simulate(kernel)(*arrays).
    Example: nl.ndarray((128, 512), nl.float32) at the top of a module.
    """

    code = "GLIA606"
    message = "{function} is called outside a kernel"
    help = "run the kernel with nki.simulate(kernel)(*arrays)"


class UnknownWhenTraced(CompileError, TypeError):
    """Python needs a value that is known at run time only.

    Cause: `if`, int() or range() on a register, or bool() or NumPy on a tensor's contents.
    Fix: compute with functions of nl and nki.isa in place of NumPy's; loop with nl.fori_loop or
    nl.while_loop; choose between values with nki.isa.tensor_copy_predicated or nl.where.
    Example: `if register:` where register = nki.isa.register_alloc(1).
    """

    code = "GLIA607"
    message = "{value} is not known while the kernel is compiled: {use}"
    help = (
        "compute with functions of nl and nki.isa, not of NumPy; loop with nl.fori_loop or "
        "nl.while_loop; select between values with nl.where"
    )


class IndexNotInTable(CompileError, IndexError):
    """An index that a kernel computes is out of bounds.

    Cause: a vector_offset or scalar_offset beyond the dimension it indexes, with
    oob_mode.error (the default).
    Fix: correct the indices, or pass oob_mode=nki.isa.oob_mode.skip to leave such rows out.
    Example: nki.isa.dma_copy from x.vector_select(0, rows) where a row is x.shape[0].
    """

    code = "GLIA608"
    message = "{problem}"
    help = (
        "correct the index{row}; nki.isa.dma_copy, dma_compute and dma_transpose leave out rows "
        "that do not exist with oob_mode=nki.isa.oob_mode.skip"
    )


class BadLaunch(CompileError, TypeError, ValueError):
    """A kernel is decorated or launched in a way that NKI does not support.

    Cause: a grid other than [1] or [2], two cores on a target whose cores stand alone, an option
    that nki.jit does not have or that nki.profile needs, or arguments that do not fit the kernel's
    parameters.
    Fix: launch with kernel(...) or kernel[2](...), of Beta 1 on any grid; choose
    the target with the environment variable NEURON_PLATFORM_TARGET_OVERRIDE.
    Example: nki.jit(kernel, platform_target="trn1").
    """

    code = "GLIA609"
    message = "kernel {kernel}: {problem}"
    help = "help(kernel) lists its parameters, help(nki.jit) and help(nki.profile) the options"


class CoresDisagree(CompileError, RuntimeError):
    """Two cores of a kernel wait for each other at different synchronisation points.

    Cause: one core reaches a core_barrier or sendrecv that the other never reaches, or reaches with
    another pipe or partner.
    Fix: let both programs make the same calls in the same order, also under `if program_id`.
    Example: nki.isa.core_barrier(data, (0, 1)) under `if nl.program_id(0) == 0:`.
    """

    code = "GLIA610"
    message = "core {core} waits in {call}, {other}"
    help = "both programs must reach the same barriers and exchanges in the same order"


class ParticipantsMissing(CompileError, RuntimeError):
    """A simulated kernel meets cores or ranks that its simulation does not have.

    Cause: nki.simulate runs the cores of one rank; a collective names several ranks, or a barrier
    two cores where one runs.
    Fix: launch the kernel on both cores as kernel[2]; compile it for each rank and run the programs
    together with glia.sim.order.concurrent.run_cores.
    Example: nki.collectives.all_reduce with ReplicaGroup([[0, 1]]) in nki.simulate(kernel)(x).
    """

    code = "GLIA616"
    message = "{call} needs the {among} {all}, and this simulation has {own}"
    help = "launch on two cores as kernel[2]; compiled programs of several ranks run together"


class CoresRace(CompileError, RuntimeError):
    """Two cores of a kernel race: unsynchronised accesses to a shared tensor, one of them a write.

    Cause: one core reads or writes elements that the other writes, without synchronisation between.
    Fix: synchronise both cores in between, with nki.isa.core_barrier or sendrecv; or let each core
    write rows that the other does not access.
    Example: each core copies half of x to a tensor in shared_hbm, then loads all of it.
    """

    code = "GLIA615"
    message = (
        "core {core} {act} elements of {tensor} that core {other} {others} at {place}, without "
        "synchronisation between them"
    )
    help = "let both cores call nki.isa.core_barrier(tensor, (0, 1)) in between"


class BadSchedule(CompileError, ValueError):
    """An order of instructions requested by a kernel is impossible.

    Cause: a name in with_schedule that none or several instructions have, a cyclic dependence, or
    an instruction that waits for another inside a loop on the device.
    Fix: give each instruction a unique name (name=...), and let later ones wait for earlier.
    Example: kernel.with_schedule([("plus1", "recip")]) where nothing is named recip.
    """

    code = "GLIA612"
    message = "impossible order {edge}: {reason}"
    help = "name instructions with name=, and order those of one block of the program only"


class NotATensor(CompileError, TypeError):
    """An argument of a kernel is an array that cannot become a tensor of the device.

    Cause: a dtype that NKI does not have, as NumPy's float64 and int64; rank 0; no elements.
    Fix: convert it, in NumPy with x.astype(np.float32); pass a single value as a Python number.
    Example: kernel(np.ones((128, 512))), whose argument is float64.
    """

    code = "GLIA613"
    message = "argument {name}, {dtype} of shape {shape}, cannot be a tensor of a kernel"
    help = "{cure}"


class NoDerivative(CompileError, TypeError):
    """A kernel is differentiated but has no derivative rule.

    Cause: jax.grad, jax.vjp or jax.jvp reaches a kernel, whose instructions are not differentiable.
    Fix: wrap the call in a function with jax.custom_vjp, or in a torch.autograd.Function (or
    nki_op with register_autograd), and give its backward pass, which may call
    a kernel too (glia.kernels.flash_attention_backward is one); jax.lax.stop_gradient around the
    arguments where no gradient is needed.
    Example: jax.grad(lambda x: kernel(x).sum())(x)
    """

    code = "GLIA614"
    message = "kernel {kernel} has no derivative"
    help = "give one with jax.custom_vjp or torch.autograd.Function around the call"


class NoSuchName(CompileError, AttributeError):
    """A module of NKI has no such name.

    Cause: a misspelt name, or one of NKI Beta 1 (`neuronxcc.nki`).
    Fix: look the name up in help(nki.language), help(nki.isa) or help(nki.collectives).
    Example: nl.arange, which only Beta 1 has.
    """

    code = "GLIA611"
    message = "{module} has no {name}{hint}"
    help = "help({module}) lists its names"


class UnsoundKernel(CompileError, NkiValidationError, AssertionError):
    """A kernel fails a check of `assert_sound`.

    Cause: it is refused on the target, reads uninitialised memory, depends on the order of engines
    and queues, or gives other values than expected.
    Fix: see the message of the check; `glia check kernel.py::name` prints all of them.
    Example: assert_sound(kernel, x, expected=[x]) for a kernel that returns x + 1.
    """

    code = "GLIA640"
    message = "kernel {kernel} fails: {problem}"
    help = "print(check_kernel(kernel, *arrays)) shows every check"


class WrongArguments(CompileError, TypeError):
    """A function of NKI is called with arguments that do not fit its parameters.

    Cause: a misspelt keyword, a parameter that is missing or given twice, or too many arguments.
    Fix: compare the call with the signature in the message.
    Example: nki.isa.tensor_copy(dst=tile, source=x), whose parameter is called src.
    """

    code = "GLIA641"
    message = "{function}: {problem}"
    help = "its parameters are {parameters}"


class MaskNotSupported(CompileError, TypeError):
    """A function of the current NKI is called with a mask.

    Cause: mask= belongs to NKI Beta 1 (`neuronxcc.nki`).
    Fix: slice the operands in place of a mask that is a box, so that the last tile of
    nl.load(x[rows, :], mask=rows < n) is nl.load(x[start:n, :]). For a mask that is not a box
    compute all elements and select with nl.where or nki.isa.affine_select.
    Example: nl.load(x, mask=rows < n), which is nl.load(x[0:n, :]).
    """

    code = "GLIA643"
    message = "mask parameter is not supported: {function}"
    help = (
        "slice the operands, {function}(x[0:n, :], ...) for mask=rows < n; for a mask that is not "
        "a box compute all elements and select with nl.where"
    )


class NoOperator(CompileError, TypeError):
    """A kernel writes an operator of Python between tensors.

    Cause: tensors of the current NKI have no operators; those of Beta 1
    (`neuronxcc.nki`) have.
    Fix: call the function of nki.language that the message names, or an nki.isa function, whose
    destination you allocate yourself.
    Example: `y = x * 2.0` where x is a tensor; nl.multiply(x, 2.0) is the same.
    """

    code = "GLIA642"
    message = "tensors have no operator {sign}"
    help = "write {call}, or an nki.isa function with a destination"


class NotInGlia(CompileError, RuntimeError):
    """A tool uses internals of AWS's compiler or runtime that glia does not have.

    Cause: undocumented parts of AWS's packages exchange MLIR, device dumps and the like.
    Fix: use the documented alternative in the help line of the message.
    Example: nki.compiler.ncc_driver.compile_mlir_to_neff("module {}", "kernel").
    """

    code = "GLIA644"
    message = "{name}: {problem}"
    help = "{cure}"


class KernelRaised(CompileError):
    """The kernel's own code raised an exception.

    Cause: An assertion in the kernel does not hold for these arguments, or its Python has a bug.
    Fix: Pass arguments that the kernel supports, or correct the source line in the message.
    Example: glia profile kernel.py::tiled --arg x=f32[100,512], which asserts multiples of 128
    """

    code = "GLIA211"
    message = "kernel {kernel} raises {kind}: {text}"
    help = "pass arguments that the kernel supports, or correct the source line above"
