"""Lay a compiled model out as a NEFF file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np

from glia import __version__
from glia.machine.binary.encode import PAYLOAD_VERSION, encode_program
from glia.machine.ir import Program
from glia.neff.archive import Member, pack_archive
from glia.neff.layout import BUILD_PREFIX, Header
from glia.neff.metadata import (
    RANK_COUNTS,
    REPORT,
    deferred_constants,
    engine_file,
    engine_view,
    graph_view,
    memory_view,
    metrics,
)

BUILD = f"{BUILD_PREFIX}{__version__} program-encoding-{PAYLOAD_VERSION}"


def neff_pieces(
    programs: tuple[Program, ...],
    options: Mapping[str, object],
    statistics: Mapping[str, float],
    is_compressed: bool,
    report: Mapping[str, object] | None = None,
    ranks: tuple[int, int] = (1, 1),
) -> list[bytes | memoryview]:
    """The bytes of a NEFF, in pieces: header, then archive. Equal arguments give equal bytes.

    Weights are pieces of the memory that they are in.
    """
    texts: list[Member] = [
        ("neff.json", _json(graph_view(programs))),
        ("kelf-0.json", _json({"graphs": [_folder(core) for core in range(len(programs))]})),
        ("info.json", _json(_info(programs, options, ranks))),
        ("hlo_stats.json", _json(dict(statistics))),
        ("metrics.json", _json(metrics(programs))),
        *([(REPORT, _json(dict(report)))] if report else ()),
    ]
    weights: dict[str, np.ndarray] = {}
    names: dict[int, str] = {}  # one member serves cores that share a constant
    for core, program in enumerate(programs):
        folder, files = _folder(core), {}
        for name, value in program.constants.items():
            array = np.asarray(value)
            files[name] = names.setdefault(id(value), f"{folder}/constant-{len(weights)}.bin")
            weights[files[name]] = array
        texts.extend(_subgraph(folder, program, files, deferred_constants(program, options)))
    archive = pack_archive(texts, ((n, _raw(a)) for n, a in weights.items()), is_compressed)
    return [_header(programs, archive).pack(), *archive]


def _subgraph(
    folder: str, program: Program, files: Mapping[str, str], deferred: tuple[str, ...]
) -> list[Member]:
    streams = encode_program(program, files)
    members: list[Member] = [(f"{folder}/def.json", _json(memory_view(program, files, deferred)))]
    members.append((f"{folder}/program.bin", streams.program))
    for engine, stream in streams.engines.items():
        path = f"{folder}/{engine_file(engine)}"
        members.append((f"{path}.json", _json(engine_view(program, engine))))
        members.append((f"{path}.bin", stream))
    return members


def _header(programs: tuple[Program, ...], archive: list[bytes | memoryview]) -> Header:
    digest = hashlib.sha256()
    for piece in archive:
        digest.update(piece)
    return Header(
        data_bytes=sum(map(len, archive)),
        data_hash=digest.digest(),
        uuid=hashlib.sha256(b"uuid" + digest.digest()).digest()[:16],
        name=programs[0].name,
        build=BUILD,
        cores=len(programs),
        logical_core_cores=len(programs),
    )


def _info(
    programs: tuple[Program, ...], options: Mapping[str, object], ranks: tuple[int, int]
) -> dict[str, object]:
    return {
        "tool_version": f"{BUILD_PREFIX}{__version__}",
        "TPBCount": len(programs),
        "target": programs[0].target,
        "options": dict(options),
        "ranks": dict(zip(RANK_COUNTS, ranks, strict=True)),
    }


def _folder(core: int) -> str:
    return f"sg{core:02d}"


def _raw(array: np.ndarray) -> memoryview:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False).encode() + b"\n"
