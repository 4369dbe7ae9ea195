"""Iterations that stand side by side give what they give one after the other."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from glia.arch.instances import COMPILED_TARGETS
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import TensorTensor
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.machine.ir import Binding, Loop, Program, Statement
from glia.neff.package import Neff
from glia.sim.host import table
from glia.sim.host.host_plan import HostPlanner
from glia.sim.host.host_program import HostProgram
from glia.sim.host.overlap import may_touch
from glia.sim.host.rewriting import iterations_at_once
from glia.sim.host.rewriting.lives import TileLives
from glia.sim.host.table_file import TableFile, read_table_file, table_file
from glia.sim.run import run
from sim.test_direct_writes import Draw
from sim.test_exposed_tiles import host_of_same_bits, overlapping

ROWS, COLUMNS = 64, 32
SIZE = ROWS * COLUMNS


def widened(program: Program) -> dict[str, str]:
    """The tiles that copies stand for, by the copies' names."""
    return dict(HostProgram(program).plan.copies)


def check_law(seeds: range, target: str) -> None:
    """Random programs that copy, add, multiply and fill, in loops, by both executors."""
    copied = 0
    for seed in seeds:
        program = overlapping(seed, target) if seed % 3 else Draw(seed, target).program()
        copied += bool(host_of_same_bits(program, seed).plan.copies)
    assert copied > len(seeds) // 20


@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_random_programs_give_the_same_bits(target: str) -> None:
    first = 1000 * COMPILED_TARGETS.index(target)
    check_law(range(first, first + 60), target)


@pytest.mark.nightly
@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_many_random_programs_give_the_same_bits(target: str) -> None:
    first = 10_000 * (1 + COMPILED_TARGETS.index(target))
    check_law(range(first, first + 2000), target)


