"""What the back end of kernels changes keeps every result, bit by bit, on every target."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glia import nki
from glia.arch import TARGETS
from glia.isa.instructions.vector import Memset
from glia.machine.ir import Program
from glia.machine.passes import liveness_rules
from glia.machine.passes.tile_liveness import LIBRARY, LIVE
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.back_end import back_end, straight_line
from glia.nki.back_end.plan import BackEndPlan
from glia.nki.run.launch import bind
from glia.nki.run.trace import trace_launch
from glia.profile.report import profile_programs
from glia.sim.order.concurrent import run_concurrently, streams_of
from glia.sim.run import run
from law.kernels.random_kernels import (
    SIMPLE,
    STEPS,
    Step,
    argument,
    kernel_of,
    loop_argument,
    loop_kernel_of,
)
from support.examples import with_examples

NAMES = [name for name, target in TARGETS.items() if target.arch.capabilities.has_nki]


def compiled(kernel: Any, x: np.ndarray, target: str, **options: Any) -> Program:
    launch = bind(kernel, (x,), {})
    return trace_launch(launch, TARGETS[target], 0, **options).programs[0]


def fills(program: Program) -> int:
    return sum(isinstance(each, Memset) for each in program.instructions())


def check_law(steps: list[Step], target: str) -> None:
    check_same_results(kernel_of(steps), argument(steps), target)


def check_same_results(kernel: Any, x: np.ndarray, target: str) -> None:
    before = compiled(kernel, x, target, as_written=True)
    after = compiled(kernel, x, target)
    expected = run(before, {"x": x})
    found = run(after, {"x": x})
    orders = [run_concurrently(after, {"x": x}, seed=n) for n in range(len(streams_of(after)))]
    for outputs in (found, *orders):
        for name, wanted in expected.items():
            np.testing.assert_array_equal(outputs[name], wanted, err_msg=name)


@pytest.mark.parametrize("target", NAMES)
@with_examples(8)
@given(steps=st.lists(STEPS, min_size=3, max_size=14))
def test_random_kernels_keep_their_results(target: str, steps: list[Step]) -> None:
    check_law(steps, target)


LOOP_STEPS = st.lists(STEPS.filter(lambda step: step[0] in SIMPLE), min_size=1, max_size=8)
LOOPS = {"steps": LOOP_STEPS, "trips": st.integers(4, 15), "own": st.integers(1, 3)}


@pytest.mark.parametrize("target", NAMES)
@with_examples(12)
@given(**LOOPS)
def test_random_loops_keep_their_results(
    target: str, steps: list[Step], trips: int, own: int
) -> None:
    check_same_results(loop_kernel_of(steps, trips, own), loop_argument(trips), target)


@pytest.mark.nightly
@pytest.mark.parametrize("target", NAMES)
@with_examples(200)
@given(**LOOPS)
def test_more_random_loops_keep_their_results(
    target: str, steps: list[Step], trips: int, own: int
) -> None:
    check_same_results(loop_kernel_of(steps, trips, own), loop_argument(trips), target)


@pytest.mark.nightly
@pytest.mark.parametrize("target", NAMES)
@with_examples(150)
@given(steps=st.lists(STEPS, min_size=3, max_size=40))
def test_more_random_kernels_keep_their_results(target: str, steps: list[Step]) -> None:
    check_law(steps, target)


def products(x: Any) -> Any:
    """A loop of products into a bank of PSUM that is cleared before."""
    out = nl.ndarray((128, 128), nl.float32, buffer=nl.shared_hbm)
    tile, total = nl.ndarray((128, 128), nl.float32), nl.ndarray((128, 128), nl.float32)
    nisa.dma_copy(tile, x)
    for _ in range(8):
        bank = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
        nisa.memset(bank, 0.0)
        for _ in range(4):
            nisa.nc_matmul(bank, tile, tile)
        nisa.tensor_copy(total, bank)
    nisa.dma_copy(out, total)
    return out


@pytest.mark.parametrize("target", NAMES)
def test_a_fill_that_products_overwrite_is_removed(target: str) -> None:
    x = np.zeros((128, 128), np.float32)
    assert fills(compiled(products, x, target, as_written=True)) == 8
    assert fills(compiled(products, x, target)) == 0


@pytest.mark.parametrize("target", NAMES)
def test_a_buffer_that_is_written_again_gets_copies_and_takes_less_time(target: str) -> None:
    x = np.zeros((128 * 16, 512), np.float32)
    launch = bind(one_buffer, (x,), {})
    arch = TARGETS[target]
    written = trace_launch(launch, arch, 0, as_written=True)
    changed = trace_launch(launch, arch, 0)
    assert written.changes == () and changed.changes[0].copies >= 15
    times = [profile_programs(each.programs, arch).latency_us for each in (written, changed)]
    assert times[1] < 0.8 * times[0]
    assert changed.programs[0].notes[0].startswith("changed by the back end: tiles renamed: ")


def sliced_buffer(x: Any) -> Any:
    """Rows that one tile takes in four slices and that are stored together."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile, row_tile = nl.ndarray((128, 512), nl.float32), nl.ndarray((128, 512), nl.float32)
    nisa.dma_copy(tile, x[:128])
    for row in range(0, x.shape[0], 128):
        for column in range(0, 512, 128):
            part = slice(column, column + 128)
            nisa.activation(row_tile[:, part], nl.square, tile[:, part])
        nisa.dma_copy(out[row : row + 128], row_tile)
    return out


