"""The process that converts StableHLO modules to HLO with jaxlib; run by path, without glia.

A program of several devices with shardings becomes that of one of them (`partitioning`).

It reads requests from stdin and writes answers to stdout until stdin ends. A request is a length
(HEADER) and that many bytes, MLIR text or bytecode; an answer is CONVERTED or REFUSED, a length,
and the serialized HLO module or jaxlib's message. Limits of memory and processor time hold for
each request: a module that passes one ends the process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

HEADER = struct.Struct("<Q")
CONVERTED, REFUSED = b"+", b"-"

BYTES_BESIDE = 2 << 30  # of address space that any module may take
BYTES_PER_BYTE = 24  # and for each of the module's: MLIR, its dialects and HLO hold constants each
SECONDS_BESIDE = 30  # of processor time
SECONDS_PER_MEBIBYTE = 2
LARGEST_MESSAGES = 1 << 20  # bytes of diagnostics on stderr


def main() -> None:
    """Answer requests; the first argument is the search path of modules as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks decides what an interrupt ends
    sys.path[:] = json.loads(sys.argv[1])
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    convert = _conversion()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, LARGEST_MESSAGES)
    loaded = _address_space()
    while (module := _read(requests)) is not None:
        if loaded:
            _limit(resource.RLIMIT_AS, loaded + BYTES_BESIDE + BYTES_PER_BYTE * len(module))
        _limit(resource.RLIMIT_CPU, _seconds_used() + SECONDS_BESIDE
               + SECONDS_PER_MEBIBYTE * (len(module) >> 20))  # fmt: skip
        _answer(answers, convert, module)


def _answer(answers: BinaryIO, convert: Callable[[bytes], bytes], module: bytes) -> None:
    try:
        status, content = CONVERTED, convert(module)
    except (RuntimeError, ValueError) as error:
        status, content = REFUSED, str(error).encode("utf-8", "replace")
    except MemoryError:
        status, content = REFUSED, b"jaxlib ran out of memory"
    answers.write(status + HEADER.pack(len(content)) + content)
    answers.flush()


def _conversion() -> Callable[[bytes], bytes]:
    """jaxlib's conversion of a module to a serialized HLO module."""
    try:
        mlir = importlib.import_module("jaxlib._jax").mlir
    except ImportError:  # an earlier jaxlib, which only jax knows where to find
        mlir = importlib.import_module("jax._src.lib").xla_client._xla.mlir

    partitioning, fields = map(_module_beside, ("partitioning", "sharding_fields"))

    def convert(module: bytes) -> bytes:
        module, counts, divisions = partitioning.partitioned(module)
        computation = mlir.mlir_module_to_xla_computation(
            module, use_tuple_args=False, return_tuple=False
        )
        serialized: bytes = computation.as_serialized_hlo_module_proto()
        about_devices: bytes = fields.module_fields(counts, divisions)
        return serialized + about_devices

    return convert


def _module_beside(name: str) -> Any:
    """A module of this folder, loaded by its path."""
    place = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"glia_{name}", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _read(requests: BinaryIO) -> bytes | None:
    """The module of the next request; None where there is none."""
    header = requests.read(HEADER.size)
    return requests.read(*HEADER.unpack(header)) if len(header) == HEADER.size else None


def _limit(which: int, most: int) -> None:
    """Set a soft limit, within the hard one."""
    hard = resource.getrlimit(which)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (soft, hard))


def _address_space() -> int:
    """Bytes of address space in use; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as counts:
            return int(counts.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _seconds_used() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int(used.ru_utime + used.ru_stime) + 1


if __name__ == "__main__":
    main()
