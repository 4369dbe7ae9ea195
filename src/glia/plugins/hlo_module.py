"""Serialized HLO modules, written instruction by instruction.

What an adapter of a framework writes is what the importer of HLO reads: the schema of the protobuf
is the importer's. Weights are copied once, into the bytes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glia.base.dtype import DType, from_numpy
from glia.base.loc import UNKNOWN, Loc
from glia.frontend.hlo_import.hlo_proto import messages
from glia.frontend.hlo_import.payloads import APART_BYTES, Bytes, with_payloads
from glia.frontend.hlo_import.shapes import ELEMENT_NUMBERS, TUPLE
from glia.graph.ir import TensorType

_VARINTS = ("s32", "s64", "u32", "u64")
_MAY_ALIAS = 1


@dataclass(frozen=True)
class HloValue:
    """The result of an instruction: its identity in the module, and its type."""

    identity: int
    type: TensorType

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)


class HloModule:
    """A module that is written; `serialized` gives its bytes."""

    def __init__(self, name: str) -> None:
        self.proto = messages()["Module"](name=name)
        self.payloads: list[Bytes] = []  # of large constants, which are apart from the message
        self._identities = 0
        self.entry = Computation(self, name)

    def next_identity(self) -> int:
        """A number that nothing else in the module has."""
        self._identities += 1
        return self._identities

    def alias(self, result: int, parameter: int) -> None:
        """Let a result of the entry have the memory of a parameter."""
        self.proto.aliases.entries.add(
            output_index=[result], parameter_number=parameter, kind=_MAY_ALIAS
        )

    def name_tensors(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Name the inputs and outputs of the compiled model."""
        for kind, names in (("input", inputs), ("output", outputs)):
            entry = self.proto.frontend_attributes.map.add()
            entry.key, entry.value = f"neff_{kind}_names", ",".join(names)

    def serialized(self, results: Sequence[HloValue]) -> bytes:
        """The bytes of the module, whose entry returns a tuple of results."""
        self.entry.end(results, is_tuple=True)
        self.proto.entry_computation_name = self.entry.proto.name
        self.proto.entry_computation_id = self.entry.proto.id
        return _serialized(self.proto, self.payloads)


