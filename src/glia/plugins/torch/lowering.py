"""A graph of ATen operators with shapes, as a serialized HLO module."""

from __future__ import annotations

import functools
import operator
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from glia.base.dtype import F32, U8, U64
from glia.base.errors import InternalError
from glia.base.loc import UNKNOWN, Loc
from glia.base.suggestions import nearest
from glia.frontend.errors import DynamicShape, UnsupportedOperator
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloModule, HloValue
from glia.plugins.torch.aten.derived import of_pytorch
from glia.plugins.torch.aten.families import DERIVED, TABLE
from glia.plugins.torch.aten.operator_table import OperatorCall, lowering_of
from glia.plugins.torch.aten.randomness import (
    RandomState,
    is_random,
    packed_state,
    unpacked_state,
)
from glia.plugins.torch.errors import DataDependentValue
from glia.plugins.torch.kernels import OPERATORS
from glia.plugins.torch.tensors import dtype_of, to_numpy

aten = torch.ops.aten

SEED = TensorType(U64, (2,))  # the state of the generator, a program's last input if it has one

_FRAME = re.compile(r'File "(.+?)", line (\d+)')
_OF_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)
RANDOM_CALLS = (run_and_save_rng_state, run_with_rng_state)
_STATE = TensorType(U8, tuple(torch.random.get_rng_state().shape))
_NO_TENSOR = TensorType(F32)

# Checks of what tracing knows: shapes, dtypes and sizes are fixed
_CHECKS = frozenset({
    aten._assert_tensor_metadata.default, aten._assert_scalar.default, aten._assert_async.msg,
    aten.sym_constrain_range_for_size.default, aten.sym_constrain_range.default,
})  # fmt: skip


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """How operators that the table lacks are made of those that it has."""
    known = {**of_pytorch(), **DERIVED}
    return {each: how for each, how in known.items() if each not in TABLE}


@dataclass(frozen=True)
class HloProgram:
    """An HLO module, and what a graph's results are: places among the module's, or constants."""

    hlo: bytes
    results: tuple[HloValue | object, ...]
    outputs: tuple[TensorType, ...]
    is_random: bool


@dataclass(frozen=True)
class Output:
    """A result of a graph that is the module's result at this place."""

    place: int


def lower(
    module: GraphModule,
    name: str,
    constants: Mapping[str, torch.Tensor] | None = None,
    aliases: Mapping[int, str] | None = None,
) -> HloProgram:
    """The HLO module of a graph, whose nodes have their values' descriptions.

    Placeholders that `constants` has become constants, the others inputs of their names.
    `aliases` are placeholders whose memory results have, by the result's place. Raises
    UnsupportedOperator with the source line, DynamicShape, and UnknownDType.
    """
    writer = _GraphWriter(module, HloModule(name), constants or {})
    return writer.lowered(aliases or {})


