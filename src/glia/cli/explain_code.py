"""The text of `glia explain-code`: what a compilation decided, from the report in the NEFF."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from glia.neff.package import Neff
from glia.profile.group_text import group_lines, groups_of


def explain_code(neff: Neff) -> dict[str, Any]:
    """The report of a NEFF, with its model and target; plain values that JSON can hold."""
    return {"model": neff.name, "target": neff.target, **neff.report, "notes": list(neff.notes)}


def explain_code_text(facts: Mapping[str, Any]) -> str:
    """The report as text."""
    lines = [f"{facts['model']} for {facts['target']}"]
    if "casts" not in facts:
        return f"{lines[0]}\nno report: a kernel, or compiled by another version of glia"
    for part in (_precision, _cores, _level, _casts, _groups, _nests):
        lines += ["", *part(facts)]
    return "\n".join([*lines, *(f"note: {note}" for note in facts["notes"])])


def _precision(facts: Mapping[str, Any]) -> Iterator[str]:
    precision = facts["precision"]
    yield f"precision: {precision['compiled']} (asked for: {precision['asked']})"
    for each in precision["alternatives"]:
        text = _time(each["latency_us"])
        strategy = each["distribution_strategy"]
        chosen = (
            precision["compiled"],
            precision["model_type"],
            precision["distribution_strategy"],
        )
        mark = (
            "  <- compiled" if (each["precision"], each["model_type"], strategy) == chosen else ""
        )
        shown = f"{strategy} " if strategy else ""
        yield f"  {each['precision']:18} {each['model_type']:14} {shown}{text}{mark}"


def _cores(facts: Mapping[str, Any]) -> Iterator[str]:
    cores = facts["cores"]
    yield f"physical cores: {cores['compiled']} of {cores['asked']}"
    tried = cores["alternatives"]
    for each in tried:
        mark = "  <- compiled" if each["cores"] == cores["compiled"] else ""
        yield f"  {each['cores']:<33} {_time(each['latency_us'])}{mark}"
    if cores["asked"] > max(each["cores"] for each in tried):
        yield f"  {cores['asked']:<33} not faster by rough times of nests, and not compiled"


def _level(facts: Mapping[str, Any]) -> Iterator[str]:
    level = facts["level"]
    yield f"level: -O{level['compiled']} (asked for: -O{level['asked']})"
    for each in level["alternatives"]:
        mark = "  <- compiled" if each["optlevel"] == level["compiled"] else ""
        yield f"  -O{each['optlevel']:<31} {_time(each['latency_us'])}{mark}"


def _time(us: float | None) -> str:
    return "does not compile" if us is None else f"{us:.2f} us simulated"


def _casts(facts: Mapping[str, Any]) -> Iterator[str]:
    casts = facts["casts"]
    yield "casts of contractions:" if casts["contractions"] else "no contractions"
    for each in casts["contractions"]:
        what = f"cast to {each['dtype']}" if each["dtype"] else "not cast"
        yield f"  {each['operation']}: {what}: {each['reason']}{_at(each)}"
    other = casts["other"]
    if other["cast"]:
        yield f"other operations: {other['cast']} cast to {other['dtype']}"
    if other["kept"]:
        kept = ", ".join(f"{opcode} {count}" for opcode, count in other["kept"].items())
        yield f"other operations in float32: {kept}"


def _groups(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "groups of nests that run in common loops, and nests by themselves, in order:"
    for each in groups_of(facts):
        first, *others = group_lines(each)
        yield f"  {first}"
        yield from (f"    {line}" for line in others)


def _nests(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "nests, with the instructions emitted for each before loops are unrolled:"
    for nest in facts["nests"]:
        tiles = " ".join(
            f"{axis}:{tile}/{nest['extents'][axis]}" for axis, tile in nest["tiles"].items()
        )
        rows = f", {nest['partition']} on the partitions" if nest["partition"] else ""
        counts = ", ".join(f"{name} {count}" for name, count in nest["instructions"].items())
        yield f"  {nest['name']} on {nest['engine']}: tiles [{tiles}]{rows}{_at(nest)}"
        yield f"    {counts or 'no instructions'}"


def _at(facts: Mapping[str, Any]) -> str:
    return f" at {facts['source']}" if facts["source"] else ""
