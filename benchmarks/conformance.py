"""What came of the kernels of public clones, as a page.

glia conformance nki --repo CLONE --json > clone.json
python benchmarks/conformance.py "name of the clone=clone.json" ... > benchmarks/CONFORMANCE.md
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
        yield f"| {file} | {_told(names)} | {status} | {reason} |"


def _told(names: list[str]) -> str:
    """The names, of the runs of one test with different parameters how many they are."""
    counts = Counter(name.partition("[")[0] for name in names)
    return ", ".join(f"{name} ({n} times)" if n > 1 else name for name, n in counts.items())


if __name__ == "__main__":
    given = [argument.rpartition("=")[::2] for argument in sys.argv[1:]]
    found = [(name, json.loads(Path(path).read_text())["kernels"]) for name, path in given]
    print("\n".join(page(found)))
