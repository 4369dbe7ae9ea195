"""Cases: the modules of a clone that check their own results, without reading MLIR.

A file holds one module, or several separated by `// -----`. The programs in `testdata` have random
inputs and results that XLA's CPU backend computed; those in `tests/interpret`, `tests/chlo` and
`tests/math` are the tests of StableHLO's reference interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glia.base.files import read_file

FOLDERS = ("stablehlo/testdata", "stablehlo/tests/interpret", "stablehlo/tests/math")
LARGEST_FILE_BYTES = 64 << 20

_SEPARATOR = re.compile(r"^[\s/]*// -----.*$", re.MULTILINE)
_PAYLOAD = re.compile(r'"0x[^"]*"|//[^\n]*')  # data in hexadecimal, and comments
_DTYPE = re.compile(
    r"_*_(?:u?int\d+|float\d+|bfloat\d+|complex\d+|bool|shape|dtype|chlo|(?:\d+x)*\d+)(?:_|$)"
)
_DIFFERING = r"programs\s*=\s*\[[\s\[]*@(\w+)\b[^}]*@(?!\1\b)"
_OUT_OF_SCOPE = (  # reason, what the text of such a module holds outside of quotes
    ("quantised", r"!quant\."),
    ("dynamic shapes", r"tensor<[^>]*\?|#stablehlo\.bounds|stablehlo\.set_dimension_size"),
    ("complex128", r"complex<f64>"),
    ("f64", r"(?:<|x)f64>"),
    ("no expected values", r"\A(?:(?!check\.).)*\Z"),
    ("probes of the interpreter", r"interpreter\.(?:probe|print)|check\.expect_serialized_eq"),
    ("host transfers", r"stablehlo\.(?:infeed|outfeed|send|recv)\b"),
    ("programs that differ by process", _DIFFERING),
    ("tests of the checks", r"min_ulp_difference = [1-9]"),
)
_SCOPES = tuple((name, re.compile(pattern, re.DOTALL)) for name, pattern in _OUT_OF_SCOPE)


@dataclass(frozen=True)
class Case:
    """One module of a clone: `name` is its file relative to the clone, `#N` for one of several."""

    name: str
    text: str

    @property
    def operation(self) -> str:
        """What the case is about: its file's name up to the first dtype or extent."""
        stem = self.name.partition("#")[0].rpartition("/")[2].removesuffix(".mlir")
        return _DTYPE.split(stem)[0]

    @property
    def scope(self) -> str:
        """Why glia does not take the case; "" for a case that is run."""
        bare = _PAYLOAD.sub("", self.text)
        return next((name for name, pattern in _SCOPES if pattern.search(bare)), "")


def find_cases(root: Path, only: str = "") -> Iterator[Case]:
    """The cases of a clone whose names hold `only`, in the order of their files."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.mlir")):
            name = path.relative_to(root).as_posix()
            modules = _modules(path)
            for number, text in enumerate(modules):
                case = Case(f"{name}#{number}" if len(modules) > 1 else name, text)
                if only in case.name:
                    yield case


def read_case(root: Path, name: str) -> Case:
    """The case of a name that `find_cases` gave."""
    path, _, number = name.partition("#")
    return Case(name, _modules(root / path)[int(number or 0)])


def _modules(path: Path) -> list[str]:
    text = read_file(path, LARGEST_FILE_BYTES).decode("utf-8", errors="replace")
    return _SEPARATOR.split(text)
