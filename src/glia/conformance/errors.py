"""Errors of the environment in which public kernels run."""

from __future__ import annotations

from glia.base.errors import CompileError


class DropinMissing(CompileError):
    """Public kernels import `nki` or `neuronxcc`, which do not resolve to glia-dropin.

    Cause: the distribution glia-dropin is not installed, or AWS's packages of the same names are.
    Fix: install `dropin/` of glia's repository in an environment without AWS's packages.
    Example: glia conformance nki --repo CLONE
    """

    code = "GLIA128"
    message = "{name} is not glia-dropin's: it resolves to {place}"
    help = "run `pip install ./dropin` from glia's repository, without AWS's packages beside it"


class NoChecks(CompileError):
    """A clone of openxla/stablehlo, or one of its modules, checks no value.

    Cause: The path is not that of a clone, --only fits none of its files, or no function of a
        module holds an operation or call `check.expect_*`.
    Fix: Give the folder that holds `stablehlo/testdata`; leave --only out.
    Example: glia conformance stablehlo --repo an_empty_folder
    """

    code = "GLIA129"
    message = "{what} holds no program that checks its results"
    help = "give a clone of openxla/stablehlo, the folder that holds stablehlo/testdata"
