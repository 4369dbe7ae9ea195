"""What the Tensor Engine does, against an independent statement of its meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from glia.arch import get_target
from glia.base.affine import Affine
from glia.base.dtype import BF16, F8E4M3, F8E5M2, F16, F32, TF32, U32, DType
from glia.base.errors import InternalError, Unspecified
from glia.isa.examples import chip, examples
from glia.isa.instructions.tensor import NcMatmul, NcTranspose
from glia.isa.instructions.vector import Memset, TensorCopy
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Loop, Program
from glia.machine.legal import verify
from glia.machine.legal_instruction import violations
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.sim.order.concurrent import run_concurrently, streams_of
from glia.sim.policy import Policy, UninitializedRead
from glia.sim.run import Executor, run
from support.isa_bench import Bench, take, wide
from support.isa_cores import program_of, run_together

Array = np.ndarray[Any, Any]
V2, V3, V4 = (get_target(name).arch for name in ("trn1", "trn2", "trn3"))


def product(stationary: Array, moving: Array) -> Array:
    """stationary.T @ moving in float64."""
    rows = len(stationary)
    a, b = (x.astype(np.float64).reshape(rows, -1) for x in (stationary, moving))
    return np.einsum("km,kn->mn", a, b)


@pytest.mark.parametrize("seed", range(4))
def test_nc_matmul_of_mixed_dtypes_and_any_strides(seed: int) -> None:
    bench = Bench(40 + seed)
    rows, columns = (int(bench.random.integers(1, 129)) for _ in range(2))
    first = [BF16, F8E4M3, F16, TF32][seed]
    second = [F8E5M2, BF16, F8E4M3, TF32][seed]
    values = [bench.random.normal(0, 1, (rows, count)) for count in (columns, 3 * seed + 1)]
    if first is TF32:
        values = [narrowed(v) for v in values]
        first = second = F32
    stationary = bench.pattern((rows, columns), first, values=values[0])
    moving = bench.pattern((rows, 3 * seed + 1), second, values=values[1])
    dst = bench.pattern((columns, 3 * seed + 1), memory="PSUM", plain=True)
    wanted = product(wide(bench.value(stationary)), wide(bench.value(moving)))
    after = bench.run(NcMatmul(dst=dst, stationary=stationary, moving=moving))
    np.testing.assert_allclose(take(after[dst.tile.name], dst), wanted, rtol=1e-4, atol=1e-3)


def narrowed(values: Array) -> Array:
    """Values that tf32 holds."""
    return np.round(values * 64) / 64


def test_tf32_operands_lose_bits_beyond_the_tenth() -> None:
    tile = Tile("w", Memory.SBUF, F32, 128, 2)
    full = Pattern(tile, F32, ((1, 1), (1, 2)))
    short = replace(full, dtype=TF32)
    dst = chip("s", 2, 2, memory="PSUM")
    value = np.float32(1 + 2.0**-10 + 2.0**-12)
    results = []
    for operand in (full, short):
        instr = NcMatmul(dst=dst, stationary=operand, moving=operand)
        inputs = {"w": np.full((128, 2), value), "s": np.zeros((128, 2), np.float32)}
        results.append(run_together([program_of(instr)], [inputs])[0]["s"][0, 0])
    assert results[0] == np.float32(float(value) ** 2)
    assert results[1] == np.float32((1 + 2.0**-10) ** 2)


def test_special_values_go_through_the_sums() -> None:
    bench = Bench(45)
    a = np.array([[np.inf, 1.0, 2.0], [1.0, np.nan, 3.0]])
    stationary = bench.pattern((2, 3), F8E5M2, values=a)
    moving = bench.pattern((2, 1), BF16, values=np.array([[2.0], [-1.0]]))
    dst = bench.pattern((3, 1), memory="PSUM", plain=True)
    after = bench.run(NcMatmul(dst=dst, stationary=stationary, moving=moving))
    np.testing.assert_array_equal(take(after[dst.tile.name], dst)[:, 0], [np.inf, np.nan, 1.0])


@pytest.mark.parametrize("formats", [(F8E4M3, F8E5M2), (F8E5M2, F8E5M2)], ids=str)
def test_double_rows_contract_the_first_free_dimension_too(formats: tuple[DType, DType]) -> None:
    bench = Bench(46)
    stationary = bench.pattern((128, 2, 7), formats[0])
    moving = bench.pattern((128, 2, 3, 5), formats[1])
    dst = bench.pattern((7, 15), memory="PSUM", plain=True)
    a, b = wide(bench.value(stationary)), wide(bench.value(moving)).reshape(128, 2, 15)
    wanted = np.zeros((7, 15))
    for k in range(128):
        for row in range(2):
            wanted += np.outer(a[k, row].astype(np.float64), b[k, row].astype(np.float64))
    instr = NcMatmul(dst=dst, stationary=stationary, moving=moving, perf_mode="double_row")
    after = bench.run(instr)
    np.testing.assert_allclose(take(after[dst.tile.name], dst), wanted, rtol=1e-4, atol=1e-3)
    rows = replace(instr, moving=chip("m", 128, 2, 512, dtype=formats[1]))
    assert rows.cycles(V3) == 512  # as long as 128 rows of bfloat16


def test_bfloat16_sums_are_rounded_at_every_step() -> None:
    bench = Bench(47)
    stationary = bench.pattern((3, 4), BF16)
    moving = bench.pattern((3, 5), BF16)
    dst = bench.pattern((4, 5), BF16, memory="PSUM", plain=True)
    exact = product(bench.value(stationary), bench.value(moving)).astype(np.float32)
    wanted = (wide(bench.value(dst)) + exact).astype(ml_dtypes.bfloat16)
    instr = NcMatmul(dst=dst, stationary=stationary, moving=moving, accumulate=True)
    bench.check(instr, dst=wanted)


class Psum:
    """Random programs on one PSUM tile, and what each element must hold after them."""

    WIDTH = 12

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.tile = Tile("p", Memory.PSUM, F32, 128, self.WIDTH)
        self.source = chip("source", 32, self.WIDTH)
        self.value = self.random.integers(-4, 5, (128, self.WIDTH)).astype(np.float32)
        self.inputs = {
            "p": np.zeros((128, self.WIDTH), np.float32),
            "source": self.random.integers(-4, 5, (128, self.WIDTH)).astype(np.float32),
        }
        self.expected: dict[tuple[int, int], tuple[float, bool]] = {
            (row, column): (0.0, False) for row in range(32) for column in range(self.WIDTH)
        }

    def view(self) -> tuple[Pattern, list[tuple[int, int]]]:
        step = int(self.random.integers(1, 3))
        count = int(self.random.integers(1, self.WIDTH // step + 1))
        offset = int(self.random.integers(0, self.WIDTH - step * (count - 1)))
        rows = int(self.random.integers(1, 33))
        pattern = Pattern(self.tile, F32, ((1, rows), (step, count)), Affine.of(offset))
        return pattern, [(r, offset + step * c) for r in range(rows) for c in range(count)]

    def multiply(self, accumulate: bool | None) -> Instr:
        dst, places = self.view()
        columns = dst.free
        stationary = Pattern(self.source.tile, F32, ((1, 32), (0, dst.partitions)))
        moving = Pattern(self.source.tile, F32, ((1, 32), (1, columns)))
        source = self.inputs["source"][:32].astype(np.float64)
        for row, column in places:
            index = places.index((row, column)) % columns
            added = float(source[:, 0] @ source[:, index])
            value, is_sum = self.expected[row, column]
            goes_on = is_sum if accumulate is None else accumulate
            self.expected[row, column] = (value + added if goes_on else added, True)
        return NcMatmul(dst=dst, stationary=stationary, moving=moving, accumulate=accumulate)

    def overwrite(self) -> Instr:
        dst, places = self.view()
        for place in places:
            self.expected[place] = (3.0, False)
        if self.random.random() < 0.5:
            return Memset(dst=dst, value=3.0)
        three = Pattern(chip("three", 32, self.WIDTH).tile, F32, dst.dims)
        self.inputs["three"] = np.full((128, self.WIDTH), 3.0, np.float32)
        return TensorCopy(dst=dst, src=three)

    def check(self, body: list[Instr]) -> None:
        found = run_together([program_of(*body)], [self.inputs])[0]["p"]
        wanted = np.array([[self.expected[r, c][0] for c in range(self.WIDTH)] for r in range(32)])
        np.testing.assert_array_equal(found[:32], wanted)


@pytest.mark.parametrize("seed", range(12))
def test_the_first_product_overwrites_and_later_ones_add_element_by_element(seed: int) -> None:
    psum = Psum(seed)
    body = [psum.multiply(None)]
    for _ in range(9):
        draw = psum.random.random()
        if draw < 0.3:
            body.append(psum.overwrite())
        else:
            body.append(psum.multiply(None if draw < 0.8 else bool(draw < 0.9)))
    psum.check(body)


def test_an_automatic_sum_in_a_loop_starts_anew_only_where_something_else_wrote() -> None:
    a = chip("a", 1, 1)
    p = chip("p", 1, 2, memory="PSUM")
    whole = Pattern(p.tile, F32, ((1, 1), (1, 2)))
    single = Pattern(p.tile, F32, ((1, 1), (1, 1)), Affine.of(1))
    twice = Pattern(a.tile, F32, ((1, 1), (0, 2)))
    step = NcMatmul(dst=whole, stationary=a, moving=twice, accumulate=None)
    body = (Loop("i", 5, (step,)), Memset(dst=single, value=9.0), step)
    inputs = {"a": np.full((128, 1), 2.0, np.float32), "p": np.full((128, 2), 7.0, np.float32)}
    found = run_together([program_of(*body)], [inputs])[0]["p"][0]
    assert found.tolist() == [24.0, 4.0]


def test_tiles_that_follow_each_other_at_one_address_begin_their_own_sums() -> None:
    a, first, second = chip("a", 1, 1), *(chip(n, 1, 1, memory="PSUM") for n in ("p", "q"))
    body = [
        NcMatmul(dst=dst, stationary=a, moving=a, accumulate=None)
        for dst in (first, first, second, second, second, first)
    ]
    tiles = {p.tile.name: p.tile for p in (a, first, second)}
    load = Memset(dst=a, value=1.0)
    addresses = {"p": 0, "q": 0, "a": 0}
    for count, wanted in ((3, 2.0), (4, 1.0), (6, 3.0), (7, 1.0)):
        program = Program("p", "trn2", tiles, (), (), {}, (load, *body[: count - 1]), addresses)
        executor = Executor(program)
        executor.execute()
        assert executor.memories.view(first, {})[0, 0] == wanted


def test_an_automatic_sum_reads_only_what_it_adds_to() -> None:
    a, dst = chip("a", 1, 1), chip("p", 1, 1, memory="PSUM")
    instr = NcMatmul(dst=dst, stationary=a, moving=a, accumulate=None)
    tiles = {"a": a.tile, "p": dst.tile}
    body = (Memset(dst=a, value=2.0), instr, instr)
    executor = Executor(
        Program("p", "trn2", tiles, (), (), {}, body), policy=Policy(check_initialized=True)
    )
    executor.execute()
    assert executor.memories.view(dst, {})[0, 0] == 8.0


def turning(dtype: DType, values: Array, identity: Array, target: str, on: DType) -> Array:
    data = chip("a", *values.shape, dtype=dtype)
    moving = chip("i", *identity.shape, dtype=dtype)
    dst = chip("s", values.shape[1], identity.shape[1], dtype=on, memory="PSUM")
    instr = NcMatmul(dst=dst, stationary=data, moving=moving, is_transpose=True, accumulate=None)
    inputs = {}
    for pattern, given in ((data, values), (moving, identity)):
        full = np.zeros((128, given.shape[1]), dtype.numpy)
        full[: len(given)] = given
        inputs[pattern.tile.name] = full
    inputs["s"] = np.zeros((128, identity.shape[1]), on.numpy)
    after = run_together([program_of(instr, target=target)], [inputs])[0]["s"]
    return after[: values.shape[1], : identity.shape[1]]


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_transpose_mode_keeps_every_bit(dtype: DType) -> None:
    codes = np.random.default_rng(5).integers(0, 1 << dtype.bits, (9, 6), np.uint64)
    values = codes.astype(f"u{dtype.bytes}").view(dtype.numpy)
    found = turning(dtype, values, np.eye(9).astype(dtype.numpy), "trn2", dtype)
    bits = f"u{dtype.bytes}"
    np.testing.assert_array_equal(found.view(bits), values.view(bits).T)


def test_transpose_mode_follows_a_permutation_and_wants_one() -> None:
    values = np.random.default_rng(6).normal(size=(4, 3)).astype(np.float32)
    order = [2, 0, 3, 1]
    permutation = np.eye(4, dtype=np.float32)[:, order]
    np.testing.assert_array_equal(turning(F32, values, permutation, "trn2", F32), values[order].T)
    for wrong in (np.ones((4, 4), np.float32), 2 * permutation, np.zeros((4, 4), np.float32)):
        with pytest.raises(Unspecified, match="no identity matrix"):
            turning(F32, values, wrong, "trn2", F32)


def test_before_generation_3_transposing_spreads_infinities() -> None:
    values = np.array([[1.0, np.inf], [2.0, 3.0]], np.float32)
    spread = np.array([[1.0, 2.0], [np.inf, np.nan]])
    found = turning(BF16, values.astype(BF16.numpy), np.eye(2).astype(BF16.numpy), "trn1", F32)
    np.testing.assert_array_equal(found, spread)
    for target, wanted in (("trn1", spread), ("trn2", values.T)):
        data, dst = chip("a", 2, 2), chip("s", 2, 2, memory="PSUM")
        inputs = {"a": np.zeros((128, 2), np.float32), "s": np.zeros((128, 2), np.float32)}
        inputs["a"][:2] = values
        program = program_of(NcTranspose(dst=dst, data=data), target=target)
        np.testing.assert_array_equal(run_together([program], [inputs])[0]["s"][:2], wanted)


def test_the_vector_engine_turns_integers_bit_by_bit_on_every_generation() -> None:
    data, dst = chip("a", 3, 5, dtype=U32), chip("s", 5, 3, dtype=U32)
    codes = np.random.default_rng(7).integers(0, 2**32, (128, 5), np.uint32)
    inputs = {"a": codes, "s": np.zeros((128, 3), np.uint32)}
    for target in ("trn1", "trn2", "trn3"):
        program = program_of(NcTranspose(dst=dst, data=data, on="vector"), target=target)
        after = run_together([program], [inputs])[0]["s"]
        np.testing.assert_array_equal(after[:5], codes[:3].T)


def test_ones_and_zeros_halve_the_cost_of_float32_and_are_believed_only_if_true() -> None:
    plain = examples()["nc_matmul"]
    assert isinstance(plain, NcMatmul)
    for name in ("is_stationary_onezero", "is_moving_onezero"):
        instr = replace(plain, **{name: True})
        assert 2 * instr.cycles(V3) == plain.cycles(V3)
        operand = name.split("_")[1]
        ones = {p.tile.name: np.ones((128, p.tile.elements), np.float32)
                for _, _, p in instr.operands()}  # fmt: skip
        assert run_together([program_of(instr)], [ones])[0]["sum"][0, 0] == 64
        wrong = {**ones, getattr(plain, operand).tile.name: 2 * ones["a"]}
        with pytest.raises(Unspecified, match=f"{operand} is said to hold ones and zeros"):
            run_together([program_of(instr)], [wrong])
    half = replace(
        plain, stationary=chip("a", 64, 32, dtype=BF16), moving=chip("b", 64, 32, dtype=BF16)
    )
    assert replace(half, is_moving_onezero=True).cycles(V3) == half.cycles(V3)


@pytest.mark.parametrize("arch", [V2, V3], ids=lambda a: a.name)
def test_tiles_of_the_array_are_as_documented(arch: Any) -> None:
    plain = replace(examples()["nc_matmul"], stationary=chip("a", 32, 32), moving=chip("b", 32, 32))
    legal = {
        (row, column, rows, columns)
        for rows in (16, 32, 64, 96, 128)
        for columns in (16, 32, 64, 96, 128)
        for row in range(0, 144, 16)
        for column in range(0, 144, 16)
        if not violations(
            replace(plain, tile_position=(row, column), tile_size=(rows, columns)), arch
        )
    }
    wanted = {
        (row, column, rows, columns)
        for rows in (32, 64, 128)
        for columns in (32, 64, 128)
        for row in range(0, 128, rows)
        for column in range(0, 128, columns)
        if arch is V3 or 32 not in (rows, columns)
    }
    assert legal == wanted


def test_a_tile_of_the_array_changes_no_value() -> None:
    bench = Bench(48)
    stationary, moving = bench.pattern((32, 16), BF16), bench.pattern((32, 9), BF16)
    dst = bench.pattern((16, 9), memory="PSUM", plain=True)
    plain = NcMatmul(dst=dst, stationary=stationary, moving=moving)
    tiled = replace(plain, tile_position=(64, 32), tile_size=(64, 32))
    first, second = (bench.run(instr)[dst.tile.name] for instr in (plain, tiled))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dtype,most", [(F32, 4096), (BF16, 8192)], ids=str)
def test_generation_4_fills_all_of_psum_at_once(dtype: DType, most: int) -> None:
    for columns, is_legal in ((most, True), (most + 1, False)):
        instr = NcMatmul(
            dst=chip("s", 8, columns, dtype=dtype, memory="PSUM"),
            stationary=chip("a", 8, 8, dtype=BF16), moving=chip("b", 8, columns, dtype=BF16),
        )  # fmt: skip
        assert bool(violations(instr, V4)) != is_legal
        assert violations(instr, V3)


def test_a_product_is_added_to_products_only_before_generation_4() -> None:
    a, dst = chip("a", 1, 1), chip("p", 1, 2, memory="PSUM")
    first = Pattern(dst.tile, F32, ((1, 1), (1, 1)))
    twice = Pattern(a.tile, F32, ((1, 1), (0, 2)))
    begin = NcMatmul(dst=first, stationary=a, moving=a)
    add = NcMatmul(dst=dst, stationary=a, moving=twice, accumulate=True)
    clear = (Memset(dst=a, value=1.0), Memset(dst=dst, value=0.0))
    tiles = {"a": a.tile, "p": dst.tile}
    checked = Policy(check_initialized=True)
    for target in ("trn1", "trn2"):
        program = Program("p", target, tiles, (), (), {}, (*clear, begin, add))
        with pytest.raises(UninitializedRead, match="added to 1 elements of dst that hold no"):
            run(program, {}, policy=checked)
        run(program, {})
    run(Program("p", "trn3", tiles, (), (), {}, (*clear, begin, add)), {}, policy=checked)
    both = NcMatmul(dst=dst, stationary=a, moving=twice)
    loop = Loop("i", 3, (replace(both, accumulate=Affine.of("i")),))
    run(Program("p", "trn2", tiles, (), (), {}, (*clear, loop)), {}, policy=checked)


def test_a_product_crosses_banks_only_on_generation_4() -> None:
    columns = 1024
    a, b = chip("a", 8, 8, dtype=BF16), chip("b", 8, columns, dtype=BF16)
    dst = chip("p", 8, columns, memory="PSUM")
    instr = NcMatmul(dst=dst, stationary=a, moving=b)
    tiles = {p.tile.name: p.tile for p in (a, b, dst)}
    verify(Program("p", "trn3", tiles, (), (), {}, (instr,), {"p": 0}))
    half = Pattern(dst.tile, F32, ((1, 8), (1, 512)), Affine.of(256))
    crossing = replace(instr, dst=half, moving=replace(b, dims=((1, 8), (1, 512))))
    with pytest.raises(InternalError, match="more than one bank"):
        verify(Program("p", "trn2", tiles, (), (), {}, (crossing,), {"p": 0}))


def test_transpose_mode_has_a_cost_of_its_own() -> None:
    data, identity = chip("a", 128, 128), chip("i", 128, 128)
    dst = chip("s", 128, 128, memory="PSUM")
    product = NcMatmul(dst=dst, stationary=data, moving=identity)
    turned = replace(product, is_transpose=True)
    assert turned.cycles(V3) == NcTranspose(dst=dst, data=data).cycles(V3) == 256
    assert product.cycles(V3) == product.cycles(V2) == turned.cycles(V2) == 512


def test_double_rows_multiply_twice_as_many_pairs() -> None:
    dst = chip("s", 16, 32, memory="PSUM")
    single = NcMatmul(
        dst=dst, stationary=chip("a", 128, 16, dtype=F8E4M3), moving=chip("b", 128, 32)
    )
    double = replace(
        single, stationary=chip("a", 128, 2, 16, dtype=F8E4M3), moving=chip("b", 128, 2, 32),
        perf_mode="double_row",
    )  # fmt: skip
    assert single.products == 128 * 16 * 32
    assert double.products == 256 * 16 * 32


@pytest.mark.parametrize("seed", range(3))
def test_automatic_sums_are_the_same_in_any_order_of_engines(seed: int) -> None:
    psum = Psum(20 + seed)
    body = [psum.multiply(None)]
    for _ in range(7):
        body.append(psum.overwrite() if psum.random.random() < 0.3 else psum.multiply(None))
    program = insert_semaphores(placed(program_of(*body, target="trn2")))
    expected = run(program, psum.inputs)["p"]
    for order in range(len(streams_of(program))):
        found = run_concurrently(program, psum.inputs, seed=order)["p"]
        np.testing.assert_array_equal(found, expected)


def placed(program: Program) -> Program:
    """The program with its tiles one after the other in each memory."""
    ends, addresses = dict.fromkeys(Memory, 0), {}
    for name, tile in program.tiles.items():
        addresses[name] = ends[tile.memory]
        count = tile.bytes if tile.memory is Memory.HBM else tile.bytes_per_partition
        ends[tile.memory] += -(-count // 64) * 64
    return replace(program, addresses=addresses)
