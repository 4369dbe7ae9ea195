"""Which operators of a function the device has, and functions of which a part runs on the host."""

from __future__ import annotations

import dataclasses
import operator
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils._pytree import tree_leaves, tree_map

from glia.base.loc import stacklevel_of_caller
from glia.base.suggestions import nearest
from glia.cc_flags import options_of_flags, resolve_options, tracing_for
from glia.plugins.torch.errors import BadTraceArgument, DataDependentValue
from glia.plugins.torch.export import decomposed, written_tensors
from glia.plugins.torch.lowering import is_supported, location, remove_checks, takes_number
from glia.plugins.torch.script_module import (
    ExportedFunction,
    export_flat,
    returned_structure,
    state_places,
    target_of,
    trace,
)
from glia.plugins.torch.structure import result_source, tensors_of


@dataclasses.dataclass(frozen=True)
class Partitioning:
    """How much of a function must be for the device, and which operators are not to be.

    Sizes and counts of -1 are not limited.
    """

    smallest_share: float = 0.5
    smallest_part: int = -1
    most_parts: int = -1
    on_host: frozenset[str] = frozenset()


def analyze(function: Any, example_inputs: Any, ignored: Collection[str] = ()) -> dict[str, Any]:
    """What of a function the device has, by the names that PyTorch has for its operators.

    `ignored` are operators that count as supported.
    """
    graph = decomposed(export_flat(function, example_inputs).program).graph
    support = _OnDevice()
    called = [each for each in graph.nodes if _is_operator(each)]
    unsupported = [each for each in called if not support.is_node_supported({}, each)]
    lacking = [each for each in unsupported if _name(each) not in ignored]
    supported = Counter(_name(each) for each in called if each not in lacking)
    share = 1 - len(lacking) / len(called) if called else 1.0
    return {
        "support_percentage": f"{share:.2%}",
        "supported_operators": {"aten": dict(sorted(supported.items()))},
        "unsupported_operators": [_described(each) for each in lacking],
    }


def _described(node: Node) -> dict[str, str]:
    return {
        "kind": _name(node),
        "failureAt": "neuronx-cc",
        "call": str(location(node)),
        "opGraph": node.format_node() or "",
    }


def _name(node: Node) -> str:
    """aten::add of aten.add.Tensor."""
    namespace, _, rest = str(node.target).partition(".")
    return f"{namespace}::{rest.partition('.')[0]}"


def _is_operator(node: Node) -> bool:
    """Whether a node computes a tensor, or takes a number from one."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    return bool(_tensors_in(node.meta.get("val"))) or takes_number(node)


def _tensors_in(described: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(described) if isinstance(each, torch.Tensor)]


class _OnDevice(OperatorSupportBase):  # type: ignore[misc]  # no types of torch
    """Operators that the table has for values as these, and that are not to be on the host.

    They write no argument, and have tensors of fixed shapes, of 64-bit floats only where `options`
    narrow them.
    """

    def __init__(
        self, on_host: Collection[str] = (), options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.on_host = on_host
        chosen, _ = resolve_options("torch_neuronx.trace", options or {})
        self.refused = () if chosen.f64 == "as-f32" else (torch.float64, torch.complex128)

    def is_node_supported(self, submodules: Mapping[str, Any], node: Node) -> bool:
        """Whether a node may be in a part for the device."""
        if node.op != "call_function":
            return False
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return False
        if not is_supported(node) or _name(node) in self.on_host:
            return False
        values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
        return bool(_tensors_in(values[0])) and all(map(self._has_device, tree_leaves(values)))

    def _has_device(self, value: Any) -> bool:
        """Whether the device has values of a description: a tensor's, or a number."""
        if isinstance(value, torch.Tensor):
            return value.dtype not in self.refused and all(map(self._has_device, value.shape))
        return not isinstance(value, torch.SymFloat | torch.SymInt | torch.SymBool)


