"""Object code on disk, so that a later process need not make it again.

GLIA_HOST_CACHE names the folder ("" for none); else it is `glia/host` in the user's cache. A folder
inside is of one processor, one LLVM and one text of the code that writes machine code; the newest
of them stay. A file is the hash of its content and the content: one that was not written to its
end, or was changed since, is made again. What cannot be read or written is left out silently: the
cache only saves time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite import binding

from glia.base.files import read_file, user_cache

VARIABLE = "GLIA_HOST_CACHE"
HASH_BYTES = 32
MOST_BYTES = 16 << 20
FINGERPRINT = re.compile(r"[0-9a-f]{24}")
MOST_FOLDERS = 16  # of other processors and other texts


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

    def store(self, name: str, content: bytes, most: int = 0) -> None:
        """Keep object code; the file is there as a whole or not at all.

        With `most` only so many of the newest files stay whose names begin as this one does, up to
        the first "_".
        """
        if self.folder is None or len(content) > MOST_BYTES - HASH_BYTES:
            return
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                _remove_oldest(self.folder.parent)
            descriptor, beside = tempfile.mkstemp(prefix=f".{name}.", dir=self.folder)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(hashlib.sha256(content).digest() + content)
            os.replace(beside, self.folder / f"{name}.o")
            if most:
                known = [*self.folder.glob(f"{name.partition('_')[0]}_*.o")]
                for path in sorted(known, key=lambda each: each.stat().st_mtime)[:-most]:
                    path.unlink(missing_ok=True)
        except OSError:
            return


def _remove_oldest(parent: Path) -> None:
    """Leave the newest folders of object code in a folder, and whatever else is there."""
    found = [each for each in parent.iterdir() if FINGERPRINT.fullmatch(each.name)]
    found = [each for each in found if each.is_dir() and not each.is_symlink()]
    found.sort(key=lambda each: each.stat().st_mtime)
    for folder in found[:-MOST_FOLDERS]:
        shutil.rmtree(folder, ignore_errors=True)


def cache_folder(writers: Iterable[Path]) -> Path | None:
    """The folder for this processor and this text of the files that write machine code."""
    given = os.environ.get(VARIABLE)
    if given == "":
        return None
    folder = user_cache() / "host" if given is None else Path(given)
    return folder / _fingerprint((Path(__file__), *writers))


@cache
def _fingerprint(writers: tuple[Path, ...]) -> str:
    """Equal where object code is: processor, LLVM, and these files."""
    version = ".".join(map(str, binding.llvm_version_info))
    features = binding.get_host_cpu_features().flatten()
    found = hashlib.sha256(f"{binding.get_host_cpu_name()} {features} {version}".encode())
    for path in writers:
        found.update(path.read_bytes())
    return found.hexdigest()[:24]


@cache
def initialise_llvm() -> None:
    """Let LLVM write machine code of this processor's family."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


def host_machine(level: int) -> Any:
    """LLVM's description of this processor, for code of a level of optimisation."""
    initialise_llvm()
    target = binding.Target.from_triple(binding.get_process_triple())
    features = binding.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=level, jit=True
    )


def loaded(objects: Iterable[bytes]) -> Any:
    """The engine that has loaded object code; it keeps the code alive."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), host_machine(0))
    contents = list(objects)  # alive until they are loaded
    for content in contents:
        engine.add_object_file(binding.ObjectFileRef.from_data(content))
    engine.finalize_object()
    return engine
