"""Published times of collectives within an instance, and what the model says of them.

nccom-test's guide names no instance for any listing, so each is predicted for Trn1 and for Trn2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glia.arch import get_target
from glia.machine.builder.program_builder import ProgramBuilder
from glia.timing.simulate import simulate_timing

TARGETS = ("trn1", "trn2")


@dataclass(frozen=True)
class Listing:
    """One listing: microseconds by bytes, of an operation by a number of ranks."""

    op: str
    ranks: int
    times: tuple[tuple[int, float], ...]
    note: str = ""


LISTINGS = (
    Listing("all_reduce", 2, (
        (1 << 10, 58), (4 << 10, 58), (16 << 10, 58), (64 << 10, 58), (256 << 10, 60),
        (1 << 20, 68), (4 << 20, 107), (16 << 20, 332), (64 << 20, 1214), (256 << 20, 4750),
        (1 << 30, 18930),
    )),
    Listing("all_reduce", 2, ((32 << 20, 768),), "uint8, another run"),
    Listing("all_gather", 8, (
        (1 << 10, 10.0), (8 << 10, 10.22), (64 << 10, 11.31), (512 << 10, 14.83),
    )),
    Listing("all_gather", 32, (
        (1 << 10, 6.16), (8 << 10, 6.48), (64 << 10, 8.17), (512 << 10, 23.16),
    ), "newer release"),
    Listing("all_gather", 32, (
        (1 << 10, 151), (8 << 10, 149), (64 << 10, 150), (512 << 10, 179),
    ), "older release, with checks"),
    Listing("all_reduce", 16, (
        (4, 299.91), (32, 299.69), (512, 299.82), (8 << 10, 299.74), (128 << 10, 574.15),
    ), "mesh"),
    Listing("all_reduce", 16, ((2 << 20, 686.32),), "recursive doubling and halving"),
    Listing("all_reduce", 16, ((32 << 20, 2754.15), (512 << 20, 9689.51)), "KangaRing"),
)  # fmt: skip

LEFT_OUT = (
    "two nodes (64 ranks, 2 ranks): the network between nodes is not modelled",
    "two streams at once (64 ranks): which links they share is not said",
    "all-gatherv and permute: counts of each rank are not said",
)


def predicted_us(op: str, ranks: int, count: int, target: str) -> float:
    """Microseconds of one rank, from the trigger to the use of the result."""
    b = ProgramBuilder("collective", target=target)
    whole = max(ranks, count // 4)
    part = whole // ranks if op == "all_gather" else whole
    options = {"collective_dim": 0} if op == "all_gather" else {"op": "add"}
    src, dst = b.hbm((part,)), b.hbm((part * ranks if op == "all_gather" else whole,))
    getattr(b, op)(srcs=(src,), dsts=(dst,), groups=(tuple(range(ranks)),), **options)
    arch = get_target(target).arch
    timing = simulate_timing(b.finish(synchronise=False, is_checked=False), arch)
    return (timing.latency_ns - timing.begin_ns - arch.postamble_ns) / 1000


def collective_lines() -> list[str]:
    """A table for every listing: how many rows, and the errors on each target."""
    lines = [
        "| operation | ranks | bytes | published us | trn1 us | trn2 us | of bytes alone |",
        "|---|---|---|---|---|---|---|",
    ]
    summaries = []
    for listing in LISTINGS:
        rows = [
            (count, us, [predicted_us(listing.op, listing.ranks, count, t) for t in TARGETS])
            for count, us in listing.times
        ]
        floor = min(us for _, us, _ in rows)
        for count, us, found in rows:
            least = [min(each[2][n] for each in rows) for n in range(len(TARGETS))]
            alone = " ".join(
                f"{(each - low) / (us - floor) - 1:+.0%}"
                for each, low in zip(found, least, strict=True)
                if us > 2 * floor
            )
            cells = (listing.op, listing.ranks, count, f"{us:g}", *(f"{x:.4g}" for x in found))
            lines.append(f"| {' | '.join(map(str, cells))} | {alone} |")
        name = f"{listing.op} of {listing.ranks} ranks"
        summaries.append(f"* {name}{f' ({listing.note})' if listing.note else ''}: {_errors(rows)}")
    return [*lines, "", *summaries, "", *(f"* left out: {each}" for each in LEFT_OUT)]


def _errors(rows: list[tuple[int, float, list[float]]]) -> str:
    errors = np.array([[each / us - 1 for each in found] for _, us, found in rows])
    texts = [
        f"{target} mean absolute error {np.abs(own).mean():.0%}, median {np.median(own):+.0%}"
        for target, own in zip(TARGETS, errors.T, strict=True)
    ]
    return f"{len(rows)} rows, {'; '.join(texts)}"
