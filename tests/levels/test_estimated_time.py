"""Rough times of nests: what a product takes follows from its columns on the PE."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from glia.arch import get_target
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.contraction import contraction_operands
from glia.tile.estimated_time import nest_ns
from glia.tile.ir import Nest, Program


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("equation, shapes", [
    ("mk,kn->mn", ((512, 1024), (1024, 2048))),
    ("bmk,bkn->bmn", ((4, 256, 512), (4, 512, 1024))),
])  # fmt: skip
def test_a_large_product_takes_its_time_on_the_pe(
    equation: str, shapes: tuple[tuple[int, ...], ...], target: str
) -> None:
    kinds = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    function = jax.jit(lambda a, b: jax.numpy.einsum(equation, a, b))
    module = function.trace(*kinds).lower(lowering_platforms=("cpu",))
    options = CompileOptions(target, auto_cast="none")
    program = run_pipeline(read_module(module), options, stop_after="expand_scalars")
    assert isinstance(program, Program)
    (nest,) = [n for n in program.body if isinstance(n, Nest) and contraction_operands(n)]
    arch = get_target(target).arch
    products = np.prod([axis.extent for axis in nest.axes])
    columns = products / arch.partitions**2 * arch.tensor_passes["f32"]
    least = arch.cycles_to_ns("tensor", columns)
    assert least <= nest_ns(nest, program.buffers, arch) <= 1.25 * least
