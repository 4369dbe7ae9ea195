"""Published times of collectives, and what the model says of them, on the instance of each listing.

    python benchmarks/calibration_collectives.py

prints the section of CALIBRATION.md that `make calibrate` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glia.arch import get_target
from glia.arch.kit import Arch
from glia.isa.collective_steps import algorithm_of
from glia.machine.builder.program_builder import ProgramBuilder
from glia.timing.simulate import simulate_timing

# Earlier releases have rings only. What a run of theirs takes without steps, and what a step takes,
# are read off the least times of two listings: 2 steps in 58 us and 31 steps in 149 us.
RING_HOP_NS = (149 - 58) / (31 - 2) * 1000
RING_LAUNCH_US = 58 - 2 * RING_HOP_NS / 1000
RINGS = {"collective_mesh_bytes": 0, "collective_doubling_bytes": 0,
         "collective_hop_ns": RING_HOP_NS}  # fmt: skip


@dataclass(frozen=True)
class Listing:
    """Microseconds by bytes, of an operation by a number of ranks on an instance.

    `launch_us` is what a run takes besides, as earlier releases do; `is_read_off` says that its
    own first row gave it. `why` says how the instance is known.
    """

    op: str
    ranks: int
    target: str
    lnc: int
    why: str
    times: tuple[tuple[int, float], ...]
    note: str = ""
    launch_us: float = 0.0
    is_read_off: bool = False
    has_rings_only: bool = False

    @property
    def arch(self) -> Arch:
        """A core whose chip has as many ranks as the listing's, and the release's algorithms."""
        arch = get_target(self.target).arch
        fabric = replace(arch.fabric, ranks=arch.fabric.ranks // self.lnc)
        return replace(arch.with_values(RINGS if self.has_rings_only else {}), fabric=fabric)


def _powers(first: int, times: Sequence[float], factor: int = 2) -> tuple[tuple[int, float], ...]:
    return tuple((first * factor**number, us) for number, us in enumerate(times))


_ALL = "all cores of a trn1.32xlarge: another guide says so of this run"
_LOGICAL = "logical cores of Trn2: four or more on a chip"
_TWO = "two nodes with EFA, 32 ranks each: trn1.32xlarge"
LISTINGS = (
    Listing("all_reduce", 2, "trn1", 1, "assumed: two cores of a chip", _powers(1 << 10, (
        58, 58, 58, 58, 60, 68, 107, 332, 1214, 4750, 18930), 4),
        "fp32", RING_LAUNCH_US, has_rings_only=True),
    Listing("all_reduce", 2, "trn1", 1, "assumed: two cores of a chip", ((32 << 20, 768),),
        "uint8", RING_LAUNCH_US, has_rings_only=True),
    Listing("all_gather", 32, "trn1", 1, _ALL, _powers(1 << 10, (151, 149, 150, 179), 8),
        "earlier release", RING_LAUNCH_US, has_rings_only=True),
    Listing("all_reduce", 64, "trn1", 1, _TWO, _powers(8, (
        520, 520, 523, 525, 553, 709, 782, 840, 881, 916, 1013, 1031, 1174, 1315, 1315, 1311, 1312,
        1328, 1329, 1378, 1419, 2138, 2711, 3963, 6279, 11954, 21803, 41806)),
        "two nodes", RING_LAUNCH_US, has_rings_only=True),
    Listing("all_gather", 32, "trn1", 1, _ALL, _powers(1 << 10, (6.16, 6.48, 8.17, 23.16), 8),
        "later release"),
    Listing("all_gather", 32, "trn1", 1, _ALL, _powers(1 << 10, (6.19, 6.55, 8.18, 23.11), 8),
        "later release, again"),
    Listing("all_gather", 32, "trn1", 1, _ALL, ((512 << 10, 24.15),), "profiler's guide"),
    Listing("all_gather", 8, "trn2", 2, "assumed: two chips", _powers(1 << 10, (
        10.0, 10.22, 11.31, 14.83), 8)),
    Listing("all_gather_v", 4, "trn2", 2, "one chip, as the operation asks", ((2 << 10, 16.28),)),
    Listing("all_gather", 64, "trn2", 2, _LOGICAL, _powers(1 << 10, (
        101.14, 101.93, 101.45, 101.84, 102.21, 102.36, 103.28, 105.03, 107.37, 110.07, 117.67)),
        "one of two streams", 101.14, is_read_off=True),
    Listing("all_reduce", 16, "trn2", 2, _LOGICAL, (
        (4, 299.91), (32, 299.69), (512, 299.82), (8 << 10, 299.74), (128 << 10, 574.15),
        (2 << 20, 686.32), (32 << 20, 2754.15), (512 << 20, 9689.51)),
        "with algorithms", 299.91, is_read_off=True),
    Listing("collective_permute", 4, "trn1", 1, "assumed: two chips", ((32 << 20, 894.24),),
        "pairs, uint8", RING_LAUNCH_US, has_rings_only=True),
)  # fmt: skip

LEFT_OUT = (
    "stream 1 of two streams (1 KiB, 258 us): one size, of which all is the run's own time",
    "all-to-all-v of 2 ranks on two nodes (955 us): one size, and hardly any bytes are sent",
    "all-reduce of 512 KiB in a ring (456.7 us): the number of ranks is not said",
)


def predicted_us(listing: Listing, count: int) -> float:
    """Microseconds of one rank, from the trigger to the use of the result."""
    ranks, arch = listing.ranks, listing.arch
    b = ProgramBuilder("collective", target=listing.target)
    whole = max(ranks, count // 4)
    part = whole // ranks if "gather" in listing.op else whole
    src, dst = b.hbm((part,)), b.hbm((part * ranks if "gather" in listing.op else whole,))
    tensors = {"srcs": (src,), "dsts": (dst,)}
    groups = (tuple(range(ranks)),)
    match listing.op:
        case "collective_permute":
            b.collective_permute(**tensors, source_target_pairs=((0, 1), (1, 0), (2, 3), (3, 2)))
        case "all_gather_v":
            sizes = b.hbm((3, ranks), "u32")
            b.all_gather_v(**tensors, groups=groups, metadata=sizes)
        case "all_gather":
            b.all_gather(**tensors, groups=groups, collective_dim=0)
        case _:
            b.all_reduce(**tensors, groups=groups, op="add")
    timing = simulate_timing(b.finish(synchronise=False, is_checked=False), arch)
    return listing.launch_us + (timing.latency_ns - timing.begin_ns - arch.postamble_ns) / 1000


def collective_lines() -> list[str]:
    """The section: every row with its error, and the errors of each listing."""
    lines = [
        *SECTION,
        "| operation | ranks | bytes | algorithm | published us | predicted us | error |",
        "|---|---|---|---|---|---|---|",
    ]
    summaries, errors = [], []
    for listing in LISTINGS:
        found = [(count, us, predicted_us(listing, count)) for count, us in listing.times]
        lines += _rows(listing, found)
        own = [guess / us - 1 for _, us, guess in found[listing.is_read_off :]]
        errors += own
        summaries.append(
            f"* {listing.op} of {listing.ranks}{listing.note and f' ({listing.note})'}, "
            f"{listing.target}, {listing.why}: {_summary(own)}"
        )
    lines += ["", *summaries, f"* all: {_summary(errors)}", ""]
    return [*lines, *(f"* left out: {each}" for each in LEFT_OUT)]


def _rows(listing: Listing, found: Sequence[tuple[int, float, float]]) -> Iterator[str]:
    is_alone = listing.op == "collective_permute"
    for number, (count, us, guess) in enumerate(found):
        group = tuple(range(listing.ranks))
        own = "pairs" if is_alone else algorithm_of(count, group, listing.arch)
        error = "(read off)" if listing.is_read_off and not number else f"{guess / us - 1:+.0%}"
        cells = listing.op, listing.ranks, count, own, f"{us:g}", f"{guess:.4g}", error
        yield f"| {' | '.join(map(str, cells))} |"


def _summary(errors: Sequence[float]) -> str:
    found = np.array(errors)
    return (
        f"{len(found)} rows, mean absolute error {np.abs(found).mean():.0%}, "
        f"median {np.median(found):+.0%}, within 25%: {(np.abs(found) <= 0.25).sum()}"
    )


_RELEASES = (
    f"releases have rings only: a run takes {RING_LAUNCH_US:.0f} us, and a step "
    f"{RING_HOP_NS / 1000:.1f} us, which are read off"
)
SECTION = (
    "## Collectives",
    "",
    "Every listing of the nccom-test guide, on the instance that it must have run on. Earlier",
    _RELEASES,
    "two rows, and nothing else of these listings is fitted. What a run takes besides is read",
    "off the first row of two more listings; in the others it is nothing. Algorithms, and the",
    "sizes from which each serves, are the documented ones; hops and links are those of",
    "`docs/isa/hardware.md`. What is far off: on two nodes a run of 64 KiB to 8 MiB takes 0.8 ms",
    "more than one of 64 bytes, and with 16 ranks one of 128 KiB takes 0.27 ms more than one of",
    "8 KiB. Links and hops do not explain either, and nothing else is documented.",
    "",
)


if __name__ == "__main__":
    print("\n".join(collective_lines()))
