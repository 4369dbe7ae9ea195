"""Entries on disk: complete or absent, also where their writers are killed.

An entry is written beside its place and renamed to it. One process at a time compiles for an entry;
the others wait and take what it has written. `model.done`, which product and glia write last, holds
digests here: an entry whose bytes are others is compiled again. An entry of a module and flags
alone was collected, to be compiled later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from glia.base.files import read_file, umask
from glia.base.gzip_members import deflated, stored
from glia.base.output_files import writing
from glia.cache.errors import UnusableCache
from glia.cache.key import (
    ENTRY_NAME,
    VERSION_NAME,
    CacheKey,
    CanonicalHlo,
    canonical_hlo,
    compiler_version,
    flags_of,
    key_of,
    options_of,
)
from glia.cache.locks import locked
from glia.frontend.errors import UnreadableFile
from glia.frontend.hlo_import.payloads import Bytes
from glia.frontend.registry import read_module_file
from glia.machine.binary.errors import NeffError
from glia.neff.package import Neff, neff_bytes
from glia.options import CompileOptions

VARIABLE = "NEURON_COMPILE_CACHE_URL"
DEFAULT_DIRECTORY = "/var/tmp/neuron-compile-cache"
MAXIMUM_RECORD_BYTES = 1 << 20
DONE, NEFF, FLAGS, LOG = "model.done", "model.neff", "compile_flags.json", "model.log"
HLO = "model.hlo_module.pb.gz"
logger = logging.getLogger(__name__)


class DamagedEntry(ValueError):
    """An entry's files are incomplete or not those that its digests were taken of."""


@dataclass(frozen=True)
class Entry:
    """An entry as it lies on disk; `problem` is empty for a complete one."""

    path: Path
    flags: tuple[str, ...]
    model: str
    bytes: int
    used: float  # seconds since the epoch
    problem: str
    is_collected: bool = False  # and not yet compiled


