"""Frontends that lower a kernel to a program, and `Lowered`, which replaces BIR and MLIR."""

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
        """This object, in the place of the MLIR module that AWS's tools pass on."""
        return self

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the program, in order."""
        return tuple(map(tensor_spec, self.programs[0].inputs))

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The outputs of the program, in order."""
        return tuple(map(tensor_spec, self.programs[0].outputs))

    @property
    def descriptor(self) -> Descriptor:
        """The specifications of inputs and outputs."""
        return Descriptor(self.input_specs, self.output_specs)

    @property
    def input_output_aliases(self) -> dict[int, str]:
        """By the number of an output, the input that it overwrites."""
        by_output = output_aliases(self.programs[0])
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


def tensor_spec(binding: Binding) -> TensorSpec:
    """The specification of a bound tensor."""
    return TensorSpec(binding.name, tuple(binding.shape), np.dtype(binding.dtype.numpy))


def output_aliases(program: Program) -> dict[str, str]:
    """For each output that shares the memory of an input, that input's name."""
    inputs = {each.tile.name: each.name for each in program.inputs}
    found = {each.name: inputs.get(each.tile.name) for each in program.outputs}
    return {output: given for output, given in found.items() if given is not None}


class NKIFrontend:
    """Lowers the Python of a kernel to a program; subclasses choose how."""

    kind: ClassVar[Frontend | None] = None

    def __init__(self, enable_backend_opt: bool = False) -> None:
        self.enable_backend_opt = enable_backend_opt  # of AWS's back end; glia's always runs

    def compile(
        self,
        context: Any,
        kernel: Any = None,
        inputs: Mapping[str, Any] | None = None,
        target: str | None = None,
        lnc: int = 1,
        output_names: list[str] | None = None,
        dump_python_ast: bool = False,
        **options: Any,
    ) -> Lowered:
        """The kernel's program for these arguments, by the name of their parameter.

        `context`, the scope of AWS's IR, is ignored and may be left out. `options` are those of
        CompileOptions. NotInGlia for dump_python_ast.
        """
        if kernel is None or isinstance(kernel, Mapping):
            context, kernel, inputs = None, context, inputs if kernel is None else kernel
        if dump_python_ast:
            problem, cure = "glia writes no syntax trees", "str(module) is its program"
            raise NotInGlia(name="dump_python_ast=True", problem=problem, cure=cure)
        if not isinstance(inputs or {}, Mapping):
            problem, cure = "they have no names", "inputs={'x': array}, by the kernel's parameters"
            raise NotInGlia(name=f"inputs of {type(inputs).__name__}", problem=problem, cure=cure)
        chosen = CompileOptions(target=target, lnc=lnc, **options) if target else CompileOptions(
            lnc=lnc, **options)  # fmt: skip
        return lower(kernel, inputs or {}, chosen, self, output_names)


class TracerFrontend(NKIFrontend):
    """Runs the kernel in Python, all of which it may use."""

    kind = Frontend.TRACER


class ParserFrontend(NKIFrontend):
    """Restricts the kernel to the subset of Python that NKI 0.2 to 0.6 parsed."""

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
    """The program of a kernel for these arguments; its text is saved in artifacts_dir, if given."""
    began = time.perf_counter()
    known = as_kernel(kernel)
    if options.lnc > 1:
        known = known[options.lnc]
    target = platform_target(options.target)
    kind = (chosen or resolve_frontend_cls()()).kind or frontend()
    with specialising_with(kind):
        traced = known.traced_launch(bind(known.function, (), dict(inputs)), target)
    if output_names:
        traced = rename_outputs(traced, output_names)
    lowered = Lowered(traced, target.name, options.lnc, time.perf_counter() - began)
    if options.artifacts_dir:
        folder = Path(options.artifacts_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{lowered.function_name}.glia").write_text(str(lowered))
    return lowered


def rename_outputs(traced: Traced, names: list[str]) -> Traced:
    """The program with its results named `names`; BadLaunch for another number of names."""
    if len(names) != len(traced.results):
        problem = f"{len(names)} output names, {len(traced.results)} results"
        raise BadLaunch(kernel=traced.programs[0].name, problem=problem)
    return map_output_names(traced, dict(zip(traced.results, names, strict=True)))


def map_output_names(traced: Traced, names: Mapping[str, str]) -> Traced:
    """The program with outputs renamed by the mapping `names`."""

    def new_name(name: str) -> str:
        return names.get(name, name)

    programs = tuple(
        replace(each, outputs=tuple(replace(b, name=new_name(b.name)) for b in each.outputs))
        for each in traced.programs
    )
    return replace(
        traced,
        programs=programs,
        results=tuple(map(new_name, traced.results)),
        updated=tuple((given, new_name(output)) for given, output in traced.updated),
    )
