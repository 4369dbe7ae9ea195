"""The forms in which a profile is given: text, JSON, Parquet files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from glia.base.files import write_atomically
from glia.ntff.errors import LibraryMissing
from glia.ntff.tables import CapturedProfile, Row, Tables

# Names of tables in JSON, where they are not the schema's in lower case with underscores
JSON_NAMES = {"DmaPacketAggregated": "dma"}


def summary_json(captured: CapturedProfile) -> str:
    """One line: the metrics under the profile's name."""
    return json.dumps({captured.name: dict(captured.summary())}, allow_nan=False)


def summary_text(captured: CapturedProfile) -> str:
    """A metric on each line, in alphabetical order."""
    metrics = sorted(captured.summary().items())
    width = max(len(name) for name, _ in metrics)
    return "\n".join(f"{name:<{width}}  {value:.9g}" for name, value in metrics)


def save_json(captured: CapturedProfile, path: Path) -> None:
    """Write every table under its name; executions also have a timestamp and a duration."""
    tables: dict[str, list[Row]] = {}
    for name, rows in captured.tables().items():
        tables[JSON_NAMES.get(name) or _snake(name)] = [_with_earlier_names(row) for row in rows]
    write_atomically(path, [json.dumps(tables, allow_nan=False).encode()])


def _with_earlier_names(row: Row) -> Row:
    """The row, with the fields as the profiler called them before there was a schema."""
    if "duration_ns" not in row:
        return row
    return {**row, "timestamp": row["start_ts"], "duration": row["duration_ns"]}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def save_parquet(tables: Tables, folder: Path) -> None:
    """Write each table to a file of its name in `folder`, which is made; LibraryMissing."""
    arrow, parquet = _pyarrow()
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        sink = arrow.BufferOutputStream()
        parquet.write_table(arrow.table(_columns(rows)), sink)
        write_atomically(folder / f"{name}.parquet", [sink.getvalue().to_pybytes()])


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The rows as columns; None where a row lacks a field."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as problem:
        raise LibraryMissing(what="Parquet", library="pyarrow", extra="parquet") from problem
    return pyarrow, pyarrow.parquet
