"""NTFF files: which execution of which NEFF was captured, how long it took, what it reported.

The byte format of AWS's files is not public, so this one is ours: a header with the hash of what
follows, then JSON. A simulated execution is determined by its NEFF, which everything that shows a
trace has beside it; the file therefore names the NEFF by its hash and holds no time lines.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from glia import __version__
from glia.arch import get_target
from glia.base.files import read_file, write_atomically
from glia.neff.layout import unpack_header
from glia.neff.package import Neff, neff_bytes
from glia.ntff.errors import DamagedTrace, OtherNeff, TraceError
from glia.profile.report import Profile
from glia.sim.notifications import Notification

FORMAT = 1
MAGIC = b"GLIANTFF"
MOST_BYTES = 1 << 24
HEADER = struct.Struct("<8sII32s")  # magic, format, bytes of JSON, their SHA-256


@dataclass(frozen=True)
class CoreRun:
    """The execution on one physical core: nanoseconds, and cycles of the core's base clock."""

    nc: int
    latency_ns: float
    cycles: int


@dataclass(frozen=True)
class RunReport:
    """One of the notifications of an execution."""

    core: int
    text: str


@dataclass(frozen=True)
class TraceFile:
    """One captured execution."""

    neff_hash: str
    network: str
    target: str
    execution: int
    written_by: str
    cores: tuple[CoreRun, ...]
    reports: tuple[RunReport, ...] = ()

    @staticmethod
    def of(
        neff_hash: str,
        profile: Profile,
        execution: int = 1,
        notifications: Iterable[Notification] = (),
    ) -> TraceFile:
        """The file of an execution with this profile."""
        ghz = profile.target.arch.clocks_ghz["base"]
        cores = profile.cores or (profile,)
        times = [core.timing.latency_ns for core in cores]
        return TraceFile(
            neff_hash=neff_hash,
            network=profile.program.name,
            target=profile.target.name,
            execution=execution,
            written_by=f"glia {__version__}",
            cores=tuple(CoreRun(nc, ns, round(ns * ghz)) for nc, ns in enumerate(times)),
            reports=tuple(RunReport(n.rank, str(n)) for n in notifications),
        )

    def save(self, path: str | Path) -> None:
        """Write the file; it appears complete or not at all."""
        text = json.dumps(asdict(self)).encode()
        header = HEADER.pack(MAGIC, FORMAT, len(text), hashlib.sha256(text).digest())
        write_atomically(Path(path), [header, text])

    @staticmethod
    def load(path: str | Path) -> TraceFile:
        """Read a file; TraceError or DamagedTrace when it is missing or not one of ours."""
        try:
            data = read_file(Path(path), MOST_BYTES)
        except OSError as problem:
            raise TraceError(path=path, reason=problem.strerror) from problem
        try:
            return _read_trace(_read_json(data))
        except (KeyError, TypeError, ValueError, RecursionError) as problem:
            raise DamagedTrace(path=path, reason=f"{problem!s:.200}") from problem

    def require_neff(self, path: str | Path, neff_hash: str) -> None:
        """Raise OtherNeff unless the trace, read from `path`, is that of this NEFF."""
        if neff_hash != self.neff_hash:
            raise OtherNeff(path=path, captured=self.neff_hash, given=neff_hash)


def hash_of(neff: Neff) -> str:
    """The hash in the header of a NEFF's file, in hexadecimal digits."""
    return unpack_header(memoryview(neff.to_bytes())).data_hash.hex()


def load_with_hash(path: str | Path) -> tuple[Neff, str]:
    """The NEFF in a file, and the hash in its header."""
    data = memoryview(neff_bytes(Path(path)))
    return Neff.from_bytes(data), unpack_header(data).data_hash.hex()


def _read_json(data: bytes) -> Mapping[str, Any]:
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise ValueError("it is no trace that glia captured")
    _, version, length, digest = HEADER.unpack_from(data)
    text = data[HEADER.size :]
    if version != FORMAT:
        raise ValueError(f"its format is {version}; this version of glia reads {FORMAT}")
    if len(text) != length or hashlib.sha256(text).digest() != digest:
        raise ValueError("its content does not match its header")
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it holds no object")
    return found


def _read_trace(found: Mapping[str, Any]) -> TraceFile:
    cores = tuple(_read_row(CoreRun, row) for row in found["cores"])
    reports = tuple(_read_row(RunReport, row) for row in found["reports"])
    trace: TraceFile = _read_row(TraceFile, {**found, "cores": cores, "reports": reports})
    if not cores:
        raise ValueError("it has no cores")
    get_target(trace.target)
    return trace


def _read_row(kind: type[Any], row: Mapping[str, Any]) -> Any:
    """A row whose fields are exactly those of `kind`, with their types."""
    made = kind(**row)
    for field in fields(kind):
        value, expected = getattr(made, field.name), str(field.type)
        kinds = {"int": int, "float": int | float, "str": str}.get(expected, tuple)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{field.name} is no {expected}")
    return made
