"""Read a NEFF file; every byte of it is treated as hostile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from glia.arch import TARGETS, get_target
from glia.base.files import read_once
from glia.base.garbage_collection import collector_paused
from glia.base.gzip_members import is_gzip
from glia.isa.operand import Memory
from glia.machine.binary.decode import decode_program
from glia.machine.binary.errors import DamagedNeff, UnsupportedNeffVersion
from glia.machine.ir import Program
from glia.machine.legal import program_violations
from glia.machine.program_cache import ProgramDigest
from glia.neff.archive import unpack_archive
from glia.neff.errors import ForeignNeff, IllegalProgram
from glia.neff.layout import (
    HEADER_BYTES,
    NEFF_VERSION,
    PACKAGE_SHA256,
    Header,
    unpack_header,
)
from glia.neff.metadata import RANK_COUNTS, REPORT, engine_file

MAXIMUM_CORES = 64  # tpb_per_node has one byte for each of at most 64 nodes
MAXIMUM_RANKS = 1 << 16
MAXIMUM_JSON_BYTES = 64 << 20
LARGE_BYTES = 16 << 20  # of a payload whose hash takes longer than a thread

Contents = tuple[
    tuple[Program, ...],
    Mapping[str, object],
    Mapping[str, float],
    bool,
    Mapping[str, Any],
    int,
    int,
]


Meanwhile = Callable[[Sequence[Program], int], None]  # takes the ranks too


@collector_paused()
def read_neff(data: memoryview, meanwhile: Meanwhile | None = None) -> Contents:
    """The fields of the `Neff` that glia wrote, in order.

    `meanwhile` is called with the programs and the ranks of a large one, whose hash is not yet
    computed then.

    Raises NotANeff, DamagedNeff, ForeignNeff, UnsupportedNeffVersion or IllegalProgram, and nothing
    else whatever the bytes are.
    """
    try:
        return _read_neff(data, meanwhile)
    except MemoryError as problem:
        raise DamagedNeff(part="data", reason="it does not fit into memory") from problem


def _read_neff(data: memoryview, meanwhile: Meanwhile | None) -> Contents:
    header = unpack_header(data)
    if not header.is_from_glia:
        raise ForeignNeff(build=header.build)
    if header.version[0] != NEFF_VERSION[0]:
        raise UnsupportedNeffVersion(
            what="container",
            supported=".".join(map(str, NEFF_VERSION)),
            received=".".join(map(str, header.version)),
        )
    with hash_checked(header, data[HEADER_BYTES:]) as is_computed:
        contents = _read_contents(header, data)
        if meanwhile and not is_computed:
            programs, *_, replicas, partitions = contents
            meanwhile(programs, replicas * partitions)
        return contents


def _read_contents(header: Header, data: memoryview) -> Contents:
    members = unpack_archive(data[HEADER_BYTES:])
    if not 1 <= header.cores <= MAXIMUM_CORES:
        raise DamagedNeff(part="header", reason=f"it asks for {header.cores} cores")
    programs = tuple(_program(members, f"sg{core:02d}") for core in range(header.cores))
    if len({program.target for program in programs}) > 1:
        raise DamagedNeff(part="archive", reason="its cores have programs of different targets")
    info = read_json(members, "info.json")
    options = info.get("options", {})
    if not isinstance(options, dict):
        raise DamagedNeff(part="info.json", reason="options is not an object")
    is_compressed = is_gzip(data[HEADER_BYTES:])
    report = read_json(members, REPORT) if REPORT in members else {}
    ranks = _ranks(info.get("ranks", {}))
    return programs, options, _statistics(members), is_compressed, report, *ranks


def _ranks(given: Any) -> tuple[int, int]:
    """Replicas and partitions, 1 where they are not said."""
    if not isinstance(given, dict):
        raise DamagedNeff(part="info.json", reason="ranks is not an object")
    replicas, partitions = (given.get(name, 1) for name in RANK_COUNTS)
    if not all(type(count) is int and count > 0 for count in (replicas, partitions)):
        raise DamagedNeff(part="info.json", reason="ranks are not counts of devices")
    if replicas * partitions > MAXIMUM_RANKS:
        raise DamagedNeff(part="info.json", reason=f"it is for {replicas} x {partitions} ranks")
    return replicas, partitions


def read_members(header: Header, data: memoryview) -> dict[str, memoryview]:
    """The archive's members, once the header's hash is found right."""
    payload = data[HEADER_BYTES:]
    _require_hash(header, _hash_of(header, payload))
    return unpack_archive(payload)


@contextmanager
def hash_checked(header: Header, payload: memoryview) -> Iterator[bool]:
    """DamagedNeff if the hash is not the header's, whatever else is found inside the context.

    The hash of a large payload is computed in a thread beside that; then the context is False.
    """
    if len(payload) < LARGE_BYTES:
        _require_hash(header, _hash_of(header, payload))
        yield True
        return
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(_hash_of, header, payload)
        try:
            yield False
        finally:
            _require_hash(header, found.result())


def _hash_of(header: Header, payload: memoryview) -> bytes:
    is_sha256 = header.package_version == PACKAGE_SHA256
    found = hashlib.sha256() if is_sha256 else hashlib.md5(usedforsecurity=False)
    for piece in read_once(payload) if is_gzip(payload) else [payload]:
        found.update(piece)
    return found.digest()


def _require_hash(header: Header, found: bytes) -> None:
    if header.data_hash[: len(found)] != found:
        raise DamagedNeff(part="data", reason="its hash is not the one in the header") from None


def member(members: Mapping[str, memoryview], name: str) -> memoryview:
    """One member's bytes; DamagedNeff when there is no such member."""
    if name not in members:
        raise DamagedNeff(part="archive", reason=f"member {name!r} is missing")
    return members[name]


