"""What affine masks make constant is not computed, and nothing changes but that."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.base.affine import Affine
from glia.base.dtype import F32, PRED, S32
from glia.frontend.registry import read_module
from glia.graph.scalar import OPPOSITE
from glia.machine.emit import lower
from glia.machine.emit.refusal import Refusal
from glia.options import CompileOptions
from glia.pass_runner import PassResult, run_pipeline
from glia.tile.affine_predicates import masked
from glia.tile.evaluate import evaluate
from glia.tile.group_legal import why_illegal
from glia.tile.ir import Apply, Expr, Index, Literal, Load, Program
from glia.tile.masked_columns import kept_columns, number_elsewhere
from glia.tile.passes import group_nests, skip_masked_blocks
from glia.tile.reductions import block_reductions
from glia.tile.text import parse_program, print_program
from support.targets import CORES

# --- columns that conditions keep -----------------------------------------------------------------


def random_condition(rng: random.Random) -> Expr:
    sides = [
        Index(Affine.build({"i": rng.randrange(-2, 3), "j": rng.randrange(-2, 3)}), S32),
        Literal(rng.randrange(-20, 21), S32),
    ]
    rng.shuffle(sides)
    return Apply(rng.choice(tuple(OPPOSITE)), tuple(sides), PRED)


def test_kept_columns_are_those_where_conditions_hold() -> None:
    rows, columns, found = 11, 13, 0
    i, j = np.indices((rows, columns))
    x = Load("x", F32, (Affine.of("i"), Affine.of("j")))
    for seed in range(500):
        rng = random.Random(seed)
        predicate = random_condition(rng)
        for _ in range(rng.randrange(3)):
            predicate = Apply("and", (predicate, random_condition(rng)), PRED)
        parts = masked(Apply("select", (predicate, x, Literal(0.0, F32)), F32), {"i": 11, "j": 13})
        assert parts is not None
        conditions, _, _ = parts
        holds = np.ones((rows, columns), bool)
        for each in conditions:
            value = each.difference.coefficient("i") * i + each.difference.coefficient("j") * j
            compare = getattr(np, each.comparison)
            holds &= compare(value + each.difference.constant, 0)
        kept = kept_columns(conditions, "i", "j", rows, columns)
        if kept is None:
            continue
        found += 1
        np.testing.assert_array_equal((kept.low[:, None] <= j) & (j < kept.high[:, None]), holds)
        first = rng.randrange(rows)
        last = rng.randrange(first, rows) + 1
        part = holds[first:last]
        low, high = kept.some(first, last)
        if part.any(1).all():
            assert not part[:, :low].any() and not part[:, high:].any()
        else:
            assert (low, high) == (0, columns)
        low, high = kept.every(first, last)
        assert low >= high or part[:, low:high].all()
    assert found > 150


X = Load("x", F32, ())


def function(name: str, *args: Expr) -> Expr:
    return Apply(name, args, F32)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        (lambda m: function("exp", function("subtract", m, X)), 0.0),
        (lambda m: function("logistic", function("multiply", m, Literal(0.5, F32))), 0.0),
        (lambda m: function("multiply", X, function("exp", function("add", X, m))), 0.0),
        (lambda m: function("maximum", m, Literal(3.0, F32)), 3.0),
        (lambda m: function("minimum", m, X), -math.inf),
        (lambda m: function("maximum", m, X), None),
        (lambda m: function("subtract", X, m), None),
        (lambda m: function("exp", function("multiply", m, X)), None),
        (lambda m: function("subtract", m, m), None),
        (lambda m: function("multiply", m, Literal(0.0, F32)), None),
        (lambda m: function("add", m, Literal(math.inf, F32)), None),
        (lambda m: function("exp", X), None),
    ],
)
def test_numbers_elsewhere_hold_whatever_is_not_known(
    expression: Callable[[Expr], Expr], wanted: float | None
) -> None:
    mask = Load("mask", F32, ())
    assert number_elsewhere(expression(mask), {}, {"mask": -math.inf}) == wanted


# --- programs -------------------------------------------------------------------------------------


def attention(q: Any, k: Any, v: Any, keeps: Callable[[Any, Any], Any], number: float) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) * q.shape[-1] ** -0.5
    i, j = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, d) for d in (1, 2))
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.where(keeps(i, j), scores, number), -1), v)


def added(q: Any, k: Any, v: Any) -> Any:
    """A mask that is added, as many frameworks do."""
    scores = jnp.einsum("hqd,hkd->hqk", q, k) * q.shape[-1] ** -0.5
    i, j = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, d) for d in (1, 2))
    scores += jnp.where(i >= j, 0.0, -1e9)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v)


def grouped_heads(q: Any, k: Any, v: Any) -> Any:
    """Causal attention in which two heads of queries share the keys of one."""
    q = q.reshape(2, 2, *q.shape[1:])
    scores = jnp.einsum("ghqd,gkd->ghqk", q, k[::2])
    mask = jnp.tril(jnp.ones(scores.shape[2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)
    return jnp.einsum("ghqk,gkd->ghqd", weights, v[::2])


def linear(q: Any, k: Any, v: Any) -> Any:
    """Causal products without a softmax: what is masked is 0."""
    scores = jnp.einsum("hqd,hkd->hqk", q, k) * q.shape[-1] ** -0.5
    i, j = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, d) for d in (1, 2))
    return jnp.einsum("hqk,hkd->hqd", jnp.where(i >= j, scores, 0), v)


def masked_by(keeps: Callable[[Any, Any], Any], number: float = -1e30) -> Callable[..., Any]:
    return lambda q, k, v: attention(q, k, v, keeps, number)


SKIPPED: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "causal": (masked_by(lambda i, j: i >= j), (2, 300, 300, 24)),
    "causal of odd sizes": (masked_by(lambda i, j: i >= j, -math.inf), (1, 273, 413, 40)),
    "grouped heads": (grouped_heads, (4, 300, 300, 24)),
    "window": (masked_by(lambda i, j: (i >= j) & (j > i - 70)), (2, 400, 400, 16)),
    "later keys": (masked_by(lambda i, j: 2 * i + 40 >= j), (2, 300, 900, 24)),
    "added": (added, (2, 300, 300, 24)),
    "linear": (linear, (2, 300, 300, 24)),
}
KEPT: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "scores may be less": (masked_by(lambda i, j: i >= j, -3.0), (2, 300, 300, 24)),
    "large scores may be less": (masked_by(lambda i, j: i >= j, -1e4), (2, 300, 300, 24)),
    "rows without keys": (masked_by(lambda i, j: i > j + 290), (2, 300, 300, 24)),
    "no interval": (masked_by(lambda i, j: i != j), (2, 300, 300, 24)),
}


@pytest.fixture(autouse=True)
def groups_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups pay however little they save."""
    monkeypatch.setattr(group_nests, "LEAST_SAVED_BYTES", -1)