class _GraphWriter:
    """Writes the nodes of a graph in order."""

    def __init__(
        self, module: GraphModule, hlo: HloModule, constants: Mapping[str, torch.Tensor]
    ) -> None:
        self.module = module
        self.hlo = hlo
        self.constants = constants
        self.values: dict[Node, Any] = {}
        self.inputs: list[str] = []
        self.random: RandomState | None = None

    def lowered(self, aliases: Mapping[int, str]) -> HloProgram:
        """The module of the whole graph."""
        graph = self.module.graph
        for node in graph.find_nodes(op="placeholder"):
            self.values[node] = self._placeholder(node)
        if any_random(graph):
            self.random = RandomState(self.hlo.entry.parameter(SEED, "seed"))
            self.inputs.append("seed")
        for node in graph.nodes:
            if node.op == "call_function":
                with self.hlo.entry.at(location(node)):
                    self.values[node] = self._call(node)
            elif node.op == "get_attr":
                self.values[node] = self._attribute(node)
        (end,) = graph.find_nodes(op="output")
        results = self._look_up(end.args[0])
        flat = list(results) if isinstance(results, list | tuple) else [results]
        return self._finished(flat, aliases)

    def _finished(self, flat: list[Any], aliases: Mapping[int, str]) -> HloProgram:
        outputs: list[HloValue] = []
        results: list[object] = []
        for value in flat:
            results.append(Output(len(outputs)) if isinstance(value, HloValue) else value)
            if isinstance(value, HloValue):
                outputs.append(value)
        for place, source in aliases.items():
            found = results[place]
            assert isinstance(found, Output)
            self.hlo.alias(found.place, self.inputs.index(source))
        self.hlo.name_tensors(self.inputs, [f"output{n}" for n in range(len(outputs))])
        data = self.hlo.serialized(outputs)
        kinds = tuple(each.type for each in outputs)
        return HloProgram(data, tuple(results), kinds, self.random is not None)

    def _placeholder(self, node: Node) -> Any:
        described = node.meta.get("val")
        if not isinstance(described, torch.Tensor):
            return _number(described, node)
        if node.name in self.constants:
            tensor = self.constants[node.name]
            return self.hlo.entry.constant(to_numpy(tensor))
        self.inputs.append(node.name)
        return self.hlo.entry.parameter(type_of(described, node), node.name)

    def _attribute(self, node: Node) -> Any:
        found: Any = self.module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if not isinstance(found, torch.Tensor):
            return found
        with _disable_current_modes():  # a backend of Dynamo is called under one without contents
            return self.hlo.entry.constant(to_numpy(found))

    def _look_up(self, arguments: Any) -> Any:
        return torch.fx.node.map_arg(arguments, lambda node: self.values[node])

    def _call(self, node: Node) -> Any:
        target: Any = node.target
        described = node.meta.get("val")
        if target in _CHECKS or target is torch._check:
            return None
        if target is operator.getitem:
            return self._look_up(node.args[0])[node.args[1]]
        if takes_number(node):
            raise DataDependentValue(what="a number", loc=location(node))
        if described is not None and not _has_tensors(described):
            return _number(described, node)
        if target in RANDOM_CALLS:
            return self._random_call(node)
        if target in OPERATORS:
            return self._inlined(node)
        lowering = lowering_of(target)
        if lowering is None:
            raise unsupported(node)
        given = [each.meta.get("val") if isinstance(each, Node) else each for each in node.args]
        site = OperatorCall(self.hlo.entry, _types(described, node), given, self.random)
        found = lowering(site, *self._look_up(node.args), **self._look_up(dict(node.kwargs)))
        _check(node, found, site.results)
        return found

    def _inlined(self, node: Node) -> Any:
        """An operation of kernels: the graph of its function, in place of it."""
        described = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
        function = functools.partial(_applied, OPERATORS[node.target], described)
        fakes = [each for each in tree_leaves(described) if isinstance(each, torch.Tensor)]
        graph = make_fx(function, decomposition_table=decompositions())(*fakes).graph
        inputs = iter(tree_leaves(self._look_up((node.args, dict(node.kwargs)))))
        given = iter([each for each in inputs if isinstance(each, HloValue)])
        for inner in graph.nodes:
            if inner.op == "placeholder":
                self.values[inner] = next(given)
            elif inner.op == "call_function":
                self.values[inner] = self._call(inner)
        (end,) = graph.find_nodes(op="output")
        return self._look_up(end.args[0])

    def _random_call(self, node: Node) -> Any:
        """An operator called with a saved state of the generator, or that saves it first.

        Recomputed parts of a checkpoint draw the same numbers so.
        """
        assert self.random is not None
        saves = node.target is run_and_save_rng_state
        before = self.random.state
        arguments = list(node.args)
        site = OperatorCall(self.hlo.entry, [_STATE], [], self.random)
        if not saves:
            self.random.state = unpacked_state(site, self._look_up(arguments.pop(0)))
        target, *given = arguments
        described = _values_of(node)[1] if saves else _values_of(node)
        call = OperatorCall(self.hlo.entry, _types(described, node), given, self.random)
        if target not in TABLE:
            raise unsupported(node)
        found = TABLE[target](call, *self._look_up(given), **self._look_up(dict(node.kwargs)))
        _check(node, found, call.results)
        if saves:
            return packed_state(site, before), found
        self.random.state = before
        return found


def _applied(
    function: Callable[..., Any], arguments: tuple[Any, dict[str, Any]], *tensors: torch.Tensor
) -> Any:
    """The function of arguments whose tensors, in order, are others."""
    leaves, structure = tree_flatten(arguments)
    supply = iter(tensors)
    filled = [next(supply) if isinstance(each, torch.Tensor) else each for each in leaves]
    args, kwargs = tree_unflatten(filled, structure)
    return function(*args, **kwargs)


def _values_of(node: Node) -> Any:
    """The description of a call's results, computed where the graph lacks it."""
    if "val" not in node.meta:
        args = torch.fx.node.map_arg(node.args, lambda each: each.meta["val"])
        node.meta["val"] = node.target(*args, **node.kwargs)
    return node.meta["val"]


