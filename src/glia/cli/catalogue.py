"""The lists `glia explain` prints, gathered from the declarations themselves."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import glia
from glia.base.errors import ERRORS, CompileError

_LEFT_OUT = ("glia.plugins", "glia.cli")  # need frameworks; define commands


def every_error() -> dict[str, type[CompileError]]:
    """Every declared error by code, sorted, once every module that declares one is imported."""
    importlib.import_module("glia.cli.errors")
    for found in pkgutil.walk_packages(glia.__path__, "glia.", onerror=_reraise):
        if not found.name.startswith(_LEFT_OUT):
            _import_if_possible(found.name)
    return dict(sorted(ERRORS.items()))


def _import_if_possible(module: str) -> None:
    """Import a module of ours; one that needs a framework that is not installed is left out."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if (problem.name or "").split(".")[0] == "glia":
            raise


def _reraise(module: str) -> None:
    raise


def instruction_text(name: str) -> str:
    """The page of an instruction, or the help of a function of nki.isa; "" where there is none."""
    import glia.nki.isa as functions
    from glia.isa import INSTRUCTIONS
    from glia.machine.reference_pages import instruction_page

    name = name.rpartition(".")[2]
    if name in INSTRUCTIONS:
        return instruction_page(name)
    function = vars(functions).get(name)
    if not inspect.isfunction(function):
        return ""
    return f"nki.isa.{name}{inspect.signature(function)}\n\n{inspect.getdoc(function)}"


def timing_constants() -> list[str]:
    """One line for each constant of the timing model, those that no public source gives first."""
    from glia.arch import ARCHS
    from glia.timing.simulate import TIMED_CONSTANTS

    rows = [
        (constant.confidence != "assumed", f"{arch.name} {name}", constant)
        for arch in ARCHS
        for name, constant in arch.constants.items()
        if name.partition(".")[0] in TIMED_CONSTANTS
    ]
    return [
        f"{name} = {constant.value:g} {constant.unit} [{constant.confidence}] {constant.source}"
        for _, name, constant in sorted(rows, key=lambda row: row[0])
    ]


def assumed_constants() -> list[str]:
    """One line for each constant of the timing model that no public source gives."""
    from glia.arch import ARCHS

    return [
        f"{arch.name} {name} = {arch.constants[name].value:g} {arch.constants[name].unit}"
        for arch in ARCHS
        for name in arch.assumed
    ]
