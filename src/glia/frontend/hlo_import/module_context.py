"""The import of one HLO module into a graph: calls inlined, tuples flattened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from glia.base.loc import UNKNOWN, Loc
from glia.base.suggestions import nearest
from glia.frontend.errors import (
    BadCustomCall,
    MalformedModule,
    ModuleTooComplex,
    UnsupportedOperator,
)
from glia.frontend.hlo_import.hlo_proto import ParsedModule
from glia.frontend.hlo_import.node_builder import NodeBuilder, Value, describe, flatten, has_type
from glia.frontend.hlo_import.shapes import leaves, read_type
from glia.graph.ir import Graph, Node, Parameter, TensorType, Type

MOST_INSTRUCTIONS = 2_000_000
DEEPEST_NESTING = 64

# The result of a `-start` is what its `-done` returns, not the tuple of buffers HLO declares.
_UNCHECKED = frozenset({
    "async-start", "async-update", "copy-start", "all-gather-start", "all-reduce-start",
    "collective-permute-start", "recv", "send",
})  # fmt: skip


@dataclass(frozen=True)
class Site(NodeBuilder):
    """One HLO instruction, its operands' values and the module it is in."""

    proto: Any = None
    operands: tuple[Value, ...] = ()
    operand_protos: tuple[Any, ...] = ()
    module: ModuleImporter | None = None

    def malformed(self, reason: str) -> MalformedModule:
        """The error for an inconsistent instruction."""
        return MalformedModule(reason=reason, instruction=self.label, loc=self.loc)

    def bad_custom_call(self, reason: str) -> BadCustomCall:
        """The error for a custom call whose operands or configuration do not fit its target."""
        target = self.proto.custom_call_target
        return BadCustomCall(target=target, reason=reason, instruction=self.label, loc=self.loc)

    @cached_property
    def type(self) -> Type:
        """The declared type of the result."""
        return read_type(self.proto.shape, self.label, self.loc)

    @property
    def tensor_type(self) -> TensorType:
        """The declared type of a result that must be one tensor."""
        if not isinstance(self.type, TensorType):
            raise self.reject(f"the result must be a tensor, not {self.type}")
        return self.type

    def expect_operands(self, count: int) -> tuple[Value, ...]:
        """The operands; MalformedModule unless there are `count`."""
        if len(self.operands) != count:
            raise self.malformed(f"{len(self.operands)} operands, expected {count}")
        return self.operands

    def tensors(self, count: int | None = None) -> tuple[Node, ...]:
        """The operands (`count` of them), which must be tensors."""
        for operand in self.operands if count is None else self.expect_operands(count):
            if not isinstance(operand, Node):
                raise self.reject(f"an operand is the tuple {describe(operand)}, not a tensor")
        return self.operands  # type: ignore[return-value]

    def called_computations(self, count: int | None = None) -> tuple[int, ...]:
        """The ids of the computations this instruction calls; MalformedModule unless `count`."""
        ids = tuple(self.proto.called_computation_ids)
        if count is not None and len(ids) != count:
            raise self.malformed(f"{len(ids)} called computations, expected {count}")
        return ids

    def region(self, position: int = 0, count: int | None = 1) -> Graph:
        """A called computation as a graph of its own."""
        assert self.module is not None
        return self.module.region(self.called_computations(count)[position], self)

    def inline(self, computation: int, arguments: Sequence[Value]) -> Value:
        """The value of a called computation on these arguments, inlined."""
        assert self.module is not None
        return self.module.inline(computation, arguments, self)


Importer = Callable[[Site], Value]


def entry_computation(module: Any) -> Any:
    """The computation of a module that is called from outside; MalformedModule without one."""
    identifier, name = module.entry_computation_id, module.entry_computation_name
    found = [each for each in module.computations if each.id == identifier]
    found = found or [each for each in module.computations if each.name == name]
    if len(found) != 1:
        raise MalformedModule(reason=f"there is no entry computation {identifier}")
    return found[0]


@dataclass(frozen=True)
class ImportedComputation:
    """A computation as a graph, with its parameters' types and its result before flattening."""

    graph: Graph
    parameter_types: tuple[Type, ...]
    result: Value


