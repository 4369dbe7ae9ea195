"""Every corpus program, compiled through the whole pipeline and run, gives what JAX gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax import lax

import glia
from glia.arch.instances import COMPILED_TARGETS
from support.corpus import PROGRAMS, Program, assert_close, hlo_bytes
from support.isa_bench import CHAINED, assert_agree


def _run(program: Program, target: str, **options: Any) -> list[np.ndarray]:
    neff = glia.compile(hlo_bytes(program), target=target, verify=True, **options)
    return glia.load(neff)(*(np.asarray(argument) for argument in program.arguments))


def _assert_host_agrees(program: Program, target: str) -> None:
    neff = glia.compile(hlo_bytes(program), target=target)
    arguments = [np.asarray(argument) for argument in program.arguments]
    results, by_host = (glia.load(neff, device=d)(*arguments) for d in ("reference", "host"))
    names = [binding.name for binding in neff.outputs]
    wanted = dict(zip(names, results, strict=True))
    assert_agree(dict(zip(names, by_host, strict=True)), wanted, CHAINED)


HOST_SAMPLE = PROGRAMS[::8]


@pytest.mark.parametrize("number", range(len(HOST_SAMPLE)))
def test_the_host_gives_what_the_reference_gives(number: int) -> None:
    targets = COMPILED_TARGETS
    _assert_host_agrees(HOST_SAMPLE[number], targets[number % len(targets)])


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::glia.runtime.model.OutOfBoundAccess")
@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_host_gives_the_same_on_every_target(program: Program, target: str) -> None:
    _assert_host_agrees(program, target)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_gives_on_trn2_what_jax_gives(program: Program) -> None:
    assert_close(program, _run(program, "trn2"))


@pytest.mark.parametrize("target", [name for name in COMPILED_TARGETS if name != "trn2"])
@pytest.mark.parametrize(
    "name", ["matmul", "softmax", "conv_nchw", "scan", "gather_rows", "cnn", "graph_attention"]
)
def test_a_program_gives_the_same_on_every_target(name: str, target: str) -> None:
    program = next(p for p in PROGRAMS if p.name == name)
    assert_close(program, _run(program, target))


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("name", ["mlp", "attention", "conv_gradient"])
def test_a_program_gives_the_same_at_every_optimisation_level(name: str, level: int) -> None:
    program = next(p for p in PROGRAMS if p.name == name)
    assert_close(program, _run(program, "trn2", optlevel=level))


@pytest.mark.filterwarnings("ignore::glia.runtime.model.OutOfBoundAccess")
@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_unsigned_indices_from_the_sign_bit_on_are_beyond_the_end(target: str) -> None:
    """Registers and arithmetic of 32 bits are signed; the largest unsigned numbers are not -1."""
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    updates = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    zero = np.uint32(0)

    def function(x: Any, i: Any, many: Any) -> Any:
        part = lax.dynamic_slice(x, (i, zero), (2, 12))
        rows = lax.gather(x, many[:, None], numbers, (1, 12), mode="clip")
        written = lax.scatter(x, many[:, None], rows + 1, updates, mode="drop")
        return part, lax.dynamic_update_slice(x, -part, (i, zero)), rows, written

    x = np.arange(60, dtype=np.float32).reshape(5, 12)
    many = np.array([2**32 - 1, 1, 2**31, 4], np.uint32)
    program = Program("unsigned", function, (x, np.uint32(2**31), many))
    assert_close(program, _run(program, target))
