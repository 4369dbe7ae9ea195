"""Errors of command lines, and of commands that compare or check."""

from __future__ import annotations

from glia.base.errors import CompileError


class BadCommandLine(CompileError):
    """The command line cannot be parsed.

    Cause: A required option or argument is missing, a value is not allowed, or a flag without a
        value has one.
    Fix: Correct the argument in the message; `--help` after the command lists all options.
    Example: neuronx-cc compile model.pb --framework XLA --target trn9
    """

    code = "GLIA201"
    message = "{problem}"
    help = "run `{command} --help` for every option and its values"


class UnknownFlag(CompileError):
    """The command has no option of this name.

    Cause: The option is misspelt or belongs to another command.
    Fix: Use the option suggested in the message, or one listed by `--help`.
    Example: neuronx-cc compile model.pb --framework XLA --target trn2 --auto-cats none
    """

    code = "GLIA202"
    message = "no such option: {flag}{nearest}"
    help = "run `{command} --help` for every option"


class NotOneFile(CompileError):
    """The compiler takes exactly one model file.

    Cause: No file or several files were given; an unquoted value with spaces counts as several.
    Fix: Give the path of one HLO or StableHLO module; quote option values that hold spaces.
    Example: neuronx-cc compile a.pb b.pb --framework XLA --target trn2
    """

    code = "GLIA203"
    message = "expected one model file, got {given}"
    help = "give the path of one serialized HLO module, or of one StableHLO module"


class CheckFailed(CompileError):
    """`glia run --check` found an output outside the tolerance of its reference.

    Cause: The model computes another function, or rounds more than the tolerance allows.
    Fix: Compile with `--auto-cast none`; raise `--rtol` and `--atol` for expected rounding.
    Example: glia run model.neff --check outputs_of_another_model.npz
    """

    code = "GLIA206"
    message = "{count} of {total} outputs differ from {path}; {first}"
    help = "compile with --auto-cast none, or raise --rtol and --atol to the expected rounding"


class UnknownPass(CompileError):
    """`glia show --after` names a pass that does not exist.

    Cause: The name is misspelt or belongs to another version of glia.
    Fix: Use one of the names in the message.
    Example: glia show model.pb --after no_such_pass
    """

    code = "GLIA207"
    message = "there is no pass {name!r}; passes in order: {known}"
    help = "use one of the passes in the message"


class UnknownCode(CompileError):
    """The argument of `glia explain` is no error code, instruction or function of nki.isa.

    Cause: The name is misspelt or belongs to another version of glia.
    Fix: Copy the code in brackets at the start of the message; `glia explain` lists all codes.
    Example: glia explain GLIA999
    """

    code = "GLIA208"
    message = "there is no error code or instruction {name!r}{nearest}"
    help = "run `glia explain` for the list of codes"


class NotConforming(CompileError):
    """`glia conformance` found failures that are not known defects of the repository.

    Cause: A kernel or program uses a feature that glia lacks, or its results differ from the
        reference, NumPy's or the program's own.
    Fix: Read the reasons above the table; report what is legal NKI or StableHLO as a bug of glia.
    Example: glia conformance nki --repo a_clone_with_a_wrong_kernel
    """

    code = "GLIA209"
    message = "{count} of {total} fail; {first}"
    help = "the lines above have the reason of each failure; --json has it in full"


class CollectingFailed(CompileError):
    """The command whose programs were to be collected has failed.

    Cause: It fails by itself, or it depends on results, which are zeros while programs are
        collected.
    Fix: Read what it printed; let it skip what checks results where NEURON_EXTRACT_GRAPHS_ONLY is
        set. `neuron_parallel_compile --command compile` compiles what was collected until then.
    Example: neuron_parallel_compile python train.py --epochs none
    """

    code = "GLIA212"
    message = "{command} ended with status {status}; {count} programs in {directory} are collected"
    help = "read what it printed, or compile these alone: neuron_parallel_compile --command compile"


class ProgramsFailed(CompileError):
    """Programs of the compile cache that were collected do not compile.

    Cause: An operator or an option is refused; each program's error is printed.
    Fix: Follow the fix that the error of each has.
    Example: neuron_parallel_compile python train.py, of a model in float64
    """

    code = "GLIA213"
    message = "{failed} of {total} collected programs do not compile"
    help = "see the errors above; they are tried again by neuron_parallel_compile --command compile"


class KernelFailed(CompileError):
    """A check of `glia check` failed.

    Cause: The kernel does not compile for the target, reads uninitialized memory, has a race or a
        deadlock, or its outputs differ from the expected ones.
    Fix: Follow the fix that each failed check prints with its source line.
    Example: glia check kernel.py::softmax --arg x=f32[256,512]
    """

    code = "GLIA210"
    message = "{failed} of {total} checks of kernel {kernel} failed"
    help = "see the lines that begin with FAIL"
