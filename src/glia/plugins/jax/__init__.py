"""JAX on Neuron devices: the platform `neuron` of JAX itself, and `on_device` beside it.

`initialize` is what JAX calls in every process that uses it, wherever glia is installed; so the
rest is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

FORCE = "NEURON_FORCE_PJRT_PLUGIN_REGISTRATION"
LIBRARIES = "PJRT_NAMES_AND_LIBRARY_PATHS"  # plugins that JAX loads itself: name:path,name:path

_HOMES = {
    "on_device": "compiled_functions",
    "OnDevice": "compiled_functions",
    "register": "registration",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def has_library() -> bool:
    """Whether JAX is given the platform as a library, which it then loads after all others."""
    named = os.environ.get(LIBRARIES, "").split(",")
    return "neuron" in {each.partition(os.pathsep)[0] for each in named}


def initialize() -> None:
    """Register the platform `neuron` where JAX_PLATFORMS or LIBRARIES names it, or FORCE is set.

    Elsewhere JAX keeps its own default: the simulated devices are only used when asked for.
    """
    jax = importlib.import_module("jax")
    platforms = (jax.config.jax_platforms or "").split(",")
    if "neuron" in platforms or has_library() or os.environ.get(FORCE, "") not in ("", "0"):
        importlib.import_module(f"{__name__}.registration").register()