@pytest.mark.parametrize("fault", ["inside", "outside", "shared bytes"])
def test_the_law_finds_tiles_that_iterations_share(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: what another iteration wrote, the rest of the program reads, or a tile shows."""
    widening = iterations_at_once._Widening
    if fault == "shared bytes":
        monkeypatch.setattr(widening, "_is_exposed", lambda *_: False)
    else:

        def planted(self: iterations_at_once._Widening, tile: Tile, path: tuple[int, ...]) -> bool:
            within = () if fault == "inside" else path
            lives = TileLives(self._found, self._program, tile.name, within).by_life
            return lives is not None and not self._is_exposed(tile)

        monkeypatch.setattr(widening, "_is_own", planted)
    with pytest.raises(AssertionError, match="seed"):
        check_law(range(5000, 5900), "trn2")


def a_loop(trips: int, *, carries: bool = False, target: str = "trn2") -> Program:
    """The hyperbolic tangent of rows and what is added to it, by one tile or two in all iterations.

    With `carries` the sum of an iteration begins with that of the one before.
    """
    x, y = (Tile(name, Memory.HBM, F32, 1, trips * SIZE) for name in "xy")
    given, total = (Tile(name, Memory.SBUF, F32, ROWS, COLUMNS) for name in ("given", "total"))
    dims, offset = ((COLUMNS, ROWS), (1, COLUMNS)), Affine.of("i") * SIZE
    first: list[Instr] = [DmaCopy(dst=whole_tile(total), src=Pattern(x, F32, dims))]
    body: list[Instr] = [
        DmaCopy(dst=whole_tile(given), src=Pattern(x, F32, dims, offset)),
        *([] if carries else [Activation(dst=whole_tile(total), data=whole_tile(given),
                                         function="tanh")]),
        TensorTensor(dst=whole_tile(total), data1=whole_tile(total), data2=whole_tile(given),
                     op="add"),
        DmaCopy(dst=Pattern(y, F32, dims, offset), src=whole_tile(total)),
    ]  # fmt: skip
    statements: list[Statement] = [*(first if carries else []), Loop("i", trips, tuple(body))]
    return Program(
        name="loop", target=target, tiles={t.name: t for t in (x, y, given, total)},
        inputs=(Binding("x", x, (trips, ROWS, COLUMNS), F32),),
        outputs=(Binding("y", y, (trips, ROWS, COLUMNS), F32),), constants={},
        addresses={"given": 0, "total": 4 * COLUMNS, "x": 0, "y": 4 * trips * SIZE},
        body=tuple(statements),
    )  # fmt: skip


@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize("trips", [2, 5, 6, 13, 64])
def test_iterations_with_tiles_of_their_own_are_one_wave(
    trips: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "lanes", lambda: 2)
    program = a_loop(trips, target=target)
    host = HostProgram(program)
    assert set(host.plan.copies.values()) == {"given", "total"}
    assert host.table.waves or host.table.strips or trips == 2
    x = np.random.default_rng(trips).standard_normal((trips, ROWS, COLUMNS)).astype(np.float32)
    for _ in range(2):
        found = host.run({"x": x})["y"]
        np.testing.assert_allclose(found, run(program, {"x": x})["y"], rtol=1e-5, atol=1e-6)


def test_iterations_that_carry_a_sum_stay_one_after_the_other() -> None:
    program = a_loop(8, carries=True)
    assert "total" not in widened(program).values()
    x = np.random.default_rng(1).integers(-9, 9, (8, ROWS, COLUMNS)).astype(np.float32)
    found = HostProgram(program).run({"x": x})["y"]
    np.testing.assert_array_equal(found, run(program, {"x": x})["y"])
    np.testing.assert_array_equal(found, x[0] + np.cumsum(x, 0))


def test_a_loop_of_nothing_stays() -> None:
    program = a_loop(3)
    program = replace(program, body=(*program.body, Loop("j", 5, ())))
    x = np.ones((3, ROWS, COLUMNS), np.float32)
    assert HostProgram(program).run({"x": x})["y"].shape == x.shape


def test_a_tile_that_is_read_after_the_loop_stays_the_only_one() -> None:
    program = a_loop(6)
    y = program.tiles["y"]
    dims = ((COLUMNS, ROWS), (1, COLUMNS))
    last = DmaCopy(dst=Pattern(y, F32, dims), src=whole_tile(program.tiles["total"]))
    program = replace(program, body=(*program.body, last))
    assert set(widened(program).values()) <= {"given"}
    x = np.random.default_rng(1).standard_normal((6, ROWS, COLUMNS)).astype(np.float32)
    found, wanted = HostProgram(program).run({"x": x})["y"], run(program, {"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_plan_with_copies_of_tiles_is_kept() -> None:
    program = Neff.from_bytes(Neff((a_loop(13),)).to_bytes()).program
    host = HostProgram(program)
    plan = HostPlanner(program, rewrites=True).new_plan(host.executor)
    assert plan.builder is not None and plan.copies
    bases = {name: tile.name for name, tile in plan.builder.bases.items()}
    data = table_file(TableFile(plan.table, bases, plan.copies, [], []), program)
    assert data is not None
    found = read_table_file(data, program, host.executor.memories)
    assert found is not None
    assert found.table.tiles == plan.table.tiles and found.copies == plan.copies


def _elements(pattern: Pattern) -> set[int]:
    ranges = [[step * n for n in range(count)] for step, count in pattern.dims]
    return {pattern.offset.constant + sum(each) for each in product(*ranges)}


@pytest.mark.parametrize("memory", [Memory.HBM, Memory.SBUF])
def test_patterns_that_are_said_to_be_apart_share_no_element(memory: Memory) -> None:
    random = np.random.default_rng(0)
    tile = Tile("t", memory, F32, 1 if memory is Memory.HBM else 128, 4000)
    empty = Program("p", "trn2", {"t": tile}, (), (), {}, ())
    row = () if memory is Memory.HBM else ((1, 4),)
    apart = interleaved = 0
    for _ in range(4000):
        steps = [int(each) for each in random.choice([1, 2, 3, 7, 8, 16, 48], 2)]
        counts = random.integers(1, 7, (2, 2))
        one, other = (
            Pattern(
                tile, F32,
                (*row, *((s * sign, int(n)) for s, sign, n in zip(steps, signs, own, strict=True))),
                Affine.of(int(random.integers(500, 560))),
            )
            for own, signs in zip(counts, random.choice([1, 1, 1, -1], (2, 2)), strict=True)
        )  # fmt: skip
        free = [replace(each, dims=each.dims[len(row) :]) for each in (one, other)]
        shared = _elements(free[0]) & _elements(free[1])
        if not may_touch(one, other, empty):
            assert not shared
            apart += 1
            spans = [(min(e), max(e)) for e in map(_elements, free)]
            interleaved += spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1]
    assert apart > 500 and interleaved > 50
