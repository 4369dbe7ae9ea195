"""What scripts take from torch_xla, for environments without it: the device and its waits.

Scripts of the public repositories make tensors on the XLA device to hand them to kernels. Where
torch_xla is not installed, the CPU is that device, and there is nothing to wait for.
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
