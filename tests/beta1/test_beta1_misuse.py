"""What a kernel of Beta 1 does wrong is the same error simulated and compiled."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from glia.base.errors import CompileError
from glia.nki import beta1 as nki
from glia.nki.beta1 import compiler as ncc
from glia.nki.beta1 import errors
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from glia.nki.beta1.run.launch import trace_call
from glia.nki.names.errors import BrokenRule, NotAnOutput
from glia.nki.names.language_errors import KernelAdvice
from glia.sim.run import run
from support.beta1_ways import both

X = np.arange(64, dtype=np.float32).reshape(8, 8)
CASES: list[Any] = []


def _refused(error: type[CompileError]) -> Any:
    def declare(kernel: Any) -> Any:
        CASES.append(pytest.param(kernel, error, id=kernel.__name__.strip("_")))
        return kernel

    return declare


def _stored(tile):
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


def _error(run: Any) -> CompileError:
    with pytest.raises(CompileError) as caught:
        run()
    return caught.value


# --- what a kernel returns ------------------------------------------------------------------------


@_refused(NotAnOutput)
def _returns_nothing(x):
    nl.load(x)


@_refused(NotAnOutput)
def _returns_a_number(x):
    _stored(nl.load(x))
    return 3


@_refused(NotAnOutput)
def _returns_a_tuple_in_a_tuple(x):
    return _stored(nl.load(x)), (_stored(nl.load(x)),)


@_refused(errors.OutputNotWritten)
def _returns_what_nothing_wrote(x):
    return nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)


@_refused(errors.LocalOutOfScope)
def _returns_what_a_loop_made(x):
    for _ in nl.affine_range(1):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.hbm)
        nl.store(out, nl.load(x))
    return out


# --- contents in Python ---------------------------------------------------------------------------


@_refused(errors.DynamicControlFlow)
def _branches(x):
    return _stored(nl.load(x)) if nl.load(x[0:1, 0:1]) else None


@_refused(errors.DynamicControlFlow)
def _negates(x):
    return not nl.load(x[0:1, 0:1])


@_refused(errors.DynamicControlFlow)
def _loops_on_a_tile(x):
    while nl.load(x[0:1, 0:1]) > 100:
        pass


@_refused(errors.AmbiguousTruth)
def _asserts_of_a_tile(x):
    assert nl.equal(nl.load(x), nl.load(x))


@_refused(errors.AmbiguousTruth)
def _compares_twice(x):
    return 0 < nl.load(x) < 3


@_refused(errors.AmbiguousTruth)
def _takes_the_greater(x):
    return max(nl.load(x), nl.load(x))


@_refused(errors.AmbiguousTruth)
def _looks_for_a_tile(x):
    return nl.load(x) in [nl.load(x)]


# --- where tensors are known ----------------------------------------------------------------------


@_refused(errors.LocalOutOfScope)
def _reads_after_the_loop(x):
    for _ in nl.affine_range(2):
        tile = nl.load(x)
    return _stored(tile)


@_refused(errors.LocalOutOfScope)
def _writes_after_the_loop(x):
    for _ in nl.affine_range(2):
        tile = nl.load(x)
    tile[...] = 0.0


@_refused(errors.LocalOutOfScope)
def _adds_after_the_loop(x):
    for _ in nl.sequential_range(2):
        tile = nl.load(x)
    tile += 1.0


@_refused(errors.LocalOutOfScope)
def _adds_sums_after_the_loop(x):
    tile, total = nl.load(x), nl.zeros((8, 8), nl.float32, buffer=nl.psum)
    for _ in nl.affine_range(2):
        product = nl.matmul(tile, tile, transpose_x=True)
    total += product


@_refused(errors.LocalOutOfScope)
def _indexes_by_what_a_loop_made(x):
    for _ in nl.affine_range(2):
        row = nl.load(x[0:1, 0:1], dtype=nl.int32)
    nl.load(x[row[nl.arange(1)[:, None], 0], nl.arange(8)[None, :]])


@_refused(errors.LocalOutOfScope)
def _reads_what_one_turn_made(x):
    for i in nl.affine_range(2):
        if i == 0:
            tile = nl.load(x)
        nl.exp(tile)


@_refused(errors.OutputDependency)
def _assigns_to_one_place(x):
    tiles = nl.ndarray((4, nl.par_dim(8), 8), nl.float32)
    for _ in nl.affine_range(4):
        tiles[0] = 0.0


@_refused(errors.OutputDependency)
def _depends_on_the_turn_before(x):
    tile = nl.load(x)
    for i in nl.sequential_range(2):
        for _ in nl.affine_range(2):
            tile[i : i + 1, :] = nl.add(tile[i : i + 1, :], 1.0)


@_refused(errors.OutputDependency)
def _stores_to_one_place(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for _ in nl.affine_range(2):
        for row in nl.affine_range(8):
            nl.store(out[row : row + 1, :], nl.load(x[row : row + 1, :]))


@_refused(errors.SharedInLoop)
def _makes_outputs_in_a_loop(x):
    for _ in nl.sequential_range(2):
        _stored(nl.load(x))


# --- memories, shapes, engines --------------------------------------------------------------------


@_refused(errors.ImmutableParameter)
def _writes_its_parameter(x):
    nisa.dma_copy(dst=x, src=x)


@_refused(errors.WrongMemory)
def _computes_in_hbm(x):
    return _stored(x + 1)


@_refused(errors.WrongMemory)
def _assigns_to_hbm(x):
    nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)[...] = nl.load(x)


@_refused(errors.AllocatedKernelLimit)
def _allocates_outside(x):
    place = ncc.psum.mod_alloc(base_bank=9)
    nl.ndarray((8, 8), nl.float32, buffer=place)[...] = nl.load(x)


@_refused(BrokenRule)
def _names_an_engine_that_cannot(x):
    return _stored(nisa.tensor_copy(nl.load(x), engine=nisa.engine.tensor))


@_refused(errors.PartitionMismatch)
def _mixes_partitions(x):
    return _stored(nisa.tensor_tensor(nl.load(x), nl.load(x[0:4]), op=nl.add))


@_refused(errors.UnsupportedMask)
def _masks_by_contents(x):
    return _stored(nl.exp(nl.load(x), mask=nl.load(x)))


@_refused(errors.UnsupportedHere)
def _adds_an_array(x):
    return _stored(nl.load(x) + np.ones((8, 8), np.float32))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize(("kernel", "error"), CASES)
def test_both_ways_refuse_with_one_message(kernel, error, target) -> None:
    decorated = nki.jit(kernel, platform_target=target)
    simulated = _error(lambda: nki.simulate_kernel(decorated, X.copy()))
    traced = _error(lambda: trace_call(decorated, (X.copy(),), {}))
    assert type(simulated) is type(traced) is error
    assert str(simulated) == str(traced)


# --- what is not refused --------------------------------------------------------------------------


@pytest.mark.parametrize("index", [np.s_[:, :], np.s_[0:5, 2:6]], ids=["all", "part"])
@pytest.mark.parametrize("memory", ["sbuf", "psum", "hbm"])
def test_a_returned_tile_or_part_is_copied_with_a_warning(memory, index) -> None:
    def kernel(x):
        tile = nl.load(x)
        if memory == "sbuf":
            return tile[index]
        if memory == "psum":
            return nl.matmul(tile, tile)[index]
        return _stored(tile).reshape((1, 8, 8))[0][index], _stored(tile)

    decorated = nki.jit(kernel)
    is_whole = memory == "hbm" and index == np.s_[:, :]
    expected = {"sbuf": X, "psum": X @ X, "hbm": X}[memory][index]
    with contextlib.nullcontext() if is_whole else pytest.warns(KernelAdvice, match="all of a"):
        simulated = nki.simulate_kernel(decorated, X)
    with contextlib.nullcontext() if is_whole else pytest.warns(KernelAdvice, match="all of a"):
        traced = trace_call(decorated, (X,), {})
    (program,) = traced.programs
    results = run(program, {"x": X})
    for found in (simulated, [results[name] for name in traced.results]):
        first = found[0] if isinstance(found, tuple | list) else found
        np.testing.assert_array_equal(first, expected)


def test_a_tensor_of_another_run_is_out_of_scope() -> None:
    kept = []

    def kernel(x):
        kept.append(nl.load(x))
        return _stored(nl.exp(kept[0]))

    decorated = nki.jit(kernel)
    nki.simulate_kernel(decorated, X)
    text = _error(lambda: nki.simulate_kernel(decorated, X))
    assert type(text) is errors.LocalOutOfScope
    assert str(text) == str(_error(lambda: trace_call(decorated, (X,), {})))


def test_turns_of_an_affine_range_combine_or_have_places_of_their_own() -> None:
    def kernel(x):
        out = nl.ndarray((3, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        total, most = nl.zeros((8, 8), nl.float32), nl.ndarray((8, 8), nl.float32)
        place = ncc.sbuf.mod_alloc(base_addr=1024, num_free_tiles=(2,))
        tiles = nl.ndarray((4, nl.par_dim(8), 8), nl.float32, buffer=place)
        for i in nl.affine_range(4):
            tiles[i] = nl.load(x)
            total += tiles[i]
            most[...] = nl.loop_reduce(tiles[i], op=np.max, loop_indices=[i])
            for _ in nl.sequential_range(2):
                inner = nl.multiply(tiles[i], 2.0)
                inner[...] = inner + 1.0
        for at, each in enumerate((total, most, inner_of(x))):
            nl.store(out[at], each)
        return out

    def inner_of(x):
        tile = nl.load(x)
        for _ in nl.sequential_range(3):
            tile[...] = tile * 2.0
        return tile

    np.testing.assert_array_equal(both(kernel, X), np.stack([X * 4, X, X * 8]))


def test_a_tile_that_waits_when_a_loop_begins_is_made_before_it() -> None:
    def kernel(x):
        tile = nl.load(x)
        for _ in nl.affine_range(2):
            inner = nl.ndarray((8, 8), nl.float32)
            inner[...] = tile
        return _stored(tile)

    np.testing.assert_array_equal(both(kernel, X), X)


def test_who_looks_at_contents_of_a_simulated_kernel_is_warned() -> None:
    def kernel(x):
        tile = nl.load(x)
        np.testing.assert_array_equal(np.asarray(tile), X)
        return _stored(tile)

    with pytest.warns(KernelAdvice, match="known only while simulated"):
        nki.simulate_kernel(kernel, X)
    with pytest.raises(errors.DynamicControlFlow):
        trace_call(nki.jit(kernel), (X,), {})
