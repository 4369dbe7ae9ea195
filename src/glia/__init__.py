"""glia: an open compiler for AWS Neuron devices, and a NeuronCore simulator to run what it makes.

    neff = glia.compile("model.hlo.pb", target="trn2")
    model = glia.load(neff)
    outputs = model(*arrays)

Everything is imported on first use, and this module imports next to nothing: an interrupt that
comes while it loads cannot be caught by the commands.
"""

from __future__ import annotations

from glia.base.lazy_imports import lazy_attributes

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all else here
if TYPE_CHECKING:
    from glia.compiler import compile
    from glia.neff.package import Neff
    from glia.nki.run.simulate import simulate
    from glia.profile.report import Profile
    from glia.runtime.model import Model, load

__version__ = "0.1.0"

__all__ = ["Model", "Neff", "Profile", "__version__", "compile", "load", "simulate"]

_HOMES = {
    "Model": "glia.runtime.model",
    "Neff": "glia.neff.package",
    "Profile": "glia.profile.report",
    "compile": "glia.compiler",
    "load": "glia.runtime.model",
    "simulate": "glia.nki.run.simulate",
}

__getattr__, __dir__ = lazy_attributes(__name__, _HOMES)