def test_a_buffer_that_is_filled_in_slices_gets_copies() -> None:
    launch = bind(sliced_buffer, (np.zeros((128 * 16, 512), np.float32),), {})
    (changes,) = trace_launch(launch, TARGETS["trn2"], 0).changes
    assert (changes.renamed, changes.copies) == (1, 15)


def one_buffer(x: Any) -> Any:
    """Squares through one tile, loaded and stored again and again."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 512), nl.float32)
    for row in range(0, x.shape[0], 128):
        nisa.dma_copy(tile, x[row : row + 128])
        nisa.activation(tile, nl.square, tile)
        nisa.dma_copy(out[row : row + 128], tile)
    return out


def late_work(x: Any, place: tuple[int, int] | None) -> Any:
    """Each row tile is loaded only when the one before is stored, by one engine's queue."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile, square = (nl.ndarray((128, 512), nl.float32, address=place) for _ in range(2))
        nisa.dma_copy(tile, x[row : row + 128], engine=nisa.engine.scalar)
        nisa.activation(square, nl.square, tile)
        nisa.dma_copy(out[row : row + 128], square, engine=nisa.engine.scalar)
    return out


@pytest.mark.parametrize("target", NAMES)
def test_loads_move_ahead_of_what_waits(target: str) -> None:
    x = np.zeros((128 * 12, 512), np.float32)
    launch = bind(late_work, (x, None), {})
    arch = TARGETS[target]
    programs = [
        trace_launch(launch, arch, 0, as_written=as_written).programs
        for as_written in (True, False)
    ]
    times = [profile_programs(each, arch).latency_us for each in programs]
    assert times[1] < 0.9 * times[0]


def test_a_kernel_with_addresses_keeps_its_order() -> None:
    launch = bind(late_work, (np.zeros((128 * 12, 512), np.float32), (0, 0)), {})
    traced = trace_launch(launch, TARGETS["trn2"], 0)
    assert traced.changes[0].moved == 0


def test_compile_takes_a_kernel_as_written() -> None:
    kernel, x = nki.jit(one_buffer), np.zeros((128 * 16, 512), np.float32)
    plain, written = kernel.compile(x), kernel.compile(x, as_written=True)
    assert plain.notes and not written.notes
    assert kernel.compile(x).notes == plain.notes