@dataclass
class Computation:
    """A computation of a module, to which instructions are added in order.

    `loc` is the source line of what is added next.
    """

    module: HloModule
    name: str
    loc: Loc = UNKNOWN
    proto: Any = field(init=False)
    parameters: int = 0
    _constants: dict[tuple[Any, ...], HloValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A computation is written whole before the one that calls it is added to: not in place.
        identity = self.module.next_identity()
        self.proto = messages()["Computation"](name=f"{self.name}.{identity}", id=identity)

    @contextlib.contextmanager
    def at(self, loc: Loc) -> Iterator[None]:
        """Instructions added inside are of a source line."""
        outer, self.loc = self.loc, loc
        yield
        self.loc = outer

    def end(self, results: Sequence[HloValue], *, is_tuple: bool) -> int:
        """Make results the root and add the computation to the module; its number."""
        root = self._tuple(results) if is_tuple else results[0].identity
        self.proto.root_id = root
        self.module.proto.computations.append(self.proto)
        number: int = self.proto.id
        return number

    def parameter(self, kind: TensorType, name: str = "") -> HloValue:
        """The next parameter of the computation."""
        number, self.parameters = self.parameters, self.parameters + 1
        value = self.add("parameter", kind, parameter_number=number)
        if name:
            self.proto.instructions[-1].metadata.op_name = name
        return value

    def constant(self, array: np.ndarray) -> HloValue:
        """A constant; equal small ones are written once."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        kind = TensorType(from_numpy(array.dtype), array.shape)
        key = (kind, array.tobytes()) if array.nbytes <= 64 else None
        if key in self._constants:
            return self._constants[key]
        value = self.add("constant", kind, literal=_literal(array, kind, self.module.payloads))
        if key is not None:
            self._constants[key] = value
        return value

    def add(
        self,
        opcode: str,
        kind: TensorType,
        operands: Sequence[HloValue] = (),
        calls: Sequence[int] = (),
        **attributes: Any,
    ) -> HloValue:
        """An instruction with one result."""
        return HloValue(self._add(opcode, _shape(kind), operands, calls, attributes), kind)

    def add_tuple(
        self,
        opcode: str,
        kinds: Sequence[TensorType],
        operands: Sequence[HloValue],
        calls: Sequence[int] = (),
        **attributes: Any,
    ) -> tuple[HloValue, ...]:
        """An instruction whose result is a tuple; its elements."""
        whole = self._add(opcode, _tuple_shape(kinds), operands, calls, attributes)
        return tuple(
            HloValue(self._element(whole, index, kind), kind) for index, kind in enumerate(kinds)
        )

    def _element(self, whole: int, index: int, kind: TensorType) -> int:
        number = self._add("get-tuple-element", _shape(kind), (), (), {"tuple_index": index})
        self.proto.instructions[-1].operand_ids.append(whole)
        return number

    def _tuple(self, values: Sequence[HloValue]) -> int:
        return self._add("tuple", _tuple_shape([v.type for v in values]), values, (), {})

    def _add(
        self,
        opcode: str,
        shape: Any,
        operands: Sequence[HloValue],
        calls: Sequence[int],
        attributes: dict[str, Any],
    ) -> int:
        identity = self.module.next_identity()
        instruction = self.proto.instructions.add(
            name=f"{opcode}.{identity}",
            opcode=opcode,
            shape=shape,
            id=identity,
            operand_ids=[each.identity for each in operands],
            called_computation_ids=calls,
            **attributes,
        )
        if self.loc is not UNKNOWN:
            instruction.metadata.source_file = self.loc.file
            instruction.metadata.source_line = self.loc.line
            instruction.metadata.op_name = self.loc.name
        return identity


def with_constants(data: bytes, values: Mapping[int, np.ndarray]) -> bytes:
    """A module whose parameters of these numbers are constants; the others move up."""
    module = messages()["Module"].FromString(data)
    payloads: list[Bytes] = []
    left = itertools.count()
    for instruction in sorted(_parameters(module), key=lambda each: each.parameter_number):
        number = instruction.parameter_number
        if number not in values:
            instruction.parameter_number = next(left)
            continue
        array = np.ascontiguousarray(values[number]).reshape(values[number].shape)
        kind = TensorType(from_numpy(array.dtype), array.shape)
        instruction.opcode = "constant"
        instruction.ClearField("parameter_number")
        instruction.literal.CopyFrom(_literal(array, kind, payloads))
    return _serialized(module, payloads)


def _serialized(module: Any, payloads: Sequence[Bytes]) -> bytes:
    """The bytes of a module whose large payloads are apart from its message."""
    return b"".join(with_payloads(module.SerializeToString(deterministic=True), payloads))


def _parameters(module: Any) -> list[Any]:
    """The parameters of a module's entry."""
    entry = module.entry_computation_id
    return [
        instruction
        for computation in module.computations
        if computation.id == entry
        for instruction in computation.instructions
        if instruction.opcode == "parameter"
    ]


def located(data: bytes, lines: Mapping[str, Loc]) -> bytes:
    """A module whose instructions have the source lines of the operators that they are from."""
    module = messages()["Module"].FromString(data)
    for computation in module.computations:
        for instruction in computation.instructions:
            line = lines.get(instruction.metadata.op_name)
            if line is not None:
                instruction.metadata.op_name = line.name
                instruction.metadata.source_file = line.file
                instruction.metadata.source_line = line.line
    moved: bytes = module.SerializeToString(deterministic=True)
    return moved


def _shape(kind: TensorType) -> Any:
    return messages()["Shape"](element_type=ELEMENT_NUMBERS[kind.dtype.name], dimensions=kind.shape)


def _tuple_shape(kinds: Sequence[TensorType]) -> Any:
    return messages()["Shape"](element_type=TUPLE, tuple_shapes=[_shape(kind) for kind in kinds])


def _literal(array: np.ndarray, kind: TensorType, payloads: list[Bytes]) -> Any:
    """The literal of an array; a large payload is entered in `payloads`, the others are in it."""
    literal = messages()["Literal"](shape=_shape(kind))
    is_varint = kind.dtype.name in _VARINTS
    payload = _varints(array) if is_varint else array.reshape(-1).view(np.uint8).data
    if len(payload) >= APART_BYTES:
        payloads.append(payload)
        literal.payload_number = len(payloads)
        payload = b""
    elif not payload:
        return literal
    getattr(literal, f"{kind.dtype}s").append(bytes(payload))
    return literal


def _varints(array: np.ndarray) -> bytes:
    """Integers in protobuf's base-128 form, seven bits to a byte, all at once."""
    words = array.reshape(-1).astype(np.int64).view(np.uint64)
    septets = np.empty((len(words), 10), np.uint8)
    for place in range(10):
        septets[:, place] = (words >> np.uint64(7 * place)) & np.uint64(127)
    lengths = 10 - np.argmax(septets[:, ::-1] != 0, axis=1)
    lengths[words == 0] = 1
    places = np.arange(10)
    septets[places < lengths[:, None] - 1] |= 128
    kept: np.ndarray = septets[places < lengths[:, None]]
    return kept.tobytes()
