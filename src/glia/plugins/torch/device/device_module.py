"""The module `torch.neuron`, and the registration of the device with PyTorch."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from glia.plugins.pjrt.visible_cores import visible_cores
from glia.plugins.torch.device import autocast, distributed, memory_operators
from glia.plugins.torch.device.device_memory import (
    NAME,
    as_host,
    checked_index,
    core_count,
    is_on_device,
    on_device,
)
from glia.plugins.torch.device.registration import enter, never_compiled
from glia.plugins.torch.errors import SparseOnDevice
from glia.runtime.model import import_object

aten = torch.ops.aten


class DeviceModule:
    """What PyTorch, and its users, ask of a device under `torch.neuron`."""

    def is_available(self) -> bool:
        """Whether there is a core."""
        return True

    def is_initialized(self) -> bool:
        """Whether the device can be used at once."""
        return True

    def device_count(self) -> int:
        """How many logical NeuronCores the process sees."""
        return core_count()

    def current_device(self) -> int:
        """The core that "neuron" without a number names: always the first."""
        return 0

    def set_device(self, device: Any) -> None:
        """Accept core 0: PyTorch lets devices written in Python have no other current one.

        NoSuchCore for cores that do not exist, and ValueError for others, which tensors and
        modules name: "neuron:1".
        """
        if index := checked_index(device):
            raise ValueError(f'"neuron" is core 0; use the other by its name, "neuron:{index}"')

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """A context in which a core is the current one; as for `set_device`, only core 0."""
        self.set_device(device)
        yield

    def get_device_name(self, device: Any = None) -> str:
        """What kind of core a device is."""
        checked_index(device)
        return visible_cores().kind

    def synchronize(self, device: Any = None) -> None:
        """Wait for nothing: operators have run when they return."""
        checked_index(device)

    def empty_cache(self) -> None:
        """Give back nothing: memory is the host's, and freed with its tensors."""

    def manual_seed(self, seed: int) -> None:
        """Set the generator, which host and device share."""
        torch.default_generator.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing: torch.manual_seed, which calls this, has set the shared generator."""

    def seed_all(self) -> None:
        """Set the generator to a number that was never used."""
        torch.default_generator.seed()

    def get_rng_state(self, device: Any = NAME) -> torch.Tensor:
        """The state of the generator, which host and device share."""
        checked_index(device)
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = NAME) -> None:
        """Set the state of the generator, which host and device share."""
        checked_index(device)
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """The dtypes that torch.autocast may choose."""
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False


class _Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[misc]  # no types of torch
    """What PyTorch's C++ asks of the device."""

    def is_available(self) -> bool:
        """Whether there is a core."""
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        """Whether a core can be used at once."""
        return True

    def is_built(self) -> bool:
        """Whether the device is there."""
        return True


@functools.cache
def _operators() -> Callable[..., Any]:
    """What runs the device's operators; it and the compiler are loaded when the first one runs."""
    import_object("glia.plugins.torch.device.eager:register_operators")()
    run: Callable[..., Any] = import_object("glia.plugins.torch.device.eager:run")
    return run


