"""Why two compilations do not share an entry of the cache."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glia.cache.errors import UnknownEntry
from glia.cache.kernel_module import RECORDED_KERNEL
from glia.cache.key import ENTRY_NAME, canonical_module, compiler_version
from glia.cache.store import HLO, CompileCache, entry_flags
from glia.frontend.hlo_import.hlo_proto import message_text
from glia.frontend.registry import read_module_file

MOST_LINES = 20  # of each kind that are listed
LONGEST_LINE = 200


@dataclass(frozen=True)
class Compilation:
    """One side of a comparison; a model that is not in the cache has no flags."""

    name: str
    version: str
    flags: tuple[str, ...] | None
    module: Any


@dataclass(frozen=True)
class Differences:
    """What differs: the compiler, flags, and lines of the modules, "-" for the first's."""

    version: tuple[str, str] | None
    flags: tuple[str, ...]
    module: tuple[str, ...]
    more_lines: int  # of the modules, beyond those listed

    def __bool__(self) -> bool:
        return bool(self.version or self.flags or self.module)


def find_compilation(cache: CompileCache, name: str) -> Compilation:
    """An entry by its name or the beginning of it, or a model file; UnknownEntry for neither."""
    if Path(name).is_file():
        return Compilation(name, compiler_version(), None, canonical_module(read_module_file(name)))
    places = [
        place
        for place in cache.directory.glob("neuronxcc-*/MODULE_*")
        if ENTRY_NAME.fullmatch(place.name) and place.name.startswith(name)
    ]
    if len(places) != 1:
        raise UnknownEntry(count=len(places) or "no", directory=cache.directory, name=name)
    (place,) = places
    module = canonical_module(read_module_file(place / HLO))
    version = place.parent.name.removeprefix("neuronxcc-")
    return Compilation(place.name, version, tuple(entry_flags(place)), module)


def differences(first: Compilation, second: Compilation) -> Differences:
    """What differs between two compilations; flags only where both have some."""
    versions = first.version, second.version
    flags: list[str] = []
    if first.flags is not None and second.flags is not None:
        flags += [f"- {flag}" for flag in first.flags if flag not in second.flags]
        flags += [f"+ {flag}" for flag in second.flags if flag not in first.flags]
    lines = list(_changed(_lines(first.module), _lines(second.module)))
    return Differences(
        versions if versions[0] != versions[1] else None,
        tuple(flags),
        tuple(lines[:MOST_LINES]),
        max(0, len(lines) - MOST_LINES),
    )


def _changed(first: Iterable[str], second: Iterable[str]) -> Iterator[str]:
    for line in difflib.unified_diff(list(first), list(second), n=0, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            text = f"{line[0]} {line[1:]}"
            yield text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}..."


def _lines(module: Any) -> Iterator[str]:
    """A line for each fact of a module, then for each instruction."""
    rest = type(module)()
    rest.CopyFrom(module)
    rest.ClearField("computations")
    yield message_text(rest)
    for computation in module.computations:
        yield f"computation {computation.name}: root {computation.root_id}"
        for instruction in computation.instructions:
            yield f"{computation.name}: {_described(instruction)}"
            if instruction.custom_call_target == RECORDED_KERNEL:
                yield from instruction.backend_config.decode("utf-8", "replace").splitlines()


def _described(instruction: Any) -> str:
    """An instruction in one line; a literal by its digest."""
    literal = ""
    if instruction.HasField("literal"):
        data = instruction.literal.SerializeToString(deterministic=True)
        literal = f" literal sha256 {hashlib.sha256(data).hexdigest()[:16]}"
    rest = type(instruction)()
    rest.CopyFrom(instruction)
    rest.ClearField("literal")
    if rest.custom_call_target == RECORDED_KERNEL:
        rest.ClearField("backend_config")  # has lines of its own
    head = f"{instruction.name} = {instruction.opcode}{literal}"
    return f"{head} {message_text(rest)}"
