"""Several traces of one model as one module, of which a kernel picks the one for its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from glia.plugins.torch.errors import BadTraceArgument
from glia.plugins.torch.script_module import trace


@dataclass(frozen=True)
class Buckets:
    """How the trace for given inputs is found.

    `kernel` returns a TorchScript function from the list of inputs, and the shared state buffer if
    there is one, to the inputs of the trace and its number in a tensor. `preprocessor` returns one
    from that buffer and the number to further inputs. `function_arguments` are keyword arguments of
    the function that makes the model, for each bucket.
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
    traces = []
    for example, keywords in zip(example_inputs, given, strict=True):
        made = function(**keywords)
        model, aliases = made if isinstance(made, tuple) else (made, {})
        traces.append(trace(model, example, aliases=aliases, **arguments))
    return _module(traces, buckets, _count(example_inputs[0]))


def _count(example: Any) -> int:
    return 1 if isinstance(example, torch.Tensor) else len(example)


class _Traces(torch.nn.Module):  # type: ignore[misc]  # no types of torch
    """The traces, the kernel and what it shares; TorchScript adds the forward."""

    def __init__(self, traces: Sequence[Any], buckets: Buckets) -> None:
        super().__init__()
        for place, each in enumerate(traces):
            setattr(self, f"bucket_{place}", each)
        self.kernel = buckets.kernel()
        if buckets.preprocessor is not None:
            self.preprocessor = buckets.preprocessor()
        for place, tensor in enumerate(buckets.shared or ()):
            self.register_buffer(f"shared_{place}", tensor)


def _module(traces: Sequence[Any], buckets: Buckets, count: int) -> Any:
    """The ScriptModule that calls the kernel, and the trace that it names."""
    names = [f"a{place}" for place in range(count)]
    shared = [f"self.shared_{place}" for place in range(len(buckets.shared or ()))]
    given = f"[{', '.join(names)}]"
    extra = f", [{', '.join(shared)}]" if shared else ""
    lines = [
        f"def forward(self, {', '.join(f'{name}: Tensor' for name in names)}):",
        f"    chosen, number = self.kernel({given}{extra})",
        "    place = int(number.item())",
    ]
    if buckets.preprocessor is not None:
        lines.append(f"    chosen = self.preprocessor([{', '.join(shared)}], number)")
    called = ", ".join(f"chosen[{place}]" for place in range(count))
    for place in range(1, len(traces)):
        lines += [f"    if place == {place}:", f"        return self.bucket_{place}({called})"]
    lines.append(f"    return self.bucket_0({called})")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        kind = type("BucketModel", (_Traces,), {})
        module = torch.jit.script(kind(traces, buckets))
        module.define("\n".join(lines) + "\n")
    return module
