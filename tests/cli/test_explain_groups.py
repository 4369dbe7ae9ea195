"""What `glia explain-code` says of groups is what the compiled program does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.cli.explain_code import explain_code, explain_code_text
from glia.neff.package import Neff

Array = Any


def attention(q: Array, k: Array, v: Array) -> Array:
    scores = jnp.einsum("hqd,hkd->hqk", q, k)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v)


def halves(x: Array, w: Array) -> Array:
    """Products whose operand is read for several blocks, and what is wider than SBUF."""
    return jax.nn.softmax(x @ w, -1)


FUNCTIONS: dict[str, tuple[Callable[..., Array], tuple[tuple[int, ...], ...]]] = {
    "softmax": (lambda x: jax.nn.softmax(x, -1), ((2048, 1024),)),
    "long rows": (lambda x: jax.nn.logsumexp(x, -1), ((256, 40_960),)),
    "attention": (attention, ((4, 512, 64),) * 3),
    "product and rows": (halves, ((1024, 2048), (2048, 1024))),
    "columns": (lambda x: jnp.cumsum(x, 0) + x.T, ((512, 512),)),
    "lookups": (lambda x, i: x[i.astype(int)], ((4096, 64), (128,))),
}


def compiled(name: str, target: str, level: int = 2) -> Neff:
    function, shapes = FUNCTIONS[name]
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    lowered = jax.jit(function).lower(*arguments)
    return glia.compile(
        lowered, target=target, optlevel=level, auto_cast="none", no_cache=True, logical_nc_config=1
    )


@pytest.mark.parametrize("target", ("trn1", "trn2"))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_traffic_of_groups_is_that_of_the_program(name: str, target: str) -> None:
    neff = compiled(name, target)
    told = sum(
        each["read_bytes"] + each["written_bytes"]
        for group in neff.report["groups"]
        for each in group["traffic"]
    )
    assert told == glia.load(neff).profile().hbm_bytes


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_nest_is_in_one_group_or_by_itself(name: str) -> None:
    report = compiled(name, "trn2").report
    told = [nest for group in report["groups"] for nest in group["nests"]]
    assert sorted(told) == sorted(nest["name"] for nest in report["nests"])


def test_groups_are_told_with_what_they_keep_move_and_wait_for() -> None:
    text = explain_code_text(explain_code(compiled("attention", "trn2")))
    told = text.partition("groups of nests")[2].partition("\nnests, with")[0]
    assert "rows.0: for 4 by 1" in told or "rows.0: for 512 by 128" in told
    assert "stays on chip: " in told
    assert "input1: reads 524.3 kB in " in told
    assert "transposed" in told
    assert "bound by " in told


def test_what_is_read_again_and_why_a_group_ends_is_told() -> None:
    facts = explain_code(compiled("long rows", "trn2"))
    (group,) = (each for each in facts["groups"] if len(each["nests"]) == 2)
    assert group["loop"]["body"] != []
    assert group["ended_by"].startswith("reduce.0: ")
    (traffic,) = (each for each in group["traffic"] if each["buffer"] == "input0")
    assert traffic["read_bytes"] == traffic["bytes"] == 256 * 40_960 * 4
    assert "ends before reduce.0: " in explain_code_text(facts)
    nest_by_nest = compiled("softmax", "trn2", level=1)
    text = explain_code_text(explain_code(nest_by_nest))
    assert nest_by_nest.report["groups"] and "bound by " in text


def test_a_compilation_for_two_cores_tells_of_one() -> None:
    function, shapes = FUNCTIONS["product and rows"]
    lowered = jax.jit(function).lower(*(jax.ShapeDtypeStruct(s, np.float32) for s in shapes))
    neff = glia.compile(lowered, target="trn2", logical_nc_config=2, no_cache=True)
    assert {"groups", "nests"} <= neff.report.keys()


def test_the_page_of_a_model_shows_its_groups(tmp_path: Path) -> None:
    profile = glia.load(compiled("attention", "trn2")).profile()
    profile.save_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    (data,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
    groups = json.loads(data)["groups"]
    assert [group[0].partition(":")[0] for group in groups] == [g["name"] for g in profile.groups]
    assert any("stays on chip: " in fact for group in groups for fact in group)


@pytest.mark.parametrize(
    "groups", (3, [{}], [{"name": "x", "loop": 1}], [None], ["a"], [{"name": 1, "loop": [[]]}])
)
def test_a_damaged_report_has_no_groups(groups: object) -> None:
    neff = replace(compiled("softmax", "trn2"), report={"groups": groups})
    assert glia.load(neff).profile().groups == ()
