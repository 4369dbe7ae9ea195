"""Functions traced into ScriptModules that hold a NEFF, and what is changed of them later."""

from __future__ import annotations

import dataclasses
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from glia.base.loc import UNKNOWN, Loc
from glia.base.output_files import writing
from glia.cc_flags import options_of_flags, resolve_options, tracing_for
from glia.neff.package import Neff
from glia.plugins.torch.collected import Compiled, compiled
from glia.plugins.torch.errors import BadTraceArgument, DataDependentValue, UnusableTrace
from glia.plugins.torch.export import (
    HloForm,
    export,
    lower_exported,
    result_types,
    user_inputs,
)
from glia.plugins.torch.forward_operator import (
    Description,
    described,
    is_trace,
    loaded,
    not_a_trace,
)
from glia.plugins.torch.lowering import raised_at
from glia.plugins.torch.structure import (
    paths,
    result_source,
    skeleton,
    tensors_of,
    type_source,
)

HLO_FILE, NEFF_FILE = "model.hlo.pb", "model.neff"
_STATE = "state_{}"
WEIGHTS_OF_PARTS = "parts.function."  # where a module traced in parts has its function's tensors


@dataclasses.dataclass(frozen=True)
class ExportedFunction:
    """An exported function: its program, and what its results look like."""

    program: ExportedProgram
    structure: Any
    arguments: tuple[Any, ...]


class _Note:
    """What is noted while a function is traced."""

    value: Any = None


