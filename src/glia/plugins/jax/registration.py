"""Registers the platform `neuron` with JAX."""

from __future__ import annotations

from jax._src import xla_bridge
from jax._src.lib import _profiler

from glia.plugins.jax import has_library
from glia.plugins.jax.linear_algebra import register_lowerings
from glia.plugins.pjrt.interface_table import capsule

PLATFORM = "neuron"
_PRIORITY = 400  # of plugins; a platform that JAX_PLATFORMS names goes first in any case


def register() -> None:
    """Make `neuron` a platform of JAX; nothing where it is one."""
    if PLATFORM in xla_bridge._backend_factories:
        return
    if not has_library():
        table = capsule()
        xla_bridge.register_plugin(PLATFORM, c_api=table, priority=_PRIORITY)
        # JAX does this itself for libraries only
        _profiler.register_plugin_profiler(table)
    xla_bridge.register_plugin_callbacks(_register_lowerings)  # type: ignore[no-untyped-call]


def _register_lowerings(c_api: object) -> None:
    """What JAX calls with each plugin's table when it has found all."""
    register_lowerings(PLATFORM)
