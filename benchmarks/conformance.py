"""What came of the kernels and test programs of public clones, as a page.

glia conformance nki --repo CLONE --json > clone.json
glia conformance stablehlo --repo CLONE --target all --json > stablehlo.json
python benchmarks/conformance.py "name of the clone=clone.json" ... > benchmarks/CONFORMANCE.md

A file of test programs makes the last section, of counts by target and by reason.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

STATUSES = ("pass", "explained", "not run", "fail")
INTRODUCTION = """\
# Public kernels

Written by `python benchmarks/conformance.py`, from `glia conformance nki --repo CLONE --json` in an
environment with torch, jax, loguru and transformers. Clones are run as they are; kernels, scripts
and tests are counted each, kernels also where a test runs them. Not looked at: integration tests of
nki-samples, which take whole models from the Hub, and functions of pages that are no kernels by
decorator, call or recipe. Long clones ran in parts, by --only, whose rows are joined here.

* **pass**: it agrees with NumPy, its test passes, its script ends well; a kernel without inputs of
  its own where a test or script that passes runs it.
* **explained**: the file or page itself is at fault, or its author says that it fails.
* **not run**: the page shows only a part of a kernel, or something is needed that is not there.
"""
PROGRAMS = """
## {name}

The programs of stablehlo/testdata, tests/interpret and tests/math that check their own results, by
`glia conformance stablehlo --repo CLONE --json`: compiled at -O2 without casts, simulated, and
compared as their checks say (`src/glia/conformance/stablehlo/compare.py` has the two differences).

* **pass**: every check holds. **mismatch**: one does not. **error**: an exception without a code, a
  crash or a time limit. **refused**: an error with a code.
* **not in scope**: f64 and complex128, dynamic and quantised types, host transfers, several
  processes, and tests of the interpreter's own tools.

The last column leaves out those types alone: what talks to the host or has nothing to compare
counts as not passed there.
"""
EXEMPT_TYPES = ("f64", "complex128", "dynamic shapes", "quantised")
OF_PROGRAMS = ("pass", "mismatch", "error", "refused", "not in scope")


def page(clones: Iterable[tuple[str, list[dict[str, Any]]]]) -> Iterator[str]:
    """The lines of the page."""
    clones = [*clones]
    yield INTRODUCTION
    yield f"| clone | {' | '.join(STATUSES)} |"
    yield f"|---|{'---|' * len(STATUSES)}"
    for name, kernels in clones:
        counts = Counter(each["status"] for each in kernels)
        yield f"| {name} | {' | '.join(str(counts[status]) for status in STATUSES)} |"
    for name, kernels in clones:
        yield f"\n## {name}\n"
        yield from _by_folder(kernels)
        yield "\n| file | kernel or test | | why |"
        yield "|---|---|---|---|"
        yield from _left(kernels)


def program_lines(name: str, cases: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of a section about test programs."""
    yield PROGRAMS.format(name=name)
    yield f"| target | {' | '.join(OF_PROGRAMS)} | pass, of those in scope | of all but types |"
    yield f"|---|{'---|' * (len(OF_PROGRAMS) + 2)}"
    targets = list(dict.fromkeys(each["target"] for each in cases))
    for target in targets:
        of_target = [each for each in cases if each["target"] == target]
        counts = Counter(each["status"] for each in of_target)
        inside = len(of_target) - counts["not in scope"]
        of_types = sum(each["reason"] in EXEMPT_TYPES for each in of_target)
        numbers = " | ".join(str(counts[status]) for status in OF_PROGRAMS)
        shares = (
            f"{counts['pass'] / inside:.2%} | {counts['pass'] / (len(of_target) - of_types):.2%}"
        )
        yield f"| {target} | {numbers} | {shares} |"
    yield f"\n| why not | {' | '.join(targets)} |"
    yield f"|---|{'---|' * len(targets)}"
    reasons: dict[str, Counter[str]] = {}
    for each in cases:
        if each["status"] != "pass":
            reason = each["reason"].replace("|", "/")[:120]
            reasons.setdefault(f"{each['status']}: {reason}", Counter())[each["target"]] += 1
    for reason, counts in sorted(reasons.items()):
        yield f"| {reason} | {' | '.join(str(counts[target]) for target in targets)} |"


def _by_folder(kernels: list[dict[str, Any]]) -> Iterator[str]:
    yield f"| folder | {' | '.join(STATUSES)} | greatest error |"
    yield f"|---|{'---|' * len(STATUSES)}---|"
    folders: dict[str, list[dict[str, Any]]] = {}
    for each in kernels:
        folders.setdefault(str(Path(each["file"]).parent), []).append(each)
    for folder, inside in sorted(folders.items()):
        counts = Counter(each["status"] for each in inside)
        greatest = max(
            (each["error"] or 0.0 for each in inside if each["status"] == "pass"), default=0
        )
        numbers = " | ".join(str(counts[status] or "") for status in STATUSES)
        yield f"| {folder} | {numbers} | {greatest:.1e} |"


def _left(kernels: list[dict[str, Any]]) -> Iterator[str]:
    """What did not pass, the kernels of a file that share a reason together."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for each in kernels:
        if each["status"] != "pass":
            place = each["file"], each["status"], each["reason"]
            rows.setdefault(place, []).append(each["kernel"])
    for (file, status, reason), names in rows.items():
        yield f"| {file} | {_names_and_counts(names)} | {status} | {reason} |"


def _names_and_counts(names: list[str]) -> str:
    """The names, of the runs of one test with different parameters how many they are."""
    counts = Counter(name.partition("[")[0] for name in names)
    return ", ".join(f"{name} ({n} times)" if n > 1 else name for name, n in counts.items())


def main(arguments: list[str]) -> None:
    """Print the page of the files that NAME=FILE arguments name."""
    given = [argument.rpartition("=")[::2] for argument in arguments]
    files = [(name, json.loads(Path(path).read_text())) for name, path in given]
    kernels = [(name, file["kernels"]) for name, file in files if "kernels" in file]
    lines = [*page(kernels)] if kernels else []
    for name, file in files:
        if "cases" in file:
            lines += program_lines(name, file["cases"])
    print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
