"""Several traces of one model as one module, of which a kernel picks the one for its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glia.plugins.torch.errors import BadTraceArgument
from glia.plugins.torch.script_module import state_attributes, trace


@dataclass(frozen=True)
class Buckets:
    """How the trace for given inputs is found.

    `kernel` returns a TorchScript function from the list of inputs to the inputs of the trace and
    its number in a tensor. `shared` are states of all traces, in the order of the aliases; without
    it they are those of the trace with the largest, where there is a `preprocessor`. That returns a
    TorchScript function of the shapes of the states of each trace, the shared states, and the
    number, to the parts of the shared states that are those of the trace. `function_arguments` are
    keyword arguments of the function that makes the model, for each bucket.
    """

    kernel: Callable[..., Any]
    shared: Sequence[torch.Tensor] | None = None
    preprocessor: Callable[..., Any] | None = None
    function_arguments: Sequence[Mapping[str, Any]] | None = None


def trace_buckets(
    function: Any, example_inputs: Sequence[Any], buckets: Buckets, **arguments: Any
) -> Any:
    """A ScriptModule of traces for several example inputs.

    `function` returns the model to trace, alone or with its aliases; it is called for each bucket.
    With `workdir` among the arguments, each trace has a directory in it, bucket_0 and so on.
    """
    if not example_inputs:
        raise BadTraceArgument(
            argument="example_inputs", value="[]", problem="there is no bucket", hint="inputs"
        )
    given = buckets.function_arguments or [{}] * len(example_inputs)
    if len(given) != len(example_inputs):
        raise BadTraceArgument(
            argument="func_kwargs", value=len(given),
            problem=f"there are {len(example_inputs)} buckets", hint="one for each bucket",
        )  # fmt: skip
    workdir = arguments.pop("workdir", None)
    traces = []
    for place, (example, keywords) in enumerate(zip(example_inputs, given, strict=True)):
        made = function(**keywords)
        model, aliases = made if isinstance(made, tuple) else (made, {})
        directory = None if workdir is None else Path(workdir) / f"bucket_{place}"
        traces.append(trace(model, example, aliases=aliases, workdir=directory, **arguments))
    return _module(traces, buckets, _count(example_inputs[0]))


def _count(example: Any) -> int:
    return 1 if isinstance(example, torch.Tensor) else len(example)


def _states(trace: Any) -> list[torch.Tensor]:
    """The states of a trace."""
    return [getattr(trace, name) for name in state_attributes(trace)]


def _shared(traces: Sequence[Any], buckets: Buckets) -> list[torch.Tensor]:
    """The states that the traces share; BadTraceArgument where they cannot."""
    states = [_states(each) for each in traces]
    shared = buckets.shared
    if shared is None:
        shared = (
            max(states, key=lambda s: sum(e.numel() for e in s)) if buckets.preprocessor else []
        )
    for place, each in enumerate(states):
        if shared and len(each) != len(shared):
            raise _bad_buffer(len(shared), f"bucket {place} has {len(each)} states")
        shapes = [list(state.shape) for state in each]
        if shared and not buckets.preprocessor and shapes != [list(e.shape) for e in shared]:
            raise _bad_buffer(len(shared), f"the states of bucket {place} have shapes {shapes}")
    return [tensor.detach().clone() for tensor in shared]


def _bad_buffer(count: int, problem: str) -> BadTraceArgument:
    return BadTraceArgument(
        argument="shared_state_buffer", value=f"{count} tensors", problem=problem,
        hint="one tensor for each state, and a shared_state_buffer_preprocessor for other shapes",
    )  # fmt: skip


class _Traces(torch.nn.Module):  # type: ignore[misc]  # no types of torch
    """The traces, the kernel and what it shares; TorchScript adds the forward."""

    def __init__(
        self, traces: Sequence[Any], buckets: Buckets, shared: Sequence[torch.Tensor]
    ) -> None:
        super().__init__()
        for place, each in enumerate(traces):
            setattr(self, f"bucket_{place}", each)
        self.kernel = buckets.kernel()
        shapes = [[list(state.shape) for state in _states(each)] for each in traces]
        self.shapes = torch.jit.Attribute(shapes, list[list[list[int]]])
        if shared and buckets.preprocessor is not None:
            self.preprocessor = buckets.preprocessor()
        for place, tensor in enumerate(shared):
            self.register_buffer(f"shared_{place}", tensor)


def _module(traces: Sequence[Any], buckets: Buckets, count: int) -> Any:
    """The ScriptModule that calls the kernel, and the trace that it names."""
    shared = _shared(traces, buckets)
    names = [f"a{place}" for place in range(count)]
    lines = [
        f"def forward(self, {', '.join(f'{name}: Tensor' for name in names)}):",
        f"    chosen, number = self.kernel([{', '.join(names)}])",
        "    place = int(number.item())",
    ]
    if shared:
        held = f"[{', '.join(f'self.shared_{place}' for place in range(len(shared)))}]"
        parts = held
        if buckets.preprocessor is not None:
            parts = f"self.preprocessor(self.shapes, {held}, number)"
        lines.append(f"    states = {parts}")
    for place, each in enumerate(traces):
        indent = "    " if place == len(traces) - 1 else "        "
        if place < len(traces) - 1:
            lines.append(f"    if place == {place}:")
        states = state_attributes(each) if shared else []
        lines += [indent + line for line in _call(place, states, count)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        kind = type("BucketModel", (_Traces,), {})
        module = torch.jit.script(kind(traces, buckets, shared))
        module.define("\n".join(lines) + "\n")
    return module


def _call(place: int, states: Sequence[str], count: int) -> list[str]:
    """The source that calls a trace, whose states are parts of the shared ones meanwhile."""
    bucket = f"self.bucket_{place}"
    given = ", ".join(f"chosen[{each}]" for each in range(count))
    return [
        *(f"{bucket}.{name}.copy_(states[{n}])" for n, name in enumerate(states)),
        f"found = {bucket}({given})",
        *(f"states[{n}].copy_({bucket}.{name})" for n, name in enumerate(states)),
        "return found",
    ]
