"""Compiled programs: on a simulated device, or by XLA on the host's processor."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from glia.base.errors import CompileError, Unspecified
from glia.cache.collecting import VARIABLE
from glia.frontend.hlo import boundary_types
from glia.graph.ir import TensorType
from glia.neff.package import Neff
from glia.plugins.pjrt.element_types import array_layout
from glia.plugins.pjrt.errors import BadCpuChoice, CollectedOnly
from glia.runtime.bound import BoundModel
from glia.runtime.model import Model, device_bytes, load

DEVICE = "host"  # programs run as machine code of the host
ON_CPU = "NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU"

Tensor = tuple[np.dtype, tuple[int, ...]]
Arrays = Sequence[np.ndarray]


def runs_on_cpu() -> bool:
    """Whether programs without collectives and kernels are for the host's processor.

    Raises BadCpuChoice for another value of ON_CPU than 0 and 1.
    """
    asked = os.environ.get(ON_CPU) or "0"
    if asked not in ("0", "1"):
        raise BadCpuChoice(variable=ON_CPU, value=asked)
    return asked == "1"


@dataclass(frozen=True)
class Program(ABC):
    """A compiled program, and its module as frameworks read it.

    `donated` are the arguments whose arrays end with a call.
    """

    name: str
    optimized: bytes = field(repr=False)
    donated: tuple[int, ...]
    fingerprint: str

    @property
    @abstractmethod
    def inputs(self) -> Sequence[Tensor]:
        """Dtype and shape of each argument."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[Tensor]:
        """Dtype and shape of each result."""

    @abstractmethod
    def run_on_devices(self, arguments: Sequence[Arrays]) -> Sequence[Arrays]:
        """The results of each device, of the arguments of each."""

    @property
    @abstractmethod
    def code(self) -> bytes:
        """What is compiled, to be kept; none where compiling again takes little."""

    @property
    @abstractmethod
    def all_bytes(self) -> int:
        """Bytes of memory that the program occupies."""

    @cached_property
    def costs(self) -> dict[str, float]:
        """What a framework asks of a program's costs."""
        return {"bytes accessed": float(self.argument_bytes + self.output_bytes)}

    @cached_property
    def argument_bytes(self) -> int:
        """Bytes of all arguments."""
        return sum(array_layout(*each).bytes for each in self.inputs)

    @cached_property
    def output_bytes(self) -> int:
        """Bytes of all results."""
        return sum(array_layout(*each).bytes for each in self.outputs)

    @cached_property
    def donated_bytes(self) -> int:
        """Bytes of the arguments whose arrays end with a call."""
        return sum(array_layout(*self.inputs[number]).bytes for number in self.donated)


@dataclass(frozen=True)
class DeviceProgram(Program):
    """A program of simulated devices.

    Where one `is_divided` among them, each is asked for all rows, and its own are chosen from what
    it finds: indices outside of its part are no fault, and not warned of.
    """

    neff: Neff
    is_divided: bool

    @cached_property
    def inputs(self) -> Sequence[Tensor]:
        return [(each.dtype.numpy, each.shape) for each in self.neff.inputs]

    @cached_property
    def outputs(self) -> Sequence[Tensor]:
        return [(each.dtype.numpy, each.shape) for each in self.neff.outputs]

    @cached_property
    def model(self) -> Model:
        """The program on a simulated device."""
        model = load(self.neff, device=DEVICE)
        model.warns_of_indices = not self.is_divided
        return model

    @cached_property
    def _run(self) -> BoundModel:
        return self.model.bind()

    def run_on_devices(self, arguments: Sequence[Arrays]) -> Sequence[Arrays]:
        if self.neff.ranks > 1:
            return self.model.run_ranks(arguments)
        return [self._run(*of_device) for of_device in arguments]

    @property
    def code(self) -> bytes:
        return self.neff.to_bytes()

    @cached_property
    def all_bytes(self) -> int:
        return sum(device_bytes(each) for each in self.neff.programs)

    @cached_property
    def costs(self) -> dict[str, float]:
        """What a framework asks of a program's costs; the time is the simulated one."""
        found = {
            "flops": float(self.neff.statistics.get("flops", 0)),
            "bytes accessed": float(self.argument_bytes + self.output_bytes),
        }
        try:
            found["optimal_seconds"] = self.model.profile().latency_us * 1e-6
        except (CompileError, Unspecified) as untimed:
            found["untimed"] = float(bool(untimed))
        return found


@dataclass(frozen=True)
class CollectedProgram(Program):
    """A program that is in the compile cache to be compiled later; its results are zeros."""

    hlo: bytes = field(repr=False)

    @cached_property
    def _boundary(self) -> tuple[dict[str, TensorType], dict[str, TensorType]]:
        return boundary_types(self.hlo)

    @cached_property
    def inputs(self) -> Sequence[Tensor]:
        return [(each.dtype.numpy, each.shape) for each in self._boundary[0].values()]

    @cached_property
    def outputs(self) -> Sequence[Tensor]:
        return [(each.dtype.numpy, each.shape) for each in self._boundary[1].values()]

    def run_on_devices(self, arguments: Sequence[Arrays]) -> Sequence[Arrays]:
        return [[np.zeros(shape, dtype) for dtype, shape in self.outputs] for _ in arguments]

    @property
    def code(self) -> bytes:
        raise CollectedOnly(name=self.name, variable=VARIABLE)

    @cached_property
    def all_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes


@dataclass(frozen=True)
class CpuProgram(Program):
    """A program that XLA runs on the host's processor; its arrays stay those of the devices."""

    hlo: bytes = field(repr=False)
    tensors: tuple[Sequence[Tensor], Sequence[Tensor]]  # arguments, results

    @property
    def inputs(self) -> Sequence[Tensor]:
        return self.tensors[0]

    @property
    def outputs(self) -> Sequence[Tensor]:
        return self.tensors[1]

    @cached_property
    def _executable(self) -> Any:
        return importlib.import_module("glia.plugins.pjrt.cpu_programs").compiled(self.hlo)

    def run_on_devices(self, arguments: Sequence[Arrays]) -> Sequence[Arrays]:
        return [self._executable(of_device) for of_device in arguments]

    @property
    def code(self) -> bytes:
        return b""

    @cached_property
    def all_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes
