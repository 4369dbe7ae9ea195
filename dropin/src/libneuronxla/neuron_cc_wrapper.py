"""`main`: the command `neuronx-cc`, with the compile cache, from glia."""

from glia.cli.start import neuronx_cc as main

__all__ = ["main"]
