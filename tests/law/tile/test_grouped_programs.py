"""Programs whose nests run in groups compute the same, on every target and at every level."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.frontend.hlo import import_hlo
from glia.frontend.registry import read_module
from glia.isa.instructions.dma import DmaCopy
from glia.machine.emit.groups import group as emission
from glia.machine.emit.refusal import Refusal
from glia.machine.ir import Loop, walk
from glia.machine.overlap import overlap_plan, reuse_tiles
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.sim.order.concurrent import run_concurrently, streams_of
from glia.sim.run import run
from glia.tile.ir import Program
from glia.tile.passes import group_nests, group_plan
from support.corpus import BY_NAME, PROGRAMS, assert_close, hlo_bytes
from support.random_graphs.cases import random_case
from support.random_graphs.check import check

Array = np.ndarray[Any, Any]
OPTLEVELS = {"trn1": (2, 3), "trn1n": (2,), "inf2": (1,), "trn2": (1, 2), "trn3": (2,)}
SMALL = ("softmax", "layer_norm", "attention", "rms_norm", "log_softmax", "mlp_training_step")


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


def layernorm(x: Any, gain: Any, shift: Any) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain + shift


def residual_norm(x: Any, y: Any, gain: Any) -> Any:
    """Two results, of which one is read on the way to the other."""
    added = x + y
    mean_square = jnp.mean(added * added, -1, keepdims=True)
    return added, added * jax.lax.rsqrt(mean_square + 1e-6) * gain


def logsumexp(x: Any) -> Any:
    return jax.nn.logsumexp(x, axis=-1)


def halves(x: Any, cosine: Any, sine: Any) -> Any:
    """Two nests that write the halves of one result (rotary embedding)."""
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)


def pairs(x: Any, cosine: Any, sine: Any) -> Any:
    """As `halves`, with the two features of a pair beside each other."""
    left, right = x[:, ::2], x[:, 1::2]
    turned = [left * cosine - right * sine, right * cosine + left * sine]
    return jnp.stack(turned, axis=-1).reshape(x.shape)


def shifted(x: Any, gain: Any) -> Any:
    """Nests that read overlapping parts, and a maximum over what two of them have written."""
    y = jnp.concatenate([(x[:, 1:] - x[:, :-1]) * gain, x[:, 2:] + x[:, 1:-1] * x[:, :-2]], axis=-1)
    return y - y.max(-1, keepdims=True)


ROW_PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "softmax": (softmax, ((300, 70),)),
    "batched softmax": (softmax, ((3, 5, 130, 9),)),
    "layernorm": (layernorm, ((260, 33), (33,), (33,))),
    "residual norm": (residual_norm, ((257, 40), (257, 40), (40,))),
    "logsumexp": (logsumexp, ((384, 64),)),
    "halves": (halves, ((384, 64), (384, 32), (384, 32))),
    "pairs": (pairs, ((384, 64), (384, 32), (384, 32))),
    "shifted": (shifted, ((300, 40), (39,))),
}


@pytest.fixture(autouse=True)
def groups_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups pay however little they save."""
    monkeypatch.setattr(group_nests, "LEAST_SAVED_BYTES", -1)


def _arguments(shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("target", OPTLEVELS)
@pytest.mark.parametrize("name", ROW_PROGRAMS)
def test_rows_are_computed_block_by_block(name: str, target: str) -> None:
    function, shapes = ROW_PROGRAMS[name]
    arguments = _arguments(shapes)
    lowered = jax.jit(function).lower(*arguments)
    options = CompileOptions(target=target, auto_cast="none")
    grouped = run_pipeline(read_module(lowered), options, stop_after="choose_layouts")
    assert isinstance(grouped, Program) and len(grouped.groups) == 1
    expected = jax.tree.leaves(function(*arguments))
    for optlevel in OPTLEVELS[target]:
        neff = glia.compile(lowered, target=target, optlevel=optlevel, verify=True, no_cache=True)
        found = glia.load(neff)(*arguments)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, np.asarray(other), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["halves", "pairs"])
def test_results_in_pieces_are_stored_at_once(name: str) -> None:
    function, shapes = ROW_PROGRAMS[name]
    module = read_module(jax.jit(function).lower(*_arguments(shapes)))
    emitted = run_pipeline(module, CompileOptions(auto_cast="none"), stop_after="emit")
    copies = [each for each in walk(emitted.body) if isinstance(each, DmaCopy)]
    assert len(copies) == 4  # x, cosine, sine, the result


