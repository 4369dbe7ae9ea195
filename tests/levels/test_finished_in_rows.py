"""A product lies in the rows of what is added to it, where both ways cost the PE the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.contraction import contraction_operands
from glia.tile.ir import Nest, Program, While
from support.targets import CORES


def summed(total: Any, x: Any, y: Any) -> Any:
    """Turned products of bf16, added to a state of f32."""

    def step(i: Any, total: Any) -> Any:
        product = jax.lax.dot_general(x * (i + 1).astype(x.dtype), y, (((0,), (0,)), ((), ())))
        return total + product.T.astype(jnp.float32)

    return jax.lax.fori_loop(0, 3, step, total)


def lowered() -> Any:
    kinds = [jax.ShapeDtypeStruct((256, 256), np.float32)]
    kinds += [jax.ShapeDtypeStruct((128, 256), bfloat16)] * 2
    return jax.jit(summed).trace(*kinds).lower(lowering_platforms=("cpu",))


@pytest.mark.parametrize("target", CORES)
def test_a_turned_product_is_made_in_the_rows_of_the_state_it_is_added_to(target: str) -> None:
    options = CompileOptions(target, auto_cast="none")
    program = run_pipeline(read_module(lowered()), options, stop_after="choose_layouts")
    assert isinstance(program, Program)
    (loop,) = [each for each in program.body if isinstance(each, While)]
    (product,) = [n for n in loop.body if isinstance(n, Nest) and contraction_operands(n)]
    (rows,) = product.target.index[0].variables
    assert program.schedules[product.name].partition == rows


def test_its_values_are_those_of_jax() -> None:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((256, 256), np.float32)]
    arrays += [random.standard_normal((128, 256)).astype(bfloat16) for _ in range(2)]
    (found,) = glia.load(glia.compile(lowered(), target="trn2", auto_cast="none"))(*arrays)
    np.testing.assert_allclose(found, summed(*map(jnp.asarray, arrays)), rtol=0.02, atol=1.0)
