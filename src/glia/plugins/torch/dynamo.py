"""`torch.compile(model, backend="neuron")`: graphs of Dynamo and their gradients on the device."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.output_graph import graph_break_reasons
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from glia.base.loc import Loc
from glia.cc_flags import resolve_options, tracing_for
from glia.plugins.torch.errors import TooManyShapes
from glia.plugins.torch.lowering import decompositions, line_of_user, location, lower
from glia.plugins.torch.program import Options, Program

Compiled = Callable[[list[Any]], list[Any]]


class GraphBreak(UserWarning):
    """A function is compiled in parts, between which PyTorch runs it on the host."""


def neuron(
    module: GraphModule,
    inputs: Sequence[torch.Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo for the device; the backend "neuron" of torch.compile.

    `options` are those of `glia.compile`; `mode` is a word of another backend and has no effect.
    Raises the errors of `glia.compile`, and TooManyShapes.
    """
    if mode is not None:
        warnings.warn(f"mode={mode!r} has no effect on backend 'neuron'", stacklevel=2)
    _report_breaks()
    compiler = functools.partial(compile_graph, options=dict(options or {}))
    backend = aot_autograd(
        fw_compiler=functools.partial(compiler, name="forward"),
        bw_compiler=functools.partial(compiler, name="backward"),
        inference_compiler=functools.partial(compiler, name="inference"),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    compiled: Callable[..., Any] = backend(module, inputs)
    return compiled


_REPORTED: set[tuple[str, Loc]] = set()
_BRANCH = "generic_jump"  # what Dynamo calls one that it cannot decide while it traces


def _report_breaks() -> None:
    """Warn of the graph breaks that Dynamo has met since the last graph, at their lines."""
    for each in graph_break_reasons:
        loc = line_of_user(each.user_stack)
        if (each.reason, loc) in _REPORTED:
            continue
        _REPORTED.add((each.reason, loc))
        is_branch = each.reason.startswith(_BRANCH)
        why = "a branch depends on the values of a tensor" if is_branch else each.reason
        text = f"torch.compile left the graph at {loc}, and runs a part on the host: {why}"
        warnings.warn_explicit(text, GraphBreak, loc.file or __file__, loc.line)


def compile_graph(
    module: GraphModule, inputs: Sequence[Any], *, options: Options, name: str
) -> Compiled:
    """A function of a list of a graph's inputs, compiled at once if their shapes are fixed.

    Otherwise it compiles a program for each set of shapes that it is called with, at most as many
    as Dynamo recompiles a function.
    """
    if _is_symbolic(module):
        run: Compiled = _ByShape(module, options, name)
    else:
        run = functools.partial(_run, _program(module, name, options), _places(module))
    return _boxed(run)


def _program(module: GraphModule, name: str, options: Options) -> Program:
    """A graph with fixed shapes, compiled; its kernels for the target of the model."""
    chosen, _ = resolve_options("torch.compile", dict(options))
    with tracing_for(chosen.target):
        lowered = lower(module, name)
    return Program(lowered, options, _devices(module), _title(module, name))


def _title(module: GraphModule, name: str) -> str:
    """What messages call a graph: its kind, and the line of the user's code that begins it."""
    lines = (location(node) for node in module.graph.nodes if node.op == "call_function")
    first = next((each for each in lines if each.file), None)
    return f"the {name} graph of {Path(first.file).name}:{first.line}" if first else name


def _devices(module: GraphModule) -> list[torch.device]:
    """The devices of the tensors that a graph returns, in order."""
    (end,) = module.graph.find_nodes(op="output")
    described = [each.meta.get("val") for each in tree_leaves(end.args) if isinstance(each, Node)]
    return [each.device for each in described if isinstance(each, torch.Tensor)]


def _boxed(run: Compiled) -> Compiled:
    """A function that AOTAutograd may give its arguments as one list, to free them early."""

    def call(arguments: list[Any]) -> list[Any]:
        results = run(arguments)
        arguments.clear()
        return results

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _run(program: Program, places: Sequence[int], arguments: list[Any]) -> list[Any]:
    return program([arguments[place] for place in places])


def _places(module: GraphModule) -> list[int]:
    """Which arguments of a graph are tensors."""
    described = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    return [place for place, each in enumerate(described) if isinstance(each, torch.Tensor)]


def _is_symbolic(module: GraphModule) -> bool:
    """Whether sizes or numbers among a graph's inputs are known only when it is called."""
    for node in module.graph.find_nodes(op="placeholder"):
        described = node.meta.get("val")
        parts = described.shape if isinstance(described, torch.Tensor) else (described,)
        if any(isinstance(each, torch.SymInt | torch.SymFloat) for each in parts):
            return True
    return False


class _ByShape:
    """A graph of symbolic sizes, compiled again for each set of shapes."""

    def __init__(self, module: GraphModule, options: Options, name: str) -> None:
        self._module = module
        self._options = options
        self._name = name
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._places = _places(module)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Run the program for the arguments' shapes, compiled if it is not yet there."""
        key = tuple(
            tuple(each.shape) if isinstance(each, torch.Tensor) else each for each in arguments
        )
        program = self._programs.get(key)
        if program is None:
            self._check_count(key)
            fixed = specialized(self._module, arguments)
            program = _program(fixed, self._name, self._options)
            self._programs[key] = program
        return _run(program, self._places, arguments)

    def _check_count(self, key: tuple[Any, ...]) -> None:
        limit = torch._dynamo.config.recompile_limit
        if len(self._programs) >= limit:
            raise TooManyShapes(name=self._name, count=limit, shapes=list(key)[:8])


def specialized(module: GraphModule, arguments: Sequence[Any]) -> GraphModule:
    """A copy of a graph, described for arguments of these shapes and numbers."""
    fixed = copy.copy(module)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    given = [
        mode.from_tensor(each, static_shapes=True) if isinstance(each, torch.Tensor) else each
        for each in arguments
    ]
    with mode:
        _Describer(fixed).run(*given)
    return fixed


class _Describer(Interpreter):  # type: ignore[misc]  # no types of torch
    """Runs a graph on descriptions, and keeps those of all values."""

    def run_node(self, n: Node) -> Any:
        """The value of a node, noted at the node."""
        value = super().run_node(n)
        n.meta["val"] = value
        return value
