"""Registers the platform `neuron` with JAX."""

from __future__ import annotations

from jax._src import xla_bridge

from glia.plugins.jax.linear_algebra import register_lowerings
from glia.plugins.pjrt import buffers, devices, events, executables, loading
from glia.plugins.pjrt.api_table import capsule

PLATFORM = "neuron"
_PRIORITY = 400  # of plugins; a platform that JAX_PLATFORMS names goes first in any case

# The modules that provide functions of the interface: importing them is what provides those
PROVIDERS = (buffers, devices, events, executables, loading)


def register() -> None:
    """Make `neuron` a platform of JAX; nothing where it is one."""
    if PLATFORM not in xla_bridge._backend_factories:
        xla_bridge.register_plugin(PLATFORM, c_api=capsule(), priority=_PRIORITY)
        register_lowerings(PLATFORM)
