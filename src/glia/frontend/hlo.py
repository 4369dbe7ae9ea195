"""The HLO importer: serialized HLO modules into graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from glia.frontend.errors import MalformedModule
from glia.frontend.formats import Format
from glia.frontend.hlo_import.channels import CHANNELS, with_paired_channels
from glia.frontend.hlo_import.composites import EXPANDED
from glia.frontend.hlo_import.custom_calls import import_custom_call
from glia.frontend.hlo_import.hlo_collective import COLLECTIVE
from glia.frontend.hlo_import.hlo_contraction import CONTRACTION
from glia.frontend.hlo_import.hlo_control import CONTROL
from glia.frontend.hlo_import.hlo_elementwise import ELEMENTWISE
from glia.frontend.hlo_import.hlo_proto import parse_module_apart
from glia.frontend.hlo_import.hlo_scan import SCAN
from glia.frontend.hlo_import.module_context import Importer, ModuleImporter, entry_computation
from glia.frontend.hlo_import.shape_ops import MOVEMENT
from glia.frontend.hlo_import.shapes import leaves, read_type
from glia.graph.ir import Graph, TensorType, Type

IMPORTERS: dict[str, Importer] = {
    **ELEMENTWISE,
    **MOVEMENT,
    **CONTRACTION,
    **EXPANDED,
    **CONTROL,
    **SCAN,
    **COLLECTIVE,
    **CHANNELS,
    "custom-call": import_custom_call,
}
"""The importer of each HLO opcode (ModuleImporter handles `parameter` itself)."""

# Names in XlaBuilder that are not the capitalised opcode.
_BUILDER_NAMES: dict[str, tuple[str, ...]] = {
    "all-gather": ("Allgather",),
    "all-reduce": ("Allreduce",),
    "and": ("And", "LogicalAnd"),
    "batch-norm-grad": ("Batchnormgrad",),
    "batch-norm-inference": ("Batchnorminference",),
    "batch-norm-training": ("Batchnorm",),
    "bitcast-convert": ("BitcastConvertType",),
    "broadcast": ("Broadcast", "BroadcastInDim"),
    "compare": ("Compare", "Eq", "Ge", "Gt", "Le", "Lt", "Ne"),
    "constant": ("Constant", "ConstantLiteral"),
    "convert": ("ConvertElementType",),
    "convolution": ("ConvGeneral", "ConvGeneralDilated"),
    "cosine": ("Cos",),
    "count-leading-zeros": ("Clz",),
    "custom-call": ("Customcall",),
    "divide": ("Div",),
    "dot": ("Dot", "DotGeneral"),
    "exponential": ("Exp",),
    "exponential-minus-one": ("Expm1",),
    "log-plus-one": ("Log1p",),
    "maximum": ("Max",),
    "minimum": ("Min",),
    "mulhi": ("MulHi",),
    "multiply": ("Mul",),
    "negate": ("Neg",),
    "not": ("Not", "LogicalNot"),
    "opt-barrier": ("OptimizationBarrier",),
    "or": ("Or", "LogicalOr"),
    "popcnt": ("PopulationCount",),
    "power": ("Pow",),
    "remainder": ("Rem",),
    "reverse": ("Rev",),
    "rng": ("RngNormal", "RngUniform"),
    "round-nearest-afz": ("Round",),
    "sine": ("Sin",),
    "subtract": ("Sub",),
    "topk": ("TopK",),
}


# Shapes are static: what sets a size compiles only where it sets the one there is.
_UNLISTED = frozenset({"set-dimension-size"})


def operators() -> list[str]:
    """The names of every operator that compiles, as XlaBuilder spells them, sorted."""
    opcodes = {"parameter", *IMPORTERS} - _UNLISTED
    listed = (each for each in opcodes if not each.endswith(("-start", "-done", "-update")))
    return sorted({name for opcode in listed for name in operator_names(opcode)})


def operator_names(opcode: str) -> tuple[str, ...]:
    """The names that XlaBuilder has for an opcode."""
    words = "".join(word.capitalize() for word in opcode.split("-"))
    return _BUILDER_NAMES.get(opcode, (words,))


def import_hlo(data: bytes) -> Graph:
    """The graph of a serialized HLO module; errors are CompileErrors that name the instruction.

    Calls are inlined and tuples flattened: a parameter or result that is a tuple becomes several.
    Names are the module's `neff_input_names` and `neff_output_names`, else input0 ..., output0 ....
    """
    parsed = parse_module_apart(data)
    proto = parsed.proto
    attributes = {entry.key: entry.value for entry in proto.frontend_attributes.map}
    imported = ModuleImporter(parsed, IMPORTERS, with_paired_channels).entry(
        lambda count: _names(attributes, "input", count)
    )
    return dataclasses.replace(
        imported.graph,
        name=proto.name or imported.graph.name,
        result_names=_names(attributes, "output", len(imported.graph.results)),
        aliases=_aliases(proto, imported.parameter_types, imported.result),
        replicas=max(0, proto.device_assignment.replica_count),
        partitions=max(0, proto.device_assignment.computation_count),
    )


def boundary_types(data: bytes) -> tuple[dict[str, TensorType], dict[str, TensorType]]:
    """Names and types of the inputs and the outputs of a serialized HLO module, in order.

    They are those that `import_hlo` gives; operations are not looked at, so none is refused. Raises
    NotAnHloModule, MalformedModule and what is wrong with shapes.
    """
    proto = parse_module_apart(data).proto
    attributes = {entry.key: entry.value for entry in proto.frontend_attributes.map}
    entry = entry_computation(proto)
    given = [each for each in entry.instructions if each.opcode == "parameter"]
    given.sort(key=lambda each: each.parameter_number)
    roots = [each for each in entry.instructions if each.id == entry.root_id]
    inputs, outputs = (
        [leaf for each in shaped for leaf in leaves(read_type(each.shape, each.name))]
        for shaped in (given, roots)
    )
    return (
        dict(zip(_names(attributes, "input", len(inputs)), inputs, strict=True)),
        dict(zip(_names(attributes, "output", len(outputs)), outputs, strict=True)),
    )


HLO_BYTES = Format(
    "HLO bytes",
    accepts=lambda module: isinstance(module, bytes | bytearray | memoryview),
    read=lambda module: import_hlo(bytes(module)),
    serialize=bytes,
)


def _names(attributes: dict[str, str], kind: str, count: int) -> tuple[str, ...]:
    """Names from the frontend attributes, or the defaults."""
    listed = attributes.get(f"neff_{kind}_names", "")
    if not listed:
        return tuple(f"{kind}{index}" for index in range(count))
    names = tuple(name.strip() for name in listed.split(","))
    if len(names) != count or len(set(names)) != count:
        raise MalformedModule(
            reason=f"neff_{kind}_names lists {len(names)} names for {count} tensors"
        )
    return names


def _aliases(proto: Any, parameters: tuple[Type, ...], result: Any) -> tuple[tuple[int, int], ...]:
    """(result, parameter) pairs of flat positions that share a buffer."""
    found = []
    for entry in proto.aliases.entries:
        number = entry.parameter_number
        if not 0 <= number < len(parameters):
            raise MalformedModule(reason=f"an alias names parameter {number}")
        before = sum(len(leaves(declared)) for declared in parameters[:number])
        inside = _leaf_position(_nesting(parameters[number]), tuple(entry.parameter_index))
        output = _leaf_position(_nesting(result), tuple(entry.output_index))
        found.append((output, before + inside))
    return tuple(found)


def _nesting(structure: Any) -> Any:
    """The nesting of a type or value: None for a tensor, a tuple for a tuple."""
    if isinstance(structure, tuple):
        return tuple(_nesting(element) for element in structure)
    if isinstance(structure, TensorType) or not hasattr(structure, "elements"):
        return None
    return tuple(_nesting(element) for element in structure.elements)


def _leaf_position(nesting: Any, index: tuple[int, ...]) -> int:
    """The flat position of the tensor at a tuple index."""
    position = 0
    for step in index:
        if nesting is None or not 0 <= step < len(nesting):
            raise MalformedModule(reason=f"an alias names element {list(index)[:8]}")
        position += sum(_leaf_count(element) for element in nesting[:step])
        nesting = nesting[step]
    if nesting is not None:
        raise MalformedModule(reason="an alias names a whole tuple")
    return position


def _leaf_count(nesting: Iterable[Any] | None) -> int:
    return 1 if nesting is None else sum(_leaf_count(element) for element in nesting)
