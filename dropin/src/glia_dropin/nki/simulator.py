"""`nki.simulator`, `nki.trace` and `nki.debugger`: simulating and tracing kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from glia.nki.names.errors import NotInGlia
from glia.nki.names.targets import target_name
from glia.nki.run.kernel import as_kernel
from glia.nki.run.launch import bind
from glia.nki.run.simulate import simulate
from glia_dropin.nki.frontends import Lowered, lower
from glia_dropin.nki.options import CompileOptions

cpu_simulate = simulate


def simulate_kernel(
    func: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    lnc: int = 1,
    *,
    _lnc: int | None = None,
) -> Any:
    """The result of a kernel for these arguments, simulated step by step on `lnc` cores."""
    cores = lnc if _lnc is None else _lnc
    simulated: Any = simulate(func)
    if cores > 1:
        simulated = simulated[cores]
    return simulated(*args, **dict(kwargs or {}))


class Tracing:
    """A kernel to trace without running it: `specialize(arrays)` is its program."""

    def __init__(self, kernel: Any, grid: Any, platform_target: str | None) -> None:
        known = as_kernel(kernel)
        self.kernel = known[grid] if grid else known
        self.platform_target = platform_target

    def __getitem__(self, grid: Any) -> Tracing:
        return Tracing(self.kernel, grid, self.platform_target)

    def specialize(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for these arguments; CompileError where the kernel is invalid."""
        options = CompileOptions(target=self.platform_target or target_name())
        inputs = bind(self.kernel.function, args, kwargs).bound.arguments
        return lower(self.kernel, inputs, options)


def trace(func: Any, grid: Any = None, platform_target: str | None = None) -> Tracing:
    """A kernel to be traced for a grid and a target: `nki.trace(kernel).specialize(arrays)`."""
    return Tracing(func, grid, platform_target)


def debug_kernel(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dump_dir: str, **_options: Any
) -> NoReturn:
    """NotInGlia: dumps of AWS's devices are in a format that is not public."""
    _raise_not_in_glia("nki.debugger.debug_kernel")


def debug(func: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """NotInGlia: dumps of AWS's devices are in a format that is not public."""
    _raise_not_in_glia("nki.debug")


def _raise_not_in_glia(name: str) -> NoReturn:
    raise NotInGlia(
        name=name,
        problem="the format of a device's dumps is not public",
        cure="print with nl.device_print, compare nki.simulate(kernel) with NumPy, or run "
        "`glia check kernel.py::name`",
    )
