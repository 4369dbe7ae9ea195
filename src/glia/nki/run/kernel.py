"""`jit`: decorate a function as a kernel; calling it compiles it and runs it on the device."""

from __future__ import annotations

import functools
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np

from glia.arch import Target
from glia.neff.package import Neff
from glia.nki.names.errors import BadLaunch
from glia.nki.names.targets import model_target, platform_target
from glia.nki.run.frameworks import framework_call, from_numpy, outside_torch_compile
from glia.nki.run.launch import (
    Launch,
    bind,
    definition_loc,
    program_key,
    ranks_of,
    restore_structure,
)
from glia.nki.run.simulate import execute
from glia.nki.run.trace import PrintedOutput, Traced, trace_launch
from glia.nki.session.interpreter import UNWRITTEN, Unwritten
from glia.nki.session.ordering import parse_schedule, with_edges
from glia.nki.session.session import caller, is_running
from glia.runtime.model import Model, load

SIMULATOR = "NKI_SIMULATOR"
PRINTED = "NEURON_RT_DEBUG_OUTPUT_DIR"
MAX_COMPILED = 32  # cached programs of one kernel, least recently used evicted
# Documented options that have no effect here.
KNOWN_OPTIONS = {
    "mode", "show_compiler_tb", "debug_kernel", "kernel_return", "additional_compile_opt",
    "experimental_flags", "version", "compiler_options", "name",
}  # fmt: skip


