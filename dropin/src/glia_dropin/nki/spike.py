"""`SpikeModel` and `SpikeTensor`: a NEFF on the simulated device, and arrays in its memory."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glia.machine.ir import Binding
from glia.neff.package import Neff
from glia.nki.names.errors import NotInGlia
from glia.ntff.trace_file import TraceFile, hash_of
from glia.profile.report import Profile
from glia.runtime.model import Model, load
from glia_dropin.nki.frontends import output_aliases

MODES = ("device", "host")


class SpikeTensor:
    """An array in the memory of a core."""

    def __init__(self, array: np.ndarray, name: str = "", core_id: int = 0) -> None:
        self._array = np.array(array, order="C")
        self.name = name
        self.core_id = core_id

    @classmethod
    def from_numpy(cls, array: np.ndarray, name: str = "", core_id: int = 0) -> SpikeTensor:
        """A copy of the array on the device."""
        return cls(array, name, core_id)

    def __repr__(self) -> str:
        return f"<tensor {self.name}: {self.dtype}{list(self.shape)} on core {self.core_id}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype, of NumPy or ml_dtypes."""
        return self._array.dtype

    def numpy(self) -> np.ndarray:
        """A copy of the contents."""
        return self._array.copy()

    def write_from_numpy(self, array: np.ndarray) -> None:
        """Overwrite the contents; ValueError for an array of another shape."""
        given = np.asarray(array)
        if given.shape != self.shape:
            raise ValueError(f"{self} cannot hold an array of shape {list(given.shape)}")
        self._array[...] = given


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape, dtype and `size` in bytes of an input or output of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int


@dataclass(frozen=True)
class BenchmarkResult:
    """Simulated times of executions, in milliseconds; every execution takes the same."""

    durations_ms: tuple[float, ...]
    warmup_iterations: int

    @property
    def iterations(self) -> int:
        """The number of timed executions."""
        return len(self.durations_ms)

    @property
    def mean_ms(self) -> float:
        """The mean execution time."""
        return statistics.fmean(self.durations_ms)

    @property
    def min_ms(self) -> float:
        """The shortest execution time."""
        return min(self.durations_ms)

    @property
    def max_ms(self) -> float:
        """The longest execution time."""
        return max(self.durations_ms)

    @property
    def std_dev_ms(self) -> float:
        """The standard deviation of execution times."""
        return statistics.pstdev(self.durations_ms)


class SpikeModel:
    """A NEFF loaded on a logical core of the simulated device; calling it runs it."""

    def __init__(self, model: Model, path: str, name: str, core_id: int) -> None:
        self._model = model
        self._profile: Profile | None = None
        self.neff_path = path
        self.name = name
        self.core_id = core_id

    @classmethod
    def load_from_neff(
        cls,
        neff_path: str | os.PathLike[str],
        name: str | None = None,
        core_id: int = 0,
        cc_enabled: bool = False,
        rank_id: int = 0,
        world_size: int = 1,
    ) -> SpikeModel:
        """Load a NEFF of glia; NotInGlia for one rank of several, NeffError for other files.

        `cc_enabled` is ignored: collectives between the cores of a NEFF are always on.
        """
        if (rank_id, world_size) != (0, 1):
            raise NotInGlia(
                name=f"SpikeModel.load_from_neff(rank_id={rank_id}, world_size={world_size})",
                problem="a model here is one rank of one",
                cure="launch the kernel on two cores with kernel[2], in one NEFF",
            )
        path = os.fspath(neff_path)
        return cls(load(path), path, name or Path(path).stem, core_id)

    @property
    def input_tensors_info(self) -> dict[str, TensorInfo]:
        """The inputs by name."""
        return {each.name: _tensor_info(each) for each in self._model.inputs}

    @property
    def output_tensors_info(self) -> dict[str, TensorInfo]:
        """The outputs by name."""
        return {each.name: _tensor_info(each) for each in self._model.outputs}

    @property
    def alias_info(self) -> dict[str, str]:
        """For each aliased output, the input that it overwrites."""
        return output_aliases(self._model.neff.program)

    def __call__(
        self,
        inputs: Mapping[str, SpikeTensor],
        outputs: Mapping[str, SpikeTensor] | None = None,
        save_trace: bool = False,
        ntff_name: str | None = None,
    ) -> dict[str, SpikeTensor]:
        """Run it: the outputs by name, in new tensors where none are given.

        An output that overwrites an input does so in the tensor given for that. With `save_trace`
        a trace for `neuron-profile view` goes to a file of that name, or the NEFF's with .ntff.
        """
        results = self._model.run({name: each.numpy() for name, each in inputs.items()})
        given = dict(outputs) if outputs is not None else {}
        for name, array in results.items():
            aliased = self.alias_info.get(name)
            if aliased is not None:
                inputs[aliased].write_from_numpy(array)
                given.setdefault(name, inputs[aliased])
            if name not in given:
                given[name] = SpikeTensor.from_numpy(array, name, self.core_id)
            given[name].write_from_numpy(array)
        if save_trace:
            trace = TraceFile.of(hash_of(self.neff), self.profile())
            trace.save(ntff_name or f"{os.path.splitext(self.neff_path)[0]}.ntff")
        return {name: given[name] for name in results}

    @property
    def neff(self) -> Neff:
        """The compiled model."""
        return self._model.neff

    def profile(self) -> Profile:
        """The simulated profile of an execution."""
        if self._profile is None:
            self._profile = self._model.profile()
        return self._profile

    def benchmark(
        self,
        inputs: Mapping[str, SpikeTensor],
        outputs: Mapping[str, SpikeTensor] | None = None,
        warmup_iter: int = 5,
        benchmark_iter: int = 5,
        mode: str = "device",
    ) -> BenchmarkResult:
        """Run once; the result has the simulated time of each of `benchmark_iter` executions.

        Both modes give the time on the core: there is no host overhead.
        """
        if mode not in MODES:
            raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}")
        if benchmark_iter < 1 or warmup_iter < 0:
            raise ValueError(f"{warmup_iter} and {benchmark_iter} executions cannot be timed")
        self(inputs, outputs)
        latency = self.profile().latency_us / 1000
        return BenchmarkResult((latency,) * benchmark_iter, warmup_iter)


def _tensor_info(binding: Binding) -> TensorInfo:
    dtype = np.dtype(binding.dtype.numpy)
    shape = tuple(binding.shape)
    return TensorInfo(binding.name, shape, dtype, int(np.prod(shape)) * dtype.itemsize)


__all__ = ["BenchmarkResult", "SpikeModel", "SpikeTensor", "TensorInfo"]
