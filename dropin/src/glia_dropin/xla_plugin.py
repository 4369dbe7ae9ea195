"""What torch_xla asks of the packages that have a plugin for NeuronCores."""

from __future__ import annotations

import importlib
import os
import sys

from glia.plugins.pjrt.errors import UnknownTorchXla
from glia.plugins.pjrt.plugin_library import library_path

TORCH_XLA = "2.9"  # the release whose calls the plugin is written for
DEVICE = "PJRT_DEVICE"


def libneuronpjrt_path() -> str:
    """The path of the plugin's library, libneuronpjrt.so, which is written if it is not there.

    Raises what `glia.plugins.pjrt.plugin_library.library_path` raises.
    """
    return str(library_path())


def configure_environment() -> None:
    """Check that the torch_xla that is being imported is one that the plugin is written for.

    Raises UnknownTorchXla where it would use the plugin: unless PJRT_DEVICE names another device.
    """
    version = getattr(sys.modules.get("torch_xla"), "__version__", None)
    if version is None or os.environ.get(DEVICE, "NEURON") != "NEURON":
        return
    if ".".join(version.split(".")[:2]) != TORCH_XLA:
        raise UnknownTorchXla(version=version, known=TORCH_XLA)


def init() -> None:
    """What torch_xla calls while it is imported: `configure_environment`, and its own defaults."""
    configure_environment()
    defaults = importlib.import_module("torch_xla._internal.neuron")
    defaults.set_envvar_defaults()
    defaults.configure_pjrt_environment()


def initialize() -> None:
    """What torch_xla calls when a program is to be divided among devices: all are there already."""
