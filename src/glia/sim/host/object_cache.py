"""Object code on disk, so that a later process need not make it again.

GLIA_HOST_CACHE names the folder ("" for none); else it is `glia/host` in the user's cache. A folder
inside is of one processor, one LLVM and one text of this room. A file is the hash of its content
and the content: one that was not written to its end, or was changed since, is made again. What
cannot be read or written is left out silently: the cache only saves time.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

from llvmlite import binding

from glia.base.files import read_file

VARIABLE = "GLIA_HOST_CACHE"
HASH_BYTES = 32
MOST_BYTES = 16 << 20


class ObjectCache:
    """Object code by the name of what it is of; without a folder it keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def find(self, name: str) -> bytes | None:
        """The object code kept under a name."""
        if self.folder is None:
            return None
        try:
            data = read_file(self.folder / f"{name}.o", MOST_BYTES)
        except OSError:
            return None
        content = data[HASH_BYTES:]
        return content if hashlib.sha256(content).digest() == data[:HASH_BYTES] else None

    def store(self, name: str, content: bytes) -> None:
        """Keep object code; the file is there as a whole or not at all."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, beside = tempfile.mkstemp(prefix=f".{name}.", dir=self.folder)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(hashlib.sha256(content).digest() + content)
            os.replace(beside, self.folder / f"{name}.o")
        except OSError:
            return


def cache_folder() -> Path | None:
    """The folder for this processor and this text of the code that writes machine code."""
    given = os.environ.get(VARIABLE)
    if given == "":
        return None
    if given is None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        given = os.path.join(home, "glia", "host")
    return Path(given, _fingerprint())


@cache
def _fingerprint() -> str:
    """Equal where object code is: processor, LLVM, and the files of this room."""
    version = ".".join(map(str, binding.llvm_version_info))
    features = binding.get_host_cpu_features().flatten()
    found = hashlib.sha256(f"{binding.get_host_cpu_name()} {features} {version}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:24]
