"""Models of MXNet compiled for a device, from glia.

Where MXNet is installed, importing this loads it, with what compiled symbols need.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from glia.cc_flags import options_of_flags
from glia.frontend.errors import FrameworkMissing
from glia.plugins.mxnet.numpy_names import restore_names


def _is_installed() -> bool:
    return importlib.util.find_spec("mxnet") is not None


def load_mxnet() -> Any:
    """MXNet, which loads after the names that it takes from NumPy are there."""
    if not _is_installed():
        raise FrameworkMissing(what="mx_neuron", package="mxnet", extra="mxnet")
    restore_names()
    return importlib.import_module("mxnet")


def compile(
    obj: Any,
    args: Any = None,
    aux: Any = None,
    inputs: Any = None,
    *,
    excl_node_names: Collection[str] = (),
    flags: str | Sequence[str] = (),
    work_dir: str | Path | None = None,
    **others: Any,
) -> Any:
    """Compile a symbol, with its parameters and states, or a HybridBlock.

    Of a symbol, the symbol, the parameters and the states that it then has; of a block, a block.
    `inputs` are example arrays by name. Further keywords are flags of the compiler with a value.
    """
    mxnet = load_mxnet()
    plugin = importlib.import_module("glia.plugins.mxnet.compilation")
    options = {**options_of_flags(flags), **options_of_flags(_words(others))}
    chosen = {"excluded": excl_node_names, "directory": work_dir, "options": options}
    if isinstance(obj, mxnet.gluon.HybridBlock):
        return plugin.compile_block(obj, inputs or {}, **chosen)
    return plugin.compile_symbol(obj, args or {}, aux or {}, inputs or {}, **chosen)


def _words(keywords: dict[str, Any]) -> list[str]:
    """Keywords as words of the compiler's command line."""
    dashed = {f"--{name.lstrip('-').replace('_', '-')}": each for name, each in keywords.items()}
    return [word for flag, value in dashed.items() for word in (flag, str(value))]


def _install() -> None:
    """Let a process use compiled symbols, and find `compile` under `mxnet.contrib.neuron`."""
    contrib = load_mxnet().contrib
    importlib.import_module("glia.plugins.mxnet.subgraph_operator")
    module = ModuleType("mxnet.contrib.neuron", "Models compiled for a device, from glia.")
    vars(module)["compile"] = compile
    sys.modules[module.__name__] = contrib.neuron = module


if _is_installed():
    _install()