def _operator(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operator on tensors of the device."""
    return _operators()(operator, *args, **kwargs)


def _refuse_sparse(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operator that makes or takes sparse tensors of the device."""
    raise SparseOnDevice(problem=f"{operator} makes or takes a sparse tensor")


def _first(operator: Any) -> Callable[..., Any]:
    """An operator that must not be composed of others, until those of the device are loaded."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _operator(operator, *args, **kwargs)

    return call


_NEVER_COMPOSED = (
    aten.convolution.default, aten.convolution_backward.default, aten.native_layer_norm.default,
    aten.native_group_norm.default, aten.conj_physical_.default,
    aten._thnn_fused_lstm_cell.default, aten._thnn_fused_lstm_cell_backward_impl.default,
    aten._thnn_fused_gru_cell.default, aten._thnn_fused_gru_cell_backward.default,
)  # fmt: skip
# PyTorch has these for accelerators only, without a description of the results
_UNDESCRIBED = (
    aten._thnn_fused_gru_cell.default, aten._thnn_fused_gru_cell_backward.default,
)  # fmt: skip


def _described_by(operator: Any) -> Callable[..., Any]:
    """An operator on tensors without contents, by what it is made of."""

    def call(*args: Any, **kwargs: Any) -> Any:
        made_of = import_object("glia.plugins.torch.aten.families:DERIVED")
        return made_of[operator](*args, **kwargs)

    return call


def _storage_on_device(
    self: torch.UntypedStorage, device: Any = None, non_blocking: bool = False
) -> torch.UntypedStorage:
    """A copy of a storage on the device."""
    host = torch.empty(0, dtype=torch.uint8).set_(self.cpu())
    return on_device(host.clone(), checked_index(device)).untyped_storage()


def _patch_storages() -> None:
    """Let storages be made on the device, moved to it and copied there.

    PyTorch makes storages by an allocator of the device, which those written in Python lack.
    """
    storages: Any = torch.UntypedStorage
    make = storages.__new__

    def storage(kind: Any, *args: Any, device: Any = None, **options: Any) -> Any:
        if device is None or torch.device(device).type != NAME:
            named = options if device is None else {**options, "device": device}
            return make(kind, *args, **named)
        return _storage_on_device(torch.UntypedStorage(*args), device)

    to, clone = storages.to, storages.clone

    def moved(self: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> Any:
        if torch.device(device).type == NAME:
            return _storage_on_device(self, device)
        return to(self, device=device, non_blocking=non_blocking)

    def cloned(self: torch.UntypedStorage) -> Any:
        return _storage_on_device(self, self.device) if self.device.type == NAME else clone(self)

    storages.__new__ = storage
    storages.to, storages.clone, storages.neuron = moved, cloned, _storage_on_device


def _patch_printing() -> None:
    """Let tensors be printed by the host, which would else compile what decides on the format."""
    module: Any = torch._tensor_str
    text_of = module._tensor_str

    def printed(self: torch.Tensor, indent: int) -> str:
        text: str = text_of(as_host(self.detach()) if is_on_device(self) else self, indent)
        return text

    module._tensor_str = printed


def _patch_accelerator() -> None:
    """Let torch.accelerator answer: nothing is waited for, and memory is the host's.

    PyTorch asks an allocator of the device, which those written in Python lack; of one that was
    not used yet it counts nothing.
    """
    accelerator: Any = torch._C
    accelerator._accelerator_isAllocatorInitialized = lambda: False
    accelerator._accelerator_emptyHostCache = lambda: None
    accelerator._accelerator_synchronizeDevice = lambda index: None
    accelerator._accelerator_getMemoryInfo = lambda index: _host_memory()


def _host_memory() -> tuple[int, int]:
    """How many bytes of memory are free, and how many there are."""
    free, total = (os.sysconf(name) for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
    return free * os.sysconf("SC_PAGE_SIZE"), total * os.sysconf("SC_PAGE_SIZE")


def _patch_data_parallel() -> None:
    """Let torch.nn.DataParallel call its module as it is, as where there is no accelerator.

    What it does on several devices PyTorch has for CUDA only.
    """
    module: Any = importlib.import_module("torch.nn.parallel.data_parallel")
    found = module._get_available_device_type

    def available() -> str | None:
        kind: str | None = found()
        return None if kind == NAME else kind

    module._get_available_device_type = available


@functools.cache
def register() -> tuple[torch.library.Library, ...]:
    """Make the device known to PyTorch, once in a process."""
    _setup_privateuseone_for_python_backend(NAME, DeviceModule(), _Hooks())
    everything = torch.library.Library("_", "IMPL")
    operators = torch.library.Library("aten", "IMPL")
    everything.fallback(never_compiled(_operator), "PrivateUse1")
    for key in ("SparsePrivateUse1", "SparseCsrPrivateUse1"):
        everything.fallback(_refuse_sparse, key)
    memory_operators.register(operators)
    for operator in _NEVER_COMPOSED:
        enter(operators, operator, _first(operator))
    for operator in _UNDESCRIBED:
        enter(operators, operator, _described_by(operator), "Meta")
    autocast.register(operators, everything)
    _patch_storages()
    _patch_printing()
    _patch_data_parallel()
    _patch_accelerator()
    if torch.distributed.is_available():
        distributed.register()
    return everything, operators