@pytest.mark.parametrize(
    "name, stages, least, room, rows",
    [
        ("softmax", 1, 512, 0, 101), ("residual norm", 2, 1, 0, 101), ("halves", 3, 512, 0, 101),
        ("softmax", 4, 1, 0, 101), ("layernorm", 2, 1, 1400, 101),
        ("softmax", 2, 512, 0, 30), ("layernorm", 3, 1, 0, 37),
    ],
)  # fmt: skip
def test_iterations_overlap_without_races_in_any_number_of_stages(
    name: str, stages: int, least: int, room: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where results take the tiles of operands (from `least` bytes), and in little `room`.

    Loops of few iterations are written out.
    """
    monkeypatch.setattr(group_nests, "PARTITIONS", 8)
    monkeypatch.setattr(group_plan, "PARTITIONS", 8)
    monkeypatch.setattr(reuse_tiles, "LEAST_BYTES", least)
    monkeypatch.setattr(
        overlap_plan, "_bodies", lambda copier, bodies=overlap_plan._bodies: [*bodies(copier)][-1:]
    )
    monkeypatch.setattr(
        overlap_plan,
        "find_stages",
        lambda *of, find=overlap_plan.find_stages: [
            each for each in find(*of) if each.count == stages
        ],
    )
    monkeypatch.setattr(
        overlap_plan,
        "_copies_of",
        lambda loop, *of, find=overlap_plan._copies_of, **ways: find(
            replace(loop, room=room or loop.room), *of, **ways
        ),
    )
    function, shapes = ROW_PROGRAMS[name]
    arguments = _arguments(tuple((rows, *shape[1:]) if shape[1:] else shape for shape in shapes))
    lowered = jax.jit(function).lower(*arguments)
    program = run_pipeline(read_module(lowered), CompileOptions(auto_cast="none"))
    loops = [each for each in program.body if isinstance(each, Loop)]
    assert [loop.trips for loop in loops] == ([(12 - (stages - 1)) // 4] if rows > 100 else [])
    inputs = {b.name: a for b, a in zip(program.inputs, arguments, strict=True)}
    expected = run(program, inputs)
    wanted = jax.tree.leaves(function(*arguments))
    for binding, value in zip(program.outputs, wanted, strict=True):
        np.testing.assert_allclose(expected[binding.name], value, rtol=2e-5, atol=2e-5)
    for seed in range(len(streams_of(program))):
        found = run_concurrently(program, inputs, seed=seed)
        for output, value in expected.items():
            np.testing.assert_array_equal(found[output], value)


@pytest.mark.parametrize("name", [p.name for p in PROGRAMS if p.name in SMALL])
def test_small_blocks_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_nests, "PARTITIONS", 4)
    monkeypatch.setattr(group_plan, "PARTITIONS", 4)
    program = BY_NAME[name]
    neff = glia.compile(hlo_bytes(program), verify=True, no_cache=True)
    assert_close(program, glia.load(neff)(*program.arguments))


@pytest.mark.parametrize("first", (0,))
def test_random_programs_compute_the_same_in_small_blocks(
    first: int, monkeypatch: pytest.MonkeyPatch, count: int = 6
) -> None:
    monkeypatch.setattr(group_nests, "PARTITIONS", 4)
    monkeypatch.setattr(group_plan, "PARTITIONS", 4)
    failures = {seed: check(random_case(seed)) for seed in range(first, first + count)}
    assert not any(failures.values()), failures


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(6, 406, 50))
def test_more_random_programs_compute_the_same_in_small_blocks(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_random_programs_compute_the_same_in_small_blocks(first, monkeypatch, 50)


def test_a_group_that_cannot_be_emitted_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Refusal("not today")

    arguments = _arguments(((300, 70),))
    lowered = jax.jit(softmax).lower(*arguments)
    options = CompileOptions(auto_cast="none")
    monkeypatch.setattr(emission._GroupEmitter, "emit", refuse)
    emitted = run_pipeline(read_module(lowered), options, stop_after="emit")
    assert any("rows.0 run one by one" in note for note in emitted.notes)
    neff = glia.compile(lowered, no_cache=True)
    found = glia.load(neff)(*arguments)[0]
    np.testing.assert_allclose(found, np.asarray(softmax(arguments[0])), rtol=2e-5, atol=1e-6)


def test_nests_over_rows_that_do_not_fit_on_chip_are_grouped_by_blocks() -> None:
    wide = jax.ShapeDtypeStruct((256, 100_000), jnp.float32)
    options = CompileOptions(auto_cast="none")
    module = jax.jit(softmax).lower(wide)
    graph = import_hlo(module.compiler_ir("hlo").as_serialized_hlo_module_proto())
    groups = run_pipeline(graph, options, stop_after="choose_layouts").groups
    members = [[member for _, member in group.members()] for group in groups]
    assert max(map(len, members)) > 1
    for member in itertools.chain(*members):
        rows = member.schedule.partition
        values = math.prod(n for axis, n in member.schedule.tiles.items() if axis != rows)
        assert values <= 8192
