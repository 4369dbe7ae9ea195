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
    """A clone of a repository, or one of its modules, holds nothing that checks its results.

    Cause: The path is not that of a clone, or no function of a module of openxla/stablehlo holds
        an operation or call `check.expect_*`.
    Fix: Give the folder that holds `stablehlo/testdata`, `test/integration/nkilib` or, of
        jax-ml/jax, `tests/lax_test.py`.
    Example: glia conformance stablehlo --repo an_empty_folder
    """

    code = "GLIA129"
    message = "{what} holds no program that checks its results"
    help = (
        "give the clone's own folder: it holds stablehlo/testdata, test/integration/nkilib or, of "
        "jax-ml/jax, tests/lax_test.py"
    )


class NothingSelected(CompileError):
    """An option selects none of the tests of a clone.

    Cause: No file has a path that holds what --only gives, or no test has the marks of --marks.
    Fix: Leave the option out, or give a part of the path of a file.
    Example: glia conformance nki-library --repo nki-library --only cumsums
    """

    code = "GLIA133"
    message = "{option} {value!r} selects none of the {count} files with tests in {place}"
    help = "leave {option} out, or see the names of the clone's files and marks"


class PackagesMissing(CompileError):
    """The tests of a public repository import Python packages that are not installed.

    Cause: glia was installed without the extra that names them.
    Fix: the command of the message installs them.
    Example: glia conformance nki-library --repo CLONE
    """

    code = "GLIA130"
    message = "the tests import packages that are not installed: {names}"
    help = "run `pip install {install}`"
