"""nki.baremetal, benchmark and profile of Beta 1, timed by the timing model."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glia.neff.package import Neff
from glia.nki.beta1.run.launch import KERNEL_CLASSES, Kernel, trace_call
from glia.nki.beta1.tensors.dtypes import to_dtype_name, to_numpy_dtype
from glia.nki.names.errors import BadLaunch
from glia.nki.run.launch import definition_loc
from glia.nki.typing import Annotation
from glia.ntff.trace_file import TraceFile, hash_of
from glia.profile.report import Profile, profile_programs

PERCENTILES = (0, 1, 10, 25, 50, 90, 99, 100)


@dataclass(frozen=True)
class Latency:
    """Latencies of all runs in microseconds; every run on the simulated device takes the same."""

    microseconds: float

    def get_latency_percentile(self, percentile: int) -> float:
        """The latency in microseconds at 0, 1, 10, 25, 50, 90, 99 or 100; ValueError for others."""
        if percentile not in PERCENTILES:
            raise ValueError(f"percentile {percentile} is none of {PERCENTILES}")
        return self.microseconds


@dataclass(frozen=True)
class BenchmarkResult:
    """The `kernel.benchmark_result` of a call.

    `nc_latency` is counted from the core's notification that it starts, which on some cores comes
    in the middle of the preamble; `profile` has all of it.
    """

    nc_latency: Latency
    profile: Profile


def _example_array(value: Any) -> Any:
    """The argument, or an array of zeros for a type like nt.tensor[[128, 512], nl.float32]."""
    if isinstance(value, type) and issubclass(value, Annotation) and value.dtype is not None:
        return np.zeros(value.shape or (), to_numpy_dtype(to_dtype_name(value.dtype)))
    return value


class Baremetal(Kernel):
    """A kernel on NumPy arrays, simulated; its options say which files are saved."""

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run on arrays and return what the kernel returns."""
        names = ("save_neff_name", "save_trace_name", "artifacts_dir")
        if any(self.options.get(name) for name in names):
            self.save_files(*self.compile_and_profile(args, kwargs))
        return super().run(args, kwargs)

    def compile_and_profile(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Neff, Profile]:
        """The NEFF for these arguments, and its simulated profile."""
        named = {name: _example_array(value) for name, value in kwargs.items()}
        traced = trace_call(self, tuple(_example_array(value) for value in args), named)
        return Neff(traced.programs), profile_programs(traced.programs, self.target())

    def save_files(self, neff: Neff, profile: Profile) -> None:
        """Save the NEFF and the trace of the execution where the options say."""
        folder = Path(
            self.options.get("working_directory") or self.options.get("artifacts_dir") or ""
        )
        for name, save in (
            ("save_neff_name", neff.save),
            ("save_trace_name", lambda place: TraceFile.of(hash_of(neff), profile).save(place)),
        ):
            given = self.options.get(name)
            if given:
                place = folder / given
                place.parent.mkdir(parents=True, exist_ok=True)
                save(place)


class Benchmark(Baremetal):
    """A kernel whose calls measure it; `benchmark_result` is shared by all its grids."""

    def __init__(self, function: Any, options: dict[str, Any], grid: tuple[int, ...] = ()) -> None:
        super().__init__(function, options, grid)
        self._results: list[BenchmarkResult] = []

    def __getitem__(self, grid: Any) -> Benchmark:
        launched: Benchmark = super().__getitem__(grid)  # type: ignore[assignment]  # type(self) is made
        launched._results = self._results
        return launched

    @property
    def benchmark_result(self) -> BenchmarkResult | None:
        """The result of the last call; None before the first."""
        return self._results[-1] if self._results else None

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compile and time the kernel; the arguments only say shapes and constants."""
        neff, profile = self.compile_and_profile(args, kwargs)
        self.save_files(neff, profile)
        unmeasured = self.target().arch.unmeasured_ns / 1000
        self._results.append(BenchmarkResult(Latency(profile.latency_us - unmeasured), profile))


class ProfiledKernel(Baremetal):
    """A kernel whose calls leave a NEFF, traces and a summary in working_directory."""

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compile and time the kernel; the arguments only say shapes and constants."""
        options = self.options
        folder = Path(options.get("working_directory") or "")
        if not folder.is_absolute():
            home = definition_loc(self.function)
            problem = "nki.profile needs working_directory, an absolute path"
            raise BadLaunch(kernel=home.name, problem=problem, loc=home)
        if options.get("overwrite") and folder.exists():
            shutil.rmtree(folder)
        reports = folder / "json_reports"
        reports.mkdir(parents=True, exist_ok=True)
        neff, profile = self.compile_and_profile(args, kwargs)
        neff.save(folder / options.get("save_neff_name", "file.neff"))
        neff_hash = hash_of(neff)
        stem = Path(options.get("save_trace_name", "profile.ntff")).stem
        nth, count = int(options.get("profile_nth", 1)), int(options.get("num_execs", 1))
        for number in range(nth, max(nth, count) + 1, nth):
            name = stem if number == 1 else f"{stem}_exec_{number}"
            TraceFile.of(neff_hash, profile, number).save(folder / f"{name}.ntff")
            (reports / f"{name}.json").write_text(json.dumps(profile.to_dict()))


KERNEL_CLASSES.update(baremetal=Baremetal, benchmark=Benchmark)


def _decorate(kind: type[Kernel], func: Callable[..., Any] | None, options: dict[str, Any]) -> Any:
    if func is None:
        return functools.partial(_make_kernel, kind, options)
    return _make_kernel(kind, options, func)


def _make_kernel(kind: type[Kernel], options: dict[str, Any], func: Any) -> Any:
    if isinstance(func, Kernel):
        return kind(func.function, {**func.options, **options}, func.grid)
    return kind(func, options)


def baremetal(kernel: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Run a kernel on NumPy arrays; save_neff_name and save_trace_name keep its files.

    `neuron-profile view` shows the trace; the format of AWS's own is not public.
    """
    return _decorate(Baremetal, kernel, kwargs)


def benchmark(kernel: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Time a kernel by the timing model: `kernel.benchmark_result.nc_latency`.

    `warmup` and `iters` change nothing, since every run takes the same time. The contents of the
    arguments are not used.
    """
    return _decorate(Benchmark, kernel, kwargs)


def profile(func: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Time a kernel and leave its NEFF, traces and summaries in working_directory."""
    return _decorate(ProfiledKernel, func, kwargs)
