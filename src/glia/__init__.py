"""glia: an open compiler for AWS Neuron devices, and a NeuronCore simulator to run what it makes.

    neff = glia.compile("model.hlo.pb", target="trn2")
    model = glia.load(neff)
    outputs = model(*arrays)

Everything is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glia.base.lazy_imports import lazy_attributes

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
