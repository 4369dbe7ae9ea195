"""Programs of a framework into executables: StableHLO or HLO, compile options, one NEFF."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from functools import cache
from typing import Any

import numpy as np

from glia import __version__
from glia.cache.collecting import is_collecting
from glia.compiler import collect, compile_titled
from glia.frontend.errors import FrameworkMissing
from glia.frontend.hlo_import.hlo_collective import COLLECTIVE
from glia.frontend.hlo_import.hlo_proto import message_classes, parse_module
from glia.neff.package import Neff
from glia.plugins.pjrt.element_types import dtype_of
from glia.plugins.pjrt.errors import BadSerializedExecutable, UnknownProgramFormat
from glia.plugins.pjrt.executables import Executable
from glia.plugins.pjrt.programs import (
    CollectedProgram,
    CpuProgram,
    DeviceProgram,
    Program,
    Tensor,
    runs_on_cpu,
)

_MLIR, _HLO = _FORMATS = ("mlir", "hlo")  # StableHLO as a portable artifact, and HLO
_BY_JAXLIB = "glia.plugins.pjrt.converted_programs"
_MAGIC = b"glia executable\n"

# Messages of XLA's xla_data.proto, hlo.proto and compile_options.proto that frameworks exchange
_SCHEMA = """
ComputationDevices: replica_device_ids=1 i64*
DeviceAssignment: replicas=1 i32, computations=2 i32, computation_devices=3 ComputationDevices*
BuildOptions: num_replicas=4 i64, num_partitions=5 i64, device_assignment=9 DeviceAssignment
OptionValue: text=1 str?, flag=2 bool?, integer=3 i64?, real=4 f64?
OptionOverride: name=1 str, value=2 OptionValue
CompileOptions: build=3 BuildOptions, overrides=7 OptionOverride*
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
    options = _options(serialized_options)
    if kind not in _FORMATS:
        raise UnknownProgramFormat(format=kind)
    build = options.build
    hlo = _module_of_device(code, kind, build.num_partitions > 1, serialized_options)
    module = messages()["Module"].FromString(hlo)
    chosen = {each.name: _only_value(each.value) for each in options.overrides}
    if runs_on_cpu() and _is_trivial(hlo):
        return _executable(hlo, module, None, serialized_options)
    if _depends_on_ranks(hlo):
        chosen |= {"replicas": build.num_replicas, "partitions": build.num_partitions}
    if is_collecting():
        collect(hlo, **chosen)
        return _executable(hlo, module, None, serialized_options, is_collected=True)
    neff = compile_titled(hlo, module.name, chosen)
    return _executable(hlo, module, neff, serialized_options)


def _options(serialized: bytes) -> Any:
    """Compile options as frameworks give them."""
    return messages()["CompileOptions"].FromString(serialized)


def _only_value(value: Any) -> Any:
    """The value of an option, of whichever type it is."""
    ((_, found),) = value.ListFields()
    return found


def _module_of_device(code: bytes, kind: str, is_divided: bool, serialized_options: bytes) -> bytes:
    """The HLO module that each device runs.

    Raises FrameworkMissing without jaxlib where it is not what is given.
    """
    if kind == _HLO and not is_divided:
        return code
    try:
        programs = importlib.import_module(_BY_JAXLIB)
    except ModuleNotFoundError as error:
        what = "a program that is divided among devices" if is_divided else "StableHLO"
        raise FrameworkMissing(what=what, package="jaxlib", extra="jax") from error
    if not is_divided:
        return bytes(programs.to_hlo(code))
    artifact = code if kind == _MLIR else programs.to_mlir(code)
    return bytes(programs.partition(artifact, serialized_options))


def _depends_on_ranks(hlo: bytes) -> bool:
    """Whether results depend on other devices, or on which device computes."""
    return not _opcodes(hlo).isdisjoint(COLLECTIVE)


def _is_trivial(hlo: bytes) -> bool:
    """Whether a module has neither collectives nor kernels, and jax is there to run it by XLA."""
    has_others = not _opcodes(hlo).isdisjoint({*COLLECTIVE, "custom-call"})
    return not has_others and importlib.util.find_spec("jax") is not None


def _opcodes(hlo: bytes) -> set[str]:
    """The operations of a module."""
    computations = parse_module(hlo).computations
    return {each.opcode for one in computations for each in one.instructions}


def _executable(
    hlo: bytes,
    module: Any,
    neff: Neff | None,
    serialized_options: bytes,
    *,
    is_collected: bool = False,
) -> Executable:
    """The executable of a module that is compiled or collected, else that of the host's processor.

    `module` is what `hlo` holds, `neff` what it was compiled to.
    """
    build = _options(serialized_options).build
    facts = {
        "name": module.name,
        "optimized": _with_config(hlo, module),
        "donated": _donated(module),
        "fingerprint": hashlib.sha256(hlo + serialized_options).hexdigest(),
    }
    program: Program
    if neff is not None:
        program = DeviceProgram(**facts, neff=neff, is_divided=build.num_partitions > 1)
    elif is_collected:
        program = CollectedProgram(**facts, tensors=_boundary(module))
    else:
        program = CpuProgram(**facts, tensors=_boundary(module), hlo=hlo)
    return Executable(
        program,
        serialized_options,
        _assignment(build),
        (build.num_replicas, build.num_partitions),
    )


def _boundary(module: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Dtypes and shapes of a module's arguments and results."""
    shape = module.host_program_shape
    results = shape.result.tuple_shapes or [shape.result]
    given, found = (
        [(dtype_of(each.element_type), tuple(each.dimensions)) for each in shapes]
        for shapes in (shape.parameters, results)
    )
    return given, found


def _with_config(hlo: bytes, module: Any) -> bytes:
    """The module with the layout of its entry, as frameworks read optimized programs."""
    whole = messages()["ModuleWithConfig"](hlo_module=hlo)
    whole.config.entry_computation_layout.CopyFrom(module.host_program_shape)
    return bytes(whole.SerializeToString())


def _donated(module: Any) -> tuple[int, ...]:
    """The arguments whose arrays end with a call: results take their place, or may."""
    entries = (*module.aliases.entries, *module.donors.entries)
    return tuple(sorted({each.parameter_number for each in entries}))


def _assignment(build: Any) -> tuple[int, ...]:
    """The number of the device of each replica's partitions, in their order."""
    if not build.HasField("device_assignment"):
        return tuple(range(build.num_replicas * build.num_partitions))
    of_partitions = [
        each.replica_device_ids for each in build.device_assignment.computation_devices
    ]
    return tuple(number for replica in zip(*of_partitions, strict=True) for number in replica)


def serialized_assignment(executable: Executable) -> bytes:
    """The devices of an executable, as the interface gives them."""
    replicas, partitions = executable.division
    made = messages()["DeviceAssignment"](replicas=replicas, computations=partitions)
    for numbers in np.array(executable.assignment).reshape(executable.division).T:
        made.computation_devices.add(replica_device_ids=numbers.tolist())
    return bytes(made.SerializeToString())


def serialize(executable: Executable) -> bytes:
    """An executable as bytes that `deserialize` takes."""
    hlo = messages()["ModuleWithConfig"].FromString(executable.program.optimized).hlo_module
    parts = [executable.program.code, hlo, executable.serialized_options]
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
    module = messages()["Module"].FromString(hlo)
    compiled = Neff.from_bytes(neff) if neff else None
    return _executable(hlo, module, compiled, other_options or options)
