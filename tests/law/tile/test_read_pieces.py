"""Products read pieces of a concatenation where they lie; values stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.evaluate import evaluate
from glia.tile.ir import Nest, Program
from glia.tile.legal import verify
from glia.tile.passes import read_pieces as module
from support.targets import CORES

HEADS, OLD, WIDTH = 3, 70, 16
Function = Callable[..., Any]


def _decode(q: Any, k: Any, v: Any, new_k: Any, new_v: Any) -> Any:
    keys, values = (jnp.concatenate(each, 1) for each in ((k, new_k), (v, new_v)))
    weights = jax.nn.softmax(jnp.einsum("hd,htd->ht", q, keys))
    return jnp.einsum("ht,htd->hd", weights, values)


def _computed(q: Any, k: Any, v: Any, new_k: Any, new_v: Any) -> Any:
    """What is appended is computed, and read elsewhere too."""
    token = jnp.tanh(new_k + new_v)
    return jnp.einsum("hd,htd->ht", q, jnp.concatenate([k, token], 1)), token


def _grouped(q: Any, k: Any, v: Any, new_k: Any, new_v: Any) -> Any:
    """Four queries for each head."""
    queries = q[:, None] * jnp.arange(1.0, 5)[:, None]
    keys = jnp.concatenate([new_k, k, v], 1)
    scores = jnp.einsum("hrd,htd->hrt", queries, keys)
    return jnp.einsum("hrt,htd->hrd", jnp.tanh(scores), keys)


def _all_but_first(q: Any, k: Any, v: Any, new_k: Any, new_v: Any) -> Any:
    return jnp.einsum("hd,htd->ht", q, jnp.concatenate([k, new_k], 1)[:, 1:])


def _along_columns(q: Any, k: Any, v: Any, new_k: Any, new_v: Any) -> Any:
    return jnp.einsum("hd,hed->he", q, jnp.concatenate([k, v, new_k], 1) * 1) + 1


DIVIDED: dict[str, tuple[Function, int]] = {  # by name: a function, and its concatenations
    "a step of decoding": (_decode, 2),
    "a computed piece": (_computed, 1),
    "groups of queries": (_grouped, 1),
    "all but the first token": (_all_but_first, 1),
    "along columns": (_along_columns, 1),
}


def _output(q: Any, k: Any, v: Any, new_k: Any, new_v: Any) -> Any:
    keys = jnp.concatenate([k, new_k], 1)
    return jnp.einsum("hd,htd->ht", q, keys), keys


def _other_reader(q: Any, k: Any, v: Any, new_k: Any, new_v: Any) -> Any:
    keys = jnp.concatenate([k, new_k], 1)
    return jnp.einsum("hd,htd->ht", q, keys), jnp.max(keys, 1)


def _reversed(q: Any, k: Any, v: Any, new_k: Any, new_v: Any) -> Any:
    return jnp.einsum("hd,htd->ht", q, jnp.concatenate([k, new_k], 1)[:, ::-1])


WHOLE: dict[str, Function] = {
    "an output": _output,
    "a reader of another kind": _other_reader,
    "read from its end": _reversed,
}


def _arguments() -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    cache, token = (HEADS, OLD, WIDTH), (HEADS, 1, WIDTH)
    shapes = (HEADS, WIDTH), cache, cache, token, token
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


def _lowered(function: Function, **options: Any) -> Any:
    return jax.jit(function, keep_unused=True, **options).lower(*_arguments())


def _programs(function: Function, **options: Any) -> tuple[Program, Program]:
    """The tile program before the pass and behind it."""
    seen: dict[str, Program] = {}
    graph = read_module(_lowered(function, **options))
    run_pipeline(
        graph, CompileOptions(auto_cast="none"), lambda step: seen.update({step.name: step.ir}),
        stop_after="read_pieces",
    )  # fmt: skip
    *_, before, after = seen.values()
    return before, after


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH_SHARE", np.inf)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", DIVIDED)
def test_nothing_is_concatenated_where_products_read_pieces(name: str) -> None:
    function, count = DIVIDED[name]
    before, after = _programs(function)
    gone = before.buffers.keys() - after.buffers.keys()
    assert len(gone) == count
    verify(after)
    for one, other in zip(*(evaluate(p, _arguments()) for p in (before, after)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", DIVIDED)
def test_pieces_are_read_on_every_target(name: str, target: str) -> None:
    function, _ = DIVIDED[name]
    for cores in (1, 2):
        if cores == 2 and target == "trn1":
            continue
        neff = glia.compile(
            _lowered(function), target=target, auto_cast="none", verify=True,
            logical_nc_config=cores,
        )  # fmt: skip
        found = glia.load(neff, device="reference")(*_arguments())
        wanted = jax.tree.leaves(function(*_arguments()))
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", WHOLE)
def test_what_has_to_be_whole_is_concatenated(name: str) -> None:
    before, after = _programs(WHOLE[name])
    assert before.body == after.body


@pytest.mark.usefixtures("always")
def test_a_cache_that_is_written_before_it_is_read_is_copied() -> None:
    """Its argument is donated, and the result in its place comes first."""

    def function(q: Any, k: Any, v: Any, new_k: Any, new_v: Any) -> Any:
        keys = jnp.concatenate([k, new_k], 1)
        return k * 2, jnp.einsum("hd,htd->ht", q, keys)

    before, after = _programs(function, donate_argnums=1)
    assert before.aliases
    (written,) = (n for n, each in enumerate(before.body) if _writes(each, before.outputs[0]))
    (read,) = (n for n, each in enumerate(before.body) if _writes(each, before.outputs[1]))
    is_in_time = read < written
    assert (before.body != after.body) == is_in_time


def _writes(statement: object, name: str) -> bool:
    return isinstance(statement, Nest) and statement.target.buffer == name


def test_many_rows_of_products_keep_their_groups() -> None:
    """A chunk of a prompt takes the array longer than the copy takes."""

    def prompt(q: Any, k: Any, new_k: Any) -> Any:
        return jax.nn.softmax(jnp.einsum("hrd,htd->hrt", q, jnp.concatenate([k, new_k], 1)))

    def body(rows: int) -> tuple[object, object]:
        shapes = (8, rows, 128), (8, 1024 - rows, 128), (8, rows, 128)
        arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
        seen: list[Any] = []
        graph = read_module(jax.jit(prompt).lower(*arguments))
        run_pipeline(
            graph, CompileOptions(auto_cast="none"), lambda step: seen.append(step.ir),
            stop_after="read_pieces",
        )  # fmt: skip
        return seen[-2].body, seen[-1].body

    few, many = body(1), body(512)
    assert few[0] != few[1] and many[0] == many[1]
