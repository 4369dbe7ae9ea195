"""From a kernel to a program: the frontends, and what stands in the place of BIR and MLIR."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from glia.machine.ir import Binding, Program
from glia.machine.text import print_program
from glia.nki.names.errors import BadLaunch, NotInGlia
from glia.nki.names.targets import platform_target
from glia.nki.run.kernel import as_kernel
from glia.nki.run.launch import bind
from glia.nki.run.trace import Traced
from glia.nki.source.frontend import Frontend, frontend, specialising_with
from glia_dropin.nki.options import CompileOptions


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and NumPy dtype of a tensor that a program takes or gives."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def element_size_bytes(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)


@dataclass(frozen=True)
class Descriptor:
    """The tensors of a program, in order."""

    input_specs: tuple[TensorSpec, ...]
    output_specs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Lowered:
    """A kernel as glia's programs, one for each core, where AWS's tools have BIR or MLIR.

    It has the tensors of the program; str() is its text. `input_output_aliases` has, by the number
    of an output, the name of the input that it overwrites.
    """

    traced: Traced
    target: str
    lnc: int
    seconds: float

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs, one for each core."""
        return self.traced.programs

    @property
    def function_name(self) -> str:
        """The name of the kernel."""
        return self.programs[0].name

    @property
    def module(self) -> Lowered:
        """What is passed on where AWS's tools pass a module of MLIR: this object."""
        return self

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """What the program takes."""
        return tuple(map(spec_of, self.programs[0].inputs))

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """What the program gives."""
        return tuple(map(spec_of, self.programs[0].outputs))

    @property
    def descriptor(self) -> Descriptor:
        """Both."""
        return Descriptor(self.input_specs, self.output_specs)

    @property
    def input_output_aliases(self) -> dict[int, str]:
        """By the number of an output, the input that it overwrites."""
        by_output = aliases(self.programs[0])
        names = [each.name for each in self.programs[0].outputs]
        return {names.index(output): given for output, given in by_output.items()}

    @property
    def operation(self) -> NoReturn:
        """NotInGlia: there is no MLIR."""
        raise NotInGlia(
            name="module.operation", problem="glia has no MLIR", cure="str(module) is its program"
        )

    def __str__(self) -> str:
        return "\n".join(print_program(each) for each in self.programs)


def spec_of(binding: Binding) -> TensorSpec:
    """The tensor that a binding is."""
    return TensorSpec(binding.name, tuple(binding.shape), np.dtype(binding.dtype.numpy))


def aliases(program: Program) -> dict[str, str]:
    """By output, the input in whose memory it is."""
    inputs = {each.tile.name: each.name for each in program.inputs}
    found = {each.name: inputs.get(each.tile.name) for each in program.outputs}
    return {output: given for output, given in found.items() if given is not None}


class NKIFrontend:
    """How a kernel's Python becomes a program; its subclasses say which way."""

    kind: ClassVar[Frontend | None] = None

    def __init__(self, enable_backend_opt: bool = False) -> None:
        self.enable_backend_opt = enable_backend_opt  # glia moves no instruction either way

    def compile(
        self,
        context: Any,
        kernel: Any,
        inputs: Mapping[str, Any],
        target: str | None = None,
        lnc: int = 1,
        output_names: list[str] | None = None,
        **options: Any,
    ) -> Lowered:
        """The kernel's program for these arguments, by the name of their parameter.

        `context` is the scope of AWS's IR, and None does. `options` are those of CompileOptions.
        """
        chosen = CompileOptions(target=target, lnc=lnc, **options) if target else CompileOptions(
            lnc=lnc, **options)  # fmt: skip
        return lower(kernel, inputs, chosen, self, output_names)


class TracerFrontend(NKIFrontend):
    """Python runs the kernel, which may use all of Python."""

    kind = Frontend.TRACER


class ParserFrontend(NKIFrontend):
    """The kernel is held to the part of Python that NKI 0.2 to 0.6 parsed."""

    kind = Frontend.PARSER


def resolve_frontend_cls() -> type[NKIFrontend]:
    """The frontend that NKI_COMPILER_FRONTEND asks for, else the tracer."""
    return ParserFrontend if frontend() is Frontend.PARSER else TracerFrontend


def lower(
    kernel: Any,
    inputs: Mapping[str, Any],
    options: CompileOptions,
    chosen: NKIFrontend | None = None,
    output_names: list[str] | None = None,
) -> Lowered:
    """The program of a kernel for these arguments, its outputs named; its text in artifacts_dir."""
    began = time.perf_counter()
    known = as_kernel(kernel)
    if options.lnc > 1:
        known = known[options.lnc]
    target = platform_target(options.target)
    kind = (chosen or resolve_frontend_cls()()).kind or frontend()
    with specialising_with(kind):
        traced = known.traced_launch(bind(known.function, (), dict(inputs)), target)
    if output_names:
        traced = renamed(traced, output_names)
    lowered = Lowered(traced, target.name, options.lnc, time.perf_counter() - began)
    if options.artifacts_dir:
        folder = Path(options.artifacts_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{lowered.function_name}.glia").write_text(str(lowered))
    return lowered


def renamed(traced: Traced, names: list[str]) -> Traced:
    """With what the kernel returns named `names`; BadLaunch when there are not as many."""
    if len(names) != len(traced.results):
        problem = f"{len(names)} output names, {len(traced.results)} results"
        raise BadLaunch(kernel=traced.programs[0].name, problem=problem)
    return with_outputs(traced, dict(zip(traced.results, names, strict=True)))


def with_outputs(traced: Traced, names: Mapping[str, str]) -> Traced:
    """With outputs under other names."""

    def of(name: str) -> str:
        return names.get(name, name)

    programs = tuple(
        replace(each, outputs=tuple(replace(b, name=of(b.name)) for b in each.outputs))
        for each in traced.programs
    )
    return replace(
        traced,
        programs=programs,
        results=tuple(map(of, traced.results)),
        updated=tuple((given, of(output)) for given, output in traced.updated),
    )
