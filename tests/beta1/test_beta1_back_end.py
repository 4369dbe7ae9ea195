"""The back end of Beta 1: a kernel never takes longer than as written, and what changed is told."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glia.cli.profile_text import profile_text
from glia.machine import ProgramBuilder
from glia.machine.ir import Program
from glia.nki import beta1 as nki
from glia.nki.back_end.changes import BackEndChanges, changes_between
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from glia.nki.run.testing import profile_kernel
from support.beta1_ways import both
from support.targets import CORES

ROWS = np.zeros((512, 1024), np.float32)
SQUARE, WIDE = np.zeros((128, 128), np.float32), np.zeros((128, 512), np.float32)


@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        tile = nl.load(x[i * 128 : (i + 1) * 128, :])
        powers = nl.exp(tile - nl.max(tile, axis=1, keepdims=True))
        nl.store(out[i * 128 : (i + 1) * 128, :], powers / nl.sum(powers, axis=1, keepdims=True))
    return out


@nki.jit
def summed(a, b):
    out = nl.ndarray((8, 128, 512), dtype=b.dtype, buffer=nl.shared_hbm)
    left, right = nl.load(a), nl.load(b)
    for i in nl.affine_range(8):
        total = nl.zeros((nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
        for _ in nl.affine_range(8):
            total += nisa.nc_matmul(left, right)
        nl.store(out[i], nl.copy(total))
    return out


@nki.jit
def turned(a, b):
    out = nl.ndarray((4, 128, 128), dtype=a.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        tile = nl.copy(nisa.nc_transpose(nl.load(b[:, i * 128 : (i + 1) * 128])))
        nl.store(out[i], nl.multiply(tile, nl.load(a)))
    return out


CLEARS = {
    "a number": lambda: 0.0,
    "a tile of zeros": lambda: nl.zeros((nl.par_dim(128), 512), dtype=nl.float32),
    "a fill": lambda: nisa.memset((128, 512), 0.0, dtype=nl.float32),
}


def cleared(clear: Any, part: int = 512) -> Any:
    """Sums of products in one tile of PSUM that is cleared before each."""

    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((4, 128, 512), dtype=b.dtype, buffer=nl.shared_hbm)
        left, right = nl.load(a), nl.load(b)
        total = nl.ndarray((nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
        for i in nl.sequential_range(4):
            total[...] = clear()
            for _ in range(8):
                total[:, :part] += nisa.nc_matmul(left, right[:, :part])
            nl.store(out[i], nl.copy(total))
        return out

    return kernel


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", CLEARS)
def test_a_cleared_tile_takes_products_as_one_of_zeros_does(name: str, target: str) -> None:
    known = nki.jit(cleared(CLEARS[name]), platform_target=target)
    profile = profile_kernel(known, SQUARE, WIDE)
    body = [each for each in profile.program.instructions() if each.runs_on != "sync"]
    assert sum(each.mnemonic() == "nc_matmul" for each in body) == 4 * 8
    assert not any(each.mnemonic() in ("tensor_tensor", "memset") for each in body)


@pytest.mark.parametrize("name", CLEARS)
@pytest.mark.parametrize("part", [128, 512])
def test_what_a_cleared_tile_sums_is_right(name: str, part: int) -> None:
    generator = np.random.default_rng(2)
    a, b = (generator.integers(-4, 5, (128, n)).astype(np.float32) for n in (128, 512))
    expected = np.zeros((4, 128, 512), np.float32)
    expected[:, :, :part] = 8 * (a.T @ b[:, :part])
    np.testing.assert_array_equal(both(cleared(CLEARS[name], part), a, b), expected)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize(
    ("kernel", "arrays"), [(softmax, (ROWS,)), (summed, (SQUARE, WIDE)), (turned, (SQUARE, WIDE))]
)
def test_no_kernel_takes_longer_than_as_written(
    kernel: Any, arrays: tuple[np.ndarray, ...], target: str
) -> None:
    changed, written = (
        profile_kernel(kernel, *arrays, target=target, as_written=as_written)
        for as_written in (False, True)
    )
    assert changed.latency_us <= written.latency_us
    if changed.latency_us < written.latency_us:
        assert any(note.startswith("changed by the back end: ") for note in changed.notes)
    assert not written.notes


def test_what_was_moved_and_given_to_another_engine_is_told() -> None:
    text = profile_text(profile_kernel(softmax, ROWS, target="trn2"))
    found = re.search(
        r"changed by the back end: .*moved: (\d+) of (\d+); on another engine: ", text
    )
    assert found is not None and 0 < int(found[1]) < int(found[2])


def steps() -> Program:
    b = ProgramBuilder("steps")
    x, y = b.input("x", (4, 128, 64)), b.output("y", (4, 128, 64))
    for number in range(4):
        tile = b.sbuf((128, 64), name=f"t{number}")
        b.dma_copy(tile, x[number])
        b.tensor_scalar(tile, tile, 2.0, "multiply")
        b.dma_copy(y[number], tile)
    return b.finish(synchronise=False)


def test_changes_between_two_programs_are_counted() -> None:
    program = steps()
    assert not changes_between(program, program).text
    body = list(program.body)
    first = body[1]
    moved = replace(program, body=(*body[3:6], *body[:3], *body[6:]))
    other = replace(first, on="gpsimd")  # type: ignore[type-var]
    engines = replace(program, body=(body[0], other, *body[2:]))
    assert changes_between(program, engines) == BackEndChanges(12, engines=1)
    assert changes_between(program, moved) == BackEndChanges(12)  # a line with itself
    later = replace(program, body=(*body[1:], body[0]))
    assert changes_between(program, later).moved > 0
    assert changes_between(program, replace(program, body=tuple(body[:-1]))).shared == 1
