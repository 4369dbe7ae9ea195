"""The protobuf schema of HLO modules: the fields this compiler reads, in one compact table.

Field numbers and wire types are those of XLA's hlo.proto and xla_data.proto; names are ours. The
numeric arrays of a literal are declared as `bytes`, which has the wire format of a packed array, so
that weights are never turned into Python numbers. `payload_number` is of `payloads.py`, not XLA's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from glia.base.gzip_members import BadGzip, inflate, is_gzip
from glia.frontend.errors import NotAnHloModule
from glia.frontend.hlo_import.payloads import Bytes, split_payloads

LARGEST_FILE_BYTES = 2**31 - 1  # protobuf's own limit for one message

# One line per message: `Name: field=number type`; `*` marks a repeated field, `?` one of which
# it is known whether it was set.
_SCHEMA = """
Layout: minor_to_major=1 i64*
Shape: element_type=2 i32, dimensions=3 i64*, tuple_shapes=4 Shape*, layout=5 Layout,
    is_dynamic=6 bool*
ProgramShape: parameters=1 Shape*, result=2 Shape, parameter_names=3 str*
Literal: shape=1 Shape, preds=2 bytes*, u8s=3 bytes*, s32s=4 bytes*, s64s=5 bytes*, u32s=6 bytes*,
    u64s=7 bytes*, f32s=8 bytes*, f64s=9 bytes*, tuple_literals=10 Literal*, f16s=11 bytes*,
    c64s=12 bytes*, bf16s=13 bytes*, s8s=15 bytes*, u16s=16 bytes*, s16s=17 bytes*, c128s=18 bytes*,
    f8e5m2s=19 bytes*, f8e4m3fns=20 bytes*, s4s=21 bytes*, u4s=22 bytes*, f8e4m3b11fnuzs=23 bytes*,
    f8e5m2fnuzs=24 bytes*, f8e4m3fnuzs=25 bytes*, s2s=26 bytes*, u2s=27 bytes*, f8e4m3s=28 bytes*,
    f8e3m4s=29 bytes*, f4e2m1fns=32 bytes*, f8e8m0fnus=33 bytes*, payload_number=536870911 i64
Metadata: op_type=1 str, op_name=2 str, source_file=3 str, source_line=4 i32, stack_frame_id=15 i32
WindowDimension: size=1 i64, stride=2 i64, padding_low=3 i64, padding_high=4 i64,
    window_dilation=5 i64, base_dilation=6 i64, window_reversal=7 bool
Window: dimensions=1 WindowDimension*
ConvolutionDimensions: kernel_input_feature=3 i64, kernel_output_feature=4 i64,
    kernel_spatial=6 i64*, input_batch=7 i64, input_feature=8 i64, output_batch=9 i64,
    output_feature=10 i64, input_spatial=11 i64*, output_spatial=12 i64*
DotDimensions: a_contract=1 i64*, b_contract=2 i64*, a_batch=3 i64*, b_batch=4 i64*
RaggedDotDimensions: dot=1 DotDimensions, a_ragged=2 i64*, b_group=3 i64*
SliceDimension: start=1 i64, limit=2 i64, stride=3 i64
PaddingDimension: low=1 i64, high=2 i64, interior=3 i64
Padding: dimensions=1 PaddingDimension*
GatherDimensions: offset_dims=1 i64*, collapsed_dims=2 i64*, start_index_map=3 i64*,
    index_vector_dim=4 i64, x_batch_dims=5 i64*, indices_batch_dims=6 i64*
ScatterDimensions: update_window_dims=1 i64*, inserted_window_dims=2 i64*, scatter_dims=3 i64*,
    index_vector_dim=4 i64, x_batch_dims=5 i64*, indices_batch_dims=6 i64*
