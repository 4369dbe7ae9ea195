"""The compile cache as clients see it that keep files of their own in it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from glia.base.files import read_file, write_atomically
from glia.cache.errors import UnusableCache
from glia.cache.key import FLAG_DIGITS, compiler_version
from glia.cache.locks import locked
from glia.cache.store import DEFAULT_DIRECTORY, DONE, HLO, VARIABLE, CompileCache, directory_of

MOST_TEXT = 1 << 26  # bytes of a file that is read as text


@dataclass(frozen=True)
class CacheUrl:
    """Where a compile cache is: a directory or a URL."""

    url: str

    @classmethod
    def get_cache_url(cls, cache_dir: str | Path | None = None) -> CacheUrl:
        """The place that is asked for, or that of NEURON_COMPILE_CACHE_URL, or the usual one."""
        return cls(str(cache_dir or os.environ.get(VARIABLE) or DEFAULT_DIRECTORY))

    def is_s3(self) -> bool:
        """Whether the place is an object store."""
        return urlsplit(self.url).scheme == "s3"


def directory_of_cache(url: CacheUrl) -> Path:
    """The directory of a cache; UnusableCache for an object store."""
    return directory_of(url.url)


class ClientCache:
    """What all kinds of caches have: a place, and a directory for this version of the compiler."""

    cache_type = "none"

    def __init__(self, cache_url: CacheUrl) -> None:
        self.cache_url = cache_url
        self.cache_path = os.path.join(cache_url.url, f"neuronxcc-{compiler_version()}")

    def get_cache_dir_with_cache_key(self, cache_key: str) -> str:
        """The directory of an entry."""
        return os.path.join(self.cache_path, cache_key)

    def get_cache_dir(self, model_hash: str, compile_flags_str: str) -> str:
        """The directory of an entry for a module and compiler flags."""
        flags = hashlib.sha256(compile_flags_str.encode()).hexdigest()[:FLAG_DIGITS]
        return self.get_cache_dir_with_cache_key(f"MODULE_{model_hash}+{flags}")


class ClientFileCache(ClientCache):
    """A cache in a directory. Paths are those that its methods return, and others inside it."""

    cache_type = "fs"

    def __init__(self, cache_url: CacheUrl) -> None:
        super().__init__(CacheUrl(str(directory_of_cache(cache_url))))
        self._locks: dict[str, contextlib.ExitStack] = {}

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        return os.path.exists(path)

    def remove(self, path: str) -> None:
        """Remove a file or directory, if there is one. ValueError for one outside of the cache."""
        place, root = Path(path).resolve(), Path(self.cache_url.url).resolve()
        if root not in place.parents:
            raise ValueError(f"{path} is not in the cache {root}")
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove all entries of all versions that compilations have made."""
        CompileCache(Path(self.cache_url.url)).clean(lambda entry: True)

    def clear_locks(self) -> None:
        """Do nothing: a lock ends with the process that holds it."""

    def get_hlos(self, failed_neff_str: str = "") -> list[str]:
        """The modules of entries without a NEFF, which were collected and are not yet compiled."""
        found = Path(self.cache_path).glob(f"*/{HLO}")
        return sorted(str(each) for each in found if not (each.parent / DONE).exists())

    def hlo_acquire_lock(self, h: str) -> bool:
        """Take the lock of a module, if no other process holds it; whether it is taken."""
        stack = contextlib.ExitStack()
        Path(h).parent.mkdir(parents=True, exist_ok=True)
        if stack.enter_context(locked(Path(f"{h}.lock"), waits=False)):
            self._locks[h] = stack
            return True
        return False

    def hlo_release_lock(self, h: str) -> None:
        """Give back the lock of a module."""
        if (held := self._locks.pop(h, None)) is not None:
            held.close()

    def upload_file(self, cache_path: str, src_path: str) -> None:
        """Copy a file into the cache."""
        self._place(cache_path, Path(src_path).read_bytes())

    def upload_folder(self, cache_dir: str, src_dir: str) -> None:
        """Copy a directory into the cache."""
        shutil.copytree(src_dir, cache_dir, dirs_exist_ok=True)

    def upload_string_to_file(self, cache_path: str, data: str) -> None:
        """Write a text into the cache."""
        self._place(cache_path, data.encode())

    def _place(self, path: str, data: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), [data])

    def download_file(self, filename: str, dst_path: str) -> None:
        """Copy a file out of the cache."""
        shutil.copyfile(filename, dst_path)

    def download_folder(self, folder_path: str, dst_path: str) -> bool:
        """Copy a directory out of the cache; whether there is one."""
        if not os.path.isdir(folder_path):
            return False
        if os.path.realpath(folder_path) != os.path.realpath(dst_path):
            shutil.copytree(folder_path, dst_path, dirs_exist_ok=True)
        return True

    def download_file_to_string(self, filename: str, limit: int | None = None) -> str:
        """The text of a file in the cache, or the first characters of it."""
        return read_file(Path(filename), MOST_TEXT).decode(errors="replace")[:limit]


class ClientObjectCache(ClientCache):
    """A cache in an object store, which glia does not write to."""

    cache_type = "s3"

    def __init__(self, cache_url: CacheUrl) -> None:
        raise UnusableCache(url=cache_url.url, scheme=urlsplit(cache_url.url).scheme)


def create_compile_cache(cache_url: CacheUrl) -> ClientFileCache | ClientObjectCache:
    """The cache at a place."""
    return ClientObjectCache(cache_url) if cache_url.is_s3() else ClientFileCache(cache_url)