class ModuleImporter:
    """Imports the computations of one HLO module with a table of importers by opcode.

    `ordered` gives the instructions of a computation in the order in which they are imported.
    """

    def __init__(
        self,
        parsed: ParsedModule,
        importers: Mapping[str, Importer],
        ordered: Callable[[Sequence[Any]], Sequence[Any]] = lambda instructions: instructions,
    ) -> None:
        self._proto = proto = parsed.proto
        self.payloads = parsed.payloads
        self._importers = importers
        self._ordered = ordered
        self._computations = {c.id: c for c in proto.computations}
        self._regions: dict[int, Graph] = {}
        self._active: list[int] = []
        self._call = UNKNOWN  # the source line of the instruction whose computation is imported
        self._imported = 0
        if len(self._computations) != len(proto.computations):
            raise MalformedModule(reason="two computations have the same id")

    def entry(self, names: Callable[[int], Sequence[str]]) -> ImportedComputation:
        """The entry computation; `names` gives the parameters' names for their number."""
        return self._import_computation(entry_computation(self._proto).id, NodeBuilder(), names)

    def inline(self, identifier: int, arguments: Sequence[Value], caller: NodeBuilder) -> Value:
        """The value of a computation on arguments, its instructions inlined."""
        computation = self._computation(identifier, caller)
        declared = self._parameter_types(computation)
        if len(declared) != len(arguments):
            raise MalformedModule(
                reason=f"{computation.name} takes {len(declared)} arguments, not {len(arguments)}",
                instruction=caller.label,
                loc=caller.loc,
            )
        for argument, expected in zip(arguments, declared, strict=True):
            if not has_type(argument, expected):
                raise caller.reject(
                    f"{computation.name} takes {expected}, not {describe(argument)}"
                )
        return self._inline_instructions(computation, arguments, caller)

    def region(self, identifier: int, caller: NodeBuilder) -> Graph:
        """A computation as a graph of its own, tuple parameters and results flattened."""
        if identifier not in self._regions:
            self._regions[identifier] = self._import_computation(
                identifier, caller, _default_names
            ).graph
        return self._regions[identifier]

    def _import_computation(
        self, identifier: int, caller: NodeBuilder, names: Callable[[int], Sequence[str]]
    ) -> ImportedComputation:
        computation = self._computation(identifier, caller)
        declared = self._parameter_types(computation)
        flat = [leaf for each in declared for leaf in leaves(each)]
        parameters = tuple(
            Parameter(index, leaf, name)
            for index, (leaf, name) in enumerate(zip(flat, names(len(flat)), strict=True))
        )
        supply: Iterator[Node] = iter(parameters)
        arguments = [unflatten(each, supply) for each in declared]
        result = self._inline_instructions(computation, arguments, caller)
        name = computation.name or f"computation{identifier}"
        return ImportedComputation(Graph(name, parameters, flatten(result)), declared, result)

    def _computation(self, identifier: int, caller: NodeBuilder) -> Any:
        computation = self._computations.get(identifier)
        if computation is None:
            raise MalformedModule(
                reason=f"there is no computation {identifier}",
                instruction=caller.label,
                loc=caller.loc,
            )
        return computation

    def _parameter_types(self, computation: Any) -> tuple[Type, ...]:
        """The declared types of a computation's parameters, which must be numbered 0, 1, 2, ..."""
        found = {}
        for proto in computation.instructions:
            if proto.opcode == "parameter":
                found[proto.parameter_number] = read_type(proto.shape, *self._label(proto))
                self._count_instruction()
        numbers = sorted(found)
        count = sum(proto.opcode == "parameter" for proto in computation.instructions)
        if numbers != list(range(count)):
            raise MalformedModule(
                reason=f"{computation.name} numbers its {count} parameters {numbers[:8]}"
            )
        return tuple(found[number] for number in numbers)

    def _inline_instructions(
        self, computation: Any, arguments: Sequence[Value], caller: NodeBuilder
    ) -> Value:
        """The value of the root instruction with `arguments` for the parameters."""
        if computation.id in self._active:
            raise MalformedModule(
                reason=f"computation {computation.name} calls itself",
                instruction=caller.label,
                loc=caller.loc,
            )
        if len(self._active) >= DEEPEST_NESTING:
            raise ModuleTooComplex(reason=f"calls nest more than {DEEPEST_NESTING} deep")
        self._active.append(computation.id)
        outer, self._call = self._call, caller.loc
        values: dict[int, Value] = {}
        protos: dict[int, Any] = {}
        for proto in self._ordered(computation.instructions):
            if proto.id in values:
                raise MalformedModule(reason=f"two instructions have the id {proto.id}")
            if proto.opcode == "parameter":
                values[proto.id] = arguments[proto.parameter_number]
            else:
                values[proto.id] = self._import_instruction(proto, values, protos)
            protos[proto.id] = proto
        self._active.pop()
        self._call = outer
        if computation.root_id not in values:
            raise MalformedModule(
                reason=f"{computation.name} has no root instruction {computation.root_id}"
            )
        return values[computation.root_id]

    def _import_instruction(
        self, proto: Any, values: Mapping[int, Value], protos: Mapping[int, Any]
    ) -> Value:
        self._count_instruction()
        label, loc = self._label(proto)
        for identifier in proto.operand_ids:
            if identifier not in values:
                raise MalformedModule(
                    reason=f"operand {identifier} does not exist or comes later",
                    instruction=label,
                    loc=loc,
                )
        importer = self._importers.get(proto.opcode)
        if importer is None:
            raise UnsupportedOperator(
                opcode=proto.opcode[:64],
                nearest=nearest(proto.opcode, self._importers),
                instruction=label,
                loc=loc,
            )
        site = Site(
            loc,
            label,
            proto,
            tuple(values[identifier] for identifier in proto.operand_ids),
            tuple(protos[identifier] for identifier in proto.operand_ids),
            self,
        )
        result = importer(site)
        if proto.opcode not in _UNCHECKED and not has_type(result, site.type):
            raise site.reject(f"the result is {describe(result)}, declared {site.type}")
        return result

    def _count_instruction(self) -> None:
        self._imported += 1
        if self._imported > MOST_INSTRUCTIONS:
            raise ModuleTooComplex(
                reason=f"more than {MOST_INSTRUCTIONS} instructions once its calls are inlined"
            )

    def _label(self, proto: Any) -> tuple[str, Loc]:
        """The instruction's name for messages, and its source line.

        One in a function that frameworks give no lines is where that function is called.
        """
        metadata = proto.metadata
        loc = self._call
        if metadata.source_file or metadata.op_name or metadata.stack_frame_id:
            file, line = metadata.source_file, metadata.source_line
            if not file:
                file, line = self._stack_frame(metadata.stack_frame_id)
            loc = Loc(file, line, metadata.op_name)
            if not file and self._call.file:
                names = (self._call.name, metadata.op_name)
                name = (
                    metadata.op_name if "/" in metadata.op_name else "/".join(filter(None, names))
                )
                loc = Loc(self._call.file, self._call.line, name)
        return f"%{proto.name or proto.id} = {proto.opcode}", loc

    def _stack_frame(self, identifier: int) -> tuple[str, int]:
        """File and line of a 1-based stack frame; empty when the tables do not have it."""
        tables = self._proto.stack_frames
        frame = _table_entry(tables.stack_frames, identifier)
        location = _table_entry(tables.file_locations, frame.file_location_id) if frame else None
        if location is None:
            return "", 0
        file = _table_entry(tables.file_names, location.file_name_id)
        return (file, location.line) if file else ("", 0)


def _default_names(count: int) -> Sequence[str]:
    return [f"p{index}" for index in range(count)]


def _table_entry(table: Sequence[Any], identifier: int) -> Any:
    return table[identifier - 1] if 1 <= identifier <= len(table) else None


def unflatten(declared: Type, supply: Iterator[Node]) -> Value:
    """A value of this type from the next tensors of `supply`; the inverse of `flatten`."""
    if isinstance(declared, TensorType):
        return next(supply)
    return tuple(unflatten(element, supply) for element in declared.elements)
