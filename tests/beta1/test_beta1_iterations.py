"""Scalar bodies of nl.affine_range become few instructions, with the values of the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.machine.ir import Program
from glia.nki import beta1 as nki
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from glia.nki.beta1.run.launch import trace_call
from glia.nki.run.testing import profile_kernel
from support.beta1_ways import both

X = np.random.default_rng(3).random((128, 66), np.float32)
WINDOW = np.random.default_rng(4).random((128, 3), np.float32)


def correlation(loop: Any, columns: int = 64) -> Any:
    """Column by column, three neighbours times three weights, summed."""

    @nki.jit
    def kernel(x, window):
        out = nl.ndarray((128, columns), dtype=x.dtype, buffer=nl.shared_hbm)
        image, weights = nl.load(x), nl.load(window)
        sums = nl.zeros((nl.par_dim(128), columns), dtype=nl.float32)
        p, f = nl.arange(128)[:, None], nl.arange(3)[None, :]
        for i in loop(columns):
            near = nisa.tensor_tensor(image[p, f + i], weights[p, f], op=np.multiply)
            sums[p, i] = nisa.tensor_reduce(np.add, near[p, f], axis=[1])
        nl.store(out, sums)
        return out

    return kernel


def compiled(kernel: Any, *arrays: np.ndarray) -> Program:
    return trace_call(kernel, arrays, {}).programs[0]


def loop_notes(program: Program) -> list[str]:
    """What the program says of loops and loads, but not of the order of its instructions."""
    return [note for note in program.notes if not note.startswith("changed by the back end")]


def instructions(kernel: Any, *arrays: np.ndarray) -> int:
    return sum(1 for _ in compiled(kernel, *arrays).instructions())


def test_iterations_of_a_parallel_loop_run_as_one() -> None:
    windows = np.lib.stride_tricks.sliding_window_view(X, 3, axis=1)
    expected = (windows * WINDOW[:, None]).sum(axis=2)
    merged, sequential = correlation(nl.affine_range), correlation(nl.sequential_range)
    np.testing.assert_allclose(both(merged, X, WINDOW), expected, rtol=1e-6)
    np.testing.assert_allclose(both(sequential, X, WINDOW), expected, rtol=1e-6)
    assert instructions(merged, X, WINDOW) < 12 < 128 < instructions(sequential, X, WINDOW)


def test_the_profile_says_which_loop_was_merged() -> None:
    (note,) = loop_notes(compiled(correlation(nl.affine_range), X, WINDOW))
    assert note.startswith("63 iterations of the loop at ") and "test_beta1_iterations.py" in note
    assert not loop_notes(compiled(correlation(nl.sequential_range), X, WINDOW))


def test_a_loop_that_computes_more_than_a_bank_of_psum_stays() -> None:
    x = np.random.default_rng(3).random((128, 202), np.float32)
    kernel = correlation(nl.affine_range, 200)
    both(kernel, x, WINDOW)
    assert instructions(kernel, x, WINDOW) > 400


def sums_of_rows(x):
    """Every iteration adds to one tile: there is nothing to merge."""
    out = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    image, total = nl.load(x), nl.zeros((nl.par_dim(128), 1), dtype=nl.float32)
    for i in nl.affine_range(16):
        total += nl.copy(image[:, i : i + 1])
    nl.store(out, total)
    return out


def blocks(x):
    """Every iteration writes a block, which is a tile of its own, read after the loop."""
    out = nl.ndarray((128, 16), dtype=x.dtype, buffer=nl.shared_hbm)
    image = nl.load(x)
    doubles = nl.ndarray((16, nl.par_dim(128), 1), dtype=nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(16):
        doubles[i] = nl.multiply(image[:, i : i + 1], 2.0)
    for i in nl.affine_range(16):
        nl.store(out[:, i : i + 1], doubles[15 - i])
    return out


def reversals(x):
    """Columns change places through tiles of the iteration; the last iteration is another."""
    out = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.shared_hbm)
    image = nl.load(x)
    result = nl.ndarray((nl.par_dim(128), 32), dtype=nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(32):
        one = nl.exp(image[:, 31 - i : 32 - i])
        two = nl.add(one, image[:, i : i + 1])
        if i == 31:
            two = nl.multiply(two, 0.5)
        result[:, i : i + 1] = nl.subtract(two, 1.0)
    nl.store(out, result)
    return out


def nested(x):
    """Tiles of the outer iteration are shared by the inner ones."""
    out = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.shared_hbm)
    image = nl.load(x)
    for i in nl.affine_range(4):
        part = nl.ndarray((nl.par_dim(128), 8), dtype=nl.float32, buffer=nl.sbuf)
        scale = nl.copy(image[:, i : i + 1])
        for j in nl.affine_range(8):
            part[:, j : j + 1] = nl.multiply(image[:, 8 * i + j : 8 * i + j + 1], scale)
        nl.store(out[:, 8 * i : 8 * i + 8], part)
    return out


@pytest.mark.parametrize(
    ("kernel", "merges"),
    [(sums_of_rows, False), (blocks, False), (reversals, True), (nested, True)],
)
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_loops_keep_their_values(kernel: Any, merges: bool, target: str) -> None:
    known = nki.jit(kernel, platform_target=target)
    both(known, X)
    assert bool(loop_notes(compiled(known, X))) == merges


def test_loads_that_do_not_depend_on_a_loop_leave_it() -> None:
    """Of an outer sum, one operand depends on each loop; as written it loads both in every turn."""

    @nki.jit
    def kernel(left, right):
        out = nl.ndarray((3 * 128, 2 * 64), dtype=left.dtype, buffer=nl.shared_hbm)
        for m in nl.affine_range(3):
            for n in nl.affine_range(2):
                one = nl.load(left[m * 128 : (m + 1) * 128, 0:64])
                two = nl.load(right[0:128, n * 64 : (n + 1) * 64])
                nl.store(out[m * 128 : (m + 1) * 128, n * 64 : (n + 1) * 64], nl.add(one, two))
        return out

    left = np.random.default_rng(5).random((384, 64), np.float32)
    right = np.random.default_rng(6).random((128, 128), np.float32)
    wanted = np.tile(left, (1, 2)) + np.tile(right, (3, 1))
    np.testing.assert_array_equal(both(kernel, left, right), wanted)
    written = profile_kernel(kernel, left, right, target="trn2", as_written=True).program
    changed = compiled(kernel, left, right)
    transfers = [
        sum(instr.mnemonic() == "dma_copy" for instr in program.instructions())
        for program in (written, changed)
    ]
    assert transfers == [6 * 3, 3 + 2 + 6]
    assert sorted(note.split(": ")[1] for note in loop_notes(changed)) == [
        "3 loads of what SBUF holds already are left out",
        "4 loads of what SBUF holds already are left out",
    ]


def test_loads_that_nothing_waits_for_stay_in_their_loop() -> None:
    """Between two loads of the same block Scalar has far more to do than one takes."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((3 * 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        for m in nl.affine_range(3):
            tile = nl.load(x[0:128, 0:512])
            for _ in nl.static_range(8):
                tile = nl.sigmoid(tile)
            nl.store(out[m * 128 : (m + 1) * 128, 0:512], nl.add(tile, float(m)))
        return out

    changed = compiled(kernel, np.random.default_rng(7).random((128, 512), np.float32))
    names = {each.tile.name for each in changed.inputs}
    patterns = [p for instr in changed.instructions() for p in instr.patterns()]
    assert sum(pattern.tile.name in names for pattern in patterns) == 3
    assert not loop_notes(changed)