TriangularSolve: left_side=1 bool, lower=2 bool, unit_diagonal=3 bool, transpose=4 i32
Cholesky: lower=1 bool
Attribute: key=1 str, value=2 str
Attributes: map=1 Attribute*
ReplicaGroup: replica_ids=1 i64*
IotaGroups: groups=1 i64, devices_per_group=2 i64, reshape_dims=3 i64*, transpose_perm=4 i32*
DeviceList: replica_groups=1 ReplicaGroup*, iota=2 IotaGroups
MeshAxis: name=1 str, size=2 i64
DeviceOrder: reshape_dims=1 i64*, transpose_perm=2 i32*
Mesh: axes=1 MeshAxis*, device_ids=2 i64*, order=3 DeviceOrder
SubAxis: pre_size=1 i64, size=2 i64
AxisReference: mesh_axis=1 i64, sub_axis=2 SubAxis
MeshGroups: mesh=1 Mesh, axes=2 AxisReference*
SourceTarget: source=1 i64, target=2 i64
Instruction: name=1 str, opcode=2 str, shape=3 Shape, metadata=7 Metadata, literal=8 Literal,
    parameter_number=9 i64, fusion_kind=11 str, tuple_index=13 i64, dimensions=14 i64*,
    window=15 Window, convolution_dimensions=16 ConvolutionDimensions,
    slice_dimensions=17 SliceDimension*, exponent_bits=18 i32, mantissa_bits=19 i32,
    dynamic_slice_sizes=20 i64*, padding=21 Padding, distribution=23 i32, epsilon=24 f32,
    feature_index=25 i64, channel_id=26 i64, custom_call_target=28 str,
    dot_dimensions=30 DotDimensions, fft_type=31 i32, fft_length=32 i64*,
    gather_dimensions=33 GatherDimensions, gather_slice_sizes=34 i64*, id=35 i64,
    operand_ids=36 i64*, called_computation_ids=38 i64*, backend_config=43 bytes,
    is_host_transfer=47 bool,
    scatter_dimensions=48 ScatterDimensions, replica_groups=49 ReplicaGroup*,
    feature_group_count=50 i64, source_target_pairs=52 SourceTarget*, batch_group_count=58 i64,
    triangular_solve=59 TriangularSolve, is_stable=60 bool, cholesky=62 Cholesky,
    comparison_direction=63 str, unique_indices=69 bool, frontend_attributes=68 Attributes,
    rng_algorithm=70 i32, use_global_device_ids=71 bool, comparison_type=72 str, k=81 i64,
    largest=85 bool, device_list=87 DeviceList, ragged_dot_dimensions=90 RaggedDotDimensions,
    iota_groups=92 IotaGroups, mesh_groups=93 MeshGroups, is_reverse=94 bool, num_carries=95 i64
Computation: name=1 str, instructions=2 Instruction*, program_shape=4 ProgramShape, id=5 i64,
    root_id=6 i64
AliasEntry: output_index=1 i64*, parameter_number=2 i64, parameter_index=3 i64*, kind=4 i32
Aliases: entries=1 AliasEntry*
FileLocation: file_name_id=1 i32, function_name_id=2 i32, line=3 i32, column=4 i32
StackFrame: file_location_id=1 i32, parent_frame_id=2 i32
StackFrames: file_names=1 str*, function_names=2 str*, file_locations=3 FileLocation*,
    stack_frames=4 StackFrame*
DeviceAssignment: replica_count=1 i32, computation_count=2 i32
Module: name=1 str, entry_computation_name=2 str, computations=3 Computation*,
    host_program_shape=4 ProgramShape, entry_computation_id=6 i64, aliases=8 Aliases,
    device_assignment=15 DeviceAssignment, stack_frames=17 StackFrames,
    frontend_attributes=19 Attributes
