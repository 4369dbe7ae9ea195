"""The timing model held against each publication with the constants that the others give."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from calibration_rows import Row
from markdown_table import rows_of

from glia.arch import readings as names
from glia.arch.constant import Constant
from glia.arch.instances import TARGETS

PUBLICATIONS = {  # by how the source of a row begins
    "kernel optimization": names.OPTIMIZATION,
    "profiling guide": names.PROFILER,
    "NKI profiler guide": names.PROFILER,
    "DMA overview": names.OVERVIEW,
    "matrix multiplication tutorial": "matrix multiplication tutorial",
    "fused mamba tutorial": names.MAMBA,
    "profile of the exp kernel": names.EXPONENTIAL,
    "NKI performance guide": names.PERFORMANCE,
    "instruction details picture": names.DETAILS,
    "device profile": names.DEVICE,
    "NKI library": names.LIBRARY,
    "nccom-test guide": names.NCCOM,
    "ucb-bar/autocomp": names.AUTOCOMP,
    "allenkchau/trainium-kernel-fusion": names.FUSION,
}
MEAN_GOAL, MEDIAN_GOAL, RANK_GOAL = 0.12, 0.05, 0.95
FEW_ROWS = 2
# What is known of sources that miss a goal, by how their names begin
BOUNDS = {
    "ucb-bar/autocomp, Trn1: sequences": """\
the convolution. Its step 4 adds one column to another in a loop; the 5.6 ms that are published, 2.3
less than for step 3, are what one instruction for each iteration would take that multiplies and
adds, which public NKI does not have: here there are two. Of float32 attention (0.70) steps 1 to 4
lie within 9 %, steps 5 and 6 are alike, and errors of -2 to +11 % change their order; of mamba
(0.90) steps 2 and 3 do, which lie within 0.2 %""",
    "NKI library, two cores": """\
small MLPs and projections take 13 to 25 us more on two cores, whatever their size, and none of it
on one (HELD_OUT.md)""",
    "zhang677/AccelOpt": """\
reciprocals of float32, 8 cycles an element here as documented, 1.7 to 2.8 there; one kernel of
attention (NKIBENCH.md)""",
    "Jerry2423/kda-for-trainium": """\
attention in float32 and products that its compiler orders otherwise (NKIBENCH.md); its times are in
a unit of their own, which the clock of its activations gives""",
    "NKI Beta 1 samples": """\
the pooling loops: 0.5 us a transfer and 14 ns a descriptor would fit, another source allows 0.32 us
and 9 ns at most (HELD_OUT.md)""",
    "trainium-kernel-fusion": """\
instructions take what they take here, the gaps between them are longer: the order goes stage by
stage, which no document gives (HELD_OUT.md)""",
    "allenkchau/trainium-kernel-fusion, profiles": """\
an exponential from PSUM and one from SBUF, 570 and 612 ns, are taken as alike""",
}
_TIMES = {"ms": 1e6, "us": 1e3, "ns": 1.0}


@dataclass(frozen=True)
class Found:
    """The rows of one publication: published and predicted in one unit, and their order."""

    name: str
    published: tuple[float, ...]
    predicted: tuple[float, ...]
    alone: tuple[str, ...] = ()  # constants that no other publication determines
    others: tuple[str, ...] = ()  # constants that the others give another value
    rank: float | None = None  # the least of several sequences; None: that of all rows


def publication_of(row: Row) -> str:
    """The publication that a row is from; KeyError for an unknown one."""
    for beginning, name in PUBLICATIONS.items():
        if row.source.startswith(beginning):
            return name
    raise KeyError(row.source)


@contextmanager
def constants_without(publication: str) -> Iterator[tuple[list[str], list[str]]]:
    """Targets have the constants that other publications give.

    Gives the names of those that none other determines, and of those with another value.
    """
    kept = dict(TARGETS)
    alone: dict[str, None] = {}
    others: dict[str, None] = {}
    try:
        for name, target in kept.items():
            values: dict[str, float] = {}
            for key, constant in target.arch.constants.items():
                left = constant.leave_out(publication)
                if left is None:
                    alone[f"{target.arch.name} {key}"] = None
                elif left.value != constant.value:
                    values[key] = left.value
                    others[f"{target.arch.name} {key} {_change(constant, left)}"] = None
            if values:
                arch = target.arch.with_values(values)
                TARGETS[name] = dataclasses.replace(target, arch=arch)
        yield list(alone), list(others)
    finally:
        TARGETS.update(kept)


def _change(constant: Constant, left: Constant) -> str:
    return f"{constant.value:g} -> {left.value:g}"


def left_out(rows: Sequence[Row]) -> list[Found]:
    """Each publication's rows, predicted with the constants of the others."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        if not row.contradicted_by:
            by_name.setdefault(publication_of(row), []).append(row)
    found = []
    for name, own in by_name.items():
        with constants_without(name) as (alone, others):
            predicted = tuple(row.predict() * _TIMES.get(row.unit, 1.0) for row in own)
        published = tuple(row.published * _TIMES.get(row.unit, 1.0) for row in own)
        found.append(Found(name, published, predicted, tuple(alone), tuple(others)))
    return found


