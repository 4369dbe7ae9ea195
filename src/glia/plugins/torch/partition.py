"""Which operators of a function the device has, and functions of which a part runs on the host."""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from glia.plugins.torch.errors import BadTraceArgument
from glia.plugins.torch.export import decomposed
from glia.plugins.torch.lowering import is_supported, location, unsupported_nodes
from glia.plugins.torch.script_module import ExportedFunction, export_flat, trace
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
    lacking = [each for each in unsupported_nodes(graph) if _name(each) not in ignored]
    called = [each for each in graph.nodes if _is_operator(each)]
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
    return node.op == "call_function" and node.target is not operator.getitem


class _OnDevice(OperatorSupportBase):  # type: ignore[misc]  # no types of torch
    """Operators that the table has and that are not to be on the host."""

    def __init__(self, on_host: Collection[str]) -> None:
        super().__init__()
        self.on_host = on_host

    def is_node_supported(self, submodules: Mapping[str, Any], node: Node) -> bool:
        """Whether a node may be in a part for the device."""
        if node.op != "call_function":
            return False
        return is_supported(node) and _name(node) not in self.on_host


def trace_in_parts(
    function: Any, example_inputs: Any, partitioning: Partitioning, **arguments: Any
) -> Any:
    """A ScriptModule of a function, whose operators that the device lacks run on the host.

    BadTraceArgument where less of it is for the device, or it falls into more parts, than
    `partitioning` allows.
    """
    traced = export_flat(function, example_inputs)
    flat = decomposed(traced.program)
    support = _OnDevice(partitioning.on_host)
    called = [each for each in flat.graph.nodes if _is_operator(each)]
    on_device = [each for each in called if support.is_node_supported({}, each)]
    if len(on_device) == len(called):
        return trace(function, example_inputs, **arguments)
    _check_share(len(on_device), len(called), partitioning)
    module = flat.module()
    fused = CapabilityBasedPartitioner(
        module, support, allows_single_node_partition=True
    ).partition_and_fuse()
    _compile_parts(fused, traced, partitioning, arguments)
    return _scripted(fused, traced)


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
    for node in chosen:
        part = fused.get_submodule(str(node.target))
        fused.set_submodule(str(node.target), trace(part, inputs[node], **arguments))


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
            self.run(*tensors_of(tuple(arguments)))
        return self.found

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        if n.op == "call_module" and _is_part(n):
            args, _ = self.fetch_args_kwargs_from_env(n)
            self.found[n] = tuple(args)
        return super().run_node(n)


def _scripted(fused: GraphModule, traced: ExportedFunction) -> Any:
    """The whole as a ScriptModule, with the function's own arguments and results."""
    result_source(traced.structure, [f"r[{n}]" for n in range(len(tensors_of(traced.structure)))])

    class PartitionedModule(torch.nn.Module):  # type: ignore[misc]  # no types of torch
        """A function of which a part runs on the host."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = fused

        def forward(self, *args: Any) -> Any:
            """The function's result."""
            return _filled(traced.structure, list(self.parts(*args)))

    with torch.no_grad():
        return torch.jit.trace(
            PartitionedModule(), traced.arguments, strict=False, check_trace=False
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
