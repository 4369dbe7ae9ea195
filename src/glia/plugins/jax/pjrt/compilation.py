"""Programs of a framework into executables: StableHLO or HLO, compile options, one NEFF."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

import numpy as np
from jaxlib import _jax
from jaxlib.xla_client import CompileOptions, DeviceAssignment

import glia
from glia import __version__
from glia.frontend.hlo_import.hlo_collective import COLLECTIVE
from glia.frontend.hlo_import.hlo_proto import message_classes, parse_module
from glia.neff.package import Neff
from glia.plugins.jax.errors import BadSerializedExecutable, UnknownProgramFormat
from glia.plugins.jax.pjrt.executables import Executable, Program
from glia.plugins.jax.pjrt.sharded_programs import partition

_MLIR, _HLO = _FORMATS = ("mlir", "hlo")  # StableHLO as a portable artifact, and HLO
_MAGIC = b"glia executable\n"

# Messages of XLA's xla_data.proto and hlo.proto that only frameworks exchange
_SCHEMA = """
ComputationDevices: replica_device_ids=1 i64*
DeviceAssignment: replicas=1 i32, computations=2 i32, computation_devices=3 ComputationDevices*
Layout: minor_to_major=1 i64*
Shape: element_type=2 i32, dimensions=3 i64*, tuple_shapes=4 Shape*, layout=5 Layout,
    is_dynamic=6 bool*
ProgramShape: parameters=1 Shape*, result=2 Shape, parameter_names=3 str*
DonorEntry: parameter_number=1 i64, parameter_index=2 i64*
Donors: entries=1 DonorEntry*
AliasEntry: output_index=1 i64*, parameter_number=2 i64, parameter_index=3 i64*, kind=4 i32
Aliases: entries=1 AliasEntry*
Module: name=1 str, host_program_shape=4 ProgramShape, aliases=8 Aliases, donors=18 Donors
Config: entry_computation_layout=1 ProgramShape
ModuleWithConfig: hlo_module=1 bytes, config=2 Config
"""


@cache
def messages() -> dict[str, Any]:
    """The classes of the table above, by name."""
    return message_classes("pjrt", _SCHEMA)


def compile_program(code: bytes, kind: str, serialized_options: bytes) -> Executable:
    """The executable of a framework's program.

    Raises UnknownProgramFormat, NotPartitioned, and what `glia.compile` and `glia.load` raise.
    """
    options = CompileOptions.ParseFromString(serialized_options)
    if kind not in _FORMATS:
        raise UnknownProgramFormat(format=kind)
    if options.num_partitions > 1:
        hlo = partition(code if kind == _MLIR else _to_mlir(code), serialized_options)
    else:
        hlo = code if kind == _HLO else _to_hlo(code)
    chosen = dict(options.env_option_overrides)
    if _depends_on_ranks(hlo):
        chosen |= {"replicas": options.num_replicas, "partitions": options.num_partitions}
    neff = glia.compile(hlo, **chosen)
    return _executable(hlo, neff, serialized_options)


def _depends_on_ranks(hlo: bytes) -> bool:
    """Whether results depend on other devices, or on which device computes."""
    computations = parse_module(hlo).computations
    return any(each.opcode in COLLECTIVE for one in computations for each in one.instructions)


def _to_mlir(code: bytes) -> bytes:
    """The MLIR of a serialized HLO module."""
    return bytes(_jax.mlir.hlo_to_stablehlo(code))


def _to_hlo(code: bytes) -> bytes:
    """The serialized HLO module of a program in MLIR."""
    computation = _jax.mlir.mlir_module_to_xla_computation(
        code, use_tuple_args=False, return_tuple=False
    )
    return bytes(computation.as_serialized_hlo_module_proto())


def _executable(hlo: bytes, neff: Neff, serialized_options: bytes) -> Executable:
    """The executable of a compiled module."""
    options = CompileOptions.ParseFromString(serialized_options)
    module = messages()["Module"].FromString(hlo)
    program = Program(
        name=module.name,
        neff=neff,
        optimized=_with_config(hlo, module),
        donated=_donated(module),
        fingerprint=hashlib.sha256(hlo + serialized_options).hexdigest(),
    )
    return Executable(
        program,
        serialized_options,
        _assignment(options),
        (options.num_replicas, options.num_partitions),
    )


def _with_config(hlo: bytes, module: Any) -> bytes:
    """The module with the layout of its entry, as frameworks read optimized programs."""
    whole = messages()["ModuleWithConfig"](hlo_module=hlo)
    whole.config.entry_computation_layout.CopyFrom(module.host_program_shape)
    return bytes(whole.SerializeToString())


def _donated(module: Any) -> tuple[int, ...]:
    """The arguments whose arrays end with a call: results take their place, or may."""
    entries = (*module.aliases.entries, *module.donors.entries)
    return tuple(sorted({each.parameter_number for each in entries}))


def _assignment(options: Any) -> tuple[int, ...]:
    """The number of the device of each replica's partitions, in their order."""
    if options.device_assignment is None:
        return tuple(range(options.num_replicas * options.num_partitions))
    given = messages()["DeviceAssignment"].FromString(options.device_assignment.serialize())
    of_partitions = [each.replica_device_ids for each in given.computation_devices]
    return tuple(number for replica in zip(*of_partitions, strict=True) for number in replica)


def serialized_assignment(executable: Executable) -> bytes:
    """The devices of an executable, as the interface gives them."""
    numbers = np.array(executable.assignment).reshape(executable.division)
    return bytes(DeviceAssignment.create(numbers).serialize())


def serialize(executable: Executable) -> bytes:
    """An executable as bytes that `deserialize` takes."""
    hlo = messages()["ModuleWithConfig"].FromString(executable.program.optimized).hlo_module
    parts = [executable.program.neff.to_bytes(), hlo, executable.serialized_options]
    content = b"".join(parts)
    facts = {
        "glia": __version__,
        "bytes": [len(each) for each in parts],
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return _MAGIC + json.dumps(facts).encode() + b"\n" + content


def deserialize(data: bytes, other_options: bytes) -> Executable:
    """The executable in `data`, with its own compile options or with others.

    Raises BadSerializedExecutable, and what reading a NEFF raises.
    """
    head, _, content = data.removeprefix(_MAGIC).partition(b"\n")
    if not data.startswith(_MAGIC):
        raise BadSerializedExecutable(reason="glia did not write it")
    try:
        facts = json.loads(head)
        written_by, lengths, digest = facts["glia"], facts["bytes"], facts["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadSerializedExecutable(reason="its first line is damaged") from error
    if written_by != __version__:
        reason = f"glia {written_by} wrote it, this is {__version__}"
        raise BadSerializedExecutable(reason=reason)
    if hashlib.sha256(content).hexdigest() != digest:
        raise BadSerializedExecutable(reason="it is damaged")
    ends = np.cumsum(lengths).tolist()
    neff, hlo, options = (
        content[end - length : end] for end, length in zip(ends, lengths, strict=True)
    )
    parse_module(hlo)
    return _executable(hlo, Neff.from_bytes(neff), other_options or options)
