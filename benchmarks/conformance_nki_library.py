"""What came of the tests of the NKI Library, as a page.

glia conformance nki-library --repo CLONE --json > tests.json
python benchmarks/conformance_nki_library.py COMMIT TOTAL tests.json ... > PAGE

A run may be made in parts, by --only; their tests are joined, and of one that is in several the
last counts. TOTAL is how many tests pytest selects by their marks.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from glia.conformance.suite_outcomes import (
    EXPLAINED,
    FAULTS,
    SKIPPED,
    SLOW,
    STATUSES,
    SuiteOutcome,
)

INTRODUCTION = """\
# The tests of the NKI Library

Written by `python benchmarks/conformance_nki_library.py`, from `glia conformance nki-library --repo
CLONE --json` with a clone of aws-neuron/nki-library at {commit}, unchanged. Its own harness runs
its tests and compares with their references in PyTorch; two cores run together where a test says
LNC 2. Of {total} tests marked `fast` the table counts {count}. Not in it: cross entropy forward and
experts whose hidden dimension is divided, which earlier runs stopped after 150 and 400 seconds;
four kernels of 64 experts, whose sums did not fit PSUM in written order and that were not repeated
since another order is tried; and four of 64 and 128 experts, which were ended for want of memory.

* **pass**: the harness accepts the result. **mismatch**: it does not. **refused**: an error with a
  code. **error**: any other exception.
* **too slow**: over the time limit of the run, on a machine with other work; not a verdict.
* **explained**: the suite's own file is at fault, below with the reason.
* **skipped**: the suite skips the test in its simulation mode, most for its size.
"""


def page(commit: str, total: str, outcomes: list[SuiteOutcome]) -> Iterator[str]:
    """The lines of the page."""
    yield INTRODUCTION.format(commit=commit, total=total, count=len(outcomes))
    yield f"| test file | {' | '.join(STATUSES)} |"
    yield f"|---|{'---|' * len(STATUSES)}"
    by_file: dict[str, Counter[str]] = {}
    for each in outcomes:
        by_file.setdefault(each.file, Counter())[each.status] += 1
    together = sum(by_file.values(), Counter())
    for name, counts in [*sorted(by_file.items()), ("**all**", together)]:
        yield f"| {name} | {' | '.join(str(counts[s] or '') for s in STATUSES)} |"
    yield "\n| test | | why |\n|---|---|---|"
    for each in outcomes:
        if each.status in (*FAULTS, SLOW):
            yield _row(f"{each.file} `{each.test}`", each.status, each.reason)
    reasons = Counter(
        (each.file, each.status, each.reason)
        for each in outcomes
        if each.status in (EXPLAINED, SKIPPED)
    )
    yield "\n| file | | why | tests |\n|---|---|---|---|"
    for (name, status, reason), count in sorted(reasons.items()):
        yield f"{_row(name, status, reason)} {count} |"


def _row(name: str, status: str, reason: str) -> str:
    return f"| {name} | {status} | {reason.replace('|', '/')} |"


def main(commit: str, total: str, paths: list[str]) -> None:
    """Print the page of the tests in these files."""
    found: dict[tuple[str, str], SuiteOutcome] = {}
    for path in paths:
        for fields in json.loads(Path(path).read_text())["tests"]:
            outcome = SuiteOutcome(**fields)
            found[outcome.file, outcome.test] = outcome
    sys.stdout.write("\n".join(page(commit, total, list(found.values()))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
