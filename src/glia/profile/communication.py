"""Exchanges with other ranks over time: how long they are in flight, and what is hidden."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from glia.isa.instructions.collectives import Collective, CollectivePermute
from glia.machine.columns.value_numbering import Array
from glia.timing.costs import PS
from glia.timing.simulate import Timing
from glia.timing.spans import Executions, Spans

COMPUTING = ("tensor", "vector", "scalar", "gpsimd")


@dataclass(frozen=True)
class ExchangePart:
    """A time in which exchanges are in flight: exposed where engines compute less than half of it.

    Neighbouring times of one kind are one part.
    """

    start_ns: float
    end_ns: float
    is_exposed: bool

    @property
    def name(self) -> str:
        return "exposed" if self.is_exposed else "hidden"


@dataclass(frozen=True)
class Communication:
    """The exchanges of a rank.

    `flight_us` is the time with at least one in flight; in `exposed_us` of it no engine computes.
    """

    exchanges: int
    flight_us: float
    exposed_us: float

    @property
    def hidden_us(self) -> float:
        """The time of exchanges in which an engine computes."""
        return self.flight_us - self.exposed_us

    @property
    def hidden_share(self) -> float:
        """The part of the time of exchanges that is hidden; 1 where there is none."""
        return self.hidden_us / self.flight_us if self.flight_us else 1.0

    def to_dict(self) -> dict[str, object]:
        """In JSON's types."""
        return asdict(self) | {"hidden_us": self.hidden_us, "hidden_share": self.hidden_share}


def communication(timing: Timing) -> Communication | None:
    """The exchanges of a run; None for one without any, or that was not traced."""
    found = _exchanges(timing)
    if found is None:
        return None
    count, moments, in_flight, busy = found
    lengths = np.diff(moments) * in_flight
    return Communication(
        count,
        float(lengths.sum()) / PS / 1000,
        float((lengths * (1 - busy)).sum()) / PS / 1000,
    )


def exchange_parts(timing: Timing) -> tuple[ExchangePart, ...]:
    """When exchanges were in flight, hidden or exposed, in order; none without a trace."""
    found = _exchanges(timing)
    if found is None:
        return ()
    _, moments, in_flight, busy = found
    parts: list[ExchangePart] = []
    times = (moments / PS).tolist()
    for start, end, flies, share in zip(times, times[1:], in_flight, busy, strict=False):
        part = ExchangePart(start, end, bool(share < 0.5))
        last = parts[-1] if parts else None
        if flies and last and last.end_ns == start and last.is_exposed == part.is_exposed:
            parts[-1] = ExchangePart(last.start_ns, end, last.is_exposed)
        elif flies:
            parts.append(part)
    return tuple(parts)


def _exchanges(timing: Timing) -> tuple[int, Array, Array, Array] | None:
    """How many exchanges, moments, whether one is in flight after each, how busy engines are."""
    run = timing.executions
    if run is None:
        return None
    steps = [
        number
        for number in np.flatnonzero(run.count).tolist()
        if isinstance(run.instruction(number), Collective | CollectivePermute)
    ]
    if not steps:
        return None
    spans = run.spans()
    exchanged = spans.take(np.flatnonzero(np.isin(spans.step, steps)))
    computed = [_spans_of(run, spans, engine) for engine in COMPUTING if engine in run.tracks]
    moments = np.unique(
        np.concatenate([part for each in (exchanged, *computed) for part in (each.start, each.end)])
    )
    in_flight = _density(exchanged, moments, is_whole=True) > 0
    busy = np.zeros(moments.size - 1)
    for each in computed:
        busy = np.maximum(busy, np.minimum(_density(each, moments), 1.0))
    return int(run.count[steps].sum()), moments, in_flight, busy


def _spans_of(run: Executions, spans: Spans, track: str) -> Spans:
    number = run.tracks.index(track)
    return spans.take(np.flatnonzero(run.facts.track[spans.step] == number))


def _density(spans: Spans, moments: Array, *, is_whole: bool = False) -> Array:
    """Between neighbouring moments, the part of the time in which spans are busy, summed up.

    A span of several executions is busy evenly; `is_whole`, from its start to its end.
    """
    length = np.maximum(spans.end - spans.start, 1)
    weight = np.ones(len(spans)) if is_whole else spans.busy / length
    change = np.zeros(moments.size)
    np.add.at(change, np.searchsorted(moments, spans.start), weight)
    np.add.at(change, np.searchsorted(moments, spans.end), -weight)
    found: Array = np.cumsum(change)[:-1]
    return np.where(np.abs(found) < 1e-9, 0.0, found)
