"""How long exchanges are in flight, and how much of that is hidden by computation."""

from __future__ import annotations

from itertools import pairwise

import pytest

import glia
from glia.base.dtype import F32
from glia.cli.profile_text import profile_text
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.profile.communication import COMPUTING
from glia.profile.page import page_data
from glia.profile.report import Profile

SIDE = 1024
SQUARE = TensorType(F32, (SIDE, SIDE))
X, Y = Parameter(0, SQUARE, "x"), Parameter(1, SQUARE, "y")
ADD = ops.combiner("add", F32)


def _sum(x: Node) -> Node:
    return ops.Collective((x,), "all-reduce", SQUARE, -1, ((0, 1, 2, 3),), (), (ADD,))


def _product(x: Node, y: Node) -> Node:
    return ops.Dot(x, y, (), (), (1,), (0,), F32)


def _profile(*results: Node, target: str = "trn2") -> Profile:
    graph = Graph("model", (X, Y), results)
    return glia.load(glia.compile(graph, target=target)).profile()


def _by_events(profile: Profile) -> tuple[float, float]:
    """The time in flight and the exposed time, in microseconds, from every event by itself."""
    events = profile.timing.events
    flights = [e for e in events if e.instr.arrives == "participants"]
    busy = [e for e in events if e.track in COMPUTING and e.instr.arrives != "participants"]
    moments = sorted({m for e in (*flights, *busy) for m in (e.start_ns, e.end_ns)})
    found = [0.0, 0.0]
    for start, end in pairwise(moments):
        middle = (start + end) / 2
        if any(e.start_ns < middle < e.end_ns for e in flights):
            found[0] += (end - start) / 1000
            if not any(e.start_ns < middle < e.end_ns for e in busy):
                found[1] += (end - start) / 1000
    return found[0], found[1]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_what_is_exposed_is_what_the_events_say(target: str) -> None:
    profile = _profile(_sum(X), ops.Map("tanh", (Y,)), target=target)
    found = profile.communication
    assert found is not None and found.exchanges == 1
    in_flight, exposed = _by_events(profile)
    assert found.flight_us == pytest.approx(in_flight, rel=1e-6)
    assert found.exposed_us == pytest.approx(exposed, rel=1e-6, abs=1e-3)


def test_a_product_that_needs_no_exchange_hides_it() -> None:
    alone = _profile(_sum(X)).communication
    beside = _profile(_sum(X), _product(X, Y)).communication
    after = _profile(_product(_sum(X), Y)).communication
    assert alone is not None and beside is not None and after is not None
    assert alone.hidden_share == 0
    assert beside.hidden_share > 0.5
    assert after.hidden_share < 0.1


def test_a_model_of_one_rank_has_no_exchanges() -> None:
    profile = _profile(_product(X, Y))
    assert profile.communication is None
    assert "exchanges" not in profile_text(profile)
    assert "communication" not in profile.to_dict()


def test_what_is_exposed_is_in_the_text_and_on_the_page() -> None:
    profile = _profile(_sum(X))
    assert "exchanges        1, " in profile_text(profile)
    shown = page_data(profile)["communication"]
    assert isinstance(shown, dict) and shown["exchanges"] == 1
