"""Instructions that run at once give what they give one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from glia.arch.instances import COMPILED_TARGETS
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import Memset, TensorTensor
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.machine.ir import Binding, Loop, Program, Statement
from glia.sim.host import table
from glia.sim.host.host_program import HostProgram
from glia.sim.host.threads import waves
from glia.sim.host.threads.waves import Duration, Wave, WavePlanner
from sim.test_direct_writes import Draw
from sim.test_exposed_tiles import host_of_same_bits, overlapping

ROWS, COLUMNS = 64, 32


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waves wherever there can be one, as on a machine of several cores."""
    monkeypatch.setattr(waves, "WAVE_NANOSECONDS", -(10**9))
    monkeypatch.setattr(table, "lanes", lambda: 2)


def check_law(seeds: range, target: str) -> None:
    """Random programs that copy, add, multiply and fill, in loops, by both executors."""
    count = 0
    for seed in seeds:
        program = overlapping(seed, target) if seed % 3 else Draw(seed, target).program()
        count += len(host_of_same_bits(program, seed).table.waves)
    assert count > len(seeds) // 2


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_random_programs_give_the_same_bits(target: str) -> None:
    first = 1000 * COMPILED_TARGETS.index(target)
    check_law(range(first, first + 60), target)


@pytest.mark.nightly
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_many_random_programs_give_the_same_bits(target: str) -> None:
    first = 10_000 * (1 + COMPILED_TARGETS.index(target))
    check_law(range(first, first + 2000), target)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("fault", ["writes", "bytes"])
def test_the_law_finds_instructions_that_depend(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a write after a read, or tiles that share bytes, do not count."""
    conflict = WavePlanner._conflict

    def planted(self: WavePlanner, some: list[waves._Access], others: list[waves._Access]) -> bool:
        if fault == "bytes":
            places = [{(each.memory, each.low) for each in accesses} for accesses in (some, others)]
            return bool(places[0] & places[1]) and conflict(self, some, others)
        return conflict(self, [each for each in some if not each.is_written], others)

    monkeypatch.setattr(WavePlanner, "_conflict", planted)
    with pytest.raises(AssertionError, match="seed"):
        check_law(range(5000, 5300), "trn2")


def tile(name: str, memory: Memory = Memory.SBUF) -> Tile:
    return Tile(name, memory, F32, ROWS, COLUMNS)


def planned(durations: list[float], *chains: str, threads: int = 2) -> list[str]:
    """Waves of additions into the tiles that letters name; each reads what its letter has."""
    order = [name for names in zip(*chains, strict=True) for name in names]
    tiles = {name: tile(name) for name in order}
    instructions: list[Instr] = [
        TensorTensor(
            dst=whole_tile(tiles[n]), data1=whole_tile(tiles[n]), data2=whole_tile(tiles[n]),
            op="add",
        )
        for n in order
    ]  # fmt: skip
    program = Program(
        name="chains", target="trn2", tiles=tiles, inputs=(), outputs=(), constants={},
        addresses={name: 128 * number for number, name in enumerate(tiles)}, body=(),
    )  # fmt: skip
    times = dict(zip(map(id, instructions), durations, strict=True))

    def duration(instr: Instr) -> Duration | None:
        single = times[id(instr)]
        return None if single < 0 else Duration(single, single / threads / 0.8)

    planner = WavePlanner(program, {}, threads, duration)
    return [
        "|".join("".join(i.dst.tile.name for i in chain) for chain in each.chains)  # type: ignore[attr-defined]
        if isinstance(each, Wave)
        else each.dst.tile.name  # type: ignore[attr-defined]
        for each in planner.planned(instructions)
    ]


def test_chains_of_equal_length_run_at_once() -> None:
    assert planned([5e4] * 6, "aaa", "bbb") == ["aaa|bbb"]
    assert planned([5e4] * 8, "aa", "bb", "cc", "dd", threads=4) == ["aa|bb|cc|dd"]


def test_chains_of_unequal_length_share_each_instruction() -> None:
    assert planned([5e5, 5e4], "a", "b") == ["a", "b"]
    assert planned([100.0] * 6, "aaa", "bbb") == list("ababab")


def test_what_must_run_alone_ends_a_wave() -> None:
    assert planned([5e4, 5e4, -1, 9e4, 5e4, 5e4], "aba", "bca") == ["a|b", "b", "aa|c"]


@pytest.mark.usefixtures("threads")
def test_a_condition_and_scratch_are_each_instructions_own() -> None:
    """Two sums of products that begin in the first iteration of a loop, in one wave."""
    size = ROWS * COLUMNS
    x, y = Tile("x", Memory.HBM, F32, 1, size), Tile("y", Memory.HBM, F32, 1, 2 * COLUMNS**2)
    data, one = tile("data"), Tile("one", Memory.PSUM, F32, COLUMNS, COLUMNS)
    other = Tile("other", Memory.PSUM, F32, COLUMNS, COLUMNS)
    fill = Tile("fill", Memory.SBUF, F32, ROWS, COLUMNS)

    def product(dst: Tile, moving: Tile) -> Statement:
        return NcMatmul(
            dst=whole_tile(dst), stationary=whole_tile(data), moving=whole_tile(moving),
            accumulate=Affine.of("i"),
        )  # fmt: skip

    def store(source: Tile, half: int) -> Statement:
        dims = ((COLUMNS, COLUMNS), (1, COLUMNS))
        place = Pattern(y, F32, dims, Affine.of(half * COLUMNS**2))
        return DmaCopy(dst=place, src=whole_tile(source))

    program = Program(
        name="sums", target="trn2",
        tiles={each.name: each for each in (x, y, data, one, other, fill)},
        inputs=(Binding("x", x, (ROWS, COLUMNS), F32),),
        outputs=(Binding("y", y, (2, COLUMNS, COLUMNS), F32),), constants={},
        addresses={"data": 0, "fill": 128, "one": 0, "other": 128, "x": 0, "y": 4 * size},
        body=(
            DmaCopy(dst=whole_tile(data), src=Pattern(x, F32, ((COLUMNS, ROWS), (1, COLUMNS)))),
            Memset(dst=whole_tile(fill), value=2.0),
            Loop("i", 3, (product(one, data), product(other, fill))),
            store(one, 0),
            store(other, 1),
        ),
    )  # fmt: skip
    values = np.random.default_rng(0).integers(-3, 4, (ROWS, COLUMNS)).astype(np.float32)
    host = HostProgram(program)
    assert host.table.waves
    for _ in range(2):
        first, second = host.run({"x": values})["y"]
        assert first.tolist() == (3 * values.T @ values).tolist()
        assert second.tolist() == (6 * values.T @ np.ones_like(values)).tolist()
