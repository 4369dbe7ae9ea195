"""Instructions that run by rows give what they give one after the other."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia.arch.instances import COMPILED_TARGETS
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import TensorReduce, TensorScalar, TensorTensor
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.machine.ir import Binding, Loop, Program, Statement
from glia.sim.host import table
from glia.sim.host.classes.calls import OperandPlace, RowAccess
from glia.sim.host.host_program import HostProgram
from glia.sim.host.rewriting import unread_results
from glia.sim.host.rewriting.unread_results import UnreadResults
from glia.sim.host.threads import strips
from glia.sim.host.threads.strips import _Relation
from glia.sim.run import run
from sim import test_direct_writes, test_exposed_tiles

ROWS, COLUMNS = 16, 24
SIZE = ROWS * COLUMNS
RANGES = ((0, 16), (0, 8), (8, 8), (4, 8))  # the first of some rows, and how many they are
COMMANDS = ("reset_reduce", "reset_reduce", "reduce", "idle")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips of many pieces wherever there can be one, as on a machine of several cores."""
    monkeypatch.setattr(strips, "SHARED_NANOSECONDS", -1)
    monkeypatch.setattr(strips, "PIECE_BYTES", 256)
    monkeypatch.setattr(table, "lanes", lambda: 2)
    monkeypatch.setattr(table, "_grain_of", lambda parts, _: max(1, parts // 3))


class Draw:
    """A random program that computes on some rows of tiles; values are small whole numbers."""

    def __init__(self, seed: int, target: str) -> None:
        self._random, self._target = np.random.default_rng(seed), target
        self._wide = [Tile(name, Memory.SBUF, F32, ROWS, COLUMNS) for name in "abcd"]
        self._narrow = [Tile(name, Memory.SBUF, F32, ROWS, 1) for name in "stu"]
        self._x = Tile("x", Memory.HBM, F32, 1, 4 * SIZE)
        self._y = Tile("y", Memory.HBM, F32, 1, 4 * SIZE)
        self._commands = self._random.choice(COMMANDS, 2)

    def program(self) -> Program:
        tiles = [*self._wide, *self._narrow]
        rows = ((COLUMNS, ROWS), (1, COLUMNS))
        body: list[Statement] = [
            DmaCopy(dst=whole_tile(tile), src=Pattern(self._x, F32, rows, Affine.of(SIZE * n)))
            for n, tile in enumerate(self._wide)
        ]
        body += [
            DmaCopy(dst=whole_tile(tile), src=Pattern(self._x, F32, ((1, ROWS), (1, 1))))
            for tile in self._narrow
        ]
        body.append(DmaCopy(dst=self._all_of(self._y), src=self._all_of(self._x)))
        first = whole_tile(self._wide[0])
        body.append(Activation(dst=first, data=first, function="copy", command="reset_reduce"))
        for number in range(int(self._random.integers(1, 4))):
            variable = f"i{number}" if self._random.random() < 0.4 else ""
            some = self._statements(variable)
            body += [Loop(variable, 2, tuple(some))] if variable else some
        body += [
            DmaCopy(dst=Pattern(self._y, F32, rows, Affine.of(SIZE * n)), src=whole_tile(tile))
            for n, tile in enumerate(self._wide)
            if self._random.random() < 0.8
        ]
        addresses = {tile.name: 96 * number for number, tile in enumerate(tiles)}
        return Program(
            name="rows", target=self._target,
            tiles={tile.name: tile for tile in (*tiles, self._x, self._y)},
            inputs=(Binding("x", self._x, (4, ROWS, COLUMNS), F32),),
            outputs=(Binding("y", self._y, (4, ROWS, COLUMNS), F32),), constants={},
            body=tuple(body), addresses=addresses | {"x": 0, "y": 16 * SIZE},
        )  # fmt: skip

    def _all_of(self, tile: Tile) -> Pattern:
        return Pattern(tile, F32, ((SIZE, 4), (1, SIZE)))

    def _statements(self, variable: str) -> list[Statement]:
        first, count = RANGES[self._random.integers(len(RANGES))]
        moves = variable and first + 2 * count <= ROWS and self._random.random() < 0.5
        start = Affine.of(first) + (Affine.of(variable) * count if moves else Affine())
        return [self._statement(start, count) for _ in range(int(self._random.integers(3, 12)))]

    def _statement(self, start: Affine, count: int) -> Instr:
        if self._random.random() < 0.1:  # perhaps other rows than the others
            first, count = RANGES[self._random.integers(len(RANGES))]
            start = Affine.of(first)
        dst, one, other = (self._wide[n] for n in self._random.integers(len(self._wide), size=3))
        column, result = (self._narrow[n] for n in self._random.integers(len(self._narrow), size=2))
        width = COLUMNS if self._random.random() < 0.7 else 8
        wide, read, beside = (
            Pattern(tile, F32, ((1, count), (1, width)), Affine(), start)
            for tile in (dst, one, other)
        )
        operand, reduced = (self._column(tile, start, count) for tile in (column, result))
        match int(self._random.integers(6)):
            case 0:
                return TensorTensor(dst=wide, data1=read, data2=beside, op="maximum")
            case 1:
                return TensorScalar(
                    dst=wide, data=read, operand0=operand, op0="minimum", operand1=1.0, op1="add"
                )
            case 2:
                return TensorReduce(dst=reduced, data=read, op="maximum")
            case 3:
                rows = ((COLUMNS, count), (1, wide.free))
                place = Pattern(self._y, F32, rows, start * COLUMNS)
                return DmaCopy(dst=place, src=wide)
            case 4:
                return TensorScalar(dst=reduced, data=operand, operand0=-1.0, op0="multiply")
        command = str(self._random.choice(self._commands))
        taken = reduced if command != "idle" and self._random.random() < 0.7 else None
        return Activation(dst=wide, data=read, function="copy", reduced=taken, command=command)

    def _column(self, tile: Tile, start: Affine, count: int) -> Pattern:
        return Pattern(tile, F32, ((1, count), (1, 1)), Affine(), start)


def check_law(
    draw: Callable[[int, str], Program], seeds: range, target: str, least: float = 0.5
) -> None:
    count = 0
    for seed in seeds:
        program = draw(seed, target)
        shape = program.inputs[0].shape
        inputs = {"x": np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)}
        wanted = run(program, inputs)["y"]
        host = HostProgram(program)
        count += len(host.table.strips)
        assert host.run(inputs)["y"].tobytes() == wanted.tobytes(), f"seed {seed}"
    assert count > least * len(seeds)


def drawn(seed: int, target: str) -> Program:
    return Draw(seed, target).program()


def others(seed: int, target: str) -> Program:
    """Of other generators: products, tiles on each other's bytes."""
    if seed % 2:
        return test_exposed_tiles.overlapping(seed, target)
    return test_direct_writes.Draw(seed, target).program()


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_random_programs_give_the_same_bits(target: str) -> None:
    first = 1000 * COMPILED_TARGETS.index(target)
    check_law(drawn, range(first, first + 60), target)
    check_law(others, range(first, first + 20), target, least=0)


@pytest.mark.nightly
@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_many_random_programs_give_the_same_bits(target: str) -> None:
    first = 10_000 * (1 + COMPILED_TARGETS.index(target))
    check_law(drawn, range(first, first + 2000), target)
    check_law(others, range(first, first + 1000), target, least=0)


@pytest.mark.usefixtures("forced")
def test_the_law_finds_rows_that_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    of_rows = strips._of_rows

    def planted(one: Any, other: Any, distance: int, parts: tuple[int, int]) -> _Relation:
        found = of_rows(one, other, distance, parts)
        return _Relation.ALIGNED if found is _Relation.CROSSED else found

    monkeypatch.setattr(strips, "_of_rows", planted)
    with pytest.raises(AssertionError, match="seed"):
        check_law(drawn, range(5000, 5300), "trn2")


@pytest.mark.usefixtures("forced")
def test_the_law_finds_states_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what instructions leave in accumulators counts for nothing."""
    start = table.TableBuilder._start

    def planted(self: table.TableBuilder, bases: Any, instr: Instr, place: OperandPlace) -> Any:
        return None if place.kind == "state" else start(self, bases, instr, place)

    monkeypatch.setattr(table.TableBuilder, "_start", planted)
    with pytest.raises(AssertionError, match="seed"):
        check_law(drawn, range(5000, 5600), "trn2")


@pytest.mark.parametrize("fault", ["tiles", "states"])
def test_the_law_finds_results_that_are_read(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a tile or state that is read is not computed."""
    find = UnreadResults.of

    def planted(program: Program, bases: Any, exposed: Any) -> UnreadResults:
        found = find(program, bases, exposed)
        if fault == "tiles":
            return UnreadResults(found.tiles | {"a"}, found.states)
        return UnreadResults(found.tiles, frozenset({("scalar", "accumulators")}))

    if fault == "states":
        assert {k.state.name for k in Activation.states.values()} == {"accumulators"}
    monkeypatch.setattr(UnreadResults, "of", planted)
    with pytest.raises(AssertionError, match="seed"):
        check_law(drawn, range(5000, 5400), "trn2", least=-1)


@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize("shows", [False, True])
def test_what_another_tile_shows_is_computed(shows: bool, target: str) -> None:
    """An activation of which the sums are read, and the values perhaps through another tile."""
    x, y = (Tile(name, Memory.HBM, F32, 1, SIZE) for name in "xy")
    data, values, other = (Tile(name, Memory.SBUF, F32, ROWS, COLUMNS) for name in "dvo")
    sums = Tile("s", Memory.SBUF, F32, ROWS, 1)
    rows = ((COLUMNS, ROWS), (1, COLUMNS))
    tiles = (x, y, data, values, other, sums)
    program = Program(
        name="shown", target=target, tiles={each.name: each for each in tiles},
        inputs=(Binding("x", x, (ROWS, COLUMNS), F32),),
        outputs=(Binding("y", y, (ROWS, COLUMNS), F32),), constants={},
        addresses={"d": 0, "v": 96, "o": 96 if shows else 192, "s": 288, "x": 0, "y": 4 * SIZE},
        body=(
            DmaCopy(dst=whole_tile(data), src=Pattern(x, F32, rows)),
            *([] if shows else [DmaCopy(dst=whole_tile(other), src=Pattern(x, F32, rows))]),
            Activation(
                dst=whole_tile(values), data=whole_tile(data), function="square",
                reduced=whole_tile(sums), command="reset_reduce",
            ),
            TensorScalar(
                dst=whole_tile(data), data=whole_tile(other), operand0=whole_tile(sums), op0="add"
            ),
            DmaCopy(dst=Pattern(y, F32, rows), src=whole_tile(data)),
        ),
    )  # fmt: skip
    given = {"x": np.random.default_rng(0).integers(-3, 4, (ROWS, COLUMNS)).astype(np.float32)}
    host = HostProgram(program)
    names = {tile for call in (host.plan.unread.tiles, host.plan.unread.states) for tile in call}
    assert names == ({("scalar", "accumulators")} | (set() if shows else {"v"}))
    assert host.run(given)["y"].tobytes() == run(program, given)["y"].tobytes()


def access(step: int, low: int, high: int) -> RowAccess:
    return RowAccess(OperandPlace("pattern", "dst"), step, low, high, high - low, is_written=True)


@pytest.mark.parametrize(
    ("one", "other", "distance", "parts", "wanted"),
    [
        (access(64, 0, 64), access(64, 0, 64), 0, (8, 8), _Relation.ALIGNED),
        (access(64, 0, 64), access(64, 0, 4), 60, (8, 8), _Relation.ALIGNED),
        (access(64, 0, 64), access(64, 0, 4), 64, (8, 8), _Relation.CROSSED),
        (access(64, 0, 64), access(64, 0, 64), 512, (8, 8), _Relation.APART),
        (access(64, 0, 64), access(64, 0, 64), -512, (8, 8), _Relation.APART),
        (access(64, 0, 65), access(64, 0, 64), 0, (8, 8), _Relation.CROSSED),
        (access(64, 0, 64), access(16, 0, 16), 0, (8, 32), _Relation.ALIGNED),
        (access(64, 0, 64), access(16, 0, 16), 0, (8, 8), _Relation.CROSSED),
        (access(64, 0, 64), access(0, 0, 4), 0, (8, 8), _Relation.CROSSED),
        (access(64, 0, 64), access(0, 0, 4), 512, (8, 8), _Relation.APART),
        (access(-64, 0, 64), access(-64, 0, 64), 0, (8, 8), _Relation.ALIGNED),
        (access(-64, 0, 64), access(64, 0, 64), -448, (8, 8), _Relation.CROSSED),
        (access(-64, -32, 32), access(-64, -32, 32), 64, (8, 8), _Relation.CROSSED),
    ],
)
def test_rows_are_aligned_where_only_those_of_one_number_meet(
    one: RowAccess, other: RowAccess, distance: int, parts: tuple[int, int], wanted: _Relation
) -> None:
    assert strips._of_rows(one, other, distance, parts) is wanted
    assert strips._of_rows(other, one, -distance, (parts[1], parts[0])) is wanted


def test_what_is_aligned_or_apart_is_so_byte_by_byte() -> None:
    """Against all bytes of all pieces."""
    random = np.random.default_rng(0)
    seen = set()
    for _ in range(4000):
        parts = tuple(int(n) for n in random.choice([2, 4, 8], 2))
        rows = []
        for _ in parts:
            low, size = int(random.integers(-3, 4)), int(random.integers(1, 9))
            rows.append(access(int(random.integers(-8, 9)), low, low + size))
        distance, pieces = int(random.integers(-40, 41)), int(np.gcd(*parts))
        touched: list[list[set[int]]] = []
        for row, count, start in zip(rows, parts, (0, distance), strict=True):
            touched.append([set() for _ in range(pieces)])
            for number in range(count):
                begin = start + number * row.step
                touched[-1][number * pieces // count] |= {*range(begin + row.low, begin + row.high)}
        met = {
            (a, b)
            for a, some in enumerate(touched[0])
            for b, each in enumerate(touched[1])
            if some & each
        }
        found = strips._of_rows(rows[0], rows[1], distance, (parts[0], parts[1]))
        seen.add(found)
        if found is _Relation.APART:
            assert not met
        elif found is _Relation.ALIGNED:
            assert all(a == b for a, b in met)
    assert seen == set(_Relation)


@pytest.mark.usefixtures("forced")
def test_the_last_that_reads_a_large_tensor_asks_for_its_next_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "LARGE_BYTES", 0)
    monkeypatch.setattr(unread_results, "LARGE_BYTES", 0)
    check_law(drawn, range(7000, 7060), "trn2")
    found, planned = [], strips.StripPlanner.planned

    def noted(self: strips.StripPlanner, instructions: Any) -> Any:
        units = list(planned(self, instructions))
        found.extend(each for each in units if isinstance(each, strips.RowStrip))
        return iter(units)

    monkeypatch.setattr(strips.StripPlanner, "planned", noted)
    x, y = (Tile(name, Memory.HBM, F32, 1, 4 * SIZE) for name in "xy")
    a, b = (Tile(name, Memory.SBUF, F32, ROWS, COLUMNS) for name in "ab")
    sums = Tile("s", Memory.SBUF, F32, ROWS, 1)
    rows = ((COLUMNS, ROWS), (1, COLUMNS))
    program = Program(
        name="ahead", target="trn2", tiles={each.name: each for each in (x, y, a, b, sums)},
        inputs=(Binding("x", x, (4, ROWS, COLUMNS), F32),),
        outputs=(Binding("y", y, (4, ROWS, COLUMNS), F32),), constants={},
        addresses={"a": 0, "b": 96, "s": 192, "x": 0, "y": 16 * SIZE},
        body=(
            DmaCopy(dst=whole_tile(y), src=whole_tile(x)),
            DmaCopy(dst=whole_tile(a), src=Pattern(x, F32, rows)),
            TensorReduce(dst=whole_tile(sums), data=whole_tile(a), op="maximum"),
            TensorScalar(
                dst=whole_tile(b), data=whole_tile(a), operand0=whole_tile(sums), op0="add"
            ),
            TensorTensor(dst=whole_tile(b), data1=whole_tile(b), data2=whole_tile(b), op="add"),
            DmaCopy(dst=Pattern(y, F32, rows), src=whole_tile(b)),
        ),
    )  # fmt: skip
    HostProgram(program)
    (strip,) = found
    ahead = [getattr(call.code, "ahead", ()) for call in strip.calls]
    assert ahead == [(), (0,), ()]
    assert strip.calls[1].words[-1] == 4 * COLUMNS * ROWS // strip.pieces


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("offset", [0, 1, 16])
def test_results_past_the_caches_are_the_same(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that begin on a cache line, and rows that do not."""
    monkeypatch.setattr(unread_results, "LARGE_BYTES", 0)
    width = 80
    x, y = (Tile(name, Memory.HBM, F32, 1, 4 * width * ROWS) for name in "xy")
    a, b = (Tile(name, Memory.SBUF, F32, ROWS, width) for name in "ab")
    rows = ((width + offset, ROWS), (1, width))
    program = Program(
        name="past", target="trn2", tiles={each.name: each for each in (x, y, a, b)},
        inputs=(Binding("x", x, (4, ROWS, width), F32),),
        outputs=(Binding("y", y, (4, ROWS, width), F32),), constants={},
        addresses={"a": 0, "b": 4 * width, "x": 0, "y": 16 * width * ROWS},
        body=(
            DmaCopy(dst=whole_tile(a), src=Pattern(x, F32, ((width, ROWS), (1, width)))),
            Activation(dst=whole_tile(b), data=whole_tile(a), function="square"),
            DmaCopy(dst=whole_tile(y), src=whole_tile(x)),
            DmaCopy(dst=Pattern(y, F32, rows, Affine.of(offset)), src=whole_tile(b)),
        ),
    )  # fmt: skip
    values = np.random.default_rng(0).standard_normal((4, ROWS, width), np.float32)
    host = HostProgram(program)
    is_streamed = any(getattr(code, "streamed", ()) for code in host.plan.builder.codes.values())
    assert is_streamed == (platform.machine() == "x86_64")
    assert host.run({"x": values})["y"].tobytes() == run(program, {"x": values})["y"].tobytes()
