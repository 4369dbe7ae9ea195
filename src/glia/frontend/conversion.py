"""StableHLO modules to HLO in a process of jaxlib's: a damaged one ends it, not ours.

MLIR's parsers end the process for many modules: by a failed check, a diagnostic that is not UTF-8,
or a stack that is too deep. docs/decisions/modules-convert-in-a-process.md says why they are not
kept from those modules.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import IO

from glia.frontend import conversion_worker
from glia.frontend.conversion_worker import CONVERTED, HEADER
from glia.frontend.errors import BadStableHlo, FrameworkMissing
from glia.frontend.hlo_import.hlo_proto import LARGEST_FILE_BYTES

LONGEST_REASON = 400
PATIENCE = 600  # seconds for one module: its processor time is limited to less


def convert(module: bytes) -> bytes:
    """The serialized HLO module of MLIR text or bytecode.

    Raises FrameworkMissing without jaxlib, and BadStableHlo where jaxlib refuses the module, or
    ends for it, or takes too much memory or time.
    """
    if importlib.util.find_spec("jaxlib") is None:
        raise FrameworkMissing(what="a StableHLO module", package="jaxlib", extra="jax")
    return _converter(os.getpid()).convert(module)


@cache
def _converter(pid: int) -> Converter:
    """The one converter of this process; a forked one has its own."""
    return Converter()


class Converter:
    """A process of `conversion_worker`, started for the first module and after it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: IO[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def convert(self, module: bytes) -> bytes:
        """The serialized HLO module; BadStableHlo."""
        with self._lock:
            process = self._running() or self._start()
            try:
                status, content = _exchange(process, module)
            except _Ended as error:
                raise BadStableHlo(reason=self._end(str(error))) from None
            except BaseException:  # an interrupt: the rest of the answer would be the next one's
                self.close()
                raise
        if status != CONVERTED:
            raise BadStableHlo(reason=content.decode("utf-8", "replace").strip()[:LONGEST_REASON])
        return content

    def _running(self) -> subprocess.Popen[bytes] | None:
        """The process, unless it has ended since its last answer."""
        is_running = self._process is not None and self._process.poll() is None
        return self._process if is_running else None

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        path = json.dumps([place for place in sys.path if place])
        command = [sys.executable, "-I", str(Path(conversion_worker.__file__)), path]
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            bufsize=0,
        )
        return self._process

    def _end(self, reason: str) -> str:
        """End the process; why it gave no answer."""
        process, messages = self._process, self._messages
        assert process is not None and messages is not None
        if not reason:
            reason = f"jaxlib ended ({_described(process.wait())})"
        self.close()
        messages.seek(0)
        printed = " ".join(messages.read(LONGEST_REASON).decode("utf-8", "replace").split())
        messages.close()
        return f"{reason}: {printed}"[:LONGEST_REASON].rstrip(": ")


class _Ended(Exception):
    """The process gave no answer; the text says why, "" where it has ended by itself."""


def _exchange(process: subprocess.Popen[bytes], module: bytes) -> tuple[bytes, bytes]:
    """The status and content of the process's answer; _Ended."""
    assert process.stdin is not None and process.stdout is not None
    try:
        for piece in (HEADER.pack(len(module)), module):
            view = memoryview(piece)
            while view:
                view = view[process.stdin.write(view) :]
    except BrokenPipeError:
        raise _Ended from None
    if not select.select([process.stdout], [], [], PATIENCE)[0]:
        raise _Ended(f"jaxlib was stopped after {PATIENCE} seconds")
    head = _read(process.stdout, 1 + HEADER.size)
    (length,) = HEADER.unpack(head[1:])
    if length > LARGEST_FILE_BYTES:
        raise _Ended(f"its HLO module has {length} bytes")
    return head[:1], _read(process.stdout, length)


def _read(answers: IO[bytes], count: int) -> bytes:
    """`count` bytes; _Ended where there are less."""
    content = bytearray()
    while len(content) < count:
        piece = answers.read(min(count - len(content), 1 << 20))
        if not piece:
            raise _Ended
        content += piece
    return bytes(content)


def _described(status: int) -> str:
    """How a process ended."""
    return f"status {status}" if status >= 0 else str(signal.strsignal(-status)).lower()
