"""The operator `neuron::forward_v2`, with which saved models run their NEFF."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from glia.base.machine_code.native import address_of
from glia.plugins.pjrt.visible_cores import visible_cores
from glia.plugins.torch.collected import Compiled, bound, read_compiled
from glia.plugins.torch.device.device_memory import as_host, is_on_device, on_device
from glia.plugins.torch.errors import PlacedOnMissingCore, UnusableTrace, WrongTraceInputs
from glia.plugins.torch.lowering import fresh_seed
from glia.plugins.torch.tensors import to_numpy, torch_dtype

_LIBRARY = torch.library.Library("neuron", "FRAGMENT")
_LIBRARY.define(
    "forward_v2(Tensor[] inputs, Tensor(a!)[] states, Tensor neff, str meta) -> Tensor[]"
)
MOST_SWEPT = 64  # loaded models after which those of modules that are gone are dropped


@dataclass(frozen=True)
class Description:
    """How a saved model is called, as JSON in its attribute `meta`.

    `inputs` and `states` are names of the NEFF's inputs; `written` has the state whose memory the
    NEFF's output at a place is, or -1 for a result. `start_core` is -1 for any core.
    """

    inputs: tuple[str, ...]
    states: tuple[str, ...]
    written: tuple[int, ...]
    weights: dict[str, str]
    is_random: bool = False
    dynamic_batch: bool = False
    is_lazy: bool = False
    is_async: bool = False
    start_core: int = -1
    core_count: int = -1

    def text(self) -> str:
        """The description as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> Description:
        """The description in a text; UnusableTrace where it is none."""
        try:
            found = json.loads(text)
            lists = {name: tuple(found[name]) for name in ("inputs", "states", "written")}
            return Description(**{**found, **lists})
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise UnusableTrace(reason=str(problem)[:200]) from problem


def _check_placement(description: Description) -> None:
    """Raise PlacedOnMissingCore unless the process sees the cores that a model is for."""
    first = description.start_core
    last = first + max(description.core_count, 1) - 1
    if first < 0 or last < (count := visible_cores().count):
        return
    cores = f"core {first}" if first == last else f"cores {first} to {last}"
    raise PlacedOnMissingCore(cores=cores, count=count)


class LoadedTrace:
    """A saved model on the device, or collected to be compiled later."""

    def __init__(self, module: Compiled, meta: str) -> None:
        self.description = Description.parse(meta)
        _check_placement(self.description)
        model = bound(module)
        self._run_at = model.run_at
        names = [binding.name for binding in model.inputs]
        given = (*self.description.inputs, *self.description.states)
        random = ("seed",) if self.description.is_random else ()
        if sorted(names) != sorted((*given, *random)):
            raise UnusableTrace(reason=f"the NEFF takes {names[:8]}, the model gives {given[:8]}")
        order = [(*given, *random).index(name) for name in names]
        self._order = None if order == sorted(order) else order
        kinds = {b.name: (tuple(b.shape), torch_dtype(b.dtype)) for b in model.inputs}
        self._expected = [kinds[name] for name in given]
        outputs = [(b.shape, torch_dtype(b.dtype)) for b in model.outputs]
        self._results = list(zip(outputs, self.description.written, strict=True))
        self._writes_states = any(state >= 0 for _, state in self._results)

    def __call__(
        self, inputs: Sequence[torch.Tensor], states: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The results; states are updated in place. WrongTraceInputs for other inputs."""
        tensors = [*inputs, *states] if states else inputs
        if len(tensors) != len(self._expected):
            raise self._refusal(f"{len(inputs)} tensors were given")
        addresses = []
        held = []  # copies, until the run has ended
        for tensor, (shape, dtype) in zip(tensors, self._expected, strict=True):
            if tensor.dtype is not dtype or tensor.shape != shape:
                raise self._refusal(f"one is {tensor.dtype}{list(tensor.shape)}")
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
                held.append(tensor)
            addresses.append(tensor.data_ptr())
        if self.description.is_random:
            seed = fresh_seed()
            addresses.append(address_of(seed))
        if self._order is not None:
            addresses = [addresses[place] for place in self._order]
        results = [
            torch.empty(shape, dtype=dtype) if state < 0 else states[state]
            for (shape, dtype), state in self._results
        ]
        self._run_at(addresses, [each.data_ptr() for each in results])
        if not self._writes_states:
            return results
        pairs = zip(results, self._results, strict=True)
        return [each for each, (_, state) in pairs if state < 0]

    def in_chunks(
        self, inputs: Sequence[torch.Tensor], states: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The results for inputs of any first extent, computed in parts of the traced one."""
        traced = self._expected[0][0][0] if self._expected and self._expected[0][0] else 0
        extents = {tensor.shape[0] if tensor.dim() else 0 for tensor in inputs}
        if len(extents) != 1 or not traced:
            raise ValueError(
                "dynamic batching takes inputs that have one first dimension in common"
            )
        (extent,) = extents
        if extent == traced:
            return self(inputs, states)
        parts = []
        for start in range(0, max(extent, 1), traced):
            chunk = [_padded(tensor[start : start + traced], traced) for tensor in inputs]
            parts.append(self(chunk, states))
        return [torch.cat(pieces)[:extent] for pieces in zip(*parts, strict=True)]

    def _refusal(self, problem: str) -> WrongTraceInputs:
        count = len(self.description.inputs)
        expected = [f"{dtype}{list(shape)}" for shape, dtype in self._expected[:count]]
        return WrongTraceInputs(problem=problem, expected=", ".join(expected) or "no inputs")


def _padded(tensor: torch.Tensor, extent: int) -> torch.Tensor:
    """A tensor with rows of zeros up to a first extent."""
    missing = extent - tensor.shape[0]
    if not missing:
        return tensor
    return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))])


