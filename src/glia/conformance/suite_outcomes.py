"""Outcomes of the tests of a public suite, and their table by test file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

PASS, MISMATCH, REFUSED, ERROR = "pass", "mismatch", "refused", "error"
SLOW, EXPLAINED, SKIPPED = "too slow", "explained", "skipped"
STATUSES = (PASS, MISMATCH, REFUSED, ERROR, SLOW, EXPLAINED, SKIPPED)
FAULTS = (MISMATCH, REFUSED, ERROR)


@dataclass(frozen=True)
class SuiteOutcome:
    """What came of one test on one target.

    `status` is one of STATUSES: a refusal is an error with a code, a skip the suite's own. `file`
    is relative to the suite's folder of tests.
    """

    file: str
    test: str
    target: str
    status: str
    code: str = ""
    reason: str = ""
    seconds: float = 0.0

    @property
    def case(self) -> str:
        """File and test in one."""
        return f"{self.file}::{self.test}" if self.test else self.file


def table(outcomes: Iterable[SuiteOutcome]) -> list[str]:
    """Lines of counts, one for each test file, and a last one of all."""
    rows: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    for each in outcomes:
        rows.setdefault(each.file, Counter())[each.status] += 1
        total[each.status] += 1
    width = max((len(name) for name in rows), default=9)
    lines = [f"{'test file':{width}}" + "".join(f"{status:>11}" for status in STATUSES)]
    for name, counts in [*sorted(rows.items()), ("all", total)]:
        cells = "".join(f"{counts[status] or '':>11}" for status in STATUSES)
        lines.append(f"{name:{width}}{cells}")
    return lines


def reasons(outcomes: Iterable[SuiteOutcome]) -> list[str]:
    """A line for each reason of what was refused, explained or skipped, with its count."""
    counts = Counter(
        f"{each.status}: {each.code or each.reason}"
        for each in outcomes
        if each.status in (REFUSED, EXPLAINED, SKIPPED)
    )
    return [f"{name}: {count}" for name, count in sorted(counts.items())]
