"""What torch_xla asks of the packages that have a plugin for NeuronCores."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from glia.plugins.pjrt.errors import UnknownTorchXla
from glia.plugins.pjrt.interface import VERSION
from glia.plugins.pjrt.plugin_library import library_path

TORCH_XLA = "2.9"  # the release whose calls the plugin is written for
JAXLIB = "jaxlib >=0.6"
DEVICE = "PJRT_DEVICE"


def libneuronpjrt_path() -> str:
    """The path of the plugin's library, libneuronpjrt.so, which is written if it is not there.

    Raises what `glia.plugins.pjrt.plugin_library.library_path` raises.
    """
    return str(library_path())


def supported_clients() -> list[str]:
    """The releases of frameworks that the plugin answers, and the version of its interface."""
    interface = ".".join(map(str, VERSION))
    return [f"{client} (PJRT C-API {interface})" for client in (JAXLIB, f"torch_xla {TORCH_XLA}")]


def configure_environment() -> None:
    """Prepare the torch_xla that is being imported, unless PJRT_DEVICE names another device.

    Raises UnknownTorchXla for a release that the plugin is not written for.
    """
    torch_xla = sys.modules.get("torch_xla")
    if torch_xla is None or os.environ.get(DEVICE, "NEURON") != "NEURON":
        return
    version = str(torch_xla.__version__)
    if ".".join(version.split(".")[:2]) != TORCH_XLA:
        raise UnknownTorchXla(version=version, known=TORCH_XLA)
    _start_graphs_after_others(sys.modules["_XLAC"])


def _start_graphs_after_others(library: ModuleType) -> None:
    """Have graphs of torch.compile start when nothing runs any more.

    torch_xla waits for earlier programs there without letting go of the interpreter, which the
    plugin runs them in; its function that only waits lets go.
    """
    start = library._run_cached_graph
    if hasattr(start, "__wrapped__"):
        return

    @functools.wraps(start)
    def run_cached_graph(*arguments: Any) -> Any:
        library._xla_wait_device_ops([])
        return start(*arguments)

    library._run_cached_graph = run_cached_graph  # type: ignore[attr-defined]


def init() -> None:
    """What torch_xla calls while it is imported: `configure_environment`, and its own defaults."""
    configure_environment()
    defaults = importlib.import_module("torch_xla._internal.neuron")
    defaults.set_envvar_defaults()
    defaults.configure_pjrt_environment()


def initialize() -> None:
    """What torch_xla calls when a program is to be divided among devices: all are there already."""
