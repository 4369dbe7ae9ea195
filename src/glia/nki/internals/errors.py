"""What tools ask of the inside of AWS's packages that glia does not have."""

from __future__ import annotations

from glia.base.errors import CompileError


class NotInGlia(CompileError, RuntimeError):
    """A tool asks for something inside of AWS's compiler or runtime that glia does not have.

    Cause: undocumented parts of AWS's packages pass around MLIR, dumps of devices and the like.
    Fix: what the help line of the message says, which does the same by documented means.
    Example: nki.compiler.ncc_driver.compile_mlir_to_neff("module {}", "kernel").
    """

    code = "GLIA644"
    message = "{name}: {problem}"
    help = "{cure}"
