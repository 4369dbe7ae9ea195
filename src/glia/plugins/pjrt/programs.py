"""Compiled programs: on a simulated device, or by XLA on the host's processor."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.base.errors import CompileError, Unspecified
from glia.cache.collecting import VARIABLE
from glia.neff.package import Neff
from glia.plugins.pjrt.element_types import array_layout
from glia.plugins.pjrt.errors import BadCpuChoice, CollectedOnly
from glia.runtime.bound import BoundModel
from glia.runtime.model import Model, device_bytes, import_object, load

if TYPE_CHECKING:
    from glia.profile.report import Profile

DEVICE = "host"  # programs run as machine code of the host
ON_CPU = "NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU"

Tensor = tuple[np.dtype, tuple[int, ...]]
Arrays = Sequence[np.ndarray]
Slice = tuple[str, str, float, float]  # of an engine or queue: what, begin and end in nanoseconds
MOST_SLICES = 2_000  # of an execution, those beyond it joined
_SLICES = "glia.profile.timeline:slices_of"


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
    def all_bytes(self) -> int:
        """Bytes of memory that the program occupies."""
        return self.argument_bytes + self.output_bytes

    @property
    def simulated_costs(self) -> dict[str, float]:
        """What a device takes, of a program that it runs."""
        return {}

    @cached_property
    def costs(self) -> dict[str, float]:
        """What a framework asks of a program's costs; the time is the simulated one."""
        accessed = float(self.argument_bytes + self.output_bytes)
        return {"bytes accessed": accessed, **self.simulated_costs}

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
    def profile(self) -> Profile | None:
        """The simulated times of an execution; None where it cannot be timed."""
        try:
            return self.model.profile()
        except (CompileError, Unspecified):
            return None

    @cached_property
    def slices(self) -> Sequence[Slice]:
        """What engines and queues do in an execution."""
        if self.profile is None:
            return ()
        timing = self.profile.cores[0].timing if self.profile.cores else self.profile.timing
        if (run := timing.executions) is None:
            return ()
        found = []
        for each in import_object(_SLICES)(timing, MOST_SLICES, 1):
            name = f"{each.count} instructions"
            if not each.is_block:
                name = run.instruction(each.step).mnemonic()
            found.append((each.track, name, each.start_ns, each.end_ns))
        return found

    @property
    def simulated_costs(self) -> dict[str, float]:
        timed = {"untimed": 1.0}
        if self.profile is not None:
            timed = {"optimal_seconds": self.profile.latency_us * 1e-6}
        return {"flops": float(self.neff.statistics.get("flops", 0)), **timed}


@dataclass(frozen=True)
class ModuleProgram(Program):
    """A program of which there is a module, and nothing for a device."""

    tensors: tuple[Sequence[Tensor], Sequence[Tensor]]  # arguments, results

    @property
    def inputs(self) -> Sequence[Tensor]:
        return self.tensors[0]

    @property
    def outputs(self) -> Sequence[Tensor]:
        return self.tensors[1]


@dataclass(frozen=True)
class CollectedProgram(ModuleProgram):
    """A program that is in the compile cache to be compiled later; its results are zeros."""

    def run_on_devices(self, arguments: Sequence[Arrays]) -> Sequence[Arrays]:
        return [[np.zeros(shape, dtype) for dtype, shape in self.outputs] for _ in arguments]

    @property
    def code(self) -> bytes:
        raise CollectedOnly(name=self.name, variable=VARIABLE)


@dataclass(frozen=True)
class CpuProgram(ModuleProgram):
    """A program that XLA runs on the host's processor; its arrays stay those of the devices."""

    hlo: bytes = field(repr=False)

    @cached_property
    def _executable(self) -> Any:
        return importlib.import_module("glia.plugins.pjrt.cpu_programs").compiled(self.hlo)

    def run_on_devices(self, arguments: Sequence[Arrays]) -> Sequence[Arrays]:
        return [self._executable(of_device) for of_device in arguments]

    @property
    def code(self) -> bytes:
        return b""
