"""Results written where a later copy takes them change no bit of a result.

Values are small whole numbers, so that sums are exact in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glia.arch.instances import COMPILED_TARGETS
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import Memset, TensorCopy, TensorTensor
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.machine.ir import Binding, Loop, Program, Statement
from glia.sim.host.host_plan import IS_WRITTEN_THERE
from glia.sim.host.host_program import HostProgram
from glia.sim.host.rewriting import byte_boxes, direct_writes, lives
from glia.sim.policy import Policy, StaleRead, UninitializedRead
from glia.sim.run import run
from support.isa_bench import assert_agree

ROWS, COLUMNS, PIECE = 32, 64, 16
BLOCKS = 6  # of the result, each of a tile's size
TILES = {"a": Memory.SBUF, "b": Memory.SBUF, "c": Memory.SBUF, "p": Memory.PSUM}


class Draw:
    """A random program: tiles are written in pieces, read, added to and copied out, in loops."""

    def __init__(self, seed: int, target: str) -> None:
        self._random, self._target = np.random.default_rng(seed), target
        self._tiles = {n: Tile(n, memory, F32, ROWS, COLUMNS) for n, memory in TILES.items()}
        self._left = Tile("left", Memory.SBUF, F32, ROWS, ROWS)
        self._x = Tile("x", Memory.HBM, F32, 1, ROWS * COLUMNS)
        self._y = Tile("y", Memory.HBM, F32, 1, BLOCKS * ROWS * COLUMNS)
        self._full = [n for n in "abc" if self._random.random() < 0.5] or ["a"]  # from the begin
        self._loops = 0

    def program(self) -> Program:
        size = ROWS * COLUMNS
        body: list[Statement] = [
            DmaCopy(dst=whole_tile(self._left), src=Pattern(self._x, F32, ((0, ROWS), (1, ROWS)))),
            *(Memset(dst=whole_tile(self._tiles[n]), value=float(ord(n))) for n in self._full),
            DmaCopy(
                dst=Pattern(self._y, F32, ((size, BLOCKS), (1, size))),
                src=Pattern(self._x, F32, ((0, BLOCKS), (1, size))),
            ),
            *self._statements(3, ()),
        ]
        tiles = {**self._tiles, "left": self._left, "x": self._x, "y": self._y}
        places = {n: 256 * i for i, n in enumerate(n for n in TILES if n != "p")}
        return Program(
            name="direct", target=self._target, tiles=tiles,
            inputs=(Binding("x", self._x, (ROWS, COLUMNS), F32),),
            outputs=(Binding("y", self._y, (BLOCKS * ROWS, COLUMNS), F32),), constants={},
            body=tuple(body), addresses={**places, "p": 0, "left": 768, "x": 0, "y": 8192},
        )  # fmt: skip

    def _statements(self, lives: int, variables: tuple[str, ...]) -> list[Statement]:
        """Lives after each other or mixed, each in a loop or not."""
        found: list[Statement] = []
        for _ in range(lives):
            loop = self._maybe_loop(variables, 0.4)
            life = self._life((*variables, *loop))
            if loop:
                life = [Loop(loop[0], 2, tuple(life))]
            at = len(found)
            for each in reversed(life):
                found.insert(at, each)
                at = int(self._random.integers(at + 1)) if self._random.random() < 0.3 else at
        return found

    def _life(self, variables: tuple[str, ...]) -> list[Statement]:
        """What writes a tile, and what reads that."""
        tile = self._tiles[str(self._random.choice([*TILES]))]
        found: list[Statement] = []
        for _ in range(int(self._random.integers(1, 4))):
            loop = self._maybe_loop(variables, 0.4 if found else 0.2)
            writes: list[Statement] = [self._write(tile, (*variables, *loop), loop)]
            if not found and self._random.random() < 0.6:
                writes = [self._begin(tile)]
            if self._random.random() < 0.3:
                writes.append(self._read(tile, (*variables, *loop)))
            found += [Loop(loop[0], 4, tuple(writes))] if loop else writes
        for _ in range(int(self._random.integers(1, 4))):
            loop = self._maybe_loop(variables, 0.1)
            read = self._read(tile, (*variables, *loop))
            found += [Loop(loop[0], 4, (read,))] if loop else [read]
        return found

    def _maybe_loop(self, variables: tuple[str, ...], likely: float) -> tuple[str, ...]:
        if len(variables) > 1 or self._random.random() > likely:
            return ()
        self._loops += 1
        return (f"i{self._loops}",)

    def _begin(self, tile: Tile) -> Instr:
        """All of a tile, from nothing that it holds."""
        whole = whole_tile(tile)
        if tile.memory is Memory.SBUF and self._random.random() < 0.5:
            return DmaCopy(dst=whole, src=self._in_hbm(self._x, whole, 0, ()))
        return Memset(dst=whole, value=float(self._random.integers(9)))

    def _write(self, tile: Tile, variables: tuple[str, ...], loop: tuple[str, ...]) -> Instr:
        if tile.memory is Memory.PSUM:
            condition: Any = bool(self._random.random() < 0.3)
            if loop and self._random.random() < 0.7:
                condition = Affine.of(loop[0])
            moving = whole_tile(self._some_full())
            return NcMatmul(
                dst=whole_tile(tile), stationary=whole_tile(self._left), moving=moving,
                accumulate=condition,
            )  # fmt: skip
        piece = self._piece(tile, variables)
        kind = self._random.choice(["fill", "load", "add", "more"])
        if kind == "fill":
            return Memset(dst=piece, value=float(self._random.integers(9)))
        if kind == "load":
            return DmaCopy(dst=piece, src=self._in_hbm(self._x, piece, 0, variables))
        other = self._same(self._some_full(), piece)
        data = piece if kind == "more" else other
        return TensorTensor(dst=piece, data1=data, data2=other, op="add")

    def _read(self, tile: Tile, variables: tuple[str, ...]) -> Instr:
        piece = self._piece(tile, variables)
        kind = self._random.choice(["store", "again", "copy"], p=[0.7, 0.1, 0.2])
        block = int(self._random.integers(BLOCKS))
        if kind == "store":
            return DmaCopy(dst=self._in_hbm(self._y, piece, block, variables), src=piece)
        other = self._same(self._some_full(), piece)
        if kind == "again":
            return DmaCopy(dst=other, src=self._in_hbm(self._y, piece, block, variables))
        return TensorCopy(dst=other, src=piece)

    def _piece(self, tile: Tile, variables: tuple[str, ...]) -> Pattern:
        """All of a tile or some of its columns, perhaps other ones in each iteration."""
        if self._random.random() < 0.4:
            return whole_tile(tile)
        if variables and self._random.random() < 0.6:
            start = Affine.of(variables[-1]) * PIECE
        else:
            start = Affine.of(PIECE * int(self._random.integers(COLUMNS // PIECE)))
        return Pattern(tile, F32, ((1, ROWS), (1, PIECE)), start)

    def _some_full(self) -> Tile:
        return self._tiles[str(self._random.choice(self._full))]

    def _same(self, tile: Tile, piece: Pattern) -> Pattern:
        return replace(piece, tile=tile)

    def _in_hbm(
        self, tile: Tile, piece: Pattern, block: int, variables: tuple[str, ...]
    ) -> Pattern:
        """The same columns of a block, or now and then the next block in each iteration."""
        start = piece.offset + block * ROWS * COLUMNS
        if block < BLOCKS // 2 and tile is self._y and variables and self._random.random() < 0.3:
            start += Affine.of(variables[0]) * (ROWS * COLUMNS)
        return Pattern(tile, F32, ((COLUMNS, ROWS), piece.dims[1]), start)


def results(seed: int, target: str) -> Counter[str]:
    """Run a program on both executors; the copies left out. Nothing if it is at fault."""
    program = Draw(seed, target).program()
    inputs = {"x": np.random.default_rng(seed).integers(-2, 3, (ROWS, COLUMNS)).astype(np.float32)}
    try:
        wanted = run(program, inputs, policy=Policy(check_initialized=True))["y"]
    except (StaleRead, UninitializedRead):
        return Counter()
    host = HostProgram(program)
    assert host.run(inputs)["y"].tobytes() == wanted.tobytes(), f"seed {seed}"
    return Counter(
        {name: count for (name, why), count in host.left_out.items() if why == IS_WRITTEN_THERE}
    )


def check_law(seeds: range, target: str) -> None:
    left_out: Counter[str] = Counter()
    for seed in seeds:
        left_out += results(seed, target)
    assert left_out["dma_copy"] > len(seeds) // 10


@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_random_programs_give_the_same_bits(target: str) -> None:
    first = 1000 * COMPILED_TARGETS.index(target)
    check_law(range(first, first + 60), target)


@pytest.mark.nightly
@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_many_random_programs_give_the_same_bits(target: str) -> None:
    first = 10_000 * (1 + COMPILED_TARGETS.index(target))
    check_law(range(first, first + 2000), target)


def _nothing(*_: Any) -> list[byte_boxes.Part]:
    return []


@pytest.mark.parametrize(
    ("owner", "method", "fault"),
    [
        (direct_writes._Mover, "_may_be_early", lambda *_: True),
        (lives.TileLives, "_seen_from_other_iterations", lambda *_: ()),
        (lives.TileLives, "_depth_of_own_sum", lambda tile, _: tile.depth),
        (byte_boxes.ByteBox, "taken_from", _nothing),
    ],
    ids=["whatever comes between", "one iteration", "all begin", "a part is all"],
)
def test_the_law_finds_writes_that_are_too_early(
    owner: Any, method: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, fault)
    with pytest.raises(AssertionError, match="seed"):
        check_law(range(5000, 5300), "trn2")


@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_pieces_that_loops_write_go_where_one_copy_takes_them(target: str) -> None:
    """Sums of four products in a loop, in a loop over pieces, then a copy of all of them."""
    size = ROWS * COLUMNS
    x, y = (Tile(name, Memory.HBM, F32, 1, size) for name in "xy")
    left = Tile("left", Memory.SBUF, F32, ROWS, ROWS)
    right, kept = (Tile(n, Memory.SBUF, F32, ROWS, COLUMNS) for n in ("right", "kept"))
    total = Tile("total", Memory.PSUM, F32, ROWS, PIECE)
    whole = ((COLUMNS, ROWS), (1, COLUMNS))

    def piece(tile: Tile) -> Pattern:
        return Pattern(tile, F32, ((1, ROWS), (1, PIECE)), Affine.of("i") * PIECE)

    product = NcMatmul(
        dst=whole_tile(total), stationary=whole_tile(left), moving=piece(right),
        accumulate=Affine.of("k"),
    )  # fmt: skip
    program = Program(
        name="pieces", target=target,
        tiles={each.name: each for each in (x, y, left, right, kept, total)},
        inputs=(Binding("x", x, (ROWS, COLUMNS), F32),),
        outputs=(Binding("y", y, (ROWS, COLUMNS), F32),), constants={},
        addresses={"left": 0, "right": 256, "kept": 512, "total": 0, "x": 0, "y": 4 * size},
        body=(
            DmaCopy(dst=whole_tile(left), src=Pattern(x, F32, ((COLUMNS, ROWS), (1, ROWS)))),
            DmaCopy(dst=whole_tile(right), src=Pattern(x, F32, whole)),
            Loop("i", COLUMNS // PIECE, (
                Loop("k", 4, (product,)),
                TensorTensor(
                    dst=piece(kept), data1=whole_tile(total), data2=piece(right), op="add"
                ),
            )),
            DmaCopy(dst=Pattern(y, F32, whole), src=whole_tile(kept)),
        ),
    )  # fmt: skip
    values = np.random.default_rng(3).integers(-3, 4, (ROWS, COLUMNS)).astype(np.float32)
    host = HostProgram(program)
    assert host.left_out["dma_copy", IS_WRITTEN_THERE] == 1
    assert (
        host.run({"x": values})["y"].tolist() == (4 * values[:, :ROWS].T @ values + values).tolist()
    )
    assert_agree(host.run({"x": values}), run(program, {"x": values}))