class CompileCache:
    """The entries under one directory, in the layout of NEURON_COMPILE_CACHE_URL."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def compiled(self, hlo: bytes, options: CompileOptions, build: Callable[[], Neff]) -> Neff:
        """The NEFF of a module: that of its entry, or what `build` returns, which is stored.

        A cache that cannot be read or written costs a warning, not the compilation. A failure of
        `build` is not stored.
        """
        canonical = canonical_hlo(hlo)
        key = key_of(canonical, options)
        place = self._place(key)
        if (known := self._load(place, key, warns=False)) is not None:
            return known
        with contextlib.ExitStack() as stack:
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(place.with_name(f".{place.name}.lock")))
            except OSError as problem:
                self._warn_unusable(problem)
                return build()
            if (known := self._load(place, key)) is not None:
                return known
            started = time.perf_counter()
            neff = build()
            seconds = time.perf_counter() - started
            try:
                self._store(place, _files(key, canonical, options, neff, seconds))
            except OSError as problem:
                self._warn_unusable(problem)
        return neff

    def _place(self, key: CacheKey) -> Path:
        return self.directory / f"neuronxcc-{key.version}" / key.entry

    def collect(self, hlo: bytes, options: CompileOptions) -> Path:
        """The place of a module's entry; where there is none, one that is yet to be compiled.

        Raises UnwritableOutput.
        """
        key = key_of(canonical_hlo(hlo), options)
        place = self._place(key)
        with writing(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            with locked(place.with_name(f".{place.name}.lock")):
                if not is_collected(place) and self._load(place, key) is None:
                    self._store(place, {HLO: [*stored([hlo])], FLAGS: _flags_file(options)})
        return place

    def collected(self) -> list[Path]:
        """The entries that this version of the compiler is yet to compile."""
        return [place for place in self.current() if is_collected(place)]

    def current(self) -> list[Path]:
        """The places of this version's entries, in order of their names."""
        version = f"neuronxcc-{compiler_version()}"
        return [place for place in self._places() if place.parent.name == version]

    def _warn_unusable(self, problem: OSError) -> None:
        reason = problem.strerror or str(problem)
        logger.warning("the compile cache %s is not used: %s", self.directory, reason)

    def _load(self, place: Path, key: CacheKey, *, warns: bool = True) -> Neff | None:
        """The NEFF of an entry; None, with a warning for a damaged one, where there is none."""
        try:
            neff = load_entry(place, key)
        except FileNotFoundError:
            return None
        except (OSError, DamagedEntry, NeffError) as problem:
            if warns and not is_collected(place):
                reason = str(problem).partition("\n")[0]
                logger.warning("the cached %s is damaged and compiled again: %s", place, reason)
            return None
        logger.info("using the cached %s", place / NEFF)
        with contextlib.suppress(OSError):  # a cache that is only read
            os.utime(place / DONE)
        return neff

    def _store(self, place: Path, files: Mapping[str, Sequence[Bytes]]) -> None:
        """Write an entry beside its place and rename it to it; the caller holds the lock."""
        for stray in strays(place):
            shutil.rmtree(stray, ignore_errors=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            for name, pieces in files.items():
                _write(beside / name, pieces)
            os.chmod(beside, 0o777 & ~umask())
            if place.exists():  # collected or damaged: what is complete is never replaced
                os.rename(place, tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
            os.rename(beside, place)
        finally:
            for stray in strays(place):
                shutil.rmtree(stray, ignore_errors=True)

    def entries(self) -> Iterator[Entry]:
        """All entries of all versions, in order of their names."""
        for place in self._places():
            yield describe_entry(place)

    def _places(self) -> list[Path]:
        versions = self.directory.glob("neuronxcc-*")
        found = (
            p for each in versions if VERSION_NAME.fullmatch(each.name) for p in each.iterdir()
        )
        return sorted(place for place in found if ENTRY_NAME.fullmatch(place.name))

    def clean(self, chosen: Callable[[Entry], bool]) -> list[Entry]:
        """Remove chosen entries, and what killed processes have left of any; the removed entries.

        What another process writes at the time is left alone, and so is every other file.
        """
        removed = []
        for place in self._places():
            with locked(place.with_name(f".{place.name}.lock"), waits=False) as is_held:
                if is_held and place.exists() and chosen(entry := describe_entry(place)):
                    shutil.rmtree(place)
                    removed.append(entry)
        self.clear_locks()
        return removed

    def clear_locks(self) -> int:
        """Remove the locks that no process holds, and what killed ones have left; how many locks.

        A lock ends with its holder in any case: only its file stays.
        """
        count = 0
        for lock in self.directory.glob("neuronxcc-*/.MODULE_*.lock"):
            place = lock.with_name(lock.name[1 : -len(".lock")])
            if not ENTRY_NAME.fullmatch(place.name):
                continue
            with locked(lock, waits=False) as is_held:
                if is_held:
                    for stray in strays(place):
                        shutil.rmtree(stray, ignore_errors=True)
                    lock.unlink(missing_ok=True)
                    count += 1
        return count


def cache_of(options: CompileOptions) -> CompileCache | None:
    """The cache that options and NEURON_COMPILE_CACHE_URL ask for; None for none.

    UnusableCache for a place that is not on a file system.
    """
    if options.no_cache:
        return None
    url = options.cache_dir or os.environ.get(VARIABLE, "")
    return CompileCache(directory_of(url)) if url else None


def directory_of(url: str) -> Path:
    """The directory of a path or a file: URL; UnusableCache for other URLs."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(parts.path)
    if "://" in url:
        raise UnusableCache(url=url, scheme=parts.scheme)
    return Path(url).expanduser()


def strays(place: Path) -> list[Path]:
    """What is left beside an entry's place of entries that were never finished, or replaced."""
    return [each for each in place.parent.glob(f".{place.name}.*") if each.is_dir()]


def load_entry(place: Path, key: CacheKey | None = None) -> Neff:
    """The NEFF of an entry, which is that of `key` if one is given.

    FileNotFoundError where there is none, DamagedEntry or NeffError for a damaged one.
    """
    record = _record(place)
    if key and (record.get("hlo"), record.get("flags")) != (key.hlo, key.flags):
        raise DamagedEntry("it is of another compilation")
    data = neff_bytes(place / NEFF)
    if hashlib.sha256(data).hexdigest() != record.get("neff"):
        raise DamagedEntry(f"{NEFF} is not what was written")
    return Neff.from_bytes(data)


def _record(place: Path) -> dict[str, object]:
    if not place.is_dir():
        raise FileNotFoundError(place)
    try:
        found = json.loads(read_file(place / DONE, MAXIMUM_RECORD_BYTES))
    except FileNotFoundError:
        raise DamagedEntry(f"it has no {DONE}") from None
    except (ValueError, RecursionError) as problem:
        raise DamagedEntry(f"{DONE} cannot be read") from problem
    if not isinstance(found, dict):
        raise DamagedEntry(f"{DONE} cannot be read")
    return found


def is_collected(place: Path) -> bool:
    """Whether an entry is one that is yet to be compiled."""
    return (place / HLO).exists() and not (place / DONE).exists() and not (place / NEFF).exists()


def read_collected(place: Path) -> tuple[bytes, CompileOptions]:
    """The module of a collected entry, and the options to compile it with.

    They name the cache that the entry is in. Raises UnreadableFile.
    """
    try:
        options = options_of(entry_flags(place))
    except ValueError as problem:
        raise UnreadableFile(path=place / FLAGS, reason=problem) from problem
    in_cache = dataclasses.replace(options, cache_dir=str(place.parent.parent))
    return read_module_file(place / HLO), in_cache


def describe_entry(place: Path) -> Entry:
    """What an entry holds, and what is wrong with it."""
    problem, model = "", ""
    waits = is_collected(place)
    try:
        model = "" if waits else load_entry(place).name
    except (OSError, DamagedEntry, NeffError) as error:
        problem = str(error).partition("\n")[0]
    found = []
    with contextlib.suppress(OSError):  # it is removed at the moment
        found = [each.stat() for each in place.iterdir() if each.is_file()]
    size, used = sum(each.st_size for each in found), max((s.st_mtime for s in found), default=0.0)
    return Entry(place, tuple(entry_flags(place)), model, size, used, problem, waits)


def entry_flags(place: Path) -> list[str]:
    """The flags that an entry was compiled with; none where they cannot be read."""
    try:
        found = json.loads(read_file(place / FLAGS, MAXIMUM_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    return [str(each) for each in found] if isinstance(found, list) else []


def _files(
    key: CacheKey, hlo: CanonicalHlo, options: CompileOptions, neff: Neff, seconds: float
) -> dict[str, Sequence[Bytes]]:
    """The contents of an entry's files in pieces, in the order in which they are written."""
    log = [f"compiled for {options.target} in {seconds:.2f} s", *neff.notes]
    program = neff.pieces()
    record = {"hlo": key.hlo, "flags": key.flags, "neff": _digest(program)}
    return {
        NEFF: program,
        HLO: _compressed(hlo),
        FLAGS: _flags_file(options),
        LOG: ["".join(f"{line}\n" for line in log).encode()],
        DONE: [json.dumps(record).encode()],
    }


def _flags_file(options: CompileOptions) -> list[Bytes]:
    return [json.dumps(flags_of(options)).encode()]


def _compressed(hlo: CanonicalHlo) -> list[Bytes]:
    """A gzip of a module; its weights, which hardly shrink, are stored in it."""
    left = [*reversed(hlo.payloads)]  # they are in the order of their constants
    found: list[Bytes] = []
    between: list[Bytes] = []
    for piece in hlo.pieces():
        if left and piece is left[-1]:
            found += [*deflated(b"".join(between), 1), *stored([left.pop()])]
            between = []
        else:
            between.append(piece)
    return [*found, *deflated(b"".join(between), 1)]


def _digest(pieces: Iterable[Bytes]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def _write(path: Path, pieces: Iterable[Bytes]) -> None:
    with path.open("wb") as stream:
        stream.writelines(pieces)
        stream.flush()
        os.fsync(stream.fileno())
