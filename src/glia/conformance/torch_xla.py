"""A stand-in for torch_xla, whose device is the CPU.

Scripts of the public repositories make tensors on the XLA device and pass them to kernels.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

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
