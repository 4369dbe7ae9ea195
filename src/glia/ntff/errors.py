"""Errors of traces: files that cannot be read, and what is asked of them."""

from __future__ import annotations

from glia.base.errors import CompileError


class TraceError(CompileError):
    """An NTFF file cannot be opened; also the parent of every other error about NTFF files.

    Cause: The path does not exist, is a directory or a device, or may not be read.
    Fix: Give the path of a file that `neuron-profile capture` wrote.
    Example: neuron-profile view -n file.neff -s no_such_file.ntff
    """

    code = "GLIA521"
    message = "cannot read NTFF {path}: {reason}"
    help = "write it with `neuron-profile capture -n F.neff -s F.ntff`"


class DamagedTrace(TraceError):
    """The file is no NTFF of glia, or was changed or cut short.

    Cause: The public documentation does not give the byte format of AWS's NTFF, so only files that
        glia wrote can be read; or the file was changed since.
    Fix: Capture the trace again, or copy the file again.
    Example: neuron-profile view -n file.neff -s file.neff
    """

    code = "GLIA522"
    message = "the NTFF {path} is not readable: {reason}"
    help = "capture it again with `neuron-profile capture -n F.neff -s F.ntff`"


class OtherNeff(TraceError):
    """The trace was captured from another NEFF than the one given.

    Cause: The model was compiled again since, or the paths do not belong together.
    Fix: Give the NEFF that was captured, or capture the trace again.
    Example: neuron-profile view -n other.neff -s file.ntff
    """

    code = "GLIA523"
    message = "the NTFF {path} was captured from a NEFF with hash {captured}, not {given}"
    help = "give the NEFF that was captured, or capture again"


class LibraryMissing(CompileError):
    """A format needs a library that is not installed.

    Cause: Parquet files are written by pyarrow, which is an extra.
    Fix: Install the extra in the message, or ask for another format.
    Example: neuron-profile view -n F.neff -s F.ntff --output-format parquet, without pyarrow
    """

    code = "GLIA524"
    message = "{what} needs {library}, which is not installed"
    help = "pip install 'glia[{extra}]', or use --output-format json"


class OutputsDiffer(CompileError):
    """Executions of one NEFF with the same inputs gave different outputs.

    Cause: The model keeps a state from one execution to the next, or its result depends on the
        order in which engines run.
    Fix: Write the state before each with --write-tensors-per-exec alias; look for races with
        `glia check`.
    Example: neuron-profile capture --num-exec 2 --check-output-determinism -n counter.neff
    """

    code = "GLIA525"
    message = "output {name!r} of execution {execution} differs from that of the first"
    help = "look for state that outlives an execution, and for races with `glia check`"