class Kernel:
    """A kernel; `kernel(arrays)` runs it on one core, `kernel[2](arrays)` on two together.

    Arrays of NumPy, PyTorch and JAX become tensors in HBM, everything else is a constant; what the
    kernel returns comes back in the same kind. Inside another kernel a call is inlined.
    """

    widens_floats = False  # simulated tensors have the dtypes of the device

    def __init__(
        self, function: Callable[..., Any], ranks: int = 0, cache: _ProgramCache | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.func = self.function = function
        self.ranks = ranks
        self._cache = cache if cache is not None else _ProgramCache()

    def __getitem__(self, grid: Any) -> Kernel:
        return Kernel(self.function, ranks_of(self.function, grid), self._cache)

    def with_schedule(self, schedule: Iterable[Any]) -> Kernel:
        """The kernel with order edges (consumer, producer or list of producers).

        They name instructions by their name=; a consumer starts when its producers are complete.
        BadSchedule when a name is not that of exactly one instruction, or an edge closes a cycle.
        """
        loc = caller()
        return Kernel(with_edges(self.function, parse_schedule(schedule, loc), loc), self.ranks)

    @outside_torch_compile
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays: compiled for the device, or simulated when NKI_SIMULATOR is 1."""
        if is_running():
            return self.function(*args, **kwargs)
        call = framework_call(self, args, kwargs)
        if call is not None:
            return call()
        target = platform_target()
        launch = bind(self.function, args, kwargs)
        if os.environ.get(SIMULATOR, "0") == "1":
            return execute(launch, target, self.ranks)
        compiled = self._compiled(launch, target)
        return compiled(launch)

    def _to_subclass(self, kind: type[Kernel], **options: Any) -> Kernel:
        """The kernel as an instance of another class of kernels, with its options."""
        return kind(self.function, self.ranks, **options)

    def __repr__(self) -> str:
        home = definition_loc(self.function)
        grid = f"[{self.ranks}]" if self.ranks else ""
        return f"<kernel {home.name}{grid}, {Path(home.file).name}:{home.line}>"

    def interpret(self, launch: Launch, target: Target, unwritten: Unwritten = UNWRITTEN) -> Any:
        """Interpret a launch with `unwritten` in uninitialised memory; the kernel's results.

        They are those of the reference executor to the last bit.
        """
        return execute(launch, target, self.ranks, unwritten, by_meaning=True)

    def compile(self, *args: Any, as_written: bool = False, **kwargs: Any) -> Neff:
        """The program of the kernel for arguments of these shapes, dtypes and values.

        With `as_written` the back end changes nothing: tiles and order are those of the kernel.

        It is for the target of the model around it, if one is being traced, else for that of
        NEURON_PLATFORM_TARGET_OVERRIDE, else for trn2, as models are.
        """
        launch = bind(self.function, args, kwargs)
        return self._compiled(launch, model_target(), as_written=as_written).neff

    def _compiled(
        self, launch: Launch, target: Target, *, as_written: bool = False
    ) -> _CompiledKernel:
        found = program_key(launch, target.name, self.ranks)
        key = None if found is None else (found, as_written)
        known = self._cache.get(key)
        if known is None:
            known = _CompiledKernel(self.traced_launch(launch, target, as_written=as_written))
            self._cache.put(key, known)
        return known

    @property
    def identity(self) -> tuple[Any, ...]:
        """The part of a program's cache key besides target and arguments."""
        return self.function, self.ranks

    def traced_launch(
        self, launch: Launch, target: Target, *, synchronises: bool = True, **how: Any
    ) -> Traced:
        """The programs of a launch, one for each core; `how` are options of `trace_launch`."""
        return trace_launch(launch, target, self.ranks, synchronises=synchronises, **how)


@overload
def jit(fn: Callable[..., Any], **kwargs: Any) -> Kernel:
    """The function as a kernel."""


@overload
def jit(fn: None = None, **kwargs: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """The decorator that makes a function a kernel."""


def jit(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Decorate a function as a kernel, as `@nki.jit` or `@nki.jit(...)`.

    Options of earlier releases have no effect, except platform_target, which raises BadLaunch.
    """
    home = definition_loc(fn) if fn is not None else None
    name = home.name if home is not None else "nki.jit"
    if "platform_target" in kwargs:
        problem = (
            "nki.jit takes no platform_target; set the environment variable "
            f"NEURON_PLATFORM_TARGET_OVERRIDE={kwargs['platform_target']}"
        )
        raise BadLaunch(kernel=name, problem=problem)
    unknown = sorted(kwargs.keys() - KNOWN_OPTIONS)
    if unknown:
        raise BadLaunch(kernel=name, problem=f"nki.jit has no option {unknown[0]!r}")
    if fn is None:
        return functools.partial(jit, **kwargs)
    return fn if isinstance(fn, Kernel) else Kernel(fn)


def as_kernel(kernel: Any) -> Any:
    """A kernel of either generation as it is, a plain function as one of this generation."""
    return kernel if hasattr(kernel, "traced_launch") else Kernel(kernel)


class _CompiledKernel:
    """A traced kernel, loaded on the device."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.neff = Neff(traced.programs)
        self._model: Model | None = None

    def __call__(self, launch: Launch) -> Any:
        results = self._run(dict(launch.arrays))
        traced = self.traced
        for name, output in traced.updated:
            if launch.arrays[name].flags.writeable:
                launch.arrays[name][...] = results[output]
        for number, printed in enumerate(traced.printed):
            _print_output(printed, results[printed.output], number)
        values = [from_numpy(results[name], launch.framework) for name in traced.results]
        return restore_structure(traced.structure, values)

    def _run(self, arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run on the host; several cores first by the reference, which finds their races."""
        if self._model is None:
            if len(self.neff.programs) > 1:
                results = load(self.neff, device="reference").run(arrays)
                self._model = load(self.neff)
                return results
            self._model = load(self.neff)
        return self._model.run(arrays)


def _print_output(output: PrintedOutput, array: np.ndarray, number: int) -> None:
    """Print an output of nl.device_print, or save it in the folder that the environment names."""
    folder = os.environ.get(PRINTED)
    for iteration, index in enumerate(np.ndindex(output.trips)):
        if not folder:
            sys.stdout.write(f"{output.prefix} {array[index]}\n")
            continue
        place = Path(folder) / output.prefix / f"core_{output.core}" / str(iteration)
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{number}.npy", array[index], allow_pickle=False)


class _ProgramCache:
    """The compiled programs of one kernel by their keys; least recently used are evicted."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, _CompiledKernel] = OrderedDict()

    def get(self, key: Any) -> _CompiledKernel | None:
        if key is None or key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key]

    def put(self, key: Any, compiled: _CompiledKernel) -> None:
        if key is not None:
            self._known[key] = compiled
            while len(self._known) > MAX_COMPILED:
                self._known.popitem(last=False)
