"""`nki.compiler.driver`: compiling a kernel or its program to a NEFF, and running that."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from glia.neff.package import Neff
from glia.nki.names.errors import NotInGlia
from glia.ntff.summary import summarize_profile
from glia.ntff.trace_file import TraceFile, load_with_hash
from glia.profile.report import Profile, profile_programs
from glia_dropin.nki.frontends import Lowered, NKIFrontend, TensorSpec, lower, map_output_names
from glia_dropin.nki.options import CompilationMode, CompileOptions
from glia_dropin.nki.spike import SpikeModel, SpikeTensor

ALIASED = ".must_alias_input"  # suffix that callers give the names of inputs that are overwritten


@dataclass(frozen=True)
class ExecutionResult:
    """Outputs by name, and simulated latency in seconds; None where not profiled.

    `hfu` and `mbu` are percentages of the peak operations and of the HBM bandwidth of the cores.
    """

    outputs: dict[str, np.ndarray]
    latency: float | None = None
    hfu: float | None = None
    mbu: float | None = None

    @property
    def latency_min(self) -> float | None:
        """The shortest execution; every one takes the same."""
        return self.latency

    @property
    def latency_max(self) -> float | None:
        """The longest execution; every one takes the same."""
        return self.latency

    @property
    def latency_std(self) -> float | None:
        """The standard deviation of executions: 0."""
        return None if self.latency is None else 0.0


@dataclass
class CompiledKernel:
    """A kernel as a NEFF file, with the program `bir` that it holds; times in seconds."""

    neff_path: str
    target: str
    lnc: int
    artifacts_dir: str | None
    bir: Lowered
    mlir_time: float = 0.0
    neuronx_cc_time: float = 0.0
    _model: SpikeModel | None = field(default=None, repr=False)

    @classmethod
    def from_frontend(
        cls,
        frontend_result: Any,
        compile_opts: CompileOptions,
        frontend_time: float = 0.0,
        tensor_inputs: Any = None,
    ) -> CompiledKernel:
        """The NEFF of a frontend's result, at the output path of the options.

        Its result knows how long that took, unless `frontend_time` says; the contents of
        `tensor_inputs` are not looked at.
        """
        compiled = _write_neff(
            _require_lowered(frontend_result, "CompiledKernel.from_frontend"), compile_opts
        )
        return replace(compiled, mlir_time=frontend_time or compiled.mlir_time)

    @property
    def compilation_time(self) -> float:
        """Seconds of both parts of the compilation."""
        return self.mlir_time + self.neuronx_cc_time

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the kernel, in order."""
        return self.bir.input_specs

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The outputs of the kernel, in order."""
        return self.bir.output_specs

    @property
    def input_output_aliases(self) -> dict[int, str]:
        """By the number of an output, the input that it overwrites."""
        return self.bir.input_output_aliases

    @property
    def total_time_ns(self) -> float:
        """The simulated time of an execution."""
        return self._ensure_loaded().profile().latency_us * 1000

    @property
    def estimated_utilization(self) -> dict[str, float]:
        """By engine, the percentage of that time in which it works."""
        engines = self._ensure_loaded().profile().engines
        return {name: 100 * each.utilization for name, each in engines.items()}

    def prepare_inputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs by their names in the NEFF, without the suffix of aliased ones."""
        return {name.removesuffix(ALIASED): value for name, value in inputs.items()}

    def prepare_outputs(self) -> dict[str, np.ndarray]:
        """An array of zeros for each output."""
        return {each.name: np.zeros(each.shape, each.dtype) for each in self.output_specs}

    def _ensure_loaded(self, rank_id: int = 0, world_size: int = 1) -> SpikeModel:
        if self._model is None:
            path = self.neff_path
            self._model = SpikeModel.load_from_neff(path, rank_id=rank_id, world_size=world_size)
        return self._model

    def run(
        self, profile: bool = False, rank_id: int = 0, world_size: int = 1, **inputs: np.ndarray
    ) -> ExecutionResult:
        """Run on arrays by name; with `profile` also timed."""
        return self._run(inputs, profile, rank_id, world_size)

    def _run(
        self,
        inputs: Mapping[str, np.ndarray],
        profile: bool = False,
        rank_id: int = 0,
        world_size: int = 1,
    ) -> ExecutionResult:
        model = self._ensure_loaded(rank_id, world_size)
        tensors = {
            name: SpikeTensor.from_numpy(value, name)
            for name, value in self.prepare_inputs(inputs).items()
        }
        outputs = {name: each.numpy() for name, each in model(tensors).items()}
        for name in model.alias_info.values():
            given = inputs.get(name, inputs.get(name + ALIASED))
            if given is not None and given.flags.writeable:
                given[...] = tensors[name].numpy()
        return _timed_result(outputs, model) if profile else ExecutionResult(outputs)

    def benchmark(
        self, warmup: int = 5, iterations: int = 10, **inputs: np.ndarray
    ) -> ExecutionResult:
        """Run once on arrays by name and time it: every execution takes the same."""
        if warmup < 0 or iterations < 1:
            raise ValueError(f"{warmup} and {iterations} executions cannot be timed")
        return self._run(inputs, profile=True)

    def execute(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> ExecutionResult:
        """Run on arrays by name and overwrite `outputs` with the results."""
        result = self._run(inputs)
        for name, array in outputs.items():
            array[...] = result.outputs[name]
        return result


def _timed_result(outputs: dict[str, np.ndarray], model: SpikeModel) -> ExecutionResult:
    metrics = profile_metrics(model.profile(), model.neff)
    hfu, mbu = metrics["hfu_estimated_percent"], metrics["mbu_estimated_percent"]
    return ExecutionResult(outputs, metrics["total_time"], hfu, mbu)


def compile_to_bir(
    kernel_func: Any,
    frontend: NKIFrontend | None = None,
    inputs: Mapping[str, Any] | None = None,
    compile_opts: CompileOptions | None = None,
    output_names: Sequence[str] | None = None,
) -> Lowered:
    """The program of a kernel for these arguments by name, its outputs under `output_names`."""
    names = list(output_names) if output_names else None
    return lower(kernel_func, inputs or {}, compile_opts or CompileOptions(), frontend, names)


def compile_bir_to_neff(
    compile_opts: CompileOptions,
    bir: Lowered,
    input_arrays: Sequence[np.ndarray] = (),
    argument_names: Sequence[str] = (),
    output_arg_names: Sequence[str] = (),
) -> CompiledKernel:
    """The NEFF of a program at the output path of the options.

    The names are those of `bir.descriptor`; outputs may be given others. The contents of
    `input_arrays` are not looked at.
    """
    own = _require_lowered(bir, "compile_bir_to_neff")
    _check_names("inputs", argument_names, own.input_specs)
    known = [each.name for each in own.output_specs]
    if output_arg_names and list(output_arg_names) != known:
        _check_count("outputs", output_arg_names, known)
        names = dict(zip(known, output_arg_names, strict=True))
        own = replace(own, traced=map_output_names(own.traced, names))
    return _write_neff(own, compile_opts)


def compile_mlir_to_neff(
    module: Any, func_name: str, compile_opts: CompileOptions, tensor_inputs: Any = None
) -> CompiledKernel:
    """The NEFF of what a frontend or build_kernel returned; NotInGlia for a module of MLIR.

    The contents of `tensor_inputs` are not looked at.
    """
    own = _require_lowered(module, "compile_mlir_to_neff")
    if func_name != own.function_name:
        raise ValueError(f"the module holds {own.function_name}, not {func_name}")
    return _write_neff(own, compile_opts)


def _compile_bir_to_neff(
    bir: Lowered, compile_opts: CompileOptions, inputs: Any = None
) -> CompiledKernel:
    """compile_bir_to_neff with the program first; `inputs` is ignored."""
    return _write_neff(_require_lowered(bir, "_compile_bir_to_neff"), compile_opts)


def _require_lowered(program: Any, name: str) -> Lowered:
    if not isinstance(program, Lowered):
        raise NotInGlia(
            name=name,
            problem=f"a {type(program).__name__} is not a program of glia, which has no MLIR",
            cure="pass on what compile_to_bir, a frontend's compile or build_kernel returned",
        )
    return program


def _check_names(what: str, given: Sequence[str], specs: Sequence[TensorSpec]) -> None:
    known = [each.name for each in specs]
    if given and [name.removesuffix(ALIASED) for name in given] != known:
        raise ValueError(f"the {what} are {', '.join(known)}, not {', '.join(given)}")


def _check_count(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    if len(given) != len(known):
        raise ValueError(f"the {what} are {', '.join(known)}, not {', '.join(given)}")


def _write_neff(lowered: Lowered, options: CompileOptions) -> CompiledKernel:
    began = time.perf_counter()
    path = Path(options.output_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Neff(lowered.programs).save(path)
    if options.artifacts_dir:
        info = {"name": lowered.function_name, "target": lowered.target, "lnc": lowered.lnc}
        folder = Path(options.artifacts_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "info.json").write_text(json.dumps(info))
    return CompiledKernel(
        neff_path=str(path),
        target=lowered.target,
        lnc=lowered.lnc,
        artifacts_dir=options.artifacts_dir,
        bir=lowered,
        mlir_time=lowered.seconds,
        neuronx_cc_time=time.perf_counter() - began,
    )


def extract_perf_metrics(neff_path: str, ntff_path: str, verbose: bool = False) -> dict[str, Any]:
    """The simulated time of a NEFF and its causes, in the words of neuron-profile's summary.

    Times are in seconds. `ntff_path` must be what a run of it with save_trace left;
    FileNotFoundError where there is nothing. `verbose` has no failures to print.
    """
    if not Path(ntff_path).is_file():
        raise FileNotFoundError(f"there is no trace {ntff_path}: run the model with save_trace")
    neff, neff_hash = load_with_hash(neff_path)
    TraceFile.load(ntff_path).require_neff(ntff_path, neff_hash)
    return profile_metrics(profile_programs(neff.programs, neff.target), neff)


def profile_metrics(profile: Profile, neff: Neff) -> dict[str, Any]:
    """The metrics of a profile under neuron-profile's names, over all cores; percent of 100."""
    metrics = summarize_profile(profile, neff.inputs, neff.outputs)
    return {
        name: 100 * value if name.endswith("_percent") else value for name, value in metrics.items()
    }


__all__ = [
    "CompilationMode",
    "CompileOptions",
    "CompiledKernel",
    "ExecutionResult",
    "compile_bir_to_neff",
    "compile_mlir_to_neff",
    "compile_to_bir",
    "extract_perf_metrics",
]
