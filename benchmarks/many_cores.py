"""What strategies for exchanges and two cores gain, gathered from RANKS.md and CORES.md.

    python benchmarks/measure.py table many_cores

Those pages are written by rank_programs.py and two_cores.py, which take longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LEAST_HIDDEN = 60  # percent of the time in flight


def results() -> dict[str, Any]:
    """The table."""
    strategies, cores = list(_strategies()), list(_cores())
    return {
        "title": "Many cores",
        "text": (
            "Simulated time on trn2: eight ranks without a strategy for exchanges and with one, of"
            " which that part is hidden that the program is not longer by ([all](RANKS.md)), and"
            " models on one core and on two ([all, and trn3](CORES.md)). What misses its goal is"
            " in the last column: too little work to hide an exchange, or a barrier, behind."
        ),
        "headings": ("program", "size", "before, us", "after, us", "hidden, or times", "goal"),
        "rows": [*strategies, *cores],
        "broken": [],
    }


def _strategies() -> Iterator[list[str]]:
    """A row for each program of ranks and its strategy."""
    for without, given in pairwise(_rows("RANKS.md", "| program | size | strategy | kept |")):
        if without[2] == "-" and given[2] != "-" and without[:2] == given[:2]:
            hidden = int(given[-1].rstrip("%"))
            goal = f"{LEAST_HIDDEN}%" + (": missed" if hidden < LEAST_HIDDEN else "")
            named = f"{given[0]}, {given[2]}" + ("" if given[3] != "-" else " (not kept)")
            yield [named, given[1], without[4], given[4], given[-1], goal]


def _cores() -> Iterator[list[str]]:
    """A row for each model on one core and on two."""
    for model, target, one, two, times, goal, *_ in _rows("CORES.md", "| model | target |"):
        if target == "trn2":
            is_missed = float(times) < float(goal)
            yield [model, "two cores", one, two, times, goal + ": missed" * is_missed]


def _rows(page: str, head: str) -> Iterator[list[str]]:
    """The rows of the table of a page that begins so."""
    _, _, rest = (HERE / page).read_text(encoding="utf-8").partition(f"\n{head}")
    for line in rest.splitlines()[2:]:
        if not line.startswith("|"):
            break
        yield [cell.strip() for cell in line.strip("|").split("|")]
