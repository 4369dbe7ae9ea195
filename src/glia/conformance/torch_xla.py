"""What scripts take from torch_xla and native PyTorch, for environments without: the device.

Scripts of the public repositories make tensors on the XLA device, or on the one named neuron, to
hand them to kernels. Where PyTorch has none, the CPU is that device, and never late.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

DEVICE = "neuron"
PACKAGE = "torch_xla"
NAMES = (PACKAGE, "torch_xla.core", "torch_xla.core.xla_model", "torch_xla.runtime")


def provide_xla() -> None:
    """Let `import torch_xla` find the stand-in where torch is installed and torch_xla is not."""
    if importlib.util.find_spec(PACKAGE) is None and importlib.util.find_spec("torch") is not None:
        sys.meta_path.append(_Finder())


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules when they are imported, since torch takes long to start."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec; None for what is no part of torch_xla, or none that scripts use."""
        if name not in NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the module its functions."""
        vars(module).update(dict.fromkeys(("device", "xla_device"), _cpu))
        vars(module).update(dict.fromkeys(("mark_step", "sync", "wait_device_ops"), _do_nothing))


def _cpu(*_: Any, **__: Any) -> Any:
    return importlib.import_module("torch").device("cpu")


def _do_nothing(*_: Any, **__: Any) -> None:
    """Tensors of the CPU are never late."""


@contextlib.contextmanager
def neuron_is_cpu(tree: ast.Module) -> Iterator[None]:
    """Let calls of PyTorch's functions that name the device neuron, if a file does, use the CPU."""
    named = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    if DEVICE not in named or importlib.util.find_spec("torch") is None:
        yield
        return
    base = importlib.import_module("torch.overrides").TorchFunctionMode

    class OnCpu(base):  # type: ignore[misc, valid-type]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = {name: _elsewhere(value) for name, value in (kwargs or {}).items()}
            return function(*map(_elsewhere, args), **named)

    with OnCpu():
        yield


def _elsewhere(value: Any) -> Any:
    return "cpu" if isinstance(value, str) and value == DEVICE else value
