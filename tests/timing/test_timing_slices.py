"""What a page and a trace show is all of the run, at every size."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.arch import get_target
from glia.base.loc import Loc
from glia.machine.ir import Loop, Program
from glia.profile import Profile, profile_program
from glia.profile.bandwidth import hbm_bandwidth
from glia.profile.flows import data_flows
from glia.profile.page import MAX_ROWS, MAX_SLICES, page_data
from glia.profile.timeline import slices_of
from glia.profile.trace import perfetto_events
from glia.timing.simulate import is_queue, queue_track, simulate_timing
from support.examples import with_examples
from support.timing_programs import copy, pipelined_matmul, program, tile

TARGETS = ["trn1", "trn1n", "inf2", "trn2", "trn3"]
RUNS = {  # (program, options of simulate_timing)
    "few": (pipelined_matmul(3), {}),
    "repeated": (pipelined_matmul(5000, 6), {}),
    "many": (pipelined_matmul(10_400, 6), {"skip": False}),
    "more than are kept": (pipelined_matmul(15_000, 3), {"skip": False, "max_events": 5000}),
    "in a loop of loops": (replace(pipelined_matmul(2), body=(
        Loop("o", 40, pipelined_matmul(40).body[-1:]),)), {}),
    "nothing": (program(), {}),
}  # fmt: skip


def profiled(name: str, target: str = "trn2") -> Profile:
    tested, options = RUNS[name]
    target = get_target(target)
    if name == "in a loop of loops":  # its waits count within one inner loop
        tested = without_waits(tested)
    return Profile(tested, target, simulate_timing(tested, target.arch, **options))


def without_waits(tested: Program) -> Program:
    (outer,) = tested.body
    (inner,) = outer.body
    body = tuple(replace(each, waits=(), signals=()) for each in inner.body)
    return replace(tested, body=(replace(outer, body=(replace(inner, body=body),)),))


def page(profile: Profile) -> dict:
    return json.loads(json.dumps(page_data(profile)))


@pytest.mark.parametrize(
    ("name", "target"), [(n, "trn2") for n in RUNS] + [("repeated", t) for t in TARGETS]
)
def test_the_busy_time_of_an_engine_is_that_of_its_slices(name: str, target: str):
    profile = profiled(name, target)
    data, trace = page(profile), perfetto_events("p", profile.timing)["traceEvents"]
    drawn, traced = defaultdict(int), defaultdict(float)
    for track, _, start, end, _, *block in data["slices"]:
        drawn[data["tracks"][track][0]] += block[1] if block else end - start
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"].partition(" [")[0]
        for e in trace if e["name"] == "thread_name"
    }  # fmt: skip
    for event in trace:
        if event["ph"] == "X" and event["pid"] < 3:
            traced[threads[event["pid"], event["tid"]]] += event["args"]["busy_ns"]
    for engine, found in profile.engines.items():
        assert drawn[engine] == round(found.busy_us * 1e6)
        assert traced[engine] == pytest.approx(found.busy_us * 1e3)
    for queue in profile.queues:
        rows = [r for r in profile.timing.opcodes if r.engine == queue_track(queue)]
        assert drawn[queue_track(queue)] == round(sum(r.busy_ns for r in rows) * 1e3)
        assert traced[queue_track(queue)] == pytest.approx(sum(r.busy_ns for r in rows))


@pytest.mark.parametrize("name", RUNS)
def test_every_instruction_is_in_one_slice(name: str):
    profile = profiled(name)
    data = page(profile)
    titles = [title for title, _, _ in data["tracks"]]
    counts = [row[5] if row[5:] else 1 for row in data["slices"] if titles[row[0]] != "program"]
    assert sum(counts) == profile.instructions
    assert data["blocks"] == sum(n for n in counts if n > 1)
    trace = perfetto_events("p", profile.timing)
    found = [e["args"].get("executions", 1) for e in trace["traceEvents"]
             if e["ph"] == "X" and e["pid"] < 3]  # fmt: skip
    assert sum(found) == profile.instructions
    assert trace["otherData"]["executions_in_blocks"] == sum(n for n in found if n > 1)


@pytest.mark.parametrize("name", RUNS)
def test_the_last_slice_ends_at_the_latency(name: str):
    profile = profiled(name)
    data = page(profile)
    assert max(row[3] for row in data["slices"]) == round(profile.latency_us * 1e6)
    trace = perfetto_events("p", profile.timing)["traceEvents"]
    last = max(e["ts"] + e["dur"] for e in trace if e["ph"] == "X")
    assert last == pytest.approx(profile.latency_us, abs=1e-3)
    executed = [row[3] for row in data["slices"] if data["tracks"][row[0]][0] != "program"]
    if executed:  # the last result is seen some nanoseconds after its instruction ends
        assert max(executed) > data["begin"] + 0.9 * (data["end"] - data["begin"])


@pytest.mark.parametrize("name", RUNS)
def test_slices_of_one_thread_are_disjoint(name: str):
    profile = profiled(name)
    found = defaultdict(list)
    for event in perfetto_events("p", profile.timing)["traceEvents"]:
        if event["ph"] == "X":
            nanoseconds = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            found["trace", event["pid"], event["tid"]].append(nanoseconds)
    for track, lane, start, end, *_ in page(profile)["slices"]:
        found["page", track, lane].append((start, end))
    for spans in found.values():
        for before, after in pairwise(sorted(spans)):
            assert before[1] <= after[0]


@given(
    st.integers(1, 400), st.integers(1, 9), st.integers(1, 60), st.integers(1, 200), st.booleans()
)
@with_examples(25)
def test_merging_keeps_every_sum(trips: int, buffers: int, limit: int, events: int, skip: bool):
    timing = simulate_timing(
        pipelined_matmul(trips, buffers), get_target("trn2").arch, skip=skip, max_events=events
    )
    slices = slices_of(timing, limit, 3)
    tracks = {each.track for each in slices}
    assert len(slices) <= max(limit, len(tracks))
    for track in tracks:
        rows = [row for row in timing.opcodes if row.engine == track]
        own = [each for each in slices if each.track == track]
        assert sum(each.count for each in own) == sum(row.count for row in rows)
        assert sum(each.busy_ns for each in own) == pytest.approx(sum(r.busy_ns for r in rows))
        for each in own:
            assert timing.begin_ns <= each.start_ns <= each.end_ns <= timing.end_ns
            if not is_queue(track):
                assert each.busy_ns <= each.end_ns - each.start_ns + 1e-6


@pytest.mark.parametrize("name", RUNS)
def test_the_traffic_over_time_is_all_traffic(name: str):
    timing = profiled(name).timing
    found = hbm_bandwidth(timing)
    assert sum(found.read) * found.interval_ns == pytest.approx(timing.hbm_read_bytes)
    assert sum(found.written) * found.interval_ns == pytest.approx(timing.hbm_written_bytes)


@pytest.mark.parametrize("name", RUNS)
def test_source_lines_and_operators_have_all_busy_time(name: str):
    profile = profiled(name)
    busy = sum(row.busy_ns for row in profile.timing.opcodes)
    for rows in (profile.source_lines, profile.operators):
        assert sum(row.busy_ns for row in rows) == pytest.approx(busy)
        assert sum(row.count for row in rows) == profile.instructions


def test_lines_and_operators_are_told_apart():
    a, b = tile("a", "SBUF", 128, 64), tile("b", "SBUF", 128, 64)
    first, again, other = Loc("m.py", 1, "f/add"), Loc("m.py", 1, "f/mul"), Loc("m.py", 2, "f/add")
    body = [copy(a, b, loc=loc) for loc in (first, again, other)]
    profile = profile_program(program(*body), "trn2")
    assert {r.source: r.count for r in profile.source_lines} == {"m.py:1": 2, "m.py:2": 1}
    assert {r.source: r.count for r in profile.operators} == {"f/add": 2, "f/mul": 1}
    assert profile.operators[0].tracks == {"vector": profile.operators[0].busy_ns}


def test_arrows_lead_from_who_made_data_to_who_reads_it():
    profile = profiled("few")
    events = profile.timing.events
    flows = {(events[a].instr.mnemonic(), events[b].instr.mnemonic())
             for a, b in data_flows(profile.timing.executions)}  # fmt: skip
    assert flows == {
        ("dma_copy", "nc_matmul"), ("nc_matmul", "tensor_copy"), ("tensor_copy", "activation"),
        ("activation", "dma_copy"),
    }  # fmt: skip
    trace = perfetto_events("p", profile.timing)["traceEvents"]
    slices = {(e["pid"], e["tid"], e["ts"]) for e in trace if e["ph"] == "X"}
    ends = {kind: {e["id"]: e for e in trace if e["ph"] == kind} for kind in "sf"}
    assert len(ends["s"]) == len(ends["f"]) == len(data_flows(profile.timing.executions))
    for number, start in ends["s"].items():
        finish = ends["f"][number]
        assert start["ts"] <= finish["ts"]
        for each in (start, finish):
            assert (each["pid"], each["tid"], each["ts"]) in slices


def test_the_page_stays_small(tmp_path: Path):
    name = "a/rather/long/path/of/a/model/as/frameworks/write/it.py"
    a, b = tile("a" * 300, "SBUF", 128, 64), tile("b" * 300, "SBUF", 128, 64)
    body = tuple(
        copy(a, b, loc=Loc(name * 4, n, f"jit(f)/layer{n}/mul" * 20)) for n in range(MAX_SLICES)
    )
    tested = replace(program(*body), notes=("n" * 2000,) * 5000)
    profile = profile_program(tested, "trn2")
    profile.save_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 5_000_000
    assert page(profile)["blocks"] == 0  # the most text that slices can have
    rows = page(profile)["source_lines"]
    assert rows[-1]["more"] == f"{MAX_SLICES - MAX_ROWS} more"
    assert sum(row["count"] for row in rows) == MAX_SLICES


@pytest.mark.nightly
@pytest.mark.parametrize("skip", [False, True])
def test_the_page_of_a_million_instructions_stays_small(tmp_path: Path, skip: bool):
    tested = pipelined_matmul(250_000, 6)
    timing = simulate_timing(tested, get_target("trn2").arch, skip=skip)
    profile = Profile(tested, get_target("trn2"), timing)
    profile.save_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 5_000_000
    profile.save_perfetto(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size < 60_000_000


DOM = Path(__file__).parent.parent / "support" / "dom_stub.js"


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's script under node")
@pytest.mark.parametrize("name", RUNS)
def test_the_script_of_the_page_runs(name: str, tmp_path: Path):
    profile = profiled(name)
    profile.save_html(tmp_path / "page.html")
    found = subprocess.run(
        ["node", str(DOM), str(tmp_path / "page.html"), "nc_matmul"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["title"] == f"{profile.program.name} on trn2"
    assert set(told["drawn"]) <= {"timeline", "bandwidth", "SBUF", "PSUM"}
    assert "timeline" in told["drawn"]
    matches = [i for i in ("few", "repeated", "many") if i == name]
    assert bool(matches) <= ("slice" in told["matches"])
    if name == "few":
        assert "16-bit matrix peak" in told["texts"]
