"""Description of a NEFF file for people and scripts, also of files that glia did not write."""

from __future__ import annotations

from typing import Any

from glia.machine.ir import Binding, Program
from glia.neff.errors import ForeignNeff
from glia.neff.layout import Header, unpack_header
from glia.neff.metadata import RANK_COUNTS, metrics
from glia.neff.read import read_members, read_neff


def describe_neff(data: bytes | memoryview) -> dict[str, Any]:
    """Header, members with sizes in bytes, and, when glia compiled it, the program's facts.

    The result is plain values that JSON can hold. Raises NeffError's subclasses for damaged files;
    a sound file of another compiler is described as far as it goes.
    """
    view = memoryview(data)
    header = unpack_header(view)
    members = read_members(header, view)
    described: dict[str, Any] = {
        "header": _header(header),
        "members": {name: len(content) for name, content in members.items()},
    }
    try:
        programs, options, statistics, is_compressed, _, *ranks = read_neff(view)
    except ForeignNeff:
        return described
    described["target"] = programs[0].target
    described["compressed"] = is_compressed
    described["ranks"] = dict(zip(RANK_COUNTS, ranks, strict=True))
    described["options"] = dict(options)
    described["statistics"] = dict(statistics)
    described["inputs"] = [_tensor(binding) for binding in programs[0].inputs]
    described["outputs"] = [_tensor(binding) for binding in programs[0].outputs]
    described["constant_bytes"] = sum(_constant_bytes(program) for program in programs)
    return described | metrics(programs)


def _header(header: Header) -> dict[str, Any]:
    return {
        "name": header.name,
        "build": header.build,
        "version": ".".join(map(str, header.version)),
        "package_version": header.package_version,
        "data_bytes": header.data_bytes,
        "cores": header.cores,
        "logical_core_cores": header.logical_core_cores,
        "feature_bits": f"0x{header.feature_bits:016x}",
        "hash": header.data_hash.hex(),
        "uuid": header.uuid.hex(),
        "compiled_by_glia": header.is_from_glia,
    }


def _tensor(binding: Binding) -> dict[str, Any]:
    return {
        "name": binding.name,
        "dtype": binding.dtype.name,
        "shape": list(binding.shape),
        "tile": binding.tile.name,
    }


def _constant_bytes(program: Program) -> int:
    return sum(getattr(array, "nbytes", 0) for array in program.constants.values())