def trace_in_parts(
    function: Any,
    example_inputs: Any,
    partitioning: Partitioning,
    *,
    aliases: Mapping[torch.Tensor, int] | None = None,
    **arguments: Any,
) -> Any:
    """A ScriptModule of a function, whose operators that the device lacks run on the host.

    `aliases` and `arguments` are those of `trace`; in `workdir` each part has a directory, part_0
    and so on. BadTraceArgument where less of the function is for the device, or it falls into more
    parts, than `partitioning` allows.
    """
    options = options_of_flags(arguments.get("flags") or ())
    with tracing_for(target_of(options)):
        traced = export_flat(function, example_inputs)
    states = state_places(traced.program, function, aliases or {})
    flat = decomposed(traced.program)
    support = _OnDevice(partitioning.on_host, options)
    called = [each for each in flat.graph.nodes if _is_operator(each)]
    on_device = [each for each in called if support.is_node_supported({}, each)]
    if len(on_device) == len(called):
        return trace(function, example_inputs, aliases=aliases, **arguments)
    _check_names(partitioning.on_host, {_name(each) for each in called})
    _check_share(len(on_device), len(called), partitioning)
    module = flat.module()
    remove_checks(module)
    _check_numbers(module.graph)
    _copy_tensors(module)
    fused = CapabilityBasedPartitioner(
        module, support, allows_single_node_partition=True
    ).partition_and_fuse()
    written = [_tensor_at(fused, name) for name in {*states, *written_tensors(flat)}]
    initial = [each.clone() for each in written]
    _compile_parts(fused, traced, partitioning, arguments)
    scripted = _scripted(fused, traced, states)
    for tensor, value in zip(written, initial, strict=True):
        tensor.copy_(value)  # what ran for the example inputs has changed it
    return scripted


def _copy_tensors(module: torch.nn.Module) -> None:
    """Give a module tensors of its own in place of those of the model that it was made from."""
    copies: dict[torch.Tensor, torch.Tensor] = {}  # tensors are equal keys where they are one
    for each in module.modules():
        for held in (each._parameters, each._buffers):
            for name, tensor in held.items():
                if tensor is not None and tensor not in copies:
                    copy = tensor.detach().clone()
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    copies[tensor] = torch.nn.Parameter(copy, False) if is_parameter else copy
                held[name] = None if tensor is None else copies[tensor]


def _tensor_at(module: torch.nn.Module, path: str) -> torch.Tensor:
    """The parameter or buffer at a path of names."""
    owner, _, name = path.rpartition(".")
    found: torch.Tensor = getattr(module.get_submodule(owner), name)
    return found


def _with_own_tensors(arguments: Any) -> Any:
    """Arguments with tensors of their own, which a function that runs may write."""
    return tree_map(lambda e: e.clone() if isinstance(e, torch.Tensor) else e, arguments)


def _check_names(given: Collection[str], called: Collection[str]) -> None:
    """Raise BadTraceArgument for a name that no operator has; warn of one that is not called."""
    for name in sorted(set(given) - set(called)):
        namespace, _, operator_name = name.partition("::")
        if not hasattr(getattr(torch.ops, namespace or "aten"), operator_name):
            raise BadTraceArgument(
                argument="ops_to_partition", value=name, problem="PyTorch has no such operator",
                hint=f"names of operators{nearest(name, called)}",
            )  # fmt: skip
        text = f"ops_to_partition names {name}, which the function in parts does not call"
        warnings.warn(text, stacklevel=stacklevel_of_caller())


def _check_numbers(graph: Graph) -> None:
    """Raise DataDependentValue where an operator takes a number that a tensor's values decide.

    What runs on the host is traced as well, and has numbers as they are for the example inputs.
    """
    for node in graph.nodes:
        if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
            raise DataDependentValue(what="a number", loc=location(node))


