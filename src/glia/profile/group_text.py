"""What a compilation says of a group of nests, as lines of text."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any


def group_lines(group: Mapping[str, Any]) -> Iterator[str]:
    """The name and loops of a group, or of a nest by itself; what it keeps, moves and takes.

    `group` is as `glia.compile_report.group_report` makes it.
    """
    yield f"{group['name']}{_loops(group)}"
    if group["loop"]:
        yield f"nests: {' '.join(group['nests'])}"
    if group["on_chip"]:
        kept = ", ".join(f"{n} {_size(size)}" for n, size in group["on_chip"].items())
        yield f"stays on chip: {kept}"
    yield from map(_traffic, group["traffic"])
    changed = (("transposed", group["transposed_bytes"]), ("cast", group["cast_bytes"]))
    if any(size for _, size in changed):
        shown = ", ".join(f"{_size(size)} {name}" for name, size in changed if size)
        yield f"on chip: {shown}"
    yield _bound(group)
    if group["ended_by"]:
        yield f"ends before {group['ended_by']}"


def groups_of(report: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The groups that the report of a NEFF has; none where it is not one that glia writes."""
    groups = report.get("groups", ())
    try:
        for group in groups:
            collections.deque(group_lines(group), maxlen=0)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return ()
    return tuple(groups)


def _loops(group: Mapping[str, Any]) -> str:
    """The loops of a group, those that are inside of each other."""
    texts, loops = [], [group["loop"]] if group["loop"] else []
    while loops:
        loop, *others = loops
        copies = f" ({loop['copies']} iterations overlap)" if loop["copies"] > 1 else ""
        beside = f", and {len(others)} more ranges" if others else ""
        texts.append(f"for {loop['extent']} by {loop['block']}{copies}{beside}")
        loops = [each for each in loop["body"] if not isinstance(each, str)]
    return f": {', '.join(texts)}" if texts else ""


def _traffic(each: Mapping[str, Any]) -> str:
    """What is read and written of a buffer in HBM."""
    found = []
    for verb, size in (("reads", each["read_bytes"]), ("writes", each["written_bytes"])):
        times = size / max(1, each["bytes"])
        often = f", {times:.1f} times" if times > 1.05 else ""
        if size:
            found.append(f"{verb} {_size(size)}{often}")
    role = " (an intermediate)" if each["role"] == "temporary" else ""
    return f"{each['buffer']}{role}: {', '.join(found)} in {each['transfers']:,} transfers"


def _bound(each: Mapping[str, Any]) -> str:
    """What is busy for longest, and the rest."""
    busy = {**each["engine_us"], "DMA": each["dma_us"]}
    others = ", ".join(
        f"{name} {us:.1f}" for name, us in busy.items() if name != each["bound"] and us >= 0.05
    )
    beside = f", beside {others}" if others else ""
    return f"bound by {each['bound']}: {each['bound_us']:.1f} us{beside}"


def _size(count: int) -> str:
    """Bytes as people read them."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
