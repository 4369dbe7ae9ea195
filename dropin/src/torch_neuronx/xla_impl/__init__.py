"""Where earlier releases of torch_neuronx have `ops.nki_jit`."""

from torch_neuronx.xla_impl import ops

__all__ = ["ops"]
