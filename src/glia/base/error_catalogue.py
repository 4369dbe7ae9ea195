"""Every error that a user can see, by its code."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import glia
from glia.base.errors import ERRORS, CompileError
from glia.base.unraised_codes import UNRAISED

# They import JAX or PyTorch, and declare errors in modules of that name only
_FRAMEWORK_USERS = ("glia.plugins", "glia.cli.demo")
_ERRORS = ".errors"


def declared_errors() -> dict[str, type[CompileError]]:
    """All error classes by code, sorted; imports every module of the package that declares one."""
    for module in pkgutil.walk_packages(glia.__path__, "glia.", onerror=_reraise):
        if not module.name.startswith(_FRAMEWORK_USERS) or module.name.endswith(_ERRORS):
            _import_without_frameworks(module.name)
    return dict(sorted(ERRORS.items()))


def explain_code(code: str) -> str:
    """Cause, fix and example of an error code, also one of the product's; "" for no code."""
    errors = declared_errors()
    by_code = errors | {also: error for error in errors.values() for also in error.also}
    for name in (code, f"NCC_{code}"):
        if name in by_code:
            return _explanation(name, by_code[name])
        if name in UNRAISED:
            return UNRAISED[name].explain()
    return ""


def _explanation(code: str, error: type[CompileError]) -> str:
    text = f"{error.code}: {inspect.cleandoc(error.__doc__ or '')}"
    return text if code == error.code else f"{code} has the meaning of {text}"


def product_codes() -> dict[str, str]:
    """Every code of the product's reference, and the code or the reason it stands for here."""
    found = {code: each.reason for code, each in UNRAISED.items()}
    for error in declared_errors().values():
        codes = (error.code, *error.also)
        found |= {code: error.code for code in codes if code.startswith("NCC_")}
    return dict(sorted(found.items()))


def _import_without_frameworks(module: str) -> None:
    """Import a module of glia; skip one that needs a framework that is not installed."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if (problem.name or "").split(".")[0] == "glia":
            raise


def _reraise(module: str) -> None:
    raise
