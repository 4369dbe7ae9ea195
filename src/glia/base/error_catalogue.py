"""Every error that a user can see, by its code."""

from __future__ import annotations

import importlib
import pkgutil

import glia
from glia.base.errors import ERRORS, CompileError

_FRAMEWORK_USERS = ("glia.plugins", "glia.cli.demo")  # declare no errors, import JAX or PyTorch


def declared_errors() -> dict[str, type[CompileError]]:
    """All error classes by code, sorted; imports every module of the package that declares one."""
    for module in pkgutil.walk_packages(glia.__path__, "glia.", onerror=_reraise):
        if not module.name.startswith(_FRAMEWORK_USERS):
            _import_without_frameworks(module.name)
    return dict(sorted(ERRORS.items()))


def _import_without_frameworks(module: str) -> None:
    """Import a module of glia; skip one that needs a framework that is not installed."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if (problem.name or "").split(".")[0] == "glia":
            raise


def _reraise(module: str) -> None:
    raise
