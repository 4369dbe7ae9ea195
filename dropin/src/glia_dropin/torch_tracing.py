"""Models traced for a device, from glia."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glia import __version__
from glia.cc_flags import options_of_flags
from glia.nki.names.targets import target_name
from glia.plugins.torch.errors import BadTraceArgument

_PLUGIN = "glia.plugins.torch"


def _plugin(module: str) -> Any:
    """A module of the plugin, which imports PyTorch."""
    return importlib.import_module(f"{_PLUGIN}.{module}")


def get_platform_target(args: str | Sequence[str] | None = None) -> str:
    """The target that compiler flags name, else that of the environment, else trn3."""
    return str(options_of_flags(args or ()).get("target") or target_name())


@dataclass(frozen=True, kw_only=True)
class PartitionerConfig:
    """How a model falls into parts for the device and for the host.

    `analyze_parameters` makes no difference: what the device has is known without compiling.
    """

    trace_kwargs: Mapping[str, Any] | None = None
    model_support_percentage_threshold: float = 0.5
    min_subgraph_size: int = -1
    max_subgraph_count: int = -1
    ops_to_partition: Sequence[str] | None = None
    analyze_parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class BucketModelConfig:
    """How the trace for given inputs is found."""

    bucket_kernel: Callable[..., Any]
    shared_state_buffer: Sequence[Any] | None = None
    shared_state_buffer_preprocessor: Callable[..., Any] | None = None
    func_kwargs: Any = None


def trace(
    func: Any,
    example_inputs: Any,
    *_: Any,
    input_output_aliases: Any = None,
    compiler_workdir: str | Path | None = None,
    compiler_args: str | Sequence[str] | None = None,
    partitioner_config: PartitionerConfig | None = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
    **others: Any,
) -> Any:
    """Compile a function of tensors for example inputs, as a ScriptModule."""
    if _:
        warnings.warn("trace takes its options by keyword; others are ignored", stacklevel=2)
    if others:
        raise TypeError(f"trace has no option {next(iter(others))!r}")
    flags = compiler_args or ()
    _check_target(cpu_backend, flags)
    arguments = {
        "aliases": input_output_aliases or {}, "flags": flags, "workdir": compiler_workdir,
        "inline_weights": inline_weights_to_neff,
    }  # fmt: skip
    if partitioner_config is not None:
        chosen = _plugin("partition").Partitioning(
            smallest_share=partitioner_config.model_support_percentage_threshold,
            smallest_part=partitioner_config.min_subgraph_size,
            most_parts=partitioner_config.max_subgraph_count,
            on_host=frozenset(partitioner_config.ops_to_partition or ()),
        )
        arguments |= _trace_arguments(partitioner_config.trace_kwargs or {})
        module = _plugin("partition").trace_in_parts(func, example_inputs, chosen, **arguments)
    else:
        module = _plugin("script_module").trace(func, example_inputs, **arguments)
    return _plugin("parallel").placed_by_context(module)


_NAMES = {
    "compiler_args": "flags", "compiler_workdir": "workdir",
    "inline_weights_to_neff": "inline_weights",
}  # fmt: skip


def _trace_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the plugin's trace in `trace_kwargs`."""
    if unknown := sorted(given.keys() - {*_NAMES, "cpu_backend"}):
        raise BadTraceArgument(
            argument="trace_kwargs", value=unknown[0], problem="parts are traced without it",
            hint=f"options among {', '.join(_NAMES)}, and others to trace itself",
        )  # fmt: skip
    _check_target(given.get("cpu_backend", False), given.get("compiler_args") or ())
    return {_NAMES[name]: value for name, value in given.items() if name in _NAMES}


def _check_target(cpu_backend: bool, flags: str | Sequence[str]) -> None:
    """Raise BadTraceArgument where a trace without a device names no target."""
    if cpu_backend and "target" not in options_of_flags(flags):
        raise BadTraceArgument(
            argument="cpu_backend", value=True, problem="compiler_args name no target",
            hint='compiler_args="--target trn1", or another target',
        )  # fmt: skip


