"""What optimum-neuron looks for beside torch_neuronx: a device, versions, and packages it imports.

Encoders, images, audio and sentences never call what is imported from these packages.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

VERSIONS = {"torch_neuronx": "2.8.0", "neuronx_distributed": "0.15.0"}
MODULES: dict[str, tuple[str, ...]] = {
    "neuronx_distributed.parallel_layers.parallel_state": (),
    "neuronx_distributed.trace.hlo_utils": ("read_metaneff",),
    "neuronx_distributed.trace.model_builder": ("BaseModelInstance", "ModelBuilder"),
    "torch_xla.core.xla_model": (),
    "torch_xla.distributed.xla_backend": (),
    "torch_xla.runtime": (),
}
DEVICE = {
    "get_neuron_major": 240,
    "get_instance_name": "trn1.2xlarge",
    "get_neuron_devices_count": 1,
}


class _Distribution(importlib.metadata.Distribution):
    """The metadata of a package that is not installed."""

    def __init__(self, name: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSIONS[name]}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return path


class _Finder(importlib.metadata.DistributionFinder):
    """Finds the metadata, and no module."""

    def find_spec(self, *_: Any) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterable[_Distribution]:
        return [_Distribution(context.name)] if context and context.name in VERSIONS else []


def _module(name: str) -> ModuleType:
    """A module, in the packages that its name has."""
    if name in sys.modules:
        return sys.modules[name]
    made: Any = ModuleType(name)
    made.__path__, made.__spec__ = [], importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = made
    package, _, last = name.rpartition(".")
    if package:
        setattr(_module(package), last, made)
    return made


def install() -> None:
    """Put the stand-ins in place, before optimum.neuron is imported."""
    sys.meta_path.append(_Finder())
    for name, classes in MODULES.items():
        for each in classes:
            setattr(_module(name), each, type(each, (), {}))
        _module(name)
    system: Any = importlib.import_module("optimum.neuron.utils.system")
    for name, value in DEVICE.items():
        setattr(system, name, lambda value=value: value)
