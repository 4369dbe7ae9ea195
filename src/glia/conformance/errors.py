"""What can be wrong with the environment that public kernels are run in."""

from __future__ import annotations

from glia.base.errors import CompileError


class DropinMissing(CompileError):
    """Public kernels import `nki` or `neuronxcc`, and these names are not glia's.

    Cause: the distribution glia-dropin is not installed, or AWS's packages are, which have the same
    names.
    Fix: install `dropin/` of glia's repository in an environment without AWS's packages.
    Example: glia conformance nki --repo CLONE
    """

    code = "GLIA128"
    message = "{name} is not the drop-in's: it was found at {place}"
    help = "run `pip install ./dropin` from glia's repository, without AWS's packages beside it"