def _named_forward(function: Any) -> Any:
    """A plain function under the name of the frames whose lines PyTorch notes in a graph."""
    if isinstance(function, types.MethodType):
        return types.MethodType(_named_forward(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType):
        return function
    renamed = types.FunctionType(
        function.__code__.replace(co_name="forward"), function.__globals__, function.__name__,
        function.__defaults__, function.__closure__,
    )  # fmt: skip
    renamed.__kwdefaults__ = function.__kwdefaults__
    return renamed


class _Flat(torch.nn.Module):  # type: ignore[misc]  # no types of torch
    """A module that returns the tensors of a function's result, and notes the result's form."""

    def __init__(self, function: Any, note: _Note) -> None:
        super().__init__()
        self.function = _named_forward(function)
        self.note = note

    def forward(self, *args: Any) -> Any:
        """The tensors of the function's result."""
        try:
            found = self.function(*args)
        except GuardOnDataDependentSymNode as problem:
            raise DataDependentValue(what="a branch", loc=raised_at(problem)) from None
        self.note.value = skeleton(found)
        return tuple(tensors_of(found))


_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _definition(function: Any) -> Loc:
    """Where a function, or the forward of a module, is defined."""
    code = getattr(getattr(function, "forward", function), "__code__", None)
    return Loc(code.co_filename, code.co_firstlineno) if code else UNKNOWN


def export_flat(function: Any, example_inputs: Any) -> ExportedFunction:
    """A function exported for example arguments, its results flattened to their tensors."""
    args = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    note = _Note()
    program = export(_Flat(function, note), args)
    if any(isinstance(each, _SYMBOLS) for each in tree_leaves(note.value)):
        raise DataDependentValue(what="a number in the result", loc=_definition(function))
    return ExportedFunction(program, note.value, args)


def trace(
    function: Any,
    example_inputs: Any,
    *,
    aliases: Mapping[torch.Tensor, int] | None = None,
    workdir: str | Path | None = None,
    flags: str | Sequence[str] | None = None,
    inline_weights: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a function of tensors for example arguments, as a ScriptModule.

    `aliases` names parameters or buffers of a module that are states, by the place of the result
    that is their new value; such results are not returned. `flags` are those of the compiler's
    command line. With `workdir`, the HLO module and the NEFF are left there. Without
    `inline_weights`, parameters and buffers stay tensors of the module, and may be replaced.
    """
    chosen = {**options_of_flags(flags or ()), **(options or {})}
    with tracing_for(target_of(chosen)):
        traced = export_flat(function, example_inputs)
        states = state_places(traced.program, function, aliases or {})
        form = HloForm(inline_weights=inline_weights, states=states)
        lowered, names = lower_exported(traced.program, form)
    if written := [name for name in names.states if names.inputs[name] is None]:
        raise BadTraceArgument(
            argument="func", value=written[0], problem="it writes this argument in place",
            hint="a function that returns the new value",
        )  # fmt: skip
    neff = compiled(lowered.hlo, _title(function), chosen)
    if workdir is not None:
        _save(Path(workdir), lowered.hlo, neff)
    return _script(traced, neff, names, lowered.is_random)


def _title(function: Any) -> str:
    """What messages call a function or module."""
    return str(getattr(function, "__qualname__", type(function).__name__))


def target_of(options: Mapping[str, Any]) -> str:
    """The target that a trace with these options is for."""
    return resolve_options("torch_neuronx.trace", options)[0].target


def _save(directory: Path, hlo: bytes, neff: Compiled) -> None:
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / HLO_FILE).write_bytes(hlo)
    if isinstance(neff, Neff):
        neff.save(directory / NEFF_FILE)


def state_places(
    program: ExportedProgram, function: Any, aliases: Mapping[torch.Tensor, int]
) -> dict[str, int]:
    """The places of results by the name of the state that they are the new value of."""
    if not isinstance(aliases, Mapping):
        raise _bad_alias(
            type(aliases).__name__, "it is no dict", "a dict {tensor: place of a result}"
        )
    named = {}
    if isinstance(function, torch.nn.Module):
        named = {**dict(function.named_parameters()), **dict(function.named_buffers())}
    results = result_types(program)
    found: dict[str, int] = {}
    for tensor, place in aliases.items():
        name = next((name for name, each in named.items() if each is tensor), "")
        kind = _kind(tensor) if isinstance(tensor, torch.Tensor) else repr(tensor)
        shown = f"{{{name or kind}: {place!r}}}"
        if not name:
            problem = "the key is no parameter or buffer of the traced module"
            raise _bad_alias(shown, problem, "parameters or buffers of a torch.nn.Module")
        if not isinstance(place, int) or not 0 <= place < len(results):
            problem = f"the function returns {len(results)} tensors"
            raise _bad_alias(shown, problem, f"a place from 0 to {len(results) - 1}")
        if _kind(results[place]) != kind:
            problem = f"the state is {kind}, the result {_kind(results[place])}"
            raise _bad_alias(shown, problem, "the place of a result of the state's shape and dtype")
        if place in found.values():
            problem = "the result is the new value of another state"
            raise _bad_alias(shown, problem, "each state a result of its own")
        found[f"function.{name}"] = place
    return found


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def _bad_alias(value: str, problem: str, hint: str) -> BadTraceArgument:
    return BadTraceArgument(
        argument="input_output_aliases", value=value, problem=problem, hint=hint
    )


class _Holder(torch.nn.Module):  # type: ignore[misc]  # no types of torch
    """What a traced module holds; TorchScript adds its forward."""

    def __init__(
        self, neff: Compiled, description: Description, tensors: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.meta = description.text()
        self.register_buffer("neff", _in_a_tensor(neff.pieces()))
        for name, tensor in tensors.items():
            own = tensor.detach().clone(memory_format=torch.contiguous_format)
            self.register_buffer(name, own)


def _in_a_tensor(pieces: Sequence[bytes | memoryview]) -> torch.Tensor:
    """Bytes one after the other."""
    found = np.empty(sum(map(len, pieces)), np.uint8)
    place = 0
    for piece in pieces:
        found[place : place + len(piece)] = np.frombuffer(piece, np.uint8)
        place += len(piece)
    return torch.from_numpy(found)


def _script(traced: ExportedFunction, neff: Compiled, names: Any, is_random: bool) -> Any:
    """The ScriptModule of a compiled function."""
    program = traced.program
    tensors = {**program.state_dict, **program.constants}
    weights = {name: target for name, target in names.inputs.items() if target is not None}
    weights = {name: each for name, each in weights.items() if name not in names.states}
    attributes = {name: f"weight_{place}" for place, name in enumerate(weights)}
    states = {name: _STATE.format(place) for place, name in enumerate(names.states)}
    users = user_inputs(program)
    description = Description(
        inputs=(*users, *weights),
        states=tuple(states),
        written=names.written,
        weights={_of_function(weights[name]): attributes[name] for name in weights},
        is_random=is_random,
    )
    held = {attribute: tensors[weights[name]] for name, attribute in attributes.items()}
    held |= {attribute: tensors[names.inputs[name]] for name, attribute in states.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # Modules of one class share their functions in TorchScript
        kind = type("NeuronModule", (_Holder,), {})
        module = torch.jit.script(kind(neff, description, held))
        module.define(_source(traced, [*attributes.values()], [*states.values()], names.returned))
    loaded(module.neff, module.meta, neff)
    return module


def _of_function(target: str) -> str:
    return target.removeprefix("function.")


def _source(
    traced: ExportedFunction, weights: Sequence[str], states: Sequence[str], returned: Sequence[int]
) -> str:
    """The forward function of a traced module in TorchScript."""
    arguments = [f"a{place}" for place in range(len(traced.arguments))]
    pairs = list(zip(arguments, traced.arguments, strict=True))
    declared = [f"{name}: {type_source(value, 'an argument')}" for name, value in pairs]
    given = [path for name, value in pairs for path in paths(value, name)]
    given += [f"self.{name}" for name in weights]
    held = [f"self.{name}" for name in states]
    result = returned_structure(traced.structure, returned)
    count = len(tensors_of(result))
    value = result_source(result, [f"r[{place}]" for place in range(count)])
    called = f"{_list_source(given)}, {_list_source(held)}, self.neff, self.meta"
    lines = (
        f"def forward(self, {', '.join(declared)}):",
        f"    r = torch.ops.neuron.forward_v2({called})",
        f"    return {value}",
    )
    return "\n".join(lines) + "\n"


def _list_source(tensors: Sequence[str]) -> str:
    """A list of tensors, also where it is empty."""
    return f"[{', '.join(tensors)}]" if tensors else "torch.jit.annotate(List[Tensor], [])"


def returned_structure(structure: Any, places: Sequence[int]) -> Any:
    """The result without the tensors that are states: of a tuple or list what is left."""
    if len(places) == len(tensors_of(structure)):
        return structure
    tensors = tensors_of(structure)
    left = [tensors[place] for place in places]
    return left[0] if len(left) == 1 else tuple(left)


# --- changes of traced modules -------------------------------------------------------------------


def traces_in(module: Any) -> list[Any]:
    """The traced modules in a module, which may be one itself; UnusableTrace where none is."""
    inner = module.modules() if isinstance(module, torch.nn.Module) else ()
    found = [each for each in inner if is_trace(each)]
    if not found:
        raise not_a_trace(module)
    return found


def redescribed(module: Any, **changes: Any) -> Any:
    """Change the descriptions of the traced modules in a module in place; the module."""
    for each in traces_in(module):
        each.meta = dataclasses.replace(described(each), **changes).text()
    return module


def state_attributes(module: Any) -> list[str]:
    """The attributes of a traced module that hold its states, in order."""
    return [_STATE.format(place) for place in range(len(described(module).states))]


def set_dynamic_batch(module: Any, is_dynamic: bool = True) -> Any:
    """Let a traced module take any first extent, or only its own, in place; the module.

    UnusableTrace for one whose operators run on the host in part: these have fixed shapes.
    """
    if traces_in(module) and not is_trace(module):
        raise UnusableTrace(reason="its operators beside those of traces have fixed shapes")
    return redescribed(module, dynamic_batch=is_dynamic)


def _weights_of(module: Any) -> dict[str, torch.Tensor]:
    """The tensors that a traced module, or one traced in parts, holds apart, by their names."""
    if is_trace(module):
        return {name: getattr(module, held) for name, held in described(module).weights.items()}
    traces_in(module)
    held = module.state_dict(keep_vars=True).items()
    return {
        name.removeprefix(WEIGHTS_OF_PARTS): tensor
        for name, tensor in held
        if name.startswith(WEIGHTS_OF_PARTS)
    }


def replace_weights(module: Any, weights: Any) -> None:
    """Put other weights in a module traced without inlining, or in parts, in place."""
    places = _weights_of(module)
    if not places:
        text = "the trace has no separate weights: trace with inline_weights_to_neff=False"
        warnings.warn(text, stacklevel=2)
        return
    given = weights.state_dict() if isinstance(weights, torch.nn.Module) else weights
    if not isinstance(given, Mapping):
        raise BadTraceArgument(
            argument="weights", value=type(given).__name__,
            problem="it is neither a module nor a dict of tensors", hint="either",
        )  # fmt: skip
    if unknown := sorted(given.keys() - places.keys()):
        raise BadTraceArgument(
            argument="weights", value=unknown[0], problem="the trace has no such weight",
            hint=f"weights among {', '.join(list(places)[:8])}",
        )  # fmt: skip
    for name, tensor in given.items():
        held = places[name]
        kind = _kind(tensor) if isinstance(tensor, torch.Tensor) else repr(tensor)
        if kind != _kind(held):
            raise BadTraceArgument(
                argument=name, value=kind, problem="the trace has another shape or dtype",
                hint=_kind(held),
            )  # fmt: skip
        with torch.no_grad():
            held.copy_(tensor)
