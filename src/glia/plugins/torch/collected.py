"""Modules as models that can be called: compiled and loaded, or collected to be compiled later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import glia
from glia.base.dtype import DType
from glia.base.machine_code.native import array_at
from glia.cache.collecting import VARIABLE, is_collecting
from glia.compiler import collect, compile_titled
from glia.frontend.hlo import boundary_types
from glia.graph.ir import TensorType
from glia.neff.package import Neff
from glia.plugins.torch.errors import UnusableTrace
from glia.runtime.bound import BoundModel

_MAGIC = b"glia collected module\n"


@dataclass(frozen=True)
class NamedTensor:
    """A tensor of a module's boundary."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The dtype of its elements."""
        return self.type.dtype


class CollectedModule:
    """An HLO module that is in the compile cache to be compiled later; its results are zeros."""

    def __init__(self, hlo: bytes) -> None:
        self._hlo = hlo
        given, results = boundary_types(hlo)
        self.inputs = [NamedTensor(*each) for each in given.items()]
        self.outputs = [NamedTensor(*each) for each in results.items()]

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Fill the results at these addresses with zeros."""
        for address, tensor in zip(outputs, self.outputs, strict=True):
            array_at(address, (tensor.type.bytes,), np.dtype(np.uint8))[:] = 0

    def pieces(self) -> list[bytes]:
        """The module as bytes in the place of a NEFF's."""
        return [_MAGIC, self._hlo]


Compiled = Neff | CollectedModule


def compiled(hlo: bytes, title: str, options: Mapping[str, Any]) -> Compiled:
    """A module compiled, or put into the cache where programs are only collected.

    Messages name it by `title`. Raises what `glia.compile` and `glia.compiler.collect` raise.
    """
    if is_collecting():
        collect(hlo, **options)
        return CollectedModule(hlo)
    return compile_titled(hlo, title, options)


def read_compiled(data: bytes) -> Compiled:
    """What the bytes in a traced model hold.

    Raises UnusableTrace for a module that was only collected, once programs are to run.
    """
    if not data.startswith(_MAGIC):
        return Neff.from_bytes(data)
    if not is_collecting():
        raise UnusableTrace(reason=f"it was traced with {VARIABLE}, which compiles nothing")
    return CollectedModule(data.removeprefix(_MAGIC))


def bound(module: Compiled) -> BoundModel | CollectedModule:
    """A module, loaded where it is compiled."""
    return module if isinstance(module, CollectedModule) else glia.load(module).bind()
