"""Copies that the host leaves out change no bit of a result."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import glia.sim.host.rewriting.forwarding as forwarding
from glia.arch.instances import COMPILED_TARGETS
from glia.base.affine import Affine
from glia.base.dtype import BF16, F32, DType
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.tensor import NcMatmul, NcTranspose
from glia.isa.instructions.vector import Memset, TensorCopy, TensorTensor
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.machine.ir import Binding, Loop, Program, Statement
from glia.sim.host.host_plan import IS_READ_THROUGH
from glia.sim.host.host_program import HostProgram
from glia.sim.policy import Policy, StaleRead, UninitializedRead
from glia.sim.run import run
from support import machine_programs
from support.isa_bench import assert_agree

ROWS, COLUMNS = 32, 64
EXTENTS = (8, 16, 32)
ADDRESSES = {"t0": 0, "t1": 256, "t2": 512, "t3": 768, "t4": 1024, "t5": 1024}  # the last share


class Draw:
    """A random program over tiles of one shape: copies, transposes, sums and fills, in loops."""

    def __init__(self, seed: int, dtype: DType, target: str) -> None:
        self._random, self._dtype, self._target = np.random.default_rng(seed), dtype, target
        self._tiles = {n: Tile(n, Memory.SBUF, dtype, ROWS, COLUMNS) for n in ADDRESSES}
        self.x = Tile("x", Memory.HBM, dtype, 1, ROWS * COLUMNS)
        self.y = Tile("y", Memory.HBM, dtype, 1, ROWS * COLUMNS)
        self._loops = 0
        self._written: list[Pattern] = []

    def program(self) -> Program:
        """The program; its result is what it wrote of `y`, first `x`."""
        whole = ((COLUMNS, ROWS), (1, COLUMNS))
        everything = self._in_hbm(self.x, whole)
        body: list[Statement] = [DmaCopy(dst=self._in_hbm(self.y, whole), src=everything)]
        for tile in self._tiles.values():
            if not self._written or self._random.random() < 0.5:
                pattern = Pattern(tile, self._dtype, ((1, ROWS), (1, COLUMNS)))
                body.append(DmaCopy(dst=pattern, src=everything))
                self._written.append(pattern)
        body += self._statements(12, ())
        tiles = {**self._tiles, "x": self.x, "y": self.y}
        size = self.x.bytes
        return Program(
            name="copies", target=self._target, tiles=tiles,
            inputs=(Binding("x", self.x, (ROWS, COLUMNS), self._dtype),),
            outputs=(Binding("y", self.y, (ROWS, COLUMNS), self._dtype),),
            constants={}, body=tuple(body), addresses={**ADDRESSES, "x": 0, "y": size},
        )  # fmt: skip

    def _statements(self, count: int, variables: tuple[str, ...]) -> list[Statement]:
        found: list[Statement] = []
        for _ in range(count):
            if len(variables) < 2 and self._random.random() < 0.15:
                self._loops += 1
                name = f"i{self._loops}"
                before = len(self._written)
                inner = tuple(self._statements(4, (*variables, name)))
                self._written[before:] = [
                    self._of_iteration(each, name) for each in self._written[before:]
                ]
                found.append(Loop(name, 2, inner))
            else:
                found.append(self._instruction(variables))
        return found

    def _of_iteration(self, written: Pattern, variable: str) -> Pattern:
        """What one iteration of a loop wrote."""
        at = {variable: int(self._random.integers(2))}
        start = written.offset.substitute(at), written.partition.substitute(at)
        return replace(written, offset=start[0], partition=start[1])

    def _instruction(self, variables: tuple[str, ...]) -> Instr:
        kind = self._random.choice(
            ["load", "turned", "copy", "move", "store", "add", "fill"],
            p=[0.15, 0.15, 0.2, 0.1, 0.3, 0.05, 0.05],
        )
        if kind in ("load", "turned", "fill"):
            written = self._new(*self._random.choice(EXTENTS, 2).tolist(), variables)
            if kind == "fill":
                return Memset(dst=written, value=float(self._random.integers(9)))
            steps = (COLUMNS, 1) if kind == "load" else (1, COLUMNS // 2)
            return DmaCopy(dst=written, src=self._hbm_like(self.x, written, steps, variables))
        read = self._recent()
        if kind == "store":
            return DmaCopy(dst=self._hbm_like(self.y, read, (COLUMNS, 1), variables), src=read)
        written = self._new(*read.shape, variables)
        if kind == "add":
            return TensorTensor(dst=written, data1=read, data2=read, op="add")
        return (TensorCopy if kind == "copy" else DmaCopy)(dst=written, src=read)

    def _recent(self) -> Pattern:
        """Some of what was written not long ago."""
        written = self._written[-1 - int(self._random.integers(min(4, len(self._written))))]
        rows, columns = (
            int(self._random.choice([each for each in EXTENTS if each <= extent]))
            for extent in written.shape
        )
        return replace(written, dims=((1, rows), (1, columns)))

    def _new(self, rows: int, columns: int, variables: tuple[str, ...]) -> Pattern:
        """Somewhere on chip, to be written."""
        tile = self._tiles[str(self._random.choice([*self._tiles]))]
        pattern = Pattern(
            tile, self._dtype, ((1, rows), (1, columns)),
            self._start(COLUMNS - columns, variables), self._start(ROWS - rows, variables),
        )  # fmt: skip
        self._written.append(pattern)
        return pattern

    def _hbm_like(
        self, tile: Tile, other: Pattern, steps: tuple[int, int], variables: tuple[str, ...]
    ) -> Pattern:
        dims = tuple(zip(steps, other.shape, strict=True))
        return self._in_hbm(tile, dims, variables)

    def _in_hbm(
        self, tile: Tile, dims: tuple[tuple[int, int], ...], variables: tuple[str, ...] = ()
    ) -> Pattern:
        reach = sum(step * (count - 1) for step, count in dims)
        return Pattern(tile, self._dtype, dims, self._start(tile.elements - 1 - reach, variables))

    def _start(self, most: int, variables: tuple[str, ...]) -> Affine:
        """Where a pattern begins: a multiple of 8, or with a loop's variable."""
        start = Affine.of(8 * int(self._random.integers(most // 8 + 1)))
        if variables and most >= 8 and self._random.random() < 0.4:
            return Affine.of(str(self._random.choice(variables))) * 8
        return start


def results(seed: int, dtype: DType, target: str) -> Counter[str]:
    """Run a program on both executors; what was left out. Nothing if it is at fault."""
    program = Draw(seed, dtype, target).program()
    random = np.random.default_rng(seed)
    inputs = {"x": random.standard_normal((ROWS, COLUMNS), np.float32).astype(dtype.numpy)}
    try:
        wanted = run(program, inputs, policy=Policy(check_initialized=True))["y"]
    except (StaleRead, UninitializedRead):
        return Counter()
    host = HostProgram(program)
    assert host.run(inputs)["y"].tobytes() == wanted.tobytes(), f"seed {seed}"
    return Counter({name: count for (name, _), count in host.left_out.items()})


def check_law(seeds: range, dtype: DType, target: str) -> None:
    left_out: Counter[str] = Counter()
    for seed in seeds:
        left_out += results(seed, dtype, target)
    assert left_out["dma_copy"] > len(seeds) // 2
    assert dtype is BF16 or left_out["tensor_copy"] > len(seeds) // 16


@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_random_programs_give_the_same_bits(target: str, dtype: DType) -> None:
    first = 1000 * COMPILED_TARGETS.index(target)
    check_law(range(first, first + 40), dtype, target)


@pytest.mark.nightly
@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_many_random_programs_give_the_same_bits(target: str, dtype: DType) -> None:
    first = 10_000 * (1 + COMPILED_TARGETS.index(target))
    check_law(range(first, first + 1000), dtype, target)


@pytest.mark.parametrize("method", ["write", "forget"])
def test_the_law_finds_moves_that_reach_too_far(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: what is written, or the end of a block, ends no move."""
    monkeypatch.setattr(forwarding._Reaching, method, lambda *_: None)
    with pytest.raises(AssertionError, match="seed"):
        check_law(range(5000, 5200), F32, "trn2")


def test_what_a_later_iteration_overwrites_is_read_as_it_became(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop copies to columns 8 to 15 and 16 to 23, and fills the 8 columns before these."""
    x, y = (Tile(name, Memory.HBM, F32, 1, ROWS * COLUMNS) for name in "xy")
    tile, result = (Tile(name, Memory.SBUF, F32, ROWS, COLUMNS) for name in ("a", "b"))
    columns = ((1, ROWS), (1, 8))
    copied = Pattern(tile, F32, columns, Affine.of("i") * 8 + 8)
    filled = replace(copied, offset=Affine.of("i") * 8)
    kept = replace(copied, offset=Affine.of(8))
    program = Program(
        name="overwritten", target="trn2", tiles={each.name: each for each in (x, y, tile, result)},
        inputs=(Binding("x", x, (ROWS, COLUMNS), F32),),
        outputs=(Binding("y", y, (ROWS, COLUMNS), F32),), constants={},
        addresses={"a": 0, "b": 256, "x": 0, "y": x.bytes},
        body=(
            Loop("i", 2, (
                DmaCopy(dst=copied, src=Pattern(x, F32, ((COLUMNS, ROWS), (1, 8)))),
                Memset(dst=filled, value=5.0),
            )),
            TensorTensor(
                dst=replace(kept, tile=result), data1=kept, data2=kept, op="add"
            ),
            DmaCopy(dst=Pattern(y, F32, ((COLUMNS, ROWS), (1, 8))), src=replace(kept, tile=result)),
        ),
    )  # fmt: skip
    inputs = {"x": np.ones((ROWS, COLUMNS), np.float32)}
    assert set(HostProgram(program).run(inputs)["y"][:, :8].ravel()) == {10.0}
    monkeypatch.setattr(forwarding, "are_apart", lambda *_: True)
    assert set(HostProgram(program).run(inputs)["y"][:, :8].ravel()) == {2.0}


@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_what_a_loop_turned_is_read_where_it_was(target: str) -> None:
    """Pieces that a loop transposes through PSUM, for products in a later loop over them."""
    pieces, rows = 4, 32
    x = Tile("x", Memory.HBM, F32, 1, pieces * rows * rows)
    y = Tile("y", Memory.HBM, F32, 1, pieces * rows * rows)
    data, turned = (Tile(name, Memory.SBUF, F32, rows, pieces * rows) for name in ("a", "b"))
    held, total = (Tile(name, Memory.PSUM, F32, rows, rows) for name in ("p", "q"))
    result = Tile("c", Memory.SBUF, F32, rows, rows)

    def piece(tile: Tile, variable: str) -> Pattern:
        return Pattern(tile, F32, ((1, rows), (1, rows)), Affine.of(variable) * rows)

    def in_hbm(tile: Tile, variable: str) -> Pattern:
        return Pattern(tile, F32, ((pieces * rows, rows), (1, rows)), Affine.of(variable) * rows)

    whole = Pattern(x, F32, ((pieces * rows, rows), (1, pieces * rows)))
    program = Program(
        name="pieces", target=target,
        tiles={each.name: each for each in (x, y, data, turned, held, total, result)},
        inputs=(Binding("x", x, (rows, pieces * rows), F32),),
        outputs=(Binding("y", y, (rows, pieces * rows), F32),), constants={},
        addresses={"a": 0, "b": 512, "c": 1024, "p": 0, "q": 128, "x": 0, "y": x.bytes},
        body=(
            DmaCopy(dst=whole_tile(data), src=whole),
            TensorTensor(dst=whole_tile(data), data1=whole_tile(data), data2=whole_tile(data),
                         op="add"),
            Loop("i", pieces, (
                NcTranspose(dst=whole_tile(held), data=piece(data, "i")),
                TensorCopy(dst=piece(turned, "i"), src=whole_tile(held)),
            )),
            Loop("j", pieces, (
                NcMatmul(dst=whole_tile(total), stationary=piece(turned, "j"),
                         moving=piece(data, "j"), accumulate=False),
                TensorCopy(dst=whole_tile(result), src=whole_tile(total)),
                DmaCopy(dst=in_hbm(y, "j"), src=whole_tile(result)),
            )),
        ),
    )  # fmt: skip
    values = np.random.default_rng(4).integers(-3, 4, (rows, pieces * rows)).astype(np.float32)
    host = HostProgram(program)
    is_move = target not in ("trn1", "trn1n", "inf2")  # there data decide what a transpose does
    assert (("nc_transpose", IS_READ_THROUGH) in host.left_out) == is_move
    wanted = [4 * values[:, at : at + rows] @ values[:, at : at + rows] for at in range(0, 128, 32)]
    assert host.run({"x": values})["y"].tolist() == np.concatenate(wanted, 1).tolist()


def test_a_source_whose_bytes_go_to_another_tile_is_not_read_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    y = Tile("y", Memory.HBM, F32, 1, ROWS * COLUMNS)
    dims = ((COLUMNS, ROWS), (1, COLUMNS))
    first, copy, other, total = (
        whole_tile(Tile(name, Memory.SBUF, F32, ROWS, COLUMNS)) for name in "abcd"
    )
    program = Program(
        name="reused", target="trn2",
        tiles={tile.name: tile for tile in (y, *(p.tile for p in (first, copy, other, total)))},
        inputs=(), outputs=(Binding("y", y, (ROWS, COLUMNS), F32),), constants={},
        addresses={"a": 0, "b": 256, "c": 0, "d": 512, "y": 0},
        body=(
            Memset(dst=first, value=7.0),
            TensorCopy(dst=copy, src=first),
            Memset(dst=other, value=1.0),
            TensorTensor(dst=total, data1=other, data2=copy, op="add"),
            DmaCopy(dst=Pattern(y, F32, dims), src=total),
        ),
    )  # fmt: skip
    assert set(HostProgram(program).run({})["y"].ravel()) == {8.0}
    monkeypatch.setattr(forwarding._Reaching, "touch", lambda *_: None)
    assert set(HostProgram(program).run({})["y"].ravel()) == {2.0}


@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_a_product_of_a_turned_matrix_copies_nothing_but_its_result(target: str) -> None:
    program = machine_programs.matmul(256, 256, 512)
    inputs = {
        b.name: np.random.default_rng(1).standard_normal(b.shape, np.float32)
        for b in program.inputs
    }
    host = HostProgram(program)
    assert host.left_out == {
        ("dma_copy", IS_READ_THROUGH): 2,
        ("tensor_copy", IS_READ_THROUGH): 1,
    }
    assert_agree(host.run(inputs), run(program, inputs))


def test_a_transpose_that_data_decides_is_made() -> None:
    """On generation 2 it is a product, in which an infinity spreads over a row of the result."""
    x, y = Tile("x", Memory.HBM, F32, 1, 128), Tile("y", Memory.HBM, F32, 1, 64)
    a, c = Tile("a", Memory.SBUF, F32, 2, 64), Tile("c", Memory.SBUF, F32, 64, 1)
    turned = Tile("p", Memory.PSUM, F32, 64, 2)
    column = Pattern(turned, F32, ((1, 64), (1, 1)), Affine.of(1))
    program = Program(
        name="turned", target="trn1", tiles={each.name: each for each in (x, y, a, c, turned)},
        inputs=(Binding("x", x, (2, 64), F32),), outputs=(Binding("y", y, (64,), F32),),
        constants={}, addresses={"a": 0, "p": 0, "c": 256, "x": 0, "y": 512},
        body=(
            DmaCopy(dst=whole_tile(a), src=Pattern(x, F32, ((64, 2), (1, 64)))),
            NcTranspose(dst=whole_tile(turned), data=whole_tile(a)),
            TensorCopy(dst=whole_tile(c), src=column),
            DmaCopy(dst=Pattern(y, F32, ((1, 64), (1, 1))), src=whole_tile(c)),
        ),
    )  # fmt: skip
    values = np.arange(128, dtype=np.float32).reshape(2, 64)
    values[0, 3] = np.inf
    wanted = run(program, {"x": values})["y"]
    assert np.isnan(wanted).tolist() == [index == 3 for index in range(64)]
    host = HostProgram(program)
    assert host.run({"x": values})["y"].tobytes() == wanted.tobytes()
    assert ("nc_transpose", IS_READ_THROUGH) not in host.left_out