def squared_rows(x: Any, *, is_loop: bool, is_ordered: bool = False) -> Any:
    """Blocks of rows squared and added to a sum that every iteration leaves to the next."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    last = nl.ndarray((128, 1), nl.float32, buffer=nl.shared_hbm)
    total = nl.zeros((128, 1), nl.float32)

    def body(i: Any) -> None:
        rows = nl.ds(i, 128) if is_loop else slice(i, i + 128)
        tile = nl.ndarray((128, x.shape[1]), x.dtype)
        square, row_sum = nl.ndarray(tile.shape, x.dtype), nl.ndarray((128, 1), nl.float32)
        with nl.no_reorder() if is_ordered else nullcontext():
            nisa.dma_copy(tile, x[rows])
            nisa.activation(square, nl.square, tile)
        nisa.tensor_reduce(row_sum, nl.add, square, axis=1)
        nisa.tensor_tensor(total, total, row_sum, nl.add)
        nisa.dma_copy(out[rows], square)

    if is_loop:
        nl.fori_loop(0, x.shape[0], body, step=128)
    else:
        for i in range(0, x.shape[0], 128):
            body(i)
    nisa.dma_copy(last, total)
    return out, last


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("trips", [8, 19, 32])
def test_iterations_of_a_loop_on_the_device_overlap(target: str, trips: int) -> None:
    x = np.random.default_rng(0).standard_normal((128 * trips, 512)).astype(np.float32)
    arch, times = TARGETS[target], {}
    for is_loop, as_written in ((True, True), (True, False), (False, False)):
        launch = bind(squared_rows, (x,), {"is_loop": is_loop})
        traced = trace_launch(launch, arch, 0, as_written=as_written)
        took = profile_programs(traced.programs, arch).latency_us
        times[is_loop, as_written] = took - (arch.arch.preamble_ns + arch.arch.postamble_ns) / 1000
        if not as_written:
            assert [each.unrolled for each in traced.changes] == [int(is_loop)]
            squares, total = run(traced.programs[0], {"x": x}).values()
            np.testing.assert_allclose(squares, x**2, rtol=1e-6)
            blocks = (x**2).reshape(trips, 128, 512)
            np.testing.assert_allclose(total[:, 0], blocks.sum((0, 2)), rtol=1e-5)
    assert times[True, False] < 0.75 * times[True, True]
    assert times[True, False] < 1.15 * times[False, False], "nearly as soon as without a loop"


def test_a_loop_whose_order_is_fixed_stays_as_it_is() -> None:
    x = np.zeros((128 * 8, 512), np.float32)
    written, changed = (
        trace_launch(
            bind(squared_rows, (x,), {"is_loop": True, "is_ordered": True}), TARGETS["trn2"], 0,
            as_written=as_written,
        ).programs[0]
        for as_written in (True, False)
    )  # fmt: skip
    assert changed.body == written.body


def test_a_loop_whose_tiles_fill_the_memory_stays_as_it_is() -> None:
    x = np.zeros((128 * 8, 20_000), np.float32)
    traced = trace_launch(bind(squared_rows, (x,), {"is_loop": True}), TARGETS["trn2"], 0)
    assert not traced.changes[0].unrolled


def read_fill(x: Any, *, strictly: bool, place: tuple[int, int] | None) -> Any:
    """A tile filled twice: the first fill is dead."""
    out = nl.ndarray((128, 128), nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 128), nl.float32, address=place)
    if strictly:
        with nl.no_reorder():
            nisa.memset(tile, 1.0)
    else:
        nisa.memset(tile, 1.0)
    nisa.memset(tile, 2.0)
    nisa.dma_copy(out, tile)
    return out


@pytest.mark.parametrize(
    ("strictly", "place", "kept"), [(False, None, 1), (True, None, 2), (False, (0, 0), 2)]
)
def test_what_the_author_fixed_stays(strictly: bool, place: Any, kept: int) -> None:
    x = np.zeros((128, 128), np.float32)
    launch = bind(read_fill, (x,), {"strictly": strictly, "place": place})
    assert fills(trace_launch(launch, TARGETS["trn2"], 0).programs[0]) == kept


@example(  # on trn3 0.2 % are predicted too much
    steps=[*[("load", n, 0, 0, 64) for n in (1, 0, 1, 1)], *[("fill", 0, 0, 0, 64)] * 2,
           ("cleared product", 0, 0, 0, 64), ("square", 2, 0, 0, 64)],
    target="trn3",
)  # fmt: skip
@with_examples(25)
@given(steps=st.lists(STEPS, min_size=3, max_size=14), target=st.sampled_from(NAMES))
def test_straight_kernels_take_the_predicted_time(steps: list[Step], target: str) -> None:
    """But for the array's warm-up, ports of banks of PSUM, and addresses that are used again."""
    straight = [step for step in steps if step[0] in SIMPLE]
    launch = bind(kernel_of(straight), (argument(straight),), {})
    plans: list[BackEndPlan] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            back_end, "BackEndPlan", lambda *given: plans.append(BackEndPlan(*given)) or plans[-1]
        )
        trace_launch(launch, TARGETS[target], 0)
    written = trace_launch(launch, TARGETS[target], 0, as_written=True).programs
    arch = TARGETS[target].arch
    took = profile_programs(written, TARGETS[target]).latency_us * 1000
    predicted = plans[0].written_ps / 1000 + arch.preamble_ns + arch.postamble_ns
    products = sum("product" in step[0] or step[0] == "sum" for step in straight)
    if products and arch.tensor_ramp_ns:
        assert predicted <= took * 1.01
    else:
        assert took == pytest.approx(predicted, rel=0.01)


@with_examples(25)
@given(steps=st.lists(STEPS, min_size=3, max_size=14), target=st.sampled_from(NAMES))
def test_schedules_are_the_same_as_machine_code_and_in_python(
    steps: list[Step], target: str
) -> None:
    ways = []
    for few in (0, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(straight_line, "FEW_NODES", few)
            ways.append(compiled(kernel_of(steps), argument(steps), target))
    assert ways[0] == ways[1]


@with_examples(60)
@given(data=st.data())
def test_liveness_is_the_same_as_machine_code_and_in_python(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 90))
    column = st.lists(st.integers(0, 5), min_size=count, max_size=count)
    flag = st.lists(st.integers(0, 1), min_size=count, max_size=count)
    first, top = data.draw(column), data.draw(column)
    record = {
        "tiles": [2], "begin": [0, count // 2, count], "tile_last": [9, 9], "tile_bottom": [9, 9],
        "position": sorted(data.draw(column)), "is_read": data.draw(flag),
        "is_full": data.draw(flag), "first": first, "top": top,
        "last": [a + b for a, b in zip(first, data.draw(column), strict=True)],
        "bottom": [a + b for a, b in zip(top, data.draw(column), strict=True)],
        "shape": data.draw(flag), "is_dense": data.draw(flag),
        "width": [1, 4], "step": [0, 0, 1], "step_size": [8], "step_count": [3],
        **{name: [0] * (liveness_rules.MAXIMUM_LIVE + 1) for name in LIVE}, "live_count": [0],
        "redefines": [0] * count, "is_dead": [0] * count, "is_live_in": [0, 0],
    }  # fmt: skip
    ways = []
    for is_native in (False, True):
        arrays = {name: np.array(values, np.int64) for name, values in record.items()}
        LIBRARY.call("find_liveness", arrays, is_native=is_native)
        ways.append(arrays)
    for name in record:
        np.testing.assert_array_equal(ways[0][name], ways[1][name], err_msg=name)
