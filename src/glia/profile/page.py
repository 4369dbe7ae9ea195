"""The profile as one HTML page with its data, style and script inside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from glia.profile.communication import exchange_parts
from glia.profile.describe import operands_text
from glia.profile.group_text import group_lines
from glia.profile.memory import Residence
from glia.profile.occupancy import occupancy
from glia.profile.timeline import TrackSlice, lanes_of, slices_of
from glia.profile.trace import repetitions
from glia.timing.costs import PS
from glia.timing.simulate import MAX_EVENTS, Timing

if TYPE_CHECKING:
    from glia.profile.report import Profile

MAX_SLICES = 6_000  # of all cores: what keeps the page below 5 MB
LANES = 4  # transfers of a queue that are drawn side by side
MAX_TEXT = 160  # characters of an instruction's operands, a name or a note
MAX_ROWS = 200  # of a table; the rest is one row
MAX_TILES = 2_000  # of a memory, that are drawn
MAX_FOLDS = 200
PARTS = ("preamble", "run", "postamble")


def render_page(data: dict[str, object]) -> str:
    """Put `data` into the page; no text in it can end the element that holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    folder = files("glia.profile")
    page = folder.joinpath("page.html").read_text()
    style = folder.joinpath("page.css").read_text()
    script = folder.joinpath("page.js").read_text()
    return page.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script).replace("DATA", text)


def page_data(profile: Profile) -> dict[str, object]:
    """What the page shows: the numbers of the profile, and its time lines in bounded size."""
    arch, timing = profile.target.arch, profile.timing
    timings = tuple(core.timing for core in profile.cores) or (timing,)
    lines = _TimeLines(timings, profile.titles)
    tiles = profile.residences
    numbers = profile.to_dict()
    numbers.pop("cores", None)
    for name in ("opcodes", "stalls", "source_lines", "operators", "critical_path", "notes"):
        numbers[name] = _cut(numbers[name], name)
    return numbers | {
        "tracks": lines.tracks,
        "texts": lines.texts,
        "slices": lines.slices,
        "blocks": lines.in_blocks,
        "executed": sum(sum(each.instructions.values()) for each in timings),
        "core_count": len(timings),
        "of_ranks": profile.is_of_ranks,
        "skips": [
            [s.variable[:MAX_TEXT], _ps(s.start_ns), _ps(s.end_ns), s.iterations]
            for s in repetitions(timing, MAX_FOLDS)
        ],
        "path_is_partial": len(timing.events) >= MAX_EVENTS,
        "begin": _ps(timing.begin_ns),
        "end": _ps(timing.end_ns),
        "latency": _ps(timing.latency_ns),
        "residences": [_tile_row(each) for each in _drawn(tiles)],
        "occupancy": {memory: _shaded(tiles, memory, profile) for memory in ("SBUF", "PSUM")},
        "tiles": {memory: _in_use(tiles, memory) for memory in ("SBUF", "PSUM")},
        "memories": {
            "SBUF": arch.sbuf_usable_bytes_per_partition,
            "PSUM": arch.psum_bytes_per_partition,
        },
        "groups": [_group_row(each) for each in profile.groups[:MAX_ROWS]],
        "more_groups": max(0, len(profile.groups) - MAX_ROWS),
        "peak_flops": arch.peak_flops["bf16"],
        "hbm_bytes_per_ns": arch.hbm_bytes_per_ns,
    }


def _group_row(group: Mapping[str, Any]) -> list[str]:
    """A group of nests: its name and loops, the rest, what it is bound by, and for how long."""
    first, *others = group_lines(group)
    bound = f"{group['bound']} {group['bound_us']:,.1f} us"
    return [first[:MAX_TEXT], bound, *(each[: 2 * MAX_TEXT] for each in others)]


def _cut(rows: Any, name: str) -> list[Any]:
    """The first rows, and of longer tables how many are left; texts cut to MAX_TEXT."""
    kept = [_cut_texts(row) for row in rows[:MAX_ROWS]]
    if len(rows) <= MAX_ROWS:
        return kept
    rest = f"{len(rows) - MAX_ROWS} more"
    return [*kept, rest if name == "notes" else {"more": rest, **_sums(rows[MAX_ROWS:])}]


