"""`glia cache`: what the compile cache holds, why entries differ, and what to remove."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from glia.cache.store import CompileCache, Entry

SECONDS_A_DAY = 86_400
DIRECTORY = click.option(
    "--cache_dir",
    "--cache-dir",
    "directory",
    default="",
    metavar="DIR",
    help="The cache.  [default: NEURON_COMPILE_CACHE_URL, else /var/tmp/neuron-compile-cache]",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(short_help="List, explain and clean the compile cache.")
def cache() -> None:
    """List, explain and clean the compile cache.

    Compilations use it where NEURON_COMPILE_CACHE_URL or `--cache_dir` names a directory. An entry
    is found by the HLO module without source locations, the options, and the compiler's version.
    """


def _cache(directory: str) -> CompileCache:
    import os

    from glia.cache.store import DEFAULT_DIRECTORY, VARIABLE, CompileCache, directory_of

    url = directory or os.environ.get(VARIABLE, "") or DEFAULT_DIRECTORY
    return CompileCache(directory_of(url))


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "entry": entry.path.name,
        "version": entry.path.parent.name.removeprefix("neuronxcc-"),
        "model": entry.model,
        "flags": list(entry.flags),
        "bytes": entry.bytes,
        "used": entry.used,
        "problem": entry.problem,
        "collected": entry.is_collected,
        "path": str(entry.path),
    }


def _text(entry: Entry) -> str:
    flags = dict(flag[2:].split("=", 1) for flag in entry.flags if "=" in flag)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    shown = f"{entry.model} for {flags.get('target', '?')} -O{flags.get('optlevel', '?')}"
    if entry.is_collected:
        shown = f"collected for {flags.get('target', '?')}, not yet compiled"
    what = f"damaged: {entry.problem}" if entry.problem else shown
    return f"{entry.path.name}  {entry.bytes:>12,} bytes  used {when}  {what}"


@cache.command("list", short_help="List the entries.")
@DIRECTORY
@AS_JSON
def list_entries(directory: str, as_json: bool) -> None:
    """List the entries: name, bytes, last use, model, target; what is wrong with damaged ones.

    \b
    Examples:
      glia cache list
      glia cache list --cache_dir cache --json
    """
    found = _cache(directory)
    entries = list(found.entries())
    if as_json:
        rows = [_row(entry) for entry in entries]
        click.echo(json.dumps({"directory": str(found.directory), "entries": rows}))
        return
    for entry in entries:
        click.echo(_text(entry))
    total = sum(entry.bytes for entry in entries)
    click.echo(f"{len(entries)} entries, {total:,} bytes in {found.directory}")


@cache.command(short_help="Say why two compilations do not share an entry.")
@click.argument("first", metavar="ENTRY|MODEL")
@click.argument("second", metavar="ENTRY|MODEL")
@DIRECTORY
@AS_JSON
def explain(first: str, second: str, directory: str, as_json: bool) -> None:
    """Say why two compilations do not share an entry: compiler, flags, or instructions that differ.

    Each is an entry, named as `glia cache list` does or by the beginning of that, or the file of an
    HLO module. Source locations are no difference.

    \b
    Examples:
      glia cache explain MODULE_4cb38f MODULE_7fad11
      glia cache explain MODULE_4cb38f model.hlo.pb --json
    """
    from glia.cache.explain import differences, find_compilation

    known = _cache(directory)
    sides = find_compilation(known, first), find_compilation(known, second)
    found = differences(*sides)
    if as_json:
        click.echo(json.dumps({"first": sides[0].name, "second": sides[1].name, **vars(found)}))
        return
    lines = [f"- {sides[0].name}", f"+ {sides[1].name}"]
    if found.version:
        lines += ["compilers:", f"-{found.version[0]}", f"+{found.version[1]}"]
    lines += ["flags:", *found.flags] if found.flags else []
    lines += ["modules:", *found.module] if found.module else []
    if found.more_lines:
        lines.append(f"and {found.more_lines} more lines of the modules")
    if any(side.flags is None for side in sides):
        lines.append("a file has no flags: those of its compilation are not compared")
    click.echo("\n".join(lines if found else [*lines, "no difference"]))


@cache.command(short_help="Remove damaged, old or all entries.")
@click.option("--all", "is_all", is_flag=True, help="Remove every entry.")
@click.option(
    "--older-than", type=click.FloatRange(min=0), default=None, metavar="DAYS",
    help="Also remove entries that were not used for so many days.",
)  # fmt: skip
@DIRECTORY
@AS_JSON
def clean(is_all: bool, older_than: float | None, directory: str, as_json: bool) -> None:
    """Remove damaged entries and what killed compilations have left; with options more.

    Entries that another process is writing, and files that are not the cache's, stay.

    \b
    Examples:
      glia cache clean
      glia cache clean --older-than 30
      glia cache clean --all --cache_dir cache
    """
    found = _cache(directory)
    oldest = time.time() - SECONDS_A_DAY * older_than if older_than is not None else 0.0
    removed = found.clean(lambda entry: is_all or bool(entry.problem) or entry.used < oldest)
    if as_json:
        rows = [_row(entry) for entry in removed]
        click.echo(json.dumps({"directory": str(found.directory), "removed": rows}))
        return
    total = sum(entry.bytes for entry in removed)
    click.echo(f"removed {len(removed)} entries, {total:,} bytes from {Path(found.directory)}")