def _check_share(on_device: int, called: int, partitioning: Partitioning) -> None:
    share = on_device / called
    if share < partitioning.smallest_share:
        raise BadTraceArgument(
            argument="model_support_percentage_threshold",
            value=partitioning.smallest_share,
            problem=f"the device has {share:.0%} of the operators",
            hint="a lower share, or a model with more operators that the device has",
        )


def _compile_parts(
    fused: GraphModule,
    traced: ExportedFunction,
    partitioning: Partitioning,
    arguments: Mapping[str, Any],
) -> None:
    """Put compiled modules in place of the parts for the device; small parts stay on the host."""
    parts = [node for node in fused.graph.nodes if node.op == "call_module" and _is_part(node)]
    sizes = {node: _size(fused.get_submodule(str(node.target))) for node in parts}
    chosen = [node for node in parts if sizes[node] >= partitioning.smallest_part]
    if 0 <= partitioning.most_parts < len(chosen):
        raise BadTraceArgument(
            argument="max_subgraph_count", value=partitioning.most_parts,
            problem=f"the function falls into {len(chosen)} parts for the device",
            hint="a greater count, or a greater min_subgraph_size",
        )  # fmt: skip
    inputs = _Recorder(fused).recorded(traced.arguments)
    workdir = arguments.get("workdir")
    for place, node in enumerate(chosen):
        part = fused.get_submodule(str(node.target))
        own = {} if workdir is None else {"workdir": Path(workdir) / f"part_{place}"}
        fused.set_submodule(str(node.target), trace(part, inputs[node], **{**arguments, **own}))


def _is_part(node: Node) -> bool:
    return str(node.target).startswith("fused_")


def _size(module: Any) -> int:
    return sum(_is_operator(node) for node in module.graph.nodes)


class _Recorder(torch.fx.Interpreter):  # type: ignore[misc]  # no types of torch
    """Runs a module and keeps what its parts were given."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.found: dict[Node, tuple[Any, ...]] = {}

    def recorded(self, arguments: Sequence[Any]) -> dict[Node, tuple[Any, ...]]:
        """The arguments of every part, for arguments of the whole."""
        with torch.no_grad():
            self.run(*tensors_of(_with_own_tensors(tuple(arguments))))
        return self.found

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        if n.op == "call_module" and _is_part(n):
            args, _ = self.fetch_args_kwargs_from_env(n)
            self.found[n] = tuple(args)
        return super().run_node(n)


def _scripted(fused: GraphModule, traced: ExportedFunction, states: Mapping[str, int]) -> Any:
    """The whole as a ScriptModule, with the function's own arguments and results.

    `states` are tensors of it by the place of the result that is their new value, not returned.
    """
    count = len(tensors_of(traced.structure))
    kept = [place for place in range(count) if place not in states.values()]
    structure = returned_structure(traced.structure, kept)
    result_source(structure, [f"r[{n}]" for n in range(len(kept))])
    held = {place: _tensor_at(fused, name) for name, place in states.items()}

    class PartitionedModule(torch.nn.Module):  # type: ignore[misc]  # no types of torch
        """A function of which a part runs on the host."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = fused

        def forward(self, *args: Any) -> Any:
            """The function's result."""
            results = list(self.parts(*args))
            if held:  # results may have the memory of states
                results = [each.clone() for each in results]
            for place, state in held.items():
                state.copy_(results[place])
            return _filled(structure, [results[place] for place in kept])

    with torch.no_grad():
        return torch.jit.trace(
            PartitionedModule(),
            _with_own_tensors(traced.arguments),
            strict=False,
            check_trace=False,
        )


def _filled(structure: Any, tensors: list[torch.Tensor]) -> Any:
    """A value of a form with other tensors, taken from the front."""
    if isinstance(structure, torch.Tensor):
        return tensors.pop(0)
    if isinstance(structure, dict):
        return {key: _filled(each, tensors) for key, each in structure.items() if each is not None}
    if isinstance(structure, tuple | list):
        return type(structure)(_filled(each, tensors) for each in structure)
    return structure
