"""Contractions in groups, with what precedes and follows them, compute the same on every target."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.frontend.registry import read_module
from glia.machine.emit.groups import group as emission
from glia.machine.emit.refusal import Refusal
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.ir import Program
from glia.tile.passes import group_nests
from support.targets import CORES


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


def causal_attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k)
    mask = jnp.tril(jnp.ones(scores.shape[1:], bool))
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.where(mask, scores, -1e30), -1), v)


def attention_of_heads(q: Any, k: Any, v: Any) -> Any:
    """Attention whose heads lie beside each other, as a projection writes them."""
    batch, tokens, width = q.shape
    q, k, v = (x.reshape(batch, tokens, 3, width // 3).transpose(0, 2, 1, 3) for x in (q, k, v))
    shares = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2), axis=-1)
    return (shares @ v).transpose(0, 2, 1, 3).reshape(batch, tokens, width)


def norm_then_product(x: Any, gain: Any, w: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain @ w


def product_then_norm(x: Any, w: Any, y: Any) -> Any:
    """Two results, of which one is read on the way to the other."""
    added = x @ w + y
    return added, added - jnp.mean(added, -1, keepdims=True)


def siblings(x: Any, w: Any, v: Any) -> Any:
    return jax.nn.silu(x @ w) * (x @ v)


def attention_gradient(q: Any, k: Any, v: Any, w: Any) -> Any:
    """Gradients by all arguments of attention and a projection of its result."""

    def projected(*each: Any) -> Any:
        return (attention(*each[:3]) @ each[3]).sum()

    return jax.grad(projected, argnums=(0, 1, 2, 3))(q, k, v, w)


GRADIENT = "attention, gradient"
Shapes = tuple[tuple[int, ...], ...]
PRODUCTS: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "attention": (attention, ((3, 200, 24),) * 3),
    "causal attention": (causal_attention, ((2, 140, 16),) * 3),
    "attention of heads": (attention_of_heads, ((2, 200, 48),) * 3),
    GRADIENT: (attention_gradient, (*((3, 200, 24),) * 3, (24, 40))),
    "norm then product": (norm_then_product, ((260, 140), (140,), (140, 72))),
    "product then norm": (product_then_norm, ((300, 24), (24, 150), (300, 150))),
    "siblings": (siblings, ((300, 130), (130, 40), (130, 40))),
}


@pytest.fixture(autouse=True)
def groups_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups pay however little they save."""
    monkeypatch.setattr(group_nests, "LEAST_SAVED_BYTES", -1)


def _arguments(shapes: Shapes) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_computed_block_by_block(name: str, target: str) -> None:
    function, shapes = PRODUCTS[name]
    arguments = _arguments(shapes)
    lowered = jax.jit(function).lower(*arguments)
    options = CompileOptions(target=target, auto_cast="none")
    grouped = run_pipeline(read_module(lowered), options, stop_after="choose_layouts")
    assert isinstance(grouped, Program)
    schedules = [m.schedule for group in grouped.groups for _, m in group.members()]
    assert any(schedule.engine == "tensor" for schedule in schedules)
    neff = glia.compile(
        lowered, target=target, auto_cast="none", verify=True, no_cache=True, optlevel=2
    )
    assert not any("run one by one" in note for each in neff.programs for note in each.notes)
    expected = jax.tree.leaves(function(*arguments))
    for one, other in zip(glia.load(neff)(*arguments), expected, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=2e-4, atol=2e-4)


def _groups_of(function: Callable[..., Any], shapes: Shapes) -> list[tuple[set[str], set[str]]]:
    """(engines, what is kept on chip) of every group."""
    lowered = jax.jit(function).lower(*_arguments(shapes))
    options = CompileOptions(auto_cast="none")
    program = run_pipeline(read_module(lowered), options, stop_after="choose_layouts")
    return [
        ({m.schedule.engine for _, m in group.members()}, {*group.on_chip})
        for group in program.groups
    ]


def test_scores_of_heads_beside_each_other_stay_on_chip() -> None:
    ((engines, on_chip),) = _groups_of(attention_of_heads, PRODUCTS["attention of heads"][1])
    assert engines == {"tensor", "vector"}
    assert len(on_chip) >= 4


def test_nests_that_sum_over_rows_come_after_a_group_that_goes_on() -> None:
    """The gradient by the keys sums over rows; what follows it, but for others, does not wait."""

    def gradients(q: Any, k: Any, v: Any, by: Any) -> Any:
        return jax.vjp(attention, q, k, v)[1](by)

    kept = [on_chip for _, on_chip in _groups_of(gradients, ((3, 200, 24),) * 4)]
    assert len(kept) == 1 and len(kept[0]) >= 7


@pytest.mark.parametrize(("later", "place"), [(5, 0), (14, 0), (15, 2), (100, 2)])
def test_a_group_begins_at_the_product_from_which_most_is_saved(later: int, place: int) -> None:
    """The group at 0 saves 10 and leaves one that saves 4; one at 2 leaves nothing behind."""
    saved = {(0, 6): (10, 4), (4, 6): (4, 2), (2, 6): (later, 4)}

    def best(run: Any) -> Any:
        found = saved.get((run[0], run[0] + len(run)))
        group = found and SimpleNamespace(saved_bytes=found[0])
        return group and SimpleNamespace(found=group, length=found[1], has_products=True)

    search = group_nests._RunSearch(range(6), best, lambda nest: nest in (0, 2))  # type: ignore[arg-type]
    assert search.cut(0) == place


def test_engines_work_side_by_side_where_nothing_goes_through_hbm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()

    def normed(x: Any, w: Any) -> Any:
        y = x @ w
        return (y - jnp.mean(y, -1, keepdims=True)) @ w

    groups = _groups_of(normed, ((2048, 128), (128, 128)))
    assert any(engines == {"tensor", "vector"} for engines, _ in groups)


def test_two_products_of_batches_of_rows_overlap_at_first_try() -> None:
    """A batch that is left over has other tiles than the loop, which need not be kept for it."""
    lowered = jax.jit(lambda x, w, v: (x @ w, x @ v)).lower(
        *_arguments(((8, 384, 768), (768, 768), (768, 768)))
    )
    passes: list[str] = []
    options = CompileOptions(auto_cast="none")
    run_pipeline(read_module(lowered), options, lambda step: passes.append(step.name))
    assert passes.count("double_buffer") == 1


def test_of_a_group_with_products_that_cannot_be_emitted_the_rows_between_are_grouped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emit = emission._GroupEmitter.emit

    def refuse_products(emitter: Any) -> None:
        if any(m.schedule.engine == "tensor" for _, m in emitter.group.members()):
            raise Refusal("not today")
        emit(emitter)

    monkeypatch.setattr(emission._GroupEmitter, "emit", refuse_products)
    arguments = _arguments(PRODUCTS["attention"][1])
    lowered = jax.jit(attention).lower(*arguments)
    programs = run_pipeline(read_module(lowered), CompileOptions(auto_cast="none"))
    assert any("run one by one" in note for note in programs.notes)
    groups: list[Any] = []

    def observe(step: Any) -> None:
        if step.level == "tile":
            groups[:] = step.ir.groups

    run_pipeline(read_module(lowered), CompileOptions(auto_cast="none"), observe, stop_after="emit")
    assert groups and all(
        m.schedule.engine == "vector" for each in groups for _, m in each.members()
    )
    found = glia.load(glia.compile(lowered, auto_cast="none", no_cache=True))(*arguments)
    np.testing.assert_allclose(found[0], attention(*arguments), rtol=2e-4, atol=2e-4)
