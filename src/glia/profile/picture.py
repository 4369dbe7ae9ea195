"""A timeline as SVG, for pages that run no script; follows the reader's light or dark mode."""

from __future__ import annotations

from bisect import bisect_right
from html import escape

from glia.profile.timeline import TrackSlice, slices_of
from glia.timing.simulate import Skip, Timing

WIDTH, GUTTER, ROW, GAP, HEAD, FOOT = 1000, 96, 26, 6, 54, 34
FOLDED_PIXELS = 46
MAX_SLICES = 20_000
MAX_FOLDS = 6
COLORS = {
    "tensor": "#3b6fd4",
    "vector": "#2a9d6a",
    "scalar": "#e08a1e",
    "gpsimd": "#9a5cc6",
    "sync": "#7b8794",
    "dma": "#1797a6",
}
STYLE = """
text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#3d4652}
.title{font-size:15px;font-weight:600;fill:#11161d}.dim{fill:#6b7683}
.row{fill:#f1f3f6}.grid{stroke:#d8dde4}.back{fill:#fff}.fold{fill:#fff;fill-opacity:.9}
@media(prefers-color-scheme:dark){text{fill:#b9c3cf}.title{fill:#eef2f6}.dim{fill:#8793a1}
.row{fill:#1c232c}.grid{stroke:#333d49}.back{fill:#12171d}.fold{fill:#12171d;fill-opacity:.9}}
""".replace("\n", "")


class TimeAxis:
    """Nanoseconds to pixels, with the repeated parts of loops folded to a narrow band."""

    def __init__(self, begin: float, end: float, skips: tuple[Skip, ...]) -> None:
        self.begin, self.end = begin, max(end, begin + 1)
        longest = sorted(skips, key=lambda s: s.start_ns - s.end_ns)[:MAX_FOLDS]
        self.folds = sorted(longest, key=lambda s: s.start_ns)
        pixels = WIDTH - GUTTER - 16
        shown = self.end - self.begin - sum(s.end_ns - s.start_ns for s in self.folds)
        self.scale = (pixels - FOLDED_PIXELS * len(self.folds)) / max(shown, 1)
        self.starts = [s.start_ns for s in self.folds]

    def __call__(self, moment: float) -> float:
        """The pixel of a moment."""
        before = bisect_right(self.starts, moment)
        x = GUTTER + (moment - self.begin) * self.scale
        for number, fold in enumerate(self.folds[:before]):
            hidden = min(moment, fold.end_ns) - fold.start_ns
            x -= hidden * self.scale
            duration = fold.end_ns - fold.start_ns
            x += FOLDED_PIXELS * (1.0 if number + 1 < before else hidden / duration)
        return x


def render_svg(name: str, target: str, timing: Timing) -> str:
    """The timeline of every engine and queue with events, between preamble and postamble."""
    tracks = timing.used_tracks
    repeated = tuple(skip for skip in timing.skips if skip.end_ns > skip.start_ns)
    axis = TimeAxis(timing.begin_ns, timing.end_ns, repeated)
    slices = slices_of(timing, MAX_SLICES, 1)
    height = HEAD + len(tracks) * (ROW + GAP) + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="title" x="16" y="26">{escape(name)}</text>',
        _text(WIDTH - 16, f"{target}, {_time(timing.latency_ns)}"),
        *_ticks(axis, height),
    ]
    for number, track in enumerate(tracks):
        drawn = [each for each in slices if each.track == track]
        parts += _row(track, HEAD + number * (ROW + GAP), axis, drawn)
    parts += _fold_marks(axis, height)
    parts.append("</svg>")
    return "\n".join(parts)


def _row(track: str, y: int, axis: TimeAxis, slices: list[TrackSlice]) -> list[str]:
    color = COLORS.get(track.split()[0], COLORS["sync"])
    label = escape(track[:13])
    parts = [
        f'<text x="16" y="{y + 17}">{label}</text>',
        f'<rect class="row" x="{GUTTER}" y="{y}" width="{WIDTH - GUTTER - 16}" height="{ROW}"/>',
    ]
    spans: list[list[float]] = []
    for each in slices:
        left, right = axis(each.start_ns), axis(each.end_ns)
        if spans and left - spans[-1][1] < 0.4 and right - spans[-1][0] < 3:
            spans[-1][1] = max(spans[-1][1], right)
        else:
            spans.append([left, right])
    for left, right in spans:
        wide = max(0.6, right - left - 0.4)
        parts.append(
            f'<rect x="{left:.1f}" y="{y + 3}" width="{wide:.1f}" height="{ROW - 6}"'
            f' fill="{color}"/>'
        )
    return parts


def _ticks(axis: TimeAxis, height: int) -> list[str]:
    parts = []
    step = _round_step(110 / axis.scale)
    moment = -(-axis.begin // step) * step
    for _ in range(64):
        if moment > axis.end:
            break
        fold = next((f for f in axis.folds if f.start_ns < moment < f.end_ns), None)
        if fold is not None:
            moment = -(-fold.end_ns // step) * step
            continue
        x = axis(moment)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="46" y2="{height - 28}"/>')
        parts.append(
            f'<text class="dim" x="{x:.1f}" y="{height - 12}" text-anchor="middle">'
            f"{_time(moment)}</text>"
        )
        moment += step
    return parts


def _fold_marks(axis: TimeAxis, height: int) -> list[str]:
    parts = []
    for fold in axis.folds:
        left, right = axis(fold.start_ns), axis(fold.end_ns)
        place = f"translate({(left + right) / 2 + 4:.1f} {(height + 20) / 2:.0f}) rotate(-90)"
        label = f"{fold.iterations:,} more of {escape(fold.variable)}"
        parts += [
            (
                f'<rect class="fold" x="{left:.1f}" y="{HEAD - 4}" width="{right - left:.1f}"'
                f' height="{height - HEAD - FOOT + 4}"/>'
            ),
            f'<text class="dim" transform="{place}" text-anchor="middle">{label}</text>',
        ]
    return parts


def _text(right: int, text: str) -> str:
    return f'<text class="dim" x="{right}" y="26" text-anchor="end">{escape(text)}</text>'


def _round_step(least: float) -> float:
    power = 1.0
    while power * 10 <= least:
        power *= 10
    return next(power * m for m in (1, 2, 5, 10) if power * m >= least)


def _time(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.4g} {unit}"
    return f"{nanoseconds:.4g} ns"
