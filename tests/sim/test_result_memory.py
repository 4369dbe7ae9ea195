"""Memory of results is used again only when no array refers to it."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import BF16, F32
from glia.base.machine_code.native import address_of
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.vector import Memset
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.machine.ir import Binding, Branch, Loop, Program, Statement
from glia.sim.host.host_program import HostProgram
from glia.sim.host.tensors import result_memory, written_tensors
from glia.sim.host.tensors.result_memory import MOST_KEPT, ResultMemory

WIDE = 4096
LARGE = (128, WIDE)  # 2 MiB of float32


def output(shape: tuple[int, ...] = LARGE, name: str = "y") -> Binding:
    tile = Tile(name, Memory.HBM, F32, 1, int(np.prod(shape)))
    return Binding(name, tile, shape, F32)


def fills(*parts: Pattern) -> Program:
    """A program that fills parts of its one output with ones."""
    tile, y = Tile("ones", Memory.SBUF, F32, 128, WIDE), parts[0].tile
    return Program(
        name="fills", target="trn2", tiles={"ones": tile, y.name: y}, inputs=(),
        outputs=(output(),), constants={}, addresses={"ones": 0, y.name: 0},
        body=(
            Memset(dst=whole_tile(tile), value=1.0),
            *(
                DmaCopy(dst=part, src=Pattern(tile, F32, ((1, part.dims[0][1]), part.dims[1])))
                for part in parts
            ),
        ),
    )  # fmt: skip


def rows(first: int, count: int) -> Pattern:
    return Pattern(output().tile, F32, ((WIDE, count), (1, WIDE)), Affine.of(first * WIDE))


def test_memory_is_used_again_when_its_array_is_gone() -> None:
    memory = ResultMemory([output(), output((3, 3), "z")], [False, False])
    first, _ = memory.arrays()
    second, _ = memory.arrays()
    assert not np.shares_memory(first, second)
    address = address_of(first)
    del first
    again, small = memory.arrays()
    assert (address_of(again), small.shape) == (address, (3, 3))
    assert not np.shares_memory(again, second)


def test_memory_that_a_view_or_a_buffer_refers_to_is_not_used_again() -> None:
    memory = ResultMemory([output()], [False])
    (array,) = memory.arrays()
    array[:] = 3
    row, exported = array[5].view(np.int32)[::2], memoryview(array)
    del array
    for _ in range(3):
        memory.arrays()[0][:] = 4
    assert row.view(np.float32).max() == exported[0, 0] == 3
    del row
    memory.arrays()[0][:] = 5
    assert exported[127, WIDE - 1] == 3


def test_what_many_results_take_is_not_kept() -> None:
    memory = ResultMemory([output()], [False])
    held = [memory.arrays()[0] for _ in range(MOST_KEPT + 3)]
    assert len({address_of(each) for each in held}) == len(held)
    (kept,) = [kept for _, _, kept in memory._kinds]
    assert kept is not None
    assert len(kept.memories) == MOST_KEPT


def test_results_too_large_to_keep_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_memory, "MOST_KEPT_BYTES", 1 << 20)
    assert ResultMemory([output()], [False]).arrays()[0].base is None


def test_threads_get_memory_of_their_own() -> None:
    memory, wrong = ResultMemory([output((512, 1024))], [False]), []

    def work(number: int) -> None:
        for _ in range(200):
            (array,) = memory.arrays()
            array[::64] = number
            wrong.extend(array[::64].ravel()[array[::64].ravel() != number].tolist())

    threads = [threading.Thread(target=work, args=[n]) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_what_a_run_does_not_write_is_zero_in_every_run() -> None:
    host = HostProgram(fills(rows(0, 64), rows(96, 32)))
    assert host.cleared_outputs == [True]
    wanted = np.repeat([1.0, 0.0, 1.0], [64, 32, 32])
    for _ in range(3):
        result = host.run({})["y"]
        assert result[:, 7].tolist() == wanted.tolist()
        result[:] = 9
    assert HostProgram(fills(rows(0, 64), rows(60, 68))).cleared_outputs == [False]


def in_branch(program: Program) -> Program:
    """The same where data decide whether it runs."""
    return replace(program, body=(Branch("r", (program.body, ())),))


def test_what_data_decide_does_not_count_as_written() -> None:
    program = fills(rows(0, 128))
    assert written_tensors.written_tensors(program, ["y"]) == {"y"}
    assert written_tensors.written_tensors(in_branch(program), ["y"]) == set()
    twice = replace(program, body=(Loop("i", 0, program.body),))
    assert written_tensors.written_tensors(twice, ["y"]) == set()
    assert written_tensors.written_tensors(program, ["z"]) == set()


def test_steps_back_and_other_widths_count_by_bytes() -> None:
    tile = output().tile
    half = Pattern(tile, BF16, ((2 * WIDE, 128), (1, WIDE)))
    back = Affine.of(127 * 2 * WIDE + WIDE)
    other = replace(half, offset=back, dims=((-2 * WIDE, 128), (1, WIDE)))
    ones = Tile("ones", Memory.SBUF, BF16, 128, WIDE)
    program = fills(rows(0, 1))
    for parts, is_whole in (((half, other), True), ((half,), False), ((other,), False)):
        body = tuple(DmaCopy(dst=each, src=whole_tile(ones)) for each in parts)
        found = written_tensors.written_tensors(replace(program, body=body), ["y"])
        assert found == ({"y"} if is_whole else set())


def copies(random: np.random.Generator) -> Program:
    """A program that copies blocks of rows and columns into 16 x 32 elements, some in loops."""
    height, width = 16, 32
    x, y = (Tile(name, Memory.HBM, F32, 1, height * width) for name in "xy")
    body: list[Statement] = []
    for number in range(int(random.integers(1, 5))):
        rows, columns = int(random.choice([4, 8, 16])), int(random.choice([8, 16, 32]))
        start = Affine.of(int(random.integers((height - rows) // 4 + 1)) * 4 * width)
        start += int(random.integers((width - columns) // 8 + 1)) * 8
        place = Pattern(y, F32, ((width, rows), (1, columns)), start)
        copy = DmaCopy(dst=place, src=replace(place, tile=x))
        steps = [1, 8, 4 * width, 8 * width, rows * width]
        step = int(random.choice(steps))
        last = start.constant + step + (rows - 1) * width + columns
        if random.random() < 0.5 and last <= height * width:
            moved = replace(place, offset=start + Affine.of(f"i{number}") * step)
            body.append(Loop(f"i{number}", 2, (replace(copy, dst=moved),)))
        else:
            body.append(copy)
    return Program(
        name="copies", target="trn2", tiles={"x": x, "y": y},
        inputs=(Binding("x", x, (height, width), F32),),
        outputs=(Binding("y", y, (height, width), F32),), constants={},
        addresses={"x": 0, "y": x.bytes}, body=tuple(body),
    )  # fmt: skip


def untouched(program: Program) -> int:
    """How many elements of the result a run leaves as they were."""
    x, y = np.zeros((16, 32), np.float32), np.full((16, 32), np.nan, np.float32)
    HostProgram(program).run_at([address_of(x)], [address_of(y)])
    return int(np.isnan(y).sum())


def check_law(seeds: range) -> None:
    whole = 0
    for seed in seeds:
        program = copies(np.random.default_rng(seed))
        found = written_tensors.written_tensors(program, ["y"]) == {"y"}
        assert found == (untouched(program) == 0), f"seed {seed}"
        whole += found
    assert len(seeds) // 20 < whole < len(seeds) // 2


def test_what_counts_as_written_is_what_runs_write() -> None:
    check_law(range(200))


def test_the_law_finds_loops_that_are_taken_for_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a loop's iterations follow each other without gaps."""
    dense = written_tensors._bytes_of

    def planted(pattern: Pattern, trips: dict[str, int]) -> tuple[int, list[tuple[int, int]]]:
        start, ((_, run), *apart) = dense(pattern, trips)
        return start, [(1, run + sum(step * (count - 1) for step, count in apart))]

    monkeypatch.setattr(written_tensors, "_bytes_of", planted)
    with pytest.raises(AssertionError, match="seed"):
        check_law(range(200))
