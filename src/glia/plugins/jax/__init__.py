"""JAX on Neuron devices: the platform `neuron` of JAX itself, and `on_device` beside it.

`initialize` is what JAX calls in every process that uses it, wherever glia is installed; so the
rest is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

FORCE = "NEURON_FORCE_PJRT_PLUGIN_REGISTRATION"

_HOMES = {
    "on_device": "compiled_functions",
    "OnDevice": "compiled_functions",
    "register": "registration",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def initialize() -> None:
    """Register the platform `neuron` where JAX_PLATFORMS names it, or FORCE is set.

    Elsewhere JAX keeps its own default: the simulated devices are only used when asked for.
    """
    jax = importlib.import_module("jax")
    platforms = (jax.config.jax_platforms or "").split(",")
    if "neuron" in platforms or os.environ.get(FORCE, "") not in ("", "0"):
        importlib.import_module(f"{__name__}.registration").register()
