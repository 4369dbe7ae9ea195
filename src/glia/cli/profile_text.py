"""A profile as the text that `glia profile` prints."""

from __future__ import annotations

import linecache
from pathlib import Path

from glia.profile.report import Profile

MAX_PATH_LINES = 12  # printed; the rest is one summary line
MAX_OPERATORS = 8


def profile_text(report: Profile, written_us: float | None = None) -> str:
    """Latency, traffic, utilisation, the critical path, and what the estimate leaves out.

    `written_us` is how long a kernel takes that the back end left as written.
    """
    cores = f"{len(report.cores)} cores" if report.cores else "one core"
    low, high = report.latency_range_us
    lines = [
        f"latency          {report.latency_us:.2f} us (simulated, {cores} of {report.target.name})",
        f"  may be         {low:.2f} to {high:.2f} us, as far as the constants are known",
        f"matrix peak used {report.mfu:.2%} (MFU, {report.flops} flops)",
        f"HBM traffic      {report.hbm_bytes} bytes, {report.hbm_gbps:.1f} GB/s",
        f"DMA traffic      {report.dma_bytes} bytes",
        f"temporaries      {report.scratchpad_bytes} bytes of HBM",
        f"instructions     {report.instructions}",
    ]
    if (found := report.communication) is not None:
        lines.append(
            f"exchanges        {found.exchanges}, {found.flight_us:.2f} us in flight, "
            f"{found.exposed_us:.2f} us exposed ({found.hidden_share:.1%} hidden)"
        )
    lines += [f"note             {note}" for note in report.notes]
    if written_us is not None:
        lines.append(f"as written       {written_us:.2f} us")
    for title, core in zip(report.titles, report.cores, strict=True):
        waited = core.waiting_us.items()
        waits = "".join(f", waited {us:.2f} us for {report.titles[n]}" for n, us in waited)
        if report.is_of_ranks and (own := core.communication) is not None:
            hidden = own.flight_us - own.exposed_us
            waits = f", exchanges hidden {hidden:.2f} us, exposed {own.exposed_us:.2f} us{waits}"
        lines.append(f"{title:16} {core.latency_us:.2f} us{waits}")
    tracks = [("engine " + name, each) for name, each in report.engines.items()]
    tracks += [("queue " + name, each) for name, each in report.queues.items()]
    for name, each in tracks:
        lines.append(
            f"{name:16} busy {each.busy_us:.2f} us ({each.utilization:.1%}), "
            f"{each.instructions} instructions"
        )
    lines += [*_path_lines(report), *_operator_lines(report), "not modelled:"]
    return "\n".join([*lines, *(f"  {text}" for text in report.not_modelled)])


def _path_lines(profile: Profile) -> list[str]:
    """The critical path as a table, one row for each source line."""
    rows = profile.critical_path
    lines = ["critical path, by source line:"]
    for row in rows[:MAX_PATH_LINES]:
        place, source = row.loc.name, ""
        if row.loc.file:
            place = f"{Path(row.loc.file).name}:{row.loc.line}"
            source = linecache.getline(row.loc.file, row.loc.line).strip()[:60]
        lines.append(
            f"  {row.share:6.1%} {row.ns / 1000:10.2f} us {row.track:12} {row.opcode:24} "
            f"{place:28} {source}".rstrip()
        )
    if len(rows) > MAX_PATH_LINES:
        rest = sum(row.share for row in rows[MAX_PATH_LINES:])
        lines.append(f"  {rest:6.1%} on {len(rows) - MAX_PATH_LINES} more lines")
    return lines if rows else []


def _operator_lines(profile: Profile) -> list[str]:
    """The operators whose instructions are busy longest, of all engines and queues in total."""
    rows = [row for row in profile.operators if row.source]
    if not rows:
        return []
    total = sum(row.busy_ns for row in profile.operators) or 1.0
    lines = ["busy time, by operator:"]
    for row in rows[:MAX_OPERATORS]:
        mostly = next(iter(row.tracks))
        lines.append(
            f"  {row.busy_ns / total:6.1%} {row.busy_ns / 1000:10.2f} us {mostly:12} {row.source}"
        )
    if len(rows) > MAX_OPERATORS:
        rest = sum(row.busy_ns for row in rows[MAX_OPERATORS:]) / total
        lines.append(f"  {rest:6.1%} in {len(rows) - MAX_OPERATORS} more operators")
    return lines