def _number(described: Any, node: Node) -> Any:
    """A size or number that is fixed; DynamicShape where data or a symbol decides it."""
    if isinstance(described, torch.SymInt | torch.SymFloat | torch.SymBool):
        fixed = described.node.maybe_as_int() if isinstance(described, torch.SymInt) else None
        if fixed is None:
            raise DynamicShape(name=node.name, shape=f"[{described}]", loc=location(node))
        return fixed
    return described


def _has_tensors(described: Any) -> bool:
    if isinstance(described, list | tuple):
        return any(_has_tensors(each) for each in described)
    return isinstance(described, torch.Tensor)


def type_of(described: torch.Tensor, node: Node) -> TensorType:
    """The type of a described tensor; DynamicShape where a symbol is among its extents."""
    shape = []
    for extent in described.shape:
        if isinstance(extent, torch.SymInt) and extent.node.maybe_as_int() is None:
            text = f"{described.dtype}{list(described.shape)}"
            raise DynamicShape(name=node.name, shape=text, loc=location(node))
        shape.append(int(extent))
    return TensorType(dtype_of(described.dtype), tuple(shape))


def _types(described: Any, node: Node) -> list[TensorType]:
    """The types of an operator's results; any type stands for one that is not a tensor."""
    several = described if isinstance(described, list | tuple) else [described]
    return [type_of(d, node) if isinstance(d, torch.Tensor) else _NO_TENSOR for d in several]


def _check(node: Node, found: Any, declared: Sequence[TensorType]) -> None:
    """Raise InternalError unless a lowering has given what PyTorch says that there is."""
    several = found if isinstance(found, list | tuple) else [found]
    for value, kind in zip(several, declared, strict=True):
        if value is not None and value.type != kind:
            raise InternalError(f"{node.target} was lowered to {value.type}, not {kind}")


def unsupported(node: Node) -> UnsupportedOperator:
    """The error for an operator that the table lacks."""
    name = str(node.target)
    close = nearest(name, [str(each) for each in TABLE])
    return UnsupportedOperator(opcode=name, nearest=close, loc=location(node))


def is_supported(node: Node) -> bool:
    """Whether a call's operator is lowered, or needs nothing."""
    if takes_number(node):
        return False
    has_own = any(node.target in each for each in (OPERATORS, RANDOM_CALLS))
    is_lowered = has_own or lowering_of(node.target) is not None
    is_free = node.target is operator.getitem or not _has_tensors(node.meta.get("val"))
    return is_lowered or is_free


def takes_number(node: Node) -> bool:
    """Whether a node takes a number from the values of a tensor."""
    return node.target is aten._local_scalar_dense.default


def remove_checks(module: GraphModule) -> None:
    """Remove checks of what tracing knows, and what only they use."""
    for node in reversed(module.graph.nodes):
        if node.target in _CHECKS or node.target == "_guards_fn":
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def any_random(graph: Graph) -> bool:
    """Whether any operator takes random numbers."""
    return any(
        node.op == "call_function" and (is_random(node.target) or node.target in RANDOM_CALLS)
        for node in graph.nodes
    )


def location(node: Node) -> Loc:
    """The line of the user's code that a node is from, and its module."""
    found = _FRAME.findall(node.meta.get("stack_trace") or "")
    frames = [frame for frame in found if not frame[0].startswith(_OURS)]
    outside = [frame for frame in frames if not frame[0].startswith(_OF_TORCH)] or frames
    file, line = outside[-1] if outside else ("", "0")
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(modules[-1][0]) if modules else ""
    name = str(node.target) if node.op == "call_function" else node.name
    return Loc(file, int(line), f"{path}/{name}" if path else name)


def raised_at(problem: BaseException) -> Loc:
    """The line of the user's code in which an exception was raised."""
    return line_of_user(traceback.extract_tb(problem.__traceback__))


def line_of_user(frames: Iterable[traceback.FrameSummary]) -> Loc:
    """The innermost line of frames that is of the user's code."""
    outside = [each for each in frames if not each.filename.startswith((_OF_TORCH, _OURS))]
    return Loc(outside[-1].filename, outside[-1].lineno or 0) if outside else UNKNOWN


def fresh_seed() -> np.ndarray:
    """A state for a program's generator, taken from PyTorch's: `torch.manual_seed` repeats it."""
    words: np.ndarray = torch.randint(0, 2**62, (2,)).numpy()
    return words.astype(np.uint64)
