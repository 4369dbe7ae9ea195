"""Everything that can be wrong with a command line."""

from __future__ import annotations

from glia.base.errors import CompileError


class BadCommandLine(CompileError):
    """The command line cannot be understood.

    Cause: A required option or argument is missing, a value is not one of those allowed, or a flag
        got a value.
    Fix: Read the message; `--help` after the command shows every option with its values.
    Example: neuronx-cc compile model.pb --framework XLA --target trn9
    """

    code = "GLIA201"
    message = "{problem}"
    help = "run `{command} --help` for every option and its values"


class UnknownFlag(CompileError):
    """The command line has a flag this command does not know.

    Cause: The flag is misspelt, or belongs to another command.
    Fix: Use the flag named in the message, or see `--help`.
    Example: neuronx-cc compile model.pb --framework XLA --target trn2 --auto-cats none
    """

    code = "GLIA202"
    message = "no such option: {flag}{nearest}"
    help = "run `{command} --help` for every option"


class NotOneFile(CompileError):
    """The compiler takes exactly one model file.

    Cause: No file was given, or several were; an unquoted value with spaces looks like several.
    Fix: Give the path of one serialized HLO module; quote option values that hold spaces.
    Example: neuronx-cc compile a.pb b.pb --framework XLA --target trn2
    """

    code = "GLIA203"
    message = "expected one model file, got {given}"
    help = "give the path of one serialized HLO module"


class UnwritableOutput(CompileError):
    """A file that was asked for cannot be written; found before any work is done where possible.

    Cause: Its directory is missing or may not be written, it is a directory, or the disk is full.
    Fix: Choose another path, or free space.
    Example: neuronx-cc compile model.pb --framework XLA --target trn2 --output /no/such/dir/m.neff
    """

    code = "GLIA204"
    message = "cannot write {path}: {reason}"
    help = "choose another path, or free space on the disk"


class BadArrayFile(CompileError):
    """A .npy or .npz file cannot be used.

    Cause: It is missing, not a NumPy file, cut short, holds Python objects, or lacks an array.
    Fix: Write it with numpy.save or numpy.savez from plain arrays, under the tensors' names.
    Example: glia run model.neff --input x=model.neff
    """

    code = "GLIA205"
    message = "cannot use {path}: {reason}"
    help = "write it with numpy.save or numpy.savez from plain arrays, under the tensors' names"


class CheckFailed(CompileError):
    """`glia run --check` found an output that differs from its reference.

    Cause: The model computes something else, or with less precision than the tolerance allows.
    Fix: Compile with `--auto-cast none`; raise `--rtol` and `--atol` where rounding differs.
    Example: glia run model.neff --check outputs_of_another_model.npz
    """

    code = "GLIA206"
    message = "{count} of {total} outputs differ from {path}; {first}"
    help = "compile with --auto-cast none, or set --rtol and --atol for the precision you expect"


class UnknownPass(CompileError):
    """`glia show --after` names a pass that does not exist.

    Cause: The name is misspelt, or from another version.
    Fix: Use one of the names in the message.
    Example: glia show model.pb --after no_such_pass
    """

    code = "GLIA207"
    message = "there is no pass {name!r}; passes in order: {known}"
    help = "use one of the passes in the message"


class UnknownCode(CompileError):
    """`glia explain` was asked for an error code or instruction that does not exist.

    Cause: The name is misspelt, or from another version.
    Fix: Copy the code from between the brackets of the message; `glia explain` lists all.
    Example: glia explain GLIA999
    """

    code = "GLIA208"
    message = "there is no error code or instruction {name!r}{nearest}"
    help = "run `glia explain` for the list of codes"


class NotConforming(CompileError):
    """`glia conformance` found kernels that fail and whose failure nobody has explained.

    Cause: The kernel uses what glia does not have, or glia computes something else than NumPy.
    Fix: Read the reasons in the table; report the kernel when it is legal.
    Example: glia conformance nki --repo a_clone_with_a_wrong_kernel
    """

    code = "GLIA209"
    message = "{count} of {total} kernels fail; {first}"
    help = "the table above gives the reason for each; --json gives it in full"


class KernelFailed(CompileError):
    """`glia check` found something wrong with a kernel.

    Cause: The kernel is refused on the target, reads memory that nothing wrote, depends on the
        order of engines and queues, or gives other values than expected.
    Fix: Each check that failed says what is wrong, where, and how to mend it.
    Example: glia check kernel.py::softmax --arg x=f32[256,512]
    """

    code = "GLIA210"
    message = "{failed} of {total} checks of kernel {kernel} failed"
    help = "read the lines that begin with FAIL"


class KernelRaised(CompileError):
    """The code of a kernel itself raised an exception while it was run.

    Cause: An assertion of the kernel does not hold for these arguments, or its Python is wrong.
    Fix: Give arguments that the kernel takes, or mend the line that is named.
    Example: glia profile kernel.py::tiled --arg x=f32[100,512], which asserts multiples of 128
    """

    code = "GLIA211"
    message = "kernel {kernel} raises {kind}: {text}"
    help = "the line above is the kernel's own: give other arguments, or mend it"