def of_page(path: Path, name: str, title: Callable[[str], bool], rank: bool = True) -> Found:
    """The rows of a page's sections, which were predicted with all constants."""
    published: list[float] = []
    predicted: list[float] = []
    ranks: list[float] = []
    for section in path.read_text().split("\n## ")[1:]:
        heading = section.splitlines()[0]
        if not title(heading):
            continue
        first = len(published)
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.strip("| ").split("|")]
            if len(cells) >= 4 and cells[-1].endswith("%") and cells[-1][0] in "+-":
                published.append(float(cells[-3]))
                predicted.append(float(cells[-2]))
        if len(published) - first > 2:
            ranks.append(rank_correlation(published[first:], predicted[first:]))
    least = min(ranks, default=None) if rank else None
    return Found(name, tuple(published), tuple(predicted), rank=least)


def of_table(path: Path, name: str, is_of: Callable[[Sequence[str]], bool]) -> Found:
    """The rows of NKIBENCH.md that belong to a publication, those without a time left out."""
    timed = [each for each in rows_of(path.read_text()) if each[5] and is_of(each)]
    return Found(name, *(tuple(float(each[n]) for each in timed) for n in (3, 4)))


def rank_correlation(published: Sequence[float], predicted: Sequence[float]) -> float:
    """Spearman's coefficient; equal numbers share a rank."""
    return float(np.corrcoef(_ranks(published), _ranks(predicted))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    ordered = np.sort(np.array(values))
    low = np.searchsorted(ordered, values, "left")
    return (low + np.searchsorted(ordered, values, "right") - 1) / 2


def _missed(found: Sequence[Found]) -> list[str]:
    """The sources that miss a goal, with what is known of why."""
    lines = ["Missed, and what bounds it:", ""]
    for each in found:
        errors = np.array(each.predicted) / np.array(each.published) - 1
        median, mean = float(np.median(errors)), float(np.abs(errors).mean())
        rank = _rank_of(each)
        missed = [f"mean absolute {mean:.1%}"] if mean > MEAN_GOAL else []
        missed += [f"median {median:+.1%}"] if abs(median) > MEDIAN_GOAL else []
        missed += [f"rank {rank:.2f}"] if rank is not None and round(rank, 2) < RANK_GOAL else []
        if missed:
            few = f"it has {len(errors)} row{'s' if len(errors) > 1 else ''} only"
            known = [text for name, text in BOUNDS.items() if each.name.startswith(name)]
            why = known[0] if known else few if len(errors) <= FEW_ROWS else "not known"
            lines.append(f"* {each.name} ({', '.join(missed)}): {why}.".replace("\n", " "))
    return [*lines, ""]


def _rank_of(found: Found) -> float | None:
    if found.rank is None and len(found.published) > FEW_ROWS:
        return rank_correlation(found.published, found.predicted)
    return found.rank


def source_lines(found: Sequence[Found]) -> list[str]:
    """The table by left-out source, and what each determines."""
    lines = [
        "| source left out | n | mean | median | mean absolute | worst | rank |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found:
        errors = np.array(each.predicted) / np.array(each.published) - 1
        rank = _rank_of(each)
        lines.append(
            f"| {each.name} | {len(errors)} | {errors.mean():+.1%} | {np.median(errors):+.1%} | "
            f"{np.abs(errors).mean():.1%} | {errors[np.abs(errors).argmax()]:+.1%} | "
            f"{'' if rank is None else f'{rank:.2f}'} |"
        )
    lines.append("")
    lines += _missed(found)
    for each in found:
        if each.others:
            lines.append(f"* without {each.name} the others give: {', '.join(each.others)}")
        if each.alone:
            lines.append(f"* not determined without {each.name}: {', '.join(each.alone)}")
    return lines