def _cut_texts(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "..."
    if isinstance(value, dict):
        return {key: _cut_texts(each) for key, each in list(value.items())[:8]}
    return value


def _sums(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """The totals of numeric columns."""
    found: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float):
                found[name] = found.get(name, 0) + value
    return found


def _ps(nanoseconds: float) -> int:
    return round(nanoseconds * PS)


class _TimeLines:
    """The slices of all cores, with the texts they refer to.

    A slice is [track, lane, start, end, text], a block in addition its number of executions and
    their busy time; times are picoseconds.
    """

    def __init__(self, timings: Sequence[Timing], titles: Sequence[str]) -> None:
        self.tracks: list[list[object]] = []  # [title, colour, lanes]
        self.texts: list[list[str]] = []  # [opcode, operands, source]
        self.slices: list[list[int]] = []
        self.in_blocks = 0
        for core, timing in enumerate(timings):
            self._add(timing, f"{titles[core]} " if titles else "", len(timings))

    def _add(self, timing: Timing, title: str, cores: int) -> None:
        slices = slices_of(timing, MAX_SLICES // cores, LANES)
        lanes = lanes_of(slices)
        self._add_program(timing, title)
        self._add_exchanges(timing, title, MAX_SLICES // cores)
        numbers = {}
        for track in (track for track in timing.tracks if track in lanes):
            numbers[track] = len(self.tracks)
            self.tracks.append([title + track[:MAX_TEXT], track.split()[0], lanes[track]])
        known: dict[int, int] = {}
        for each in slices:
            if each.step not in known:
                known[each.step] = len(self.texts)
                self.texts.append(_texts(timing, each))
            row = [numbers[each.track], each.lane, _ps(each.start_ns), _ps(each.end_ns)]
            row.append(known[each.step])
            if each.is_block:
                row += [each.count, _ps(each.busy_ns)]
                self.in_blocks += each.count
            self.slices.append(row)

    def _add_program(self, timing: Timing, title: str) -> None:
        """The track of the program: what comes before, the run, what comes after."""
        track = len(self.tracks)
        self.tracks.append([f"{title}program", "sync", 1])
        moments = [_ps(m) for m in (0, timing.begin_ns, timing.end_ns, timing.latency_ns)]
        for name, start, end in zip(PARTS, moments, moments[1:], strict=False):
            self.slices.append([track, 0, start, end, len(self.texts)])
            self.texts.append([name, "", ""])

    def _add_exchanges(self, timing: Timing, title: str, limit: int) -> None:
        """The track of exchanges with other ranks, hidden and exposed, where there are any."""
        parts = exchange_parts(timing)[:limit]
        if not parts:
            return
        track = len(self.tracks)
        self.tracks.append([f"{title}exchanges", "dma", 1])
        texts = {name: len(self.texts) + n for n, name in enumerate(("exposed", "hidden"))}
        self.texts += [[name, "exchanges with other ranks", ""] for name in texts]
        for part in parts:
            self.slices.append([track, 0, _ps(part.start_ns), _ps(part.end_ns), texts[part.name]])


def _texts(timing: Timing, each: TrackSlice) -> list[str]:
    assert timing.executions is not None
    instr = timing.executions.instruction(each.step)
    texts = (instr.mnemonic(), operands_text(instr), str(instr.loc))
    return [_cut_texts(text) for text in texts]


def _drawn(tiles: Sequence[Residence]) -> list[Residence]:
    """The tiles of the memories that have few enough to draw each."""
    counts = Counter(tile.memory for tile in tiles)
    return [tile for tile in tiles if counts[tile.memory] <= MAX_TILES]


def _shaded(tiles: Sequence[Residence], memory: str, profile: Profile) -> list[list[int]]:
    """The occupancy of a memory whose tiles are too many to draw; empty for others."""
    own = [tile for tile in tiles if tile.memory == memory]
    if len(own) <= MAX_TILES:
        return []
    top = max(tile.address + tile.bytes for tile in own)
    return occupancy(own, top, profile.timing.latency_ns)


def _tile_row(tile: Residence) -> list[object]:
    return [
        tile.memory, tile.name[:MAX_TEXT], tile.address, tile.bytes, tile.partitions,
        _ps(tile.start_ns), _ps(tile.end_ns),
    ]  # fmt: skip


def _in_use(tiles: Sequence[Residence], memory: str) -> list[int]:
    """[tiles, highest byte in use] of a memory."""
    ends = [tile.address + tile.bytes for tile in tiles if tile.memory == memory]
    return [len(ends), max(ends, default=0)]
