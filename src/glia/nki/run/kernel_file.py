"""Kernels in Python files, addressed as `FILE.py::NAME`: loading, and blame for what they raise."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from glia.base.errors import CompileError
from glia.base.loc import Loc
from glia.base.suggestions import nearest
from glia.nki.beta1.run.launch import Kernel as Beta1Kernel
from glia.nki.names.errors import KernelRaised
from glia.nki.run.kernel import Kernel

SEPARATOR = "::"
_PACKAGE = Path(__file__).parents[2]


class NoSuchKernel(Exception):
    """The file does not exist, cannot be executed or defines no kernel of that name."""


def load_kernel(address: str) -> Any:
    """The callable NAME of `FILE.py::NAME`; executes the file. Raises NoSuchKernel."""
    path, _, name = address.partition(SEPARATOR)
    module = _execute_file(path)
    kernel = getattr(module, name, None)
    if not callable(kernel):
        raise NoSuchKernel(f"{path} has no kernel {name!r}{_suggestion(path, name, module)}")
    return kernel


def _execute_file(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise NoSuchKernel(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"kernel_file_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise NoSuchKernel(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        text = f"{path} cannot be run: {type(problem).__name__}: {problem}"
        raise NoSuchKernel(text) from problem
    return module


def _suggestion(path: str, name: str, module: ModuleType) -> str:
    """The kernel whose name is closest to `name`; all kernels of the file where `name` is empty."""
    members = vars(module).items()
    kernels = [known for known, value in members if isinstance(value, Kernel | Beta1Kernel)]
    if name or not kernels:
        return nearest(name, kernels)
    return "; name one: " + ", ".join(f"{path}{SEPARATOR}{known}" for known in kernels)


@contextmanager
def attribute_exceptions(address: str) -> Iterator[None]:
    """Turn an exception raised by the kernel's own code, or by what it calls, into KernelRaised.

    CompileError, and exceptions raised inside of glia, pass unchanged.
    """
    path, _, name = address.partition(SEPARATOR)
    try:
        yield
    except CompileError:
        raise
    except Exception as error:
        loc = _raising_line(error, Path(path).resolve())
        if loc is None:
            raise
        kind, text = type(error).__name__, str(error) or "without a message"
        raise KernelRaised(kernel=name, kind=kind, text=text, loc=loc) from error


def _raising_line(error: Exception, path: Path) -> Loc | None:
    """The innermost line of the file in a traceback; None where glia is nearer to the exception."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if file == path:
            return Loc(frame.filename, frame.lineno or 0, frame.name)
        if _PACKAGE in file.parents and _PACKAGE / "kernels" not in file.parents:
            return None
    return None
