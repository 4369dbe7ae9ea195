"""Outcomes of cases, and the table of them by operation and dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

PASS, MISMATCH, REFUSED, ERROR, OUTSIDE = "pass", "mismatch", "refused", "error", "not in scope"
STATUSES = (PASS, MISMATCH, REFUSED, ERROR, OUTSIDE)
FAULTS = (MISMATCH, ERROR)


@dataclass(frozen=True)
class CaseOutcome:
    """What became of one case on one target.

    `status` is one of STATUSES: a refusal is an error with a code, an error one without, a crash or
    a time limit. `dtype` is that of the first value checked, or of an argument where that is pred.
    """

    case: str
    operation: str
    dtype: str
    target: str
    status: str
    code: str = ""
    reason: str = ""
    seconds: float = 0.0


def table(outcomes: Iterable[CaseOutcome]) -> list[str]:
    """Lines of counts, one for each operation and dtype, and a last one of all."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    total: Counter[str] = Counter()
    for each in outcomes:
        rows.setdefault((each.operation, each.dtype), Counter())[each.status] += 1
        total[each.status] += 1
    width = max((len(operation) for operation, _ in rows), default=9)
    head = "".join(f"{status:>14}" for status in STATUSES)
    lines = [f"{'operation':{width}} {'dtype':14}{head}"]
    for (operation, dtype), counts in [*sorted(rows.items()), (("all", ""), total)]:
        cells = "".join(f"{counts[status] or '':>14}" for status in STATUSES)
        lines.append(f"{operation:{width}} {dtype:14}{cells}")
    return lines


def reasons(outcomes: Iterable[CaseOutcome]) -> list[str]:
    """A line for each reason of what is refused or not in scope, with its count by target."""
    found: dict[str, Counter[str]] = {}
    for each in outcomes:
        if each.status in (REFUSED, OUTSIDE):
            name = f"{each.status}: {each.code or each.reason}"
            found.setdefault(name, Counter())[each.target] += 1
    return [
        f"{name}: {', '.join(f'{count} on {target}' for target, count in counts.items())}"
        for name, counts in sorted(found.items())
    ]