def arguments_of(sizes: tuple[int, ...], dtype: Any) -> list[Any]:
    heads, queries, keys, width = sizes
    rng = np.random.default_rng(0)
    shapes = (heads, queries, width), (heads, keys, width), (heads, keys, width)
    return [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


def columns_of(program: Program) -> int:
    """The scores that are computed."""
    return sum(
        int(np.prod([axis.extent for axis in nest.parallel_axes]))
        for nest in program.nests()
        if nest.name.startswith("dot.0")
    )


def both_programs(function: Callable[..., Any], arguments: list[Any]) -> tuple[Program, Program]:
    """The tile programs before and after."""
    module = read_module(jax.jit(function).lower(*arguments))
    options = CompileOptions(target="trn2", auto_cast="none")
    before = run_pipeline(module, options, stop_after="group_nests")
    assert isinstance(before, Program)
    return before, skip_masked_blocks.skip_masked_blocks(before, options)


@pytest.mark.parametrize("ranges", [2, 16])
@pytest.mark.parametrize("name", SKIPPED)
def test_less_is_computed_to_the_same_values(
    name: str, ranges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skip_masked_blocks, "MOST_RANGES", ranges)
    function, sizes = SKIPPED[name]
    arguments = arguments_of(sizes, np.float32)
    before, after = both_programs(function, arguments)
    assert columns_of(after) <= skip_masked_blocks.WORTH_SHARE * columns_of(before)
    assert after.notes == (*before.notes, skip_masked_blocks.NOTE)
    assert not [why for group in after.groups if (why := why_illegal(group, after))]
    expected, found = (evaluate(program, arguments)[0] for program in (before, after))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", KEPT)
def test_what_masked_values_change_is_computed(name: str) -> None:
    function, sizes = KEPT[name]
    before, after = both_programs(function, arguments_of(sizes, np.float32))
    assert after == before


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", ["causal of odd sizes", "window", "added"])
def test_every_target_computes_it(name: str, dtype: Any, target: str) -> None:
    function, sizes = SKIPPED[name]
    arguments = arguments_of(sizes, dtype)
    lowered = jax.jit(function).lower(*arguments)
    neff = glia.compile(lowered, target=target, auto_cast="none", verify=True, no_cache=True)
    assert not any("run one by one" in note for each in neff.programs for note in each.notes)
    wide = [np.asarray(each, np.float32) for each in arguments]
    found = np.asarray(glia.load(neff)(*arguments)[0], np.float32)
    limit = 1e-5 if dtype is np.float32 else 6e-2
    np.testing.assert_allclose(found, np.asarray(function(*wide)), rtol=limit, atol=limit)


@pytest.mark.parametrize("name", ["causal", "causal of odd sizes"])
def test_a_group_that_cannot_be_divided_stays_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit_group = lower.emit_group

    def refuse(context: Any, group: Any, nests: Any) -> None:
        if any(".r1" in name for name in nests):
            raise Refusal("no ranges today")
        emit_group(context, group, nests)

    monkeypatch.setattr(lower, "emit_group", refuse)
    function, sizes = SKIPPED[name]
    arguments = arguments_of(sizes, np.float32)
    programs: list[Program] = []

    def keep(result: PassResult) -> None:
        if result.name == "choose_layouts":
            programs.append(result.ir)

    neff = glia.compile(
        jax.jit(function).lower(*arguments),
        target="trn2",
        auto_cast="none",
        no_cache=True,
        observer=keep,
    )
    assert programs[-1].groups and all(group.is_whole for group in programs[-1].groups)
    assert parse_program(print_program(programs[-1])).groups == programs[-1].groups
    found = glia.load(neff)(*arguments)[0]
    np.testing.assert_allclose(found, function(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_causal", [True, False])
def test_iterations_that_do_not_overlap_have_to_save_more_than_they_take(
    is_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long rows of scores fit SBUF once: what a mask leaves of them is worth it, all is not."""
    monkeypatch.setattr(group_nests, "LEAST_SAVED_BYTES", 256 * 1024)
    monkeypatch.setattr(block_reductions, "ROW_SHARE", 1.0)  # rows stay whole

    def function(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32)
        i, j = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, d) for d in (1, 2))
        scores = jnp.where(i >= j, scores, -1e30) if is_causal else scores
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1).astype(q.dtype), v)

    shapes = [jax.ShapeDtypeStruct((1, 8192, 128), jnp.bfloat16)] * 3
    lowered = jax.jit(function).lower(*shapes)
    options = CompileOptions(target="trn2", auto_cast="none")
    program = run_pipeline(read_module(lowered), options, stop_after="group_nests")
    assert isinstance(program, Program)
    products = [
        sum(member.schedule.engine == "tensor" for _, member in group.members())
        for group in program.groups
    ]
    assert (max(products) == 2) == is_causal
