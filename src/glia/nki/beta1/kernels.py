"""Kernels that the vendor ships inside neuronxcc: importing one that is missing says so."""

from __future__ import annotations

from collections.abc import Callable

from glia.nki.beta1.errors import NotShipped
from glia.nki.session import caller


def missing_kernel(module: str) -> Callable[[str], object]:
    """A `__getattr__` for the module of this name, whose kernels glia does not have."""

    def lookup(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotShipped(module=module, name=name, loc=caller())

    return lookup
