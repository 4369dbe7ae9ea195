"""A compiled graph as a function of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from glia.base.machine_code.native import address_of
from glia.plugins.torch.collected import bound, compiled
from glia.plugins.torch.device.device_memory import NAME, on_device
from glia.plugins.torch.lowering import HloProgram, Output, fresh_seed
from glia.plugins.torch.tensors import torch_dtype

Options = Mapping[str, Any]


class Program:
    """A lowered graph, compiled and loaded; calling it takes the tensors that are its inputs.

    These have any strides, may be views of conjugates or negatives, and have the shapes and dtypes
    of the graph; the results are new tensors, and what the graph returns besides tensors. `devices`
    are the results' devices, the host by default. Messages of the compiler name it by `title`.
    """

    def __init__(
        self,
        lowered: HloProgram,
        options: Options,
        devices: Sequence[torch.device] = (),
        title: str = "a graph",
    ) -> None:
        self._bound = bound(compiled(lowered.hlo, title, options))
        self._kinds = [(kind.shape, torch_dtype(kind.dtype)) for kind in lowered.outputs]
        self._results = lowered.results
        self._has_other_results = any(not isinstance(each, Output) for each in lowered.results)
        self._is_random = lowered.is_random
        self._cores = [
            (place, each.index or 0) for place, each in enumerate(devices) if each.type == NAME
        ]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The results for the inputs, in order."""
        given = [_in_memory(t) for t in tensors]
        addresses = [t.data_ptr() for t in given]
        if self._is_random:
            seed = fresh_seed()
            addresses.append(address_of(seed))
        made = [torch.empty(shape, dtype=dtype) for shape, dtype in self._kinds]
        self._bound.run_at(addresses, [t.data_ptr() for t in made])
        for place, core in self._cores:
            made[place] = on_device(made[place], core)
        if not self._has_other_results:
            return made
        return [made[r.place] if isinstance(r, Output) else r for r in self._results]


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose elements lie in memory as they are, one after the other."""
    plain = tensor.resolve_conj() if tensor.is_conj() else tensor
    plain = plain.resolve_neg() if plain.is_neg() else plain
    return plain if plain.is_contiguous() else plain.contiguous()
