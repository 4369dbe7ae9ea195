"""The one table of a report, as text and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table_of(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells below headings, as a table in Markdown."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rows_of(text: str) -> list[tuple[str, ...]]:
    """The rows of a table that `table_of` wrote, below its headings."""
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    return [tuple(cell.strip() for cell in line[1:-1].split(" | ")) for line in lines]