def analyze(
    func: Any,
    example_inputs: Any,
    compiler_workdir: str | None = None,
    additional_ignored_ops: Any = frozenset(),
    max_workers: int = 4,
    is_hf_transformers: bool = False,
    cleanup: bool = False,
) -> dict[str, Any]:
    """Which operators of a function the device has.

    Nothing is compiled for it, so a working directory, processes and what is left of them, and the
    kind of model make no difference.
    """
    found = _plugin("partition").analyze(func, example_inputs, additional_ignored_ops)
    versions = {"torch_neuronx_version": __version__, "neuronx_cc_version": __version__}
    return {**versions, **found}


def bucket_model_trace(
    func: Any,
    example_inputs: Sequence[Any],
    bucket_config: BucketModelConfig,
    compiler_workdir: str | Path | None = None,
    compiler_args: str | Sequence[str] | None = None,
) -> Any:
    """Traces of a model for several example inputs, as one ScriptModule."""
    keywords = bucket_config.func_kwargs
    buckets = _plugin("buckets").Buckets(
        bucket_config.bucket_kernel,
        bucket_config.shared_state_buffer,
        bucket_config.shared_state_buffer_preprocessor,
        [keywords] * len(example_inputs) if isinstance(keywords, Mapping) else keywords,
    )
    return _plugin("buckets").trace_buckets(
        func, example_inputs, buckets, workdir=compiler_workdir, flags=compiler_args or ()
    )


def replace_weights(model: Any, weights: Any) -> None:
    """Put other weights, of a module or a dict, in a trace that holds them apart; in place."""
    _plugin("script_module").replace_weights(model, weights)


def DataParallel(  # noqa: N802  # a class in torch_neuronx
    model: Any,
    device_ids: Sequence[int | str] | None = None,
    dim: int = 0,
    set_dynamic_batching: bool = True,
) -> Any:
    """A trace on several NeuronCores, each of which takes a part of every input."""
    return _plugin("parallel").DataParallel(model, device_ids, dim, set_dynamic_batching)


def dynamic_batch(neuron_script: Any) -> Any:
    """Let a trace take any first extent, in parts of the one it was traced for; in place."""
    return _plugin("script_module").set_dynamic_batch(neuron_script)


def lazy_load(trace: Any, enable_lazy_load: bool = True) -> Any:
    """Load a trace at its first call; in place."""
    return _plugin("script_module").redescribed(trace, is_lazy=enable_lazy_load)


def async_load(trace: Any, enable_async_load: bool = True) -> Any:
    """Load a trace on a thread, for which its first call waits; in place."""
    _plugin("script_module").redescribed(trace, is_async=enable_async_load)
    if enable_async_load:
        for each in _plugin("script_module").traces_in(trace):
            _plugin("forward_operator").loading(each.neff, each.meta).start(each.neff)
    return trace


def move_trace_to_device(trace: Any, device_id: int) -> None:
    """Say which NeuronCore a trace runs on; in place."""
    _plugin("parallel").move_to_device(trace, device_id)


def set_neuron_cores(trace: Any, start_nc: int = -1, nc_count: int = -1) -> None:
    """Say which NeuronCores a trace runs on; in place."""
    _plugin("parallel").place(trace, start_nc, nc_count)


def set_multicore(trace: Any) -> None:
    """Let a trace run on all NeuronCores of the process; in place."""
    _plugin("parallel").place(trace, -1, -1)


@contextlib.contextmanager
def neuron_cores_context(start_nc: int = -1, nc_count: int = -1) -> Iterator[None]:
    """Traces made inside run on these NeuronCores."""
    with _plugin("parallel").cores_for_traces(start_nc, nc_count):
        yield


@contextlib.contextmanager
def multicore_context() -> Iterator[None]:
    """Traces made inside run on all NeuronCores of the process."""
    with _plugin("parallel").cores_for_traces(-1, -1):
        yield


if importlib.util.find_spec("torch"):
    _plugin("forward_operator")  # torch.jit.load finds the operator of saved traces
    _plugin("device.module").register_if_possible()