def read_json(members: Mapping[str, memoryview], name: str) -> dict[str, Any]:
    """One JSON member, which must be an object."""
    data = member(members, name)
    if len(data) > MAXIMUM_JSON_BYTES:
        raise DamagedNeff(part=name, reason=f"it has {len(data)} bytes")
    try:
        value = json.loads(bytes(data), parse_constant=_reject)
    except (ValueError, RecursionError) as problem:
        raise DamagedNeff(part=name, reason=f"not JSON: {problem!s:.80}") from problem
    if not isinstance(value, dict):
        raise DamagedNeff(part=name, reason="not a JSON object")
    return value


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _statistics(members: Mapping[str, memoryview]) -> dict[str, float]:
    statistics = read_json(members, "hlo_stats.json")
    if not all(type(value) in (int, float) for value in statistics.values()):
        raise DamagedNeff(part="hlo_stats.json", reason="a statistic is not a number")
    return statistics


def _program(members: Mapping[str, memoryview], folder: str) -> Program:
    name = f"{folder}/program.bin"
    digest = hashlib.sha256()

    def hashed(part: str) -> memoryview:
        data = member(members, part)
        digest.update(hashlib.sha256(data).digest())
        return data

    program = decode_program(
        hashed(name),
        engine_stream=lambda engine: hashed(f"{folder}/{engine_file(engine)}.bin"),
        constant_file=lambda file: member(members, file),
        part=name,
    )
    _check_program(program, name)
    program.cache.put(ProgramDigest(digest.hexdigest()))
    return program


def _check_program(program: Program, part: str) -> None:
    if program.target not in TARGETS:
        raise DamagedNeff(part=part, reason=f"{program.target!r} is not a target")
    hbm_bytes = sum(tile.bytes for tile in program.tiles.values() if tile.memory is Memory.HBM)
    available = get_target(program.target).chip_hbm_bytes
    if hbm_bytes > available:
        reason = f"it needs {hbm_bytes} bytes of HBM, the chip has {available}"
        raise IllegalProgram(target=program.target, reason=reason)
    try:
        broken = next(program_violations(program, get_target(program.target)), None)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        broken = f"it cannot be checked: {problem!r:.200}"
    if broken:
        raise IllegalProgram(target=program.target, reason=f"{broken:.1000}")
