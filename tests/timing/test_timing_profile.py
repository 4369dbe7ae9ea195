"""The profile's numbers, and the files it writes."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from glia.base.loc import Loc
from glia.machine.ir import Program
from glia.profile import Profile, page, profile_program
from glia.profile.memory import Residence
from glia.profile.occupancy import COLUMNS, ROWS, occupancy
from support.timing_programs import copy, pipelined_matmul, program, tile

TRIPS = 40


def placed(p: Program) -> Program:
    """Every on-chip tile behind the one before it."""
    ends: dict[str, int] = {}
    addresses = {}
    for name, t in p.tiles.items():
        if t.memory.value != "HBM":
            addresses[name] = ends.get(t.memory.value, 0)
            ends[t.memory.value] = addresses[name] + t.bytes_per_partition
    return replace(p, addresses=addresses, notes=("tile w spilled",))


@pytest.fixture(scope="module")
def profile() -> Profile:
    return profile_program(placed(pipelined_matmul(TRIPS)), "trn2")


def test_numbers_follow_from_each_other(profile: Profile):
    assert profile.instructions == 1 + 5 * TRIPS
    assert profile.flops == TRIPS * 2 * 128 * 128 * 512
    assert profile.dma_bytes == profile.hbm_bytes
    assert profile.hbm_gbps == pytest.approx(profile.hbm_bytes / profile.latency_us / 1e3)
    peak = profile.target.arch.peak_flops["bf16"]
    assert profile.mfu == pytest.approx(profile.flops / (profile.latency_us * 1e-6) / peak)
    tensor = profile.engines["tensor"]
    assert tensor.utilization == pytest.approx(tensor.busy_us / profile.latency_us)
    assert 0 < tensor.utilization < 1
    assert set(profile.queues) == {"in", "out"}
    assert profile.queues["out"].instructions == TRIPS


def test_the_dictionary_is_json(profile: Profile):
    text = json.dumps(profile.to_dict(), allow_nan=False)
    assert json.loads(text)["latency_us"] == profile.latency_us
    assert json.loads(text)["notes"] == ["tile w spilled"]


def test_a_tile_resides_from_its_first_access_to_its_last(profile: Profile):
    spans = {r.name: r for r in profile.residences}
    assert set(spans) == {"w", "m", "p", "c", "r"}
    assert spans["w"].start_ns < spans["p"].start_ns < spans["c"].start_ns < spans["r"].start_ns
    assert spans["p"].memory == "PSUM"
    assert spans["p"].bytes == 2048


def test_the_trace_has_a_track_for_every_engine_and_queue(profile: Profile, tmp_path):
    profile.save_perfetto(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert {"tensor", "vector", "scalar", "gpsimd", "sync", "dma in", "dma out"} <= names
    matmul = next(e for e in trace if e["name"] == "nc_matmul")
    assert matmul["args"]["operands"].startswith("dst=p[128 x 512 f32]")
    assert any(e["ph"] == "X" and "more iterations of i" in e["name"] for e in trace)


def test_events_and_skipped_iterations_do_not_overlap(profile: Profile):
    for skip in profile.timing.skips:
        for event in profile.timing.events:
            assert event.end_ns <= skip.start_ns or event.start_ns >= skip.end_ns


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.inside, self.data = "", ""

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "action")]
        self.inside = dict(attributes).get("id", "") if tag == "script" else self.inside

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "data":
            self.data += data


def read_page(profile: Profile, path) -> tuple[str, Collector]:
    profile.save_html(path)
    collector = Collector()
    collector.feed(path.read_text())
    return path.read_text(), collector


def test_the_page_needs_nothing_but_itself(profile: Profile, tmp_path):
    text, page = read_page(profile, tmp_path / "profile.html")
    assert page.links == []
    assert set(re.findall(r"\w+://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|importScripts", text)
    assert "/*STYLE*/" not in text
    assert "/*SCRIPT*/" not in text


def test_the_page_holds_the_profile(profile: Profile, tmp_path):
    _, page = read_page(profile, tmp_path / "profile.html")
    data = json.loads(page.data)
    assert data["mfu"] == profile.mfu
    titles = [title for title, _, _ in data["tracks"]]
    assert titles == ["program", "tensor", "vector", "scalar", "dma in", "dma out"]
    assert {row[1] for row in data["residences"]} == {"w", "m", "p", "c", "r"}


def test_names_cannot_break_out_of_the_page(tmp_path):
    name = "</script><script>alert(1)</script>"
    a, b = tile(name, "SBUF", 128, 64), tile("b", "SBUF", 128, 64)
    hostile = replace(program(copy(a, b, loc=Loc(name, 1))), name=name, notes=(name,))
    profile = profile_program(hostile, "trn2")
    _, page = read_page(profile, tmp_path / "profile.html")
    assert page.tags.count("script") == 2
    assert json.loads(page.data)["program"] == name
    profile.save_svg(tmp_path / "profile.svg")
    drawn = ElementTree.parse(tmp_path / "profile.svg").getroot()
    assert not [e for e in drawn.iter() if e.tag.endswith("script")]


def test_the_picture_shows_every_busy_track(profile: Profile, tmp_path):
    profile.save_svg(tmp_path / "profile.svg")
    root = ElementTree.parse(tmp_path / "profile.svg").getroot()
    texts = [e.text for e in root.iter() if e.tag.endswith("}text")]
    assert {"tensor", "vector", "scalar", "dma in", "dma out"} <= set(texts)
    width = float(root.attrib["viewBox"].split()[2])
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        right = float(rect.attrib.get("x", 0)) + float(rect.attrib["width"])
        assert 0 <= float(rect.attrib.get("x", 0)) <= right <= width + 1


def test_an_empty_program_has_a_page_and_a_picture(tmp_path):
    profile = profile_program(program(), "trn1")
    _, page = read_page(profile, tmp_path / "empty.html")
    assert {row[0] for row in json.loads(page.data)["slices"]} == {0}  # the program's parts
    profile.save_svg(tmp_path / "empty.svg")
    assert ElementTree.parse(tmp_path / "empty.svg").getroot().tag.endswith("svg")
    profile.save_perfetto(tmp_path / "empty.json")
    assert json.loads((tmp_path / "empty.json").read_text())["traceEvents"]


def test_occupancy_adds_up_to_the_tiles() -> None:
    """Of too many tiles to draw, the cells have the bytes and times of all."""
    tiles = [
        Residence("SBUF", f"t{n}", 512 * (n % 96), 512, 128, 10.0 * n, 10.0 * n + 35.0)
        for n in range(2400)
    ]
    end = 10.0 * 2400 + 25.0
    cells = np.array(occupancy(tiles, 96 * 512, end))
    assert cells.shape == (ROWS, COLUMNS)
    whole = cells.mean() / 100 * 96 * 512 * end
    assert whole == pytest.approx(2400 * 512 * 35.0, rel=0.05)
    full = [Residence("PSUM", "p", 0, 2048, 128, 0.0, 100.0)]
    assert np.array(occupancy(full, 2048, 100.0)).min() == 100


def test_each_memory_of_a_large_program_is_shown(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MAX_TILES", 0)
    found = page.page_data(profile)
    assert found["residences"] == []
    shades: Any = found["occupancy"]
    assert np.array(shades["SBUF"]).max() > 0
    assert np.array(shades["PSUM"]).max() > 0
    assert found["path_is_partial"] is False