class _Loading:
    """A model that is loaded, or that a thread loads."""

    def __init__(self, neff: torch.Tensor, meta: str, found: LoadedTrace | None = None) -> None:
        self.reference = StorageWeakRef(neff.untyped_storage())
        self.meta = meta
        self._found = found
        self._problem: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self, neff: torch.Tensor) -> None:
        """Load on a thread."""
        self._thread = threading.Thread(target=self._load, args=(neff,), daemon=True)
        self._thread.start()

    def finished(self, neff: torch.Tensor) -> LoadedTrace:
        """The loaded model; loads it, or waits for the thread that does."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        elif self._found is None:
            self._load(neff)
        if self._problem is not None:
            raise self._problem
        assert self._found is not None
        return self._found

    def _load(self, neff: torch.Tensor) -> None:
        self._problem = None
        try:
            read = read_compiled(to_numpy(neff.cpu()).tobytes())
            self._found = LoadedTrace(read, self.meta)
        except Exception as problem:  # raised where the model is used
            self._problem = problem


_LOADED: dict[int, _Loading] = {}  # by storage, which the weak reference keeps from being reused


def loading(neff: torch.Tensor, meta: str) -> _Loading:
    """The model of a NEFF in a tensor, not necessarily loaded yet."""
    key = neff.untyped_storage()._cdata
    found = _LOADED.get(key)
    if found is None or found.meta != meta:
        found = _enter(_Loading(neff, meta), neff)
    return found


def loaded(tensor: torch.Tensor, meta: str, module: Compiled) -> None:
    """Enter the model of a tensor, into which the module has just been written."""
    _enter(_Loading(tensor, meta, LoadedTrace(module, meta)), tensor)


def _enter(model: _Loading, neff: torch.Tensor) -> _Loading:
    if len(_LOADED) >= MOST_SWEPT:
        for gone in [k for k, each in _LOADED.items() if each.reference.expired()]:
            del _LOADED[gone]
    _LOADED[neff.untyped_storage()._cdata] = model
    return model


def _forward(
    inputs: list[torch.Tensor], states: list[torch.Tensor], neff: torch.Tensor, meta: str
) -> list[torch.Tensor]:
    """The results of a saved model."""
    trace = loading(neff, meta).finished(neff)
    return (
        trace.in_chunks(inputs, states)
        if trace.description.dynamic_batch
        else trace(inputs, states)
    )


def _forward_on_device(
    inputs: list[torch.Tensor], states: list[torch.Tensor], neff: torch.Tensor, meta: str
) -> list[torch.Tensor]:
    """The results of a saved model on the core of its inputs, which may be on any device."""
    on_core = next(filter(is_on_device, (*inputs, *states, neff)))
    given, held = ([_of_host(tensor) for tensor in each] for each in (inputs, states))
    return [on_device(each, on_core.device.index) for each in _forward(given, held, neff, meta)]


def _of_host(tensor: torch.Tensor) -> torch.Tensor:
    return as_host(tensor) if is_on_device(tensor) else tensor


_LIBRARY.impl("forward_v2", _forward, "CPU")
_LIBRARY.impl("forward_v2", _forward_on_device, "PrivateUse1")


def described(module: Any) -> Description:
    """The description of a traced module; UnusableTrace for any other."""
    if not is_trace(module):
        raise not_a_trace(module)
    return Description.parse(module.meta)


def is_trace(module: Any) -> bool:
    """Whether a module is one that trace has made of a whole function."""
    return isinstance(getattr(module, "meta", None), str) and hasattr(module, "neff")


def not_a_trace(module: Any) -> UnusableTrace:
    """The error for another module."""
    return UnusableTrace(reason=f"{type(module).__name__} was not made by trace")
