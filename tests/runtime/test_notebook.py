"""What notebooks show is small, well-formed and cannot run what a name holds."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

import glia
from glia.base.notebook import MAX_ROWS
from glia.neff.package import Neff
from support.neff_programs import example_neff

HOSTILE = "<img src=x onerror=alert(1)>&amp;\"'" + "x" * 10_000


def hostile() -> Neff:
    (program,) = example_neff().programs
    inputs = tuple(replace(each, name=HOSTILE) for each in program.inputs)
    several = tuple(replace(program.outputs[0], name=f"{HOSTILE}{n}") for n in range(100))
    return Neff((replace(program, name=HOSTILE, inputs=inputs, outputs=several),))


@pytest.mark.parametrize("neff", [example_neff(), hostile()])
def test_html_is_small_and_escaped(neff: Neff) -> None:
    model = glia.load(neff)
    for shown in (neff, model, model.profile()):
        html = shown._repr_html_()
        assert len(html) < 20_000
        root = ElementTree.fromstring(html.replace("&middot;", ""))
        assert {each.tag for each in root.iter()} <= {"div", "b", "table", "tr", "th", "td"}
        assert {name for each in root.iter() for name in each.attrib} <= {"style"}
        assert len(list(root.iter("tr"))) <= MAX_ROWS + 2


def test_html_says_what_is_in_the_model() -> None:
    neff = example_neff()
    model = glia.load(neff, device="adversarial")
    text = "".join(ElementTree.fromstring(model._repr_html_().replace("&middot;", "")).itertext())
    for binding in (*model.inputs, *model.outputs):
        assert binding.name in text
    assert "adversarial" in text and neff.target in text
    profile = model.profile()
    shown = profile._repr_html_()
    assert f"{profile.latency_us:,.2f} us" in shown
    for engine in profile.engines:
        assert engine in shown
