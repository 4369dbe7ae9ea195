"""What a cached compilation is found by: the HLO module, the options, the compiler.

Names follow the layout of NEURON_COMPILE_CACHE_URL: `neuronxcc-<version>/MODULE_<hlo>+<flags>`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import glia
from glia.frontend.hlo_import.hlo_proto import ParsedModule, parse_module, parse_module_apart
from glia.frontend.hlo_import.payloads import Bytes, with_payloads
from glia.options import UNRECORDED_OPTIONS, CompileOptions

HLO_DIGITS, FLAG_DIGITS, SOURCE_DIGITS = 20, 8, 8
ENTRY_NAME = re.compile(rf"MODULE_[0-9a-f]{{{HLO_DIGITS}}}\+[0-9a-f]{{{FLAG_DIGITS}}}")
VERSION_NAME = re.compile(r"neuronxcc-[\w.+]+")
COMPUTING_PACKAGES = ("numpy", "ml_dtypes")  # which fold constants


@dataclass(frozen=True)
class CacheKey:
    """Digests of a module and of the flags, and the compiler's version; hexadecimal."""

    hlo: str
    flags: str
    version: str

    @property
    def entry(self) -> str:
        """The name of the entry's directory."""
        return f"MODULE_{self.hlo[:HLO_DIGITS]}+{self.flags[:FLAG_DIGITS]}"


@dataclass(frozen=True)
class CanonicalHlo:
    """A serialized module without source locations and what the compiler does not read.

    `payloads` are those of its large constants, apart from it.
    """

    message: bytes
    payloads: tuple[Bytes, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the module in hexadecimal digits."""
        parts = (self.message, *self.payloads)
        return hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts)).hexdigest()

    def pieces(self) -> list[Bytes]:
        """The bytes of the module, of which the payloads are not copied."""
        return with_payloads(self.message, self.payloads)


def key_of(canonical: CanonicalHlo, options: CompileOptions) -> CacheKey:
    """The key of a compilation of what `canonical_hlo` makes of a module."""
    flags = hashlib.sha256("\0".join(flags_of(options)).encode()).hexdigest()
    return CacheKey(canonical.digest, flags, compiler_version())


def canonical_hlo(hlo: bytes) -> CanonicalHlo:
    """What of a serialized module decides what is compiled; NotAnHloModule for other bytes."""
    parsed = parse_module_apart(hlo)
    message = _canonical(parsed).SerializeToString(deterministic=True)
    return CanonicalHlo(message, parsed.payloads)


def canonical_module(hlo: bytes) -> Any:
    """The message of a serialized module without source locations and unread fields."""
    return _canonical(ParsedModule(parse_module(hlo)))


def _canonical(parsed: ParsedModule) -> Any:
    module = parsed.proto
    module.DiscardUnknownFields()
    module.ClearField("stack_frames")
    for computation in module.computations:
        for instruction in computation.instructions:
            instruction.ClearField("metadata")
    return module


def flags_of(options: CompileOptions) -> list[str]:
    """Every option that is recorded in a NEFF, as `--name=value`."""
    found = []
    for name, value in dataclasses.asdict(options).items():
        if name not in UNRECORDED_OPTIONS:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            found.append(f"--{name.replace('_', '-')}={text}")
    return found


def options_of(flags: Iterable[str]) -> CompileOptions:
    """The options that `flags_of` has written; ValueError for anything else."""
    kinds = {each.name: str(each.type) for each in dataclasses.fields(CompileOptions)}
    values: dict[str, Any] = {}
    for flag in flags:
        name, _, text = flag.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        values[name] = _option_value(kinds.get(name, ""), text)
    return CompileOptions(**{name: each for name, each in values.items() if name in kinds})


def _option_value(kind: str, text: str) -> object:
    if kind == "bool":
        return text == "True"
    if kind == "int":
        return int(text)
    if kind.startswith("tuple"):
        return tuple(text.split(",")) if text else ()
    return text


@cache
def compiler_version() -> str:
    """glia's version and a digest of its source and of the packages that fold constants."""
    digest = hashlib.sha256()
    root = Path(glia.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update("".join(f"{name} {version(name)}\n" for name in COMPUTING_PACKAGES).encode())
    return f"{glia.__version__}+{digest.hexdigest()[:SOURCE_DIGITS]}"
