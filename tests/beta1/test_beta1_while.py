"""`while` on an nt.scalar is a loop of the device: the same simulated and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from glia.machine.ir import While
from glia.nki import beta1 as nki
from glia.nki.beta1 import compiler as ncc
from glia.nki.beta1 import errors
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from glia.nki.beta1 import typing as nt
from glia.nki.beta1.run.launch import trace_call
from glia.nki.names.errors import NotInNki
from support.beta1_ways import both, on_device

X = np.arange(32, dtype=np.float32).reshape(4, 8)
THREE = np.array([[3]], np.int32)


def _stored(tile):
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


def _documented(a):
    a_tile = nl.load(a)
    cond = nt.scalar(True)
    while cond:
        a_tile = a_tile + 1
        a_scalar = nt.scalar(a_tile)
        cond = a_scalar < 10
    return _stored(a_tile)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, nl.bfloat16])
@pytest.mark.parametrize(("first", "last"), [(3, 10), (9, 10), (10, 11), (50, 51)])
def test_the_documented_loop_runs_once_at_least(first, last, dtype) -> None:
    assert both(_documented, np.array([[first]], dtype))[0, 0] == last


def test_a_loop_stays_a_loop_of_the_program() -> None:
    (program,) = trace_call(nki.jit(_documented), (THREE,), {}).programs
    (loop,) = [each for each in program.body if isinstance(each, While)]
    assert len(loop.body) < 12
    measured = nki.benchmark(_documented)
    measured(THREE)
    assert measured.benchmark_result.nc_latency.get_latency_percentile(50) > 0


def _times(x, n):
    """x * 2 ** n, n at least 1."""
    tile, left = nl.load(x), nt.scalar(nl.load(n))
    more = nt.scalar(True)
    while more:
        tile[...] = tile * 2
        left = left - 1
        more = left > 0
    return _stored(tile)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_number_of_the_device_counts_iterations(n) -> None:
    np.testing.assert_array_equal(both(_times, X, np.array([[n]], np.int32)), X * 2**n)


def test_a_number_of_python_counts_iterations_too() -> None:
    def kernel(x):
        tile, count, step, more = nl.load(x), nt.scalar(0), nt.scalar(0.5), nt.scalar(True)
        while more:
            tile[...] = nl.add(tile, 1.0)
            count, step = count + 1, step * 2
            more = count + step < 20
        return _stored(tile)

    np.testing.assert_array_equal(both(kernel, X), X + 5)


def test_names_change_places_at_once() -> None:
    def kernel(x):
        a, b, count, more = nl.load(x), nl.load(x), nt.scalar(0), nt.scalar(True)
        while more:
            a, b = b, a + b
            count = count + 1
            more = count < 6
        return _stored(a)

    np.testing.assert_array_equal(both(kernel, X), X * 13)


def _tripled(tile, iterations):
    count, more = nt.scalar(0), nt.scalar(True)
    while more:
        tile = tile * 3
        count = count + 1
        more = count < iterations
    return tile


def test_a_name_that_a_loop_changes_leaves_the_tile_of_others_alone() -> None:
    def kernel(x):
        tile = nl.load(x)
        half = tile[:, 0:4]
        changed, part = _tripled(tile, 3), _tripled(half, 2)
        out = nl.ndarray((3, 4, 8), x.dtype, buffer=nl.shared_hbm)
        nl.store(out[0], tile)
        nl.store(out[1], changed)
        nl.store(out[2, :, 0:4], part)
        nl.store(out[2, :, 4:8], tile[:, 4:8])
        return out

    columns = np.where(np.arange(8) < 4, X * 9, X)
    np.testing.assert_array_equal(both(kernel, X), np.stack([X, X * 27, columns]))


def test_loops_nest_in_loops_of_either_kind() -> None:
    def kernel(x):
        tile = nl.load(x)
        for _ in nl.sequential_range(2):
            outer, more = nt.scalar(0), nt.scalar(True)
            while more:
                inner, again = nt.scalar(0), nt.scalar(True)
                while again:
                    for _ in nl.sequential_range(2):
                        tile[...] = tile + 1
                    inner = inner + 1
                    again = inner < 3
                outer = outer + 1
                more = outer < 4
        return _stored(tile)

    np.testing.assert_array_equal(both(kernel, X), X + 2 * 4 * 3 * 2)


def test_programs_of_a_grid_have_loops_of_their_own() -> None:
    @nki.jit
    def kernel(x, n):
        out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
        at = nl.program_id(0)
        tile, left, more = nl.load(x), nt.scalar(nl.load(n[at : at + 1, :])), nt.scalar(True)
        while more:
            tile = tile + 1
            left = left - 1
            more = left > 0
        nl.store(out[at], tile)
        return out

    counts = np.array([[3], [5]], np.int32)
    np.testing.assert_array_equal(both(kernel[2], X, counts), np.stack([X + 3, X + 5]))


def test_what_was_put_off_before_a_loop_is_done_before_it() -> None:
    def kernel(x):
        zeros = nl.zeros((4, 8), nl.float32, buffer=nl.sbuf)
        slot = nl.ndarray((4, 8), nl.float32)
        before = nl.load(x)
        slot[...] = before
        count, more = nt.scalar(0), nt.scalar(True)
        while more:
            zeros[...] = zeros + before
            slot[...] = slot * 2
            count = count + 1
            more = count < 3
        out = nl.ndarray((3, 4, 8), x.dtype, buffer=nl.shared_hbm)
        for at, each in enumerate((zeros, slot, before)):
            nl.store(out[at], each)
        return out

    np.testing.assert_array_equal(both(kernel, X), np.stack([X * 3, X * 8, X]))


def test_products_add_up_over_the_iterations() -> None:
    square = np.arange(64, dtype=np.float32).reshape(8, 8)

    def kernel(x):
        tile = nl.load(x)
        total = nl.zeros((8, 8), nl.float32, buffer=nl.psum)
        count, more = nt.scalar(0), nt.scalar(True)
        while more:
            total += nisa.nc_matmul(tile, tile)
            own = nl.zeros((8, 8), nl.float32, buffer=nl.psum)
            for _ in nl.affine_range(2):
                own += nisa.nc_matmul(tile, tile)
            count = count + 1
            more = count < 4
        out = nl.ndarray((8, 8), x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(total))
        return out

    np.testing.assert_array_equal(both(kernel, square), 4 * square.T @ square)


def test_a_tile_with_two_names_is_two_where_one_of_them_changes() -> None:
    def kernel(x):
        tile = nl.load(x)
        first, count, more = tile, nt.scalar(0), nt.scalar(True)
        while more:
            tile = tile + first
            count = count + 1
            more = count < 3
        return _stored(tile)

    np.testing.assert_array_equal(both(kernel, X), X * 4)


def test_a_tile_that_a_loop_changes_in_place_changes_for_all() -> None:
    def add(total, x):
        count, more = nt.scalar(0), nt.scalar(True)
        while more:
            total += nl.load(x)
            count += 1
            more = count < 3

    def kernel(x):
        total = nl.zeros((4, 8), nl.float32)
        add(total, x)
        return _stored(total)

    np.testing.assert_array_equal(both(kernel, X), X * 3)


def test_tiles_at_addresses_are_carried() -> None:
    def kernel(x):
        tile = nl.ndarray((4, 8), nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0))
        tile[...] = nl.load(x)
        return _stored(_tripled(tile, 2))

    np.testing.assert_array_equal(both(kernel, X), X * 9)


def test_a_scalar_is_what_its_tile_held_when_it_was_made() -> None:
    def kernel(x):
        tile = nl.load(x)
        more = nt.scalar(True)
        while more:
            before = nt.scalar(tile)
            tile[...] = tile + 1
            more = before < 5
        return _stored(tile)

    assert both(kernel, THREE)[0, 0] == 6


def test_a_loop_that_python_ends_runs_once() -> None:
    def kernel(x):
        tile, more = nl.load(x), nt.scalar(True)
        while more:
            tile[...] = tile + 1
            more = nt.scalar(False)
        return _stored(tile)

    np.testing.assert_array_equal(both(kernel, X), X + 1)


# --- what is refused, in both ways ----------------------------------------------------------------


def _checked_first(x):
    tile = nl.load(x)
    while nt.scalar(tile[0:1, 0:1]) < 10:
        tile[...] = tile + 1


def _never_set(x):
    more = nt.scalar(True)
    while more:
        nl.load(x)


def _counts_in_python(x):
    iterations, more = 0, nt.scalar(True)
    while more:
        iterations = iterations + 1
        more = nt.scalar(nl.load(x[0:1, 0:1])) > iterations


def _writes_and_replaces(x):
    tile, more = nl.load(x), nt.scalar(True)
    while more:
        tile[...] = tile + 1
        tile = tile * 2
        more = nt.scalar(tile[0:1, 0:1]) > 1e6


def _grows(x):
    tile, more = nl.load(x[:, 0:4]), nt.scalar(True)
    while more:
        more = nt.scalar(tile[0:1, 0:1]) > 1e6
        nl.exp(tile)
        tile = nl.load(x)


def _uses_behind(x):
    more = nt.scalar(True)
    while more:
        tile = nl.load(x)
        more = nt.scalar(tile[0:1, 0:1]) > 1e6
    nl.exp(tile)


def _breaks(x):
    more = nt.scalar(True)
    while more:
        more = nt.scalar(nl.load(x[0:1, 0:1])) > 1e6
        break


def _resets_sums(x):
    tile, total = nl.load(x), nl.zeros((8, 8), nl.float32, buffer=nl.psum)
    more = nt.scalar(True)
    while more:
        total += nisa.nc_matmul(tile, tile)
        more = nt.scalar(nl.copy(total)[0:1, 0:1]) > 1e6
        total[...] = 1.0


def _branches(x):
    if nt.scalar(nl.load(x[0:1, 0:1])):
        nl.load(x)


def _indexes(x):
    return nl.load(x[nt.scalar(nl.load(x[0:1, 0:1])), :])


def _reduces(x):
    more = nt.scalar(True)
    while more:
        tile = nl.all_reduce(nl.load(x), np.add, program_axes=0)
        more = nt.scalar(tile[0:1, 0:1]) > 1e6


def _makes_outputs(x):
    more = nt.scalar(True)
    while more:
        nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        more = nt.scalar(False)


REFUSED = [
    (_checked_first, errors.WhileNeedsEntry, "Traditional while loops are not supported"),
    (_never_set, errors.EndlessWhile, "still true"),
    (_counts_in_python, errors.PythonChanges, "`iterations` changes"),
    (_writes_and_replaces, errors.PythonChanges, "binds it to a new one"),
    (_grows, errors.PythonChanges, r"\(4, 4\) before an iteration, \(4, 8\)"),
    (_uses_behind, errors.LocalOutOfScope, "outside of its parent scope"),
    (_breaks, NotInNki, "by break or return"),
    (_resets_sums, errors.SumsChangeInWhile, "holds sums before an iteration"),
    (_branches, errors.DynamicControlFlow, "Dynamic control-flow"),
    (_indexes, errors.UnsupportedIndex, "an index of type scalar"),
    (_reduces, errors.UnsupportedHere, "all_reduce in a while loop"),
    (_makes_outputs, errors.SharedInLoop, "top level kernel scope"),
]


@pytest.mark.parametrize("run", [nki.simulate_kernel, on_device], ids=["simulated", "compiled"])
@pytest.mark.parametrize(
    ("body", "error", "text"), REFUSED, ids=[body.__name__ for body, _, _ in REFUSED]
)
def test_what_no_loop_of_the_device_does_is_refused(run, body, error, text) -> None:
    def kernel(x):
        out = _stored(nl.load(x))
        body(x)
        return out

    decorated = nki.jit(kernel)
    with pytest.raises(error, match=text):
        run(decorated[1] if body is _reduces else decorated, X)


def test_a_scalar_outside_a_kernel_is_a_number() -> None:
    assert nt.scalar(3) + 1 == nt.scalar(4)
    assert int(nt.scalar(3)) == 3
    assert [10, 20, 30][nt.scalar(1)] == 20
    assert float(nt.scalar(2)) == 2.0
    with pytest.raises(errors.UnsupportedHere, match=r"nt\.scalar of a str"):
        nt.scalar("3")
