"""Factors that are applied to a sum of products leave what a program computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.evaluate import memory_of, run_block
from glia.tile.ir import Program
from glia.tile.legal import verify
from glia.tile.passes.defer_factors import defer_factors
from glia.tile.text import parse_program, print_program

SEEDS = 60
# factors of the left operand x[m, k]: of a row, of a column, of one element, of nothing
FACTORS = ("s[a]", "u[b]", "x[a, b]", "0.5:f32", "exp.f32(s[a])", "convert.f32(index.s32(a))")


def draw(random: np.random.Generator) -> str:
    """A product whose left operand is a product or quotient of factors, in a random order."""
    body = "x[a, b]"
    for _ in range(int(random.integers(1, 4))):
        factor = str(random.choice(FACTORS))
        if random.integers(3) == 0:
            body = f"divide.f32({body}, add.f32(exp.f32({factor}), 1.0:f32))"
            continue
        pair = (body, factor) if random.integers(2) else (factor, body)
        body = "multiply.f32({}, {})".format(*pair)
    finish = str(random.choice(("acc.f32", "exp.f32(acc.f32)", "add.f32(acc.f32, s[m])")))
    turned = bool(random.integers(4) == 0)  # the sum is over the rows of x
    index = "k, m" if turned else "m, k"
    extents = (4, 6) if turned else (6, 4)
    return f"""
program "p" {{
  input x f32[{extents[0]},{extents[1]}]
  input s f32[6]
  input u f32[6]
  input w f32[4,5]
  output y f32[6,5]
  temporary t f32[{extents[0]},{extents[1]}]
  nest map.0 [a:{extents[0]} b:{extents[1]}]
    t[a, b] = {body}
  nest dot.0 [m:6 n:5 | k:4 add f32]
    y[m, n] = multiply.f32(t[{index}], w[k, n])
    finish {finish}
}}
"""


def evaluate(program: Program, inputs: list[Any]) -> Any:
    memory = memory_of(program, inputs)
    run_block(program.body, memory)
    return memory["y"]


def test_products_compute_the_same_whichever_factors_wait() -> None:
    changed = 0
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        program = parse_program(draw(random))
        shapes = [program.buffers[name].shape for name in program.inputs]
        inputs = [random.standard_normal(shape, np.float32) for shape in shapes]
        deferred = defer_factors(program)
        verify(deferred)
        changed += deferred != program
        found, wanted = evaluate(deferred, inputs), evaluate(program, inputs)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4, err_msg=str(seed))
    assert SEEDS / 4 < changed < SEEDS


KEPT = """
program "p" {
  input x f32[6,4]
  input s f32[6]
  input w f32[4,5]
  output y f32[6,5]
  temporary t f32[6,4]
  nest map.0 [a:6 b:4]
    t[a, b] = multiply.f32(x[a, b], s[a])
  nest dot.0 [m:6 n:5 | k:4 add f32]
    y[m, n] = multiply.f32(t[m, k], w[k, n])
}
"""


def test_a_factor_that_changes_is_kept_in_a_buffer() -> None:
    late = "  nest one.0 [i:6]\n    s[i] = 1.0:f32\n  nest dot.0"
    program = parse_program(KEPT.replace("  nest dot.0", late).replace("input s", "temporary s"))
    names = [nest.name for nest in defer_factors(program).nests()]
    assert names == ["map.0.factor", "one.0", "dot.0"]


@pytest.mark.parametrize(
    "old, new",
    [
        ("  temporary t", "  output t"),  # it is needed as it is
        ("multiply.f32(x[a, b], s[a])", "add.f32(x[a, b], s[a])"),  # a sum is no product
        ("w[k, n])", "t[n, k])"),  # both operands hold the factor
    ],
)
def test_a_factor_stays_where_it_cannot_wait(old: str, new: str) -> None:
    assert KEPT.count(old) == 1 and "t" not in defer_factors(parse_program(KEPT)).buffers
    text = KEPT.replace(old, new)
    if "t[n, k]" in new:
        text = text.replace("n:5", "n:6").replace("y f32[6,5]", "y f32[6,6]")
    program = parse_program(text)
    assert print_program(defer_factors(program)) == print_program(program)


def test_the_sum_of_a_softmax_divides_the_values() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T, axis=-1) @ v

    lowered = jax.jit(attention).lower(*[jax.ShapeDtypeStruct((8, 4), jnp.float32)] * 3)
    options = CompileOptions(auto_cast="none")
    program = run_pipeline(read_module(lowered), options, stop_after="defer_factors")
    assert [nest.name for nest in program.nests()][-3:] == [
        "reduce.1", "divide.0.factor", "dot.1",
    ]  # fmt: skip
