"""Kernels that compile to a NEFF and run it by an executor of the caller."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from glia.nki.names.targets import target_name
from glia.nki.run.frameworks import framework_of, from_numpy, to_numpy
from glia.nki.run.kernel import Kernel, as_kernel
from glia.nki.run.launch import bind, restore_structure
from glia_dropin.nki.driver import (
    CompiledKernel,
    _compile_bir_to_neff,
    compile_to_bir,
)
from glia_dropin.nki.frontends import Lowered, NKIFrontend, resolve_frontend_cls
from glia_dropin.nki.options import CompileOptions

Executor = Callable[[CompiledKernel, dict[str, np.ndarray], dict[str, np.ndarray]], Any]


def execute(
    compiled: CompiledKernel, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]
) -> None:
    """Run a compiled kernel on the simulated device and fill `outputs`."""
    compiled.execute(inputs, outputs)


class CompileKernel(Kernel):
    """A kernel whose calls compile it to a NEFF in `artifacts_dir` and run that.

    `_executor(compiled, inputs, outputs)` runs it in place of the simulated device, and fills the
    outputs. There is no other device: `_enable_simulation`, which asks AWS's for the simulated one,
    may be left out.
    """

    def __init__(
        self,
        func: Any,
        ranks: int = 0,
        cache: Any = None,
        artifacts_dir: str | None = None,
        target: str | None = None,
        _executor: Executor = execute,
        _enable_simulation: bool = True,
    ) -> None:
        super().__init__(func, ranks, cache)
        self.artifacts_dir = artifacts_dir
        self.target = target
        self._executor = _executor
        self._enable_backend_opt = False
        self._frontend_cls = resolve_frontend_cls()

    def __getitem__(self, grid: Any) -> CompileKernel:
        launched = Kernel(self.function, self.ranks)[grid]
        return type(self)(
            self.function,
            launched.ranks,
            artifacts_dir=self.artifacts_dir,
            target=self.target,
            _executor=self._executor,
        )

    def _compile_opts(self) -> CompileOptions:
        """The options of a compilation to artifacts_dir, else to a new folder."""
        folder = self.artifacts_dir or tempfile.mkdtemp(prefix="nki_")
        return CompileOptions(
            target=self.target or target_name(),
            lnc=max(1, self.ranks),
            artifacts_dir=folder,
            output_path=str(Path(folder) / "kernel.neff"),
        )

    def _bind_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by the name of their parameter, defaults left out."""
        return dict(bind(self.function, args, kwargs).bound.arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compile for these arguments, run, and return what the kernel returns."""
        launch = bind(self.function, args, kwargs)
        inputs = dict(launch.bound.arguments)
        lowered = compile_kernel_to_nir(self, inputs=inputs, compile_opts=self._compile_opts())
        outputs = run_from_bir(lowered, self._compile_opts(), inputs, executor=self._executor)
        values = [from_numpy(outputs[name], launch.framework) for name in lowered.traced.results]
        return restore_structure(lowered.traced.structure, values)


class StandaloneKernel(CompileKernel):
    """The class of kernels that no framework calls, as AWS's nki.jit creates them."""


def compile_kernel_to_nir(
    kernel: Any,
    inputs: Mapping[str, Any],
    compile_opts: CompileOptions | None = None,
    frontend: NKIFrontend | None = None,
    enable_cache: bool = False,
) -> Lowered:
    """The program of a kernel for these arguments by name; nothing is cached."""
    options = compile_opts or CompileOptions()
    known = as_kernel(kernel)
    ranks = getattr(known, "ranks", 0)
    if ranks > 1 and options.lnc == 1:
        options = replace(options, lnc=ranks)
    return compile_to_bir(known, frontend, inputs, options)


def run_from_bir(
    bir: Lowered,
    compile_opts: CompileOptions,
    inputs: Mapping[str, Any],
    executor: Executor = execute,
) -> dict[str, np.ndarray]:
    """Compile a program to its NEFF and let `executor` run it; the outputs by name."""
    compiled = _compile_bir_to_neff(bir, compile_opts)
    arrays = {
        name: to_numpy(value) for name, value in inputs.items() if framework_of(value) is not None
    }
    outputs = compiled.prepare_outputs()
    executor(compiled, arrays, outputs)
    return outputs


__all__ = [
    "CompileKernel",
    "StandaloneKernel",
    "compile_kernel_to_nir",
    "compile_to_bir",
    "run_from_bir",
]
