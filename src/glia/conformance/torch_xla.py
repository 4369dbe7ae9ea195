"""Stand-ins for torch_xla and for the device neuron of native PyTorch: both map to the CPU.

Scripts of the public repositories make tensors on the XLA device, or on the device neuron, and
pass them to kernels. Where PyTorch has neither, they are on the CPU.
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
    """Creates the stand-in modules on import; torch is imported only when a device is used."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module in NAMES; None for others."""
        if name not in NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        """Define the functions that scripts use."""
        vars(module).update(dict.fromkeys(("device", "xla_device"), _cpu))
        vars(module).update(dict.fromkeys(("mark_step", "sync", "wait_device_ops"), _do_nothing))


def _cpu(*_: Any, **__: Any) -> Any:
    return importlib.import_module("torch").device("cpu")


def _do_nothing(*_: Any, **__: Any) -> None:
    """Synchronization, which CPU tensors do not need."""


@contextlib.contextmanager
def neuron_is_cpu(tree: ast.Module) -> Iterator[None]:
    """Replace the device neuron by the CPU in calls of PyTorch, if the file names it."""
    named = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    if DEVICE not in named or importlib.util.find_spec("torch") is None:
        yield
        return
    base = importlib.import_module("torch.overrides").TorchFunctionMode

    class OnCpu(base):  # type: ignore[misc, valid-type]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = {name: _cpu_for_neuron(value) for name, value in (kwargs or {}).items()}
            return function(*map(_cpu_for_neuron, args), **named)

    with OnCpu():
        yield


def _cpu_for_neuron(value: Any) -> Any:
    return "cpu" if isinstance(value, str) and value == DEVICE else value
