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
from glia.nki.names.targets import platform_target
from glia.nki.run.frameworks import call_by_framework, from_numpy, in_python
from glia.nki.run.launch import Launch, bind, home_of, like_returned, program_key, ranks_of
from glia.nki.run.simulate import execute
from glia.nki.run.trace import PrintedOutput, Traced, trace_launch
from glia.nki.session.interpreter import UNWRITTEN, Unwritten
from glia.nki.session.ordering import parse_schedule, with_edges
from glia.nki.session.session import caller, is_running
from glia.runtime.model import Model, load

SIMULATOR = "NKI_SIMULATOR"
PRINTED = "NEURON_RT_DEBUG_OUTPUT_DIR"
MOST_COMPILED = 32  # programs of one kernel kept, for the arguments seen last
# Options that the documentation has had and that change nothing here.
KNOWN_OPTIONS = {
    "mode", "show_compiler_tb", "debug_kernel", "kernel_return", "additional_compile_opt",
    "experimental_flags", "version", "compiler_options", "name",
}  # fmt: skip


class Kernel:
    """A kernel; `kernel(arrays)` runs it on one core, `kernel[2](arrays)` on two together.

    Arrays of NumPy, PyTorch and JAX become tensors in HBM, everything else is a constant; what the
    kernel returns comes back in the same kind. Inside another kernel a call is inlined.
    """

    widens_floats = False  # step by step, tensors have the dtypes that they have on the device

    def __init__(
        self, function: Callable[..., Any], ranks: int = 0, cache: _Cache | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.func = self.function = function
        self.ranks = ranks
        self._cache = cache if cache is not None else _Cache()

    def __getitem__(self, grid: Any) -> Kernel:
        return Kernel(self.function, ranks_of(self.function, grid), self._cache)

    def with_schedule(self, schedule: Iterable[Any]) -> Kernel:
        """The kernel with edges (consumer, producer or list of producers) between instructions.

        They are those that the kernel names with name=; a consumer starts when its producers are
        complete. BadSchedule when a name is not that of one instruction, or data flows the other
        way.
        """
        loc = caller()
        return Kernel(with_edges(self.function, parse_schedule(schedule, loc), loc), self.ranks)

    @in_python
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays: compiled for the device, or simulated when NKI_SIMULATOR is 1."""
        if is_running():
            return self.function(*args, **kwargs)
        call = call_by_framework(self, args, kwargs)
        if call is not None:
            return call()
        target = platform_target()
        launch = bind(self.function, args, kwargs)
        if os.environ.get(SIMULATOR, "0") == "1":
            return execute(launch, target, self.ranks)
        compiled = self._compiled(launch, target)
        return compiled(launch)

    def _to_subclass(self, kind: type[Kernel], **options: Any) -> Kernel:
        """The kernel as another class of kernels, which takes options of its own."""
        return kind(self.function, self.ranks, **options)

    def __repr__(self) -> str:
        home = home_of(self.function)
        grid = f"[{self.ranks}]" if self.ranks else ""
        return f"<kernel {home.name}{grid}, {Path(home.file).name}:{home.line}>"

    def stepped(self, launch: Launch, target: Target, unwritten: Unwritten = UNWRITTEN) -> Any:
        """What the kernel returns, run step by step with `unwritten` in memory nothing wrote."""
        return execute(launch, target, self.ranks, unwritten)

    def compile(self, *args: Any, **kwargs: Any) -> Neff:
        """The program of the kernel for arguments of these shapes, dtypes and values."""
        launch = bind(self.function, args, kwargs)
        return self._compiled(launch, platform_target()).neff

    def _compiled(self, launch: Launch, target: Target) -> _Compiled:
        key = program_key(launch, target.name, self.ranks)
        known = self._cache.get(key)
        if known is None:
            known = _Compiled(self.traced_launch(launch, target))
            self._cache.put(key, known)
        return known

    @property
    def identity(self) -> tuple[Any, ...]:
        """What a program depends on besides target and arguments."""
        return self.function, self.ranks

    def traced_launch(self, launch: Launch, target: Target, *, synchronises: bool = True) -> Traced:
        """The programs of a launch, one for each core, with semaphores or without."""
        return trace_launch(launch, target, self.ranks, synchronises=synchronises)


@overload
def jit(fn: Callable[..., Any], **kwargs: Any) -> Kernel:
    """The function as a kernel."""


@overload
def jit(fn: None = None, **kwargs: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """What makes a function a kernel."""


def jit(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Decorate a function as a kernel, as `@nki.jit` or `@nki.jit(...)`.

    Options of earlier releases change nothing, but platform_target, which is an error: BadLaunch.
    """
    home = home_of(fn) if fn is not None else None
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


class _Compiled:
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
        for number, shown in enumerate(traced.printed):
            _show(shown, results[shown.output], number)
        values = [from_numpy(results[name], launch.framework) for name in traced.results]
        return like_returned(traced.structure, values)

    def _run(self, arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if self._model is None:
            self._model = load(self.neff)
        return self._model.run(arrays)


def _show(shown: PrintedOutput, array: np.ndarray, number: int) -> None:
    """Print what nl.device_print shows, or keep it where the environment says."""
    folder = os.environ.get(PRINTED)
    for turn, index in enumerate(np.ndindex(shown.trips)):
        if not folder:
            sys.stdout.write(f"{shown.prefix} {array[index]}\n")
            continue
        place = Path(folder) / shown.prefix / f"core_{shown.core}" / str(turn)
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{number}.npy", array[index], allow_pickle=False)


class _Cache:
    """The compiled programs of one kernel by what they are compiled for, the last used last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, _Compiled] = OrderedDict()

    def get(self, key: Any) -> _Compiled | None:
        if key is None or key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key]

    def put(self, key: Any, compiled: _Compiled) -> None:
        if key is not None:
            self._known[key] = compiled
            while len(self._known) > MOST_COMPILED:
                self._known.popitem(last=False)
