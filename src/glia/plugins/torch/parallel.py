"""Traced models on several NeuronCores, and which cores a traced model is for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import torch

from glia.plugins.pjrt.visible_cores import visible_cores
from glia.plugins.torch.errors import BadTraceArgument
from glia.plugins.torch.forward_operator import is_trace
from glia.plugins.torch.script_module import redescribed, set_dynamic_batch
from glia.plugins.torch.structure import tensors_of

_PLACED: ContextVar[tuple[int, int] | None] = ContextVar("neuron_cores", default=None)


def place(module: Any, start: int = -1, count: int = -1) -> Any:
    """Say which cores a traced model is for; -1 for any. BadTraceArgument for others."""
    cores = visible_cores().count
    for name, value in (("start_nc", start), ("nc_count", count)):
        if not isinstance(value, int) or value < -1:
            raise _bad_core(name, value, cores)
    if start >= cores or start + max(count, 1) > cores:
        raise _bad_core("start_nc", start, cores)
    return redescribed(module, start_core=start, core_count=count)


def move_to_device(module: Any, device: int) -> Any:
    """Say which core a traced model runs on. BadTraceArgument for one that does not exist."""
    cores = visible_cores().count
    if not isinstance(device, int) or not 0 <= device < cores:
        raise _bad_core("device_id", device, cores)
    return redescribed(module, start_core=device, core_count=1)


def _bad_core(name: str, value: object, cores: int) -> BadTraceArgument:
    problem = f"the process sees {cores} NeuronCores"
    return BadTraceArgument(
        argument=name, value=value, problem=problem, hint=f"a core from 0 to {cores - 1}"
    )


@contextlib.contextmanager
def cores_for_traces(start: int = -1, count: int = -1) -> Iterator[None]:
    """Traces that are made inside are for these cores."""
    token = _PLACED.set((start, count))
    try:
        yield
    finally:
        _PLACED.reset(token)


def placed_by_context(module: Any) -> Any:
    """A traced module, for the cores that `cores_for_traces` names if a part of it runs on one."""
    chosen = _PLACED.get()
    is_of_host = not any(map(is_trace, module.modules()))
    return module if chosen is None or is_of_host else place(module, *chosen)


class DataParallel(torch.nn.Module):  # type: ignore[misc]  # no types of torch
    """A traced model on several cores, each of which takes a part of every input.

    `device_ids` are numbers or "nc:0" (all cores of the process by default), `dim` is the
    dimension that is split. With dynamic batching the parts have any extent along dimension 0.
    """

    def __init__(
        self,
        model: Any,
        device_ids: Sequence[int | str] | None = None,
        dim: int = 0,
        set_dynamic_batching: bool = True,
    ) -> None:
        super().__init__()
        cores = visible_cores().count
        chosen = range(cores) if device_ids is None else device_ids
        if isinstance(chosen, str) or not isinstance(chosen, Sequence):
            raise BadTraceArgument(
                argument="device_ids", value=repr(chosen), problem="it is no list",
                hint=f"a list such as [{chosen!r}]",
            )  # fmt: skip
        self.device_ids = [_core_number(each, cores) for each in chosen]
        if not self.device_ids:
            raise BadTraceArgument(
                argument="device_ids", value="[]", problem="no core is named", hint="cores"
            )
        self.dim = dim
        self.model = model
        self.num_workers = 2 * len(self.device_ids)
        self.split_size: int | None = None
        if set_dynamic_batching and dim == 0:
            set_dynamic_batch(model)

    def disable_dynamic_batching(self) -> None:
        """Let every part have the extent for which the model was traced."""
        set_dynamic_batch(self.model, False)

    def forward(self, *args: Any) -> Any:
        """The results for parts of the inputs, one after the other along `dim`."""
        extent = self._extent(tensors_of(args))
        size = self.split_size or -(-extent // len(self.device_ids)) or 1
        starts = range(0, max(extent, 1), size)
        parts = [self._part(args, start, min(size, extent - start)) for start in starts]
        with ThreadPoolExecutor(max_workers=self.num_workers) as pool:
            results = list(pool.map(lambda part: self.model(*part), parts))
        return self._joined(results)

    def _extent(self, inputs: Sequence[torch.Tensor]) -> int:
        """The extent of inputs along `dim`; BadTraceArgument where they do not share one."""
        ranks = {tensor.dim() for tensor in inputs}
        extents: set[int] = set()
        problem = f"the inputs have {' and '.join(map(str, sorted(ranks))) or 'no'} dimensions"
        if ranks and -min(ranks) <= self.dim < min(ranks):
            extents = {tensor.shape[self.dim] for tensor in inputs}
            problem = f"the inputs have extents {sorted(extents)} along it"
        if len(extents) != 1:
            raise BadTraceArgument(
                argument="dim", value=self.dim, problem=problem,
                hint="a dimension along which all inputs have the same extent",
            )  # fmt: skip
        (extent,) = extents
        return extent

    def _part(self, value: Any, start: int, length: int) -> Any:
        if isinstance(value, torch.Tensor):
            return value.narrow(self.dim, start, length)
        if isinstance(value, dict):
            return {key: self._part(each, start, length) for key, each in value.items()}
        return type(value)(self._part(each, start, length) for each in value)

    def _joined(self, results: Sequence[Any]) -> Any:
        first = results[0]
        if isinstance(first, torch.Tensor):
            return torch.cat(list(results), self.dim)
        if isinstance(first, dict):
            return {key: self._joined([each[key] for each in results]) for key in first}
        if isinstance(first, tuple | list):
            return type(first)(self._joined(each) for each in zip(*results, strict=True))
        return first


def _core_number(given: int | str, cores: int) -> int:
    """The number in 3 or "nc:3"; BadTraceArgument where there is no such core."""
    found = re.fullmatch(r"nc:(\d+)", given) if isinstance(given, str) else None
    number = int(found[1]) if found else given
    if not isinstance(number, int) or not 0 <= number < cores:
        raise _bad_core("device_ids", given, cores)
    return number
