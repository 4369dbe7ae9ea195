"""How long exchanges are in flight, and how much of that is hidden by computation."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

import glia
from glia.base.dtype import F32
from glia.cli.glia import main
from glia.cli.profile_text import profile_text
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.neff.package import Neff
from glia.profile.communication import COMPUTING, exchange_parts
from glia.profile.page import page_data
from glia.profile.report import Profile
from glia.runtime.errors import WrongRanks

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
    return glia.load(glia.compile(graph, target=target, logical_nc_config=1)).profile()


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


# --- by rank --------------------------------------------------------------------------------------


def _neff(ranks: int = 4) -> Neff:
    shared = ops.Map("tanh", (_product(X, _sum(Y)),))
    return glia.compile(
        Graph("model", (X, Y), (shared, _product(X, X)), (), (), 1, ranks), logical_nc_config=1
    )


def test_parts_are_the_time_in_flight_once() -> None:
    profile = _profile(_sum(X), _product(Y, Y), ops.Map("exp", (_sum(Y),)))
    parts, found = exchange_parts(profile.timing), profile.communication
    assert found is not None
    length = sum(part.end_ns - part.start_ns for part in parts) / 1000
    assert length == pytest.approx(found.flight_us, rel=1e-6)
    exposed = sum(part.end_ns - part.start_ns for part in parts if part.is_exposed) / 1000
    assert exposed == pytest.approx(found.exposed_us, rel=0.1)
    for one, other in pairwise(parts):
        assert one.end_ns <= other.start_ns
        assert one.end_ns < other.start_ns or one.is_exposed != other.is_exposed


def test_each_rank_has_its_time_line_and_its_exchanges() -> None:
    model = glia.load(_neff())
    profile = model.profile(ranks=4)
    assert profile.titles == ("rank 0", "rank 1", "rank 2", "rank 3")
    rows = profile.to_dict()["cores"]
    assert isinstance(rows, list) and len(rows) == 4
    alone = model.profile().communication
    assert alone is not None
    for row in rows:
        assert row["communication"]["exposed_us"] == pytest.approx(alone.exposed_us, rel=0.05)
    assert "rank 3" in profile_text(profile) and "exposed" in profile_text(profile)


def test_a_trace_says_by_rank_when_exchanges_are_exposed(tmp_path: Path) -> None:
    profile = glia.load(_neff()).profile(ranks=4)
    profile.save_perfetto(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {f"model: rank {rank}: engines" for rank in range(4)} <= names
    shown = [e for e in events if e["ph"] == "X" and e["name"] in ("exposed", "hidden")]
    assert len({e["pid"] for e in shown}) == 4
    one = [e for e in shown if e["pid"] == shown[0]["pid"] and e["name"] == "exposed"]
    assert profile.communication is not None
    length = sum(e["dur"] for e in one)
    assert length == pytest.approx(profile.communication.exposed_us, rel=0.1, abs=0.01)


def test_a_page_draws_exchanges_of_each_rank() -> None:
    data = page_data(glia.load(_neff()).profile(ranks=2))
    tracks = [title for title, _, _ in data["tracks"]]  # type: ignore[attr-defined]
    assert "rank 0 exchanges" in tracks and "rank 1 exchanges" in tracks
    number = tracks.index("rank 1 exchanges")
    drawn = [row for row in data["slices"] if row[0] == number]  # type: ignore[attr-defined]
    texts = {data["texts"][row[4]][0] for row in drawn}  # type: ignore[index]
    assert drawn and texts <= {"exposed", "hidden"}
    assert data["of_ranks"] and data["core_count"] == 2


def test_more_ranks_than_the_model_has_are_refused() -> None:
    with pytest.raises(WrongRanks, match="profile 1 to 4 ranks"):
        glia.load(_neff()).profile(ranks=5)


def test_the_command_line_profiles_ranks(tmp_path: Path) -> None:
    _neff().save(tmp_path / "m.neff")
    html, trace = tmp_path / "m.html", tmp_path / "m.json"
    arguments = ["profile", str(tmp_path / "m.neff"), "--ranks", "4", "--html", str(html)]
    result = CliRunner().invoke(main, [*arguments, "--perfetto", str(trace)])
    assert result.exit_code == 0, result.output
    assert "rank 2" in result.output and "rank 2" in html.read_text()
    kernel = CliRunner().invoke(main, ["profile", "k.py::f", "--ranks", "2"])
    assert kernel.exit_code != 0 and "--ranks needs a F.neff" in kernel.output