Hlo: hlo_module=1 Module
"""

_NEFF_HEADER_BYTES = (1024).to_bytes(8, "little")  # the second field of a NEFF
_SCALAR_TYPES = {"i64": 3, "i32": 5, "bool": 8, "str": 9, "bytes": 12, "f32": 2, "f64": 1}
_MESSAGE_TYPE = 11
_OPTIONAL, _REPEATED = 1, 3


@cache
def messages() -> dict[str, Any]:
    """The message classes by our names; built on first use, so that importing glia stays fast."""
    return message_classes("hlo", _SCHEMA)


def message_classes(package: str, schema: str) -> dict[str, Any]:
    """The classes of a table of messages, by name; `package` tells it from other tables."""
    from google.protobuf import (  # type: ignore[import-untyped]  # protobuf declares no types
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(
        name=f"glia/{package}.proto", package=f"glia.{package}", syntax="proto3"
    )
    declarations = _declarations(schema)
    for name, fields in declarations:
        message = file.message_type.add(name=name)
        for field, number, kind, mark in fields:
            declared = message.field.add(
                name=field, number=number, label=_REPEATED if mark == "*" else _OPTIONAL
            )
            if mark == "?":
                declared.proto3_optional = True
                declared.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
            declared.type = _SCALAR_TYPES.get(kind, _MESSAGE_TYPE)
            if kind not in _SCALAR_TYPES:
                declared.type_name = f".glia.{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"glia.{package}.{name}"))
        for name, _ in declarations
    }


def _declarations(schema: str) -> list[tuple[str, list[tuple[str, int, str, str]]]]:
    """A table of messages, parsed: each with its (field, number, type, mark)."""
    found = []
    for name, body in re.findall(r"^(\w+): (.*(?:\n    .*)*)", schema, re.MULTILINE):
        fields = re.findall(r"(\w+)=(\d+) (\w+)([*?]?)", body)
        found.append((name, [(f, int(n), kind, mark) for f, n, kind, mark in fields]))
    return found


@dataclass(frozen=True)
class ParsedModule:
    """An HloModuleProto, and the payloads of its large literals, by their number from 1."""

    proto: Any
    payloads: tuple[Bytes, ...] = ()


def parse_module(data: bytes) -> Any:
    """The HloModuleProto in `data`: an HloModuleProto or HloProto, plain or gzip.

    Raises NotAnHloModule when the bytes are neither.
    """
    return _parsed(data, _undivided).proto


def parse_module_apart(data: bytes) -> ParsedModule:
    """What `parse_module` gives, whose large payloads stay where they are in `data`."""
    return _parsed(data, split_payloads)


def _parsed(
    data: bytes, divided: Callable[[bytes, str], tuple[bytes, tuple[Bytes, ...]]]
) -> ParsedModule:
    """The module in `data`, of which `divided` says what is parsed and what stays beside it."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no types

    data = _decompress(data)
    reasons = []
    for kind in ("Module", "Hlo"):
        message = messages()[kind]()
        parsed, payloads = divided(data, kind)
        if len(parsed) > LARGEST_FILE_BYTES:
            reasons.append(f"{len(parsed)} bytes, protobuf's limit is {LARGEST_FILE_BYTES}")
            continue
        try:
            message.ParseFromString(parsed)
        except DecodeError as error:
            reasons.append(str(error))
            continue
        module = message if kind == "Module" else message.hlo_module
        if not _is_module(module):
            continue
        if payloads and [*_payload_numbers(module)] != [*range(1, len(payloads) + 1)]:
            return _parsed(data, _undivided)  # some are not ours
        return ParsedModule(module, payloads)
    raise NotAnHloModule(reason=_diagnose(data, reasons))


def _undivided(data: bytes, _: str) -> tuple[bytes, tuple[Bytes, ...]]:
    return data, ()


def _payload_numbers(module: Any) -> Iterator[int]:
    """The numbers of payloads that the literals of a module have, in order."""
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.HasField("literal"):
                yield from _numbers_in(instruction.literal)


def _numbers_in(literal: Any) -> Iterator[int]:
    if literal.payload_number:
        yield literal.payload_number
    for element in literal.tuple_literals:
        yield from _numbers_in(element)


def message_text(message: Any) -> str:
    """A message in protobuf's text form, in one line."""
    from google.protobuf import text_format

    text: str = text_format.MessageToString(message, as_one_line=True)
    return text


def _is_module(module: Any) -> bool:
    """Whether the parsed message has what every HLO module has: instructions with opcodes."""
    return any(computation.instructions for computation in module.computations) and all(
        instruction.opcode
        for computation in module.computations
        for instruction in computation.instructions
    )


def _decompress(data: bytes) -> bytes:
    """`data` itself, or what it holds when it is gzip."""
    if is_gzip(data):
        try:
            data = bytes(inflate(data))
        except BadGzip as problem:
            raise NotAnHloModule(reason=f"damaged gzip data ({problem})") from problem
    if not data:
        raise NotAnHloModule(reason="it is empty")
    return data


def _diagnose(data: bytes, reasons: list[str]) -> str:
    head = data[:512]
    if head.lstrip()[:9] == b"HloModule":
        return "it is HLO text, not a serialized proto"
    if head.startswith(b"ML\xefR") or b"func.func" in head or head.lstrip().startswith(b"module"):
        return "it is MLIR; StableHLO is converted by the jax front end"
    if head[8:16] == _NEFF_HEADER_BYTES:
        return "it is a NEFF, the result of a compilation; `glia inspect` describes it"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return "it is text"
    return reasons[-1] if reasons else "it holds no computation with instructions"
