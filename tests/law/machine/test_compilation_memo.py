"""What a compilation keeps for its later passes and attempts changes no byte of its program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from glia.base.compilation_memo import memoise, one_compilation
from glia.compiler import compile_graph
from glia.frontend.registry import read_module
from glia.machine.ordering import repeated_order
from glia.options import CompileOptions
from support.targets import CORES

WITHOUT_MEMO = compile_graph.__wrapped__.__wrapped__  # type: ignore[attr-defined]


def _module() -> Any:
    """Rows in many blocks, whose iterations overlap."""
    x = jax.ShapeDtypeStruct((4096, 512), jnp.float32)
    return jax.jit(lambda x: jax.nn.softmax(x) * 2).lower(x)


@pytest.mark.parametrize("target", CORES)
def test_a_program_has_the_same_bytes_with_fewer_searches(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered = []
    best = repeated_order._Orders.best

    def counted(orders: Any, window: int) -> Any:
        ordered.append(window)
        return best(orders, window)

    monkeypatch.setattr(repeated_order._Orders, "best", counted)
    graph, options = read_module(_module()), CompileOptions(target=target)
    with_memo = compile_graph(graph, options).to_bytes()
    fewer = len(ordered)
    assert with_memo == WITHOUT_MEMO(graph, options).to_bytes()
    assert 0 < fewer < len(ordered) - fewer


def test_values_are_kept_for_one_compilation() -> None:
    made = iter(range(9))
    with one_compilation():
        assert [memoise("a", lambda: next(made)) for _ in range(2)] == [0, 0]
        assert memoise("b", lambda: next(made)) == 1
        with one_compilation():
            assert memoise("a", lambda: next(made)) == 2
        assert memoise("a", lambda: next(made)) == 0
    assert [memoise("a", lambda: next(made)) for _ in range(2)] == [3, 4]
