"""Small HTML for notebooks: a title and a table, every text escaped and cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MAX_ROWS = 12
MAX_CHARACTERS = 120
CELL = "text-align:left;padding:1px 12px 1px 0"


def describe(
    title: str, facts: Iterable[tuple[str, str]], head: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """A title, a line of facts, and a table with a line for the rows that do not fit."""
    line = " &middot; ".join(f"{_text(name)} <b>{_text(value)}</b>" for name, value in facts)
    body = [_row(row, "td") for row in rows[:MAX_ROWS]]
    if len(rows) > MAX_ROWS:
        body.append(_row([f"{len(rows) - MAX_ROWS:,} more"], "td"))
    table = f"<table>{_row(head, 'th')}{''.join(body)}</table>" if rows else ""
    return f"<div><b>{_text(title)}</b><div>{line}</div>{table}</div>"


def _row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag} style={CELL!r}>{_text(each)}</{tag}>' for each in cells)}</tr>"


def _text(value: str) -> str:
    cut = value if len(value) <= MAX_CHARACTERS else value[: MAX_CHARACTERS - 3] + "..."
    return escape(cut)
