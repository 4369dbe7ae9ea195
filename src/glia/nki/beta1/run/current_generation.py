"""Beta 1's benchmark, baremetal and profile for kernels of the current NKI."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from glia.neff.package import Neff
from glia.nki.beta1.run.benchmark import Baremetal, Benchmark, ProfiledKernel
from glia.nki.beta1.run.launch import Kernel
from glia.nki.run.launch import bind
from glia.nki.run.simulate import simulate
from glia.nki.run.trace import trace_launch
from glia.profile.report import Profile, profile_programs


class _CurrentKernel(Baremetal):
    """A kernel of the current NKI, on one core or two."""

    @property
    def ranks(self) -> int:
        """The number of cores of the grid, 0 without one."""
        return self.grid[0] if self.grid else 0

    def compile_and_profile(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Neff, Profile]:
        """The NEFF for these arguments, and its simulated profile."""
        traced = trace_launch(bind(self.function, args, kwargs), self.target(), self.ranks)
        return Neff(traced.programs), profile_programs(traced.programs, self.target())


class _Baremetal(_CurrentKernel):
    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run on arrays and return what the kernel returns."""
        if any(self.options.get(name) for name in ("save_neff_name", "save_trace_name")):
            self.save_files(*self.compile_and_profile(args, kwargs))
        simulated: Any = simulate(self.function)
        return (simulated[self.ranks] if self.ranks else simulated)(*args, **kwargs)


class _Benchmark(_CurrentKernel, Benchmark):
    pass


class _Profiled(_CurrentKernel, ProfiledKernel):
    pass


def _decorator(kind: type[Kernel], text: str) -> Callable[..., Any]:
    def decorate(func: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
        if func is None:
            return functools.partial(decorate, **kwargs)
        return kind(getattr(func, "function", func), kwargs)

    decorate.__doc__ = text
    return decorate


baremetal = _decorator(_Baremetal, "Run a kernel on arrays; save_neff_name keeps its program.")
benchmark = _decorator(_Benchmark, "Time a kernel: `kernel.benchmark_result.nc_latency`.")
profile = _decorator(_Profiled, "Time a kernel and leave its files in working_directory.")

__all__ = ["baremetal", "benchmark", "profile"]
