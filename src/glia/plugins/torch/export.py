"""Programs of torch.export as HLO modules."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, TensorArgument

from glia.plugins.torch.aten.families import TABLE
from glia.plugins.torch.lowering import HloProgram, decompositions, lower

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def exported_to_hlo(program: ExportedProgram) -> bytes:
    """The HLO module of a program: see `glia.frontend.exported_program`."""
    return lower_exported(program).hlo


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program in operators of the table, and others that nothing decomposes."""
    table = default_decompositions()
    for operator in [each for each in table if each in TABLE]:
        table.pop(operator)
    table.update({op: how for op, how in decompositions().items() if op not in table})
    return program.run_decompositions(table)


def lower_exported(program: ExportedProgram, *, inline_weights: bool = True) -> HloProgram:
    """The HLO module of a program, and where its results are.

    Without `inline_weights`, parameters and buffers are inputs under their own names.
    """
    flat = decomposed(program)
    inputs = {_name(spec): spec for spec in flat.graph_signature.input_specs}
    written = _written(flat)
    is_input = set(written.values())
    constants = {}
    if inline_weights:
        tensors = {**flat.state_dict, **flat.constants}
        constants = {
            name: tensors[spec.target]
            for name, spec in inputs.items()
            if spec.kind in _WEIGHTS and name not in is_input
        }
    names = {
        name: str(spec.target).replace(",", "_")
        for name, spec in inputs.items()
        if spec.kind in _WEIGHTS
    }
    module: Any = flat.graph_module
    title = getattr(program.graph_module, "_get_name", lambda: "")() or "model"
    return lower(module, title, constants, names, written)


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
    """A function or module exported for example arguments, without gradients."""
    module = function if isinstance(function, torch.nn.Module) else _Function(function)
    with torch.no_grad():
        return torch.export.export(module, args, kwargs, strict=False)


class _Function(torch.nn.Module):  # type: ignore[misc]  # no types of torch
    """A module around a plain function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        return self.function(*args, **kwargs)
