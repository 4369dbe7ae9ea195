"""Programs of torch.export as HLO modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, TensorArgument
from torch.export.passes import move_to_device_pass
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map_only

from glia.plugins.torch.aten.families import TABLE
from glia.plugins.torch.device.device_memory import NAME
from glia.plugins.torch.errors import MixedDevices
from glia.plugins.torch.lowering import HloProgram, Output, decompositions, lower

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def exported_to_hlo(program: ExportedProgram) -> bytes:
    """The HLO module of a program: see `glia.frontend.exported_program`."""
    return lower_exported(program)[0].hlo


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program in operators of the table, and others that nothing decomposes."""
    table = default_decompositions()
    for operator in [each for each in table if each in TABLE]:
        table.pop(operator)
    table.update({op: how for op, how in decompositions().items() if op not in table})
    return program.run_decompositions(table)


@dataclass(frozen=True)
class HloForm:
    """What of a program becomes inputs of its module.

    `states` are parameters and buffers by the place of the result that is their new value, beside
    those that the program writes. Without `inline_weights`, the others are inputs too.
    """

    inline_weights: bool = True
    states: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorNames:
    """The inputs of a module by name, with the parameter or buffer that each is, or None.

    `states` are the inputs whose memory results have; `written` says for each result which of them,
    or -1; `returned` are the others' places among the results of the function.
    """

    inputs: dict[str, str | None]
    states: tuple[str, ...]
    written: tuple[int, ...]
    returned: tuple[int, ...]


def lower_exported(
    program: ExportedProgram,
    form: HloForm = HloForm(),  # it is frozen
) -> tuple[HloProgram, TensorNames]:
    """The HLO module of a program, and the names of its tensors."""
    flat = decomposed(program)
    specs = {_name(spec): spec for spec in flat.graph_signature.input_specs}
    aliases = _written(flat)
    shift = len(flat.graph_signature.output_specs) - len(flat.graph_signature.user_outputs)
    by_target = {spec.target: name for name, spec in specs.items()}
    aliases |= {shift + place: by_target[target] for target, place in form.states.items()}
    tensors = {**flat.state_dict, **flat.constants}
    weights = {name: spec for name, spec in specs.items() if spec.kind in _WEIGHTS}
    constants = {
        name: tensors[spec.target]
        for name, spec in weights.items()
        if form.inline_weights and name not in aliases.values()
    }
    lowered = lower(flat.graph_module, _title(program), constants, aliases)
    inputs = {
        name: str(spec.target) if name in weights else None
        for name, spec in specs.items()
        if name not in constants and isinstance(spec.arg, TensorArgument)
    }
    states = tuple(dict.fromkeys(aliases.values()))
    written = {place: states.index(name) for place, name in aliases.items()}
    places = [n for n, each in enumerate(lowered.results) if isinstance(each, Output)]
    returned = tuple(n - shift for n in places if n >= shift and n not in written)
    return lowered, TensorNames(inputs, states, tuple(written.get(n, -1) for n in places), returned)


def _title(program: ExportedProgram) -> str:
    """A name for the module of a program."""
    return str(getattr(program.graph_module, "_get_name", lambda: "")() or "model")


def _name(spec: InputSpec) -> str:
    return str(spec.arg.name)


def _written(program: ExportedProgram) -> dict[int, str]:
    """By the place of a result, the placeholder whose memory it is the new contents of."""
    signature = program.graph_signature
    by_target = {spec.target: _name(spec) for spec in signature.input_specs}
    found = {}
    for place, spec in enumerate(signature.output_specs):
        if spec.kind in _MUTATIONS and isinstance(spec.arg, TensorArgument):
            target = str(spec.target)
            found[place] = by_target.get(target, target)
    return found


def written_tensors(program: ExportedProgram) -> list[str]:
    """The buffers that a program writes."""
    specs = program.graph_signature.output_specs
    return [str(each.target) for each in specs if each.kind is OutputKind.BUFFER_MUTATION]


def result_types(program: ExportedProgram) -> list[torch.Tensor]:
    """Tensors without contents of the shapes and dtypes of what a program returns."""
    (end,) = program.graph.find_nodes(op="output")
    nodes = {node.name: node for node in end.args[0] if isinstance(node, Node)}
    return [nodes[name].meta["val"] for name in program.graph_signature.user_outputs]


def user_inputs(program: ExportedProgram) -> list[str]:
    """The placeholders of a program that its caller gives tensors for, in order."""
    return [
        _name(spec)
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    ]


def export(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> ExportedProgram:
    """A function or module exported for example arguments, without gradients.

    Tensors of the program are the host's, wherever those of the module and the arguments are.
    MixedDevices where the function has others than its arguments.
    """
    module = function if isinstance(function, torch.nn.Module) else _Function(function)
    held = next((each.device for each in _tensors_of(module)), None)
    if held is not None:
        args, kwargs = tree_map_only(torch.Tensor, lambda t: t.to(held), (args, kwargs))
    try:
        with torch.no_grad():
            program = torch.export.export(module, args, kwargs, strict=False)
    except RuntimeError as problem:
        devices = {str(getattr(problem, name, "")) for name in ("common_device", "device")} - {""}
        if not devices:
            raise
        operator, named = str(getattr(problem, "func", function)), " and ".join(sorted(devices))
        raise MixedDevices(operator=operator, devices=named) from problem
    used = (*program.state_dict.values(), *program.constants.values(), *tree_leaves(args))
    is_elsewhere = any(isinstance(t, torch.Tensor) and t.device.type == NAME for t in used)
    return move_to_device_pass(program, "cpu") if is_elsewhere else program


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


class _Function(torch.nn.Module):  # type: ignore[misc]  # no types of torch
    """A module around a plain function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        return self.function(*args, **kwargs)
