"""Random numbers: the generators against the published recurrence, and what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.arch import get_target
from glia.base.dtype import BF16, F16, F32, S8, S16, S32, U8, U16, U32, DType
from glia.isa.instructions.random import (
    GENERATORS,
    Dropout,
    Rand2,
    RandGetState,
    RandSetState,
    Rng,
    SetRngSeed,
    seeded,
)
from glia.isa.instructions.vector import Memset
from glia.sim.engine_state import EngineStates
from glia.sim.run import run
from support.isa_bench import FLOATS, Bench, take, wide

Array = np.ndarray[Any, Any]
WORDS = {"vector": 24, "gpsimd": 6}
MASK = 0xFFFFFFFF


def xorwow(words: list[int]) -> int:
    """The next number of one generator; `words` (x, y, z, w, v, counter) change in place."""
    x, y, z, w, v, counter = words
    t = x ^ (x >> 2)
    new = (v ^ (v << 4)) ^ (t ^ (t << 1))
    words[:] = [y, z, w, v, new & MASK, (counter + 362437) & MASK]
    return (words[4] + words[5]) & MASK


def numbers_of(state: Array, count: int) -> tuple[Array, Array]:
    """(`count` numbers of every lane, the state after them): a lane's generators take turns."""
    numbers, after = [], []
    for lane in state.tolist():
        generators = [lane[start : start + 6] for start in range(0, len(lane), 6)]
        numbers.append([xorwow(generators[i % len(generators)]) for i in range(count)])
        after.append([word for generator in generators for word in generator])
    return np.array(numbers, np.uint32), np.array(after, np.uint32)


def splitmix(number: int) -> int:
    """The finaliser of the SplitMix64 generator."""
    mask = 2**64 - 1
    z = number * 0x9E3779B97F4A7C15 & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


@pytest.mark.parametrize("seed", [0, 1, 77, 2**32 - 1])
def test_a_seed_expands_to_the_same_words_for_ever(seed: int) -> None:
    numbers = [splitmix((seed << 32) + 1 + i) >> 32 for i in range(4 * 24)]
    assert seeded(seed, 4, 24).reshape(-1).tolist() == [max(number, 1) for number in numbers]


def test_generators_start_as_from_seed_0() -> None:
    assert GENERATORS.start is not None
    np.testing.assert_array_equal(GENERATORS.start(4, 6), seeded(0, 4, 6))


def lanes(bench: Bench, on: str) -> tuple[Any, Array]:
    state = bench.pattern((6, WORDS[on]), U32)
    return state, bench.value(state)


@pytest.mark.parametrize("on", ["vector", "gpsimd"])
@pytest.mark.parametrize("dtype", [S8, S16, S32, U8, U16, U32], ids=str)
def test_rng_gives_the_low_bits_of_the_numbers_of_its_engine(on: str, dtype: DType) -> None:
    bench = Bench(1, starts=(32,))
    state, words = lanes(bench, on)
    out, left = bench.pattern((6, 3, 7), dtype), bench.pattern((6, WORDS[on]), U32)
    program = (
        RandSetState(seeds=state, on=on),
        Rng(dst=out, on=on),
        RandGetState(dst=left, on=on),
    )
    expected, after = numbers_of(words, 21)
    mask = (1 << dtype.bits) - 1
    low = (expected & mask).astype(f"u{dtype.bytes}").view(dtype.numpy)
    numbers, kept = bench.results(program, out, left)
    np.testing.assert_array_equal(numbers.reshape(6, 21), low)
    np.testing.assert_array_equal(kept, after)


def test_numbers_go_on_where_the_last_instruction_ended() -> None:
    bench = Bench(2, starts=(32,))
    state, words = lanes(bench, "vector")
    outs = [bench.pattern((6, count), U32) for count in (3, 6, 1)]
    program = (RandSetState(seeds=state, on="vector"), *(Rng(dst=out) for out in outs))
    for drawn in bench.results(program, *outs):
        expected, words = numbers_of(words, drawn.shape[1])
        np.testing.assert_array_equal(drawn, expected)


def test_numbers_go_on_from_one_run_of_a_program_to_the_next() -> None:
    bench = Bench(11, starts=(32,))
    out, longer = bench.pattern((6, 4), U32), bench.pattern((6, 8), U32)
    states = EngineStates(get_target("trn3").arch)
    program = bench.program(Rng(dst=out))
    runs = [run(program, bench.contents, states=states)[out.tile.name] for _ in "ab"]
    expected = bench.results(Rng(dst=longer), longer)[0]
    np.testing.assert_array_equal(
        np.concatenate([take(each, out) for each in runs], axis=1), expected
    )


def test_vector_and_gpsimd_have_generators_of_their_own() -> None:
    bench = Bench(3, starts=(32,))
    states = [lanes(bench, on) for on in WORDS]
    first, between, last = (bench.pattern((6, 9), U32) for _ in range(3))
    program = (
        *(RandSetState(seeds=s, on=on) for (s, _), on in zip(states, WORDS, strict=True)),
        Rng(dst=first, on="gpsimd"),
        Rng(dst=between, on="vector"),
        Rng(dst=last, on="gpsimd"),
    )
    expected = numbers_of(states[1][1], 9)
    drawn = bench.results(program, first, between, last)
    np.testing.assert_array_equal(drawn[0], expected[0])
    np.testing.assert_array_equal(drawn[1], numbers_of(states[0][1], 9)[0])
    np.testing.assert_array_equal(drawn[2], numbers_of(expected[1], 9)[0])


@pytest.mark.parametrize("dtype", [U32, S32, F32], ids=str)
def test_a_seed_repeats_its_numbers_and_another_gives_others(dtype: DType) -> None:
    bench = Bench(4)
    bits = np.array([[7], [8]], np.uint32).view(dtype.numpy)
    seeds = [bench.pattern((1, 1), dtype, values=bits[i : i + 1]) for i in (0, 1, 0)]
    outs = [bench.pattern((128, 20), U32) for _ in seeds]
    program = tuple(
        instr
        for seed, out in zip(seeds, outs, strict=True)
        for instr in (SetRngSeed(seed=seed), Rng(dst=out))
    )
    first, other, again = bench.results(program, *outs)
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.99
    assert len(np.unique(first)) > 0.99 * first.size, "lanes must differ"


def test_generators_that_nobody_seeded_give_numbers_too() -> None:
    bench = Bench(5)
    out = bench.pattern((128, 16), U32)
    drawn = bench.results(Rng(dst=out), out)[0]
    assert len(np.unique(drawn)) > 2000


@pytest.mark.parametrize("dtype", [*FLOATS, S8, U16], ids=str)
def test_rand2_is_uniform_between_its_bounds(dtype: DType) -> None:
    bench = Bench(6, starts=(32,))
    state, words = lanes(bench, "vector")
    low = bench.pattern((6, 1), values=np.arange(6.0)[:, None])
    out = bench.pattern((6, 2, 5), dtype)
    program = (RandSetState(seeds=state, on="vector"), Rand2(dst=out, low=low, high=90.0))
    fraction = (numbers_of(words, 10)[0] >> 8) / 2.0**24
    expected = bench.value(low) + (90 - bench.value(low)) * fraction.astype(np.float32)
    drawn = bench.results(program, out)[0].astype(np.float64).reshape(6, 10)
    step = 0.5 if dtype.is_integer else 0.3 if dtype is BF16 else 0.04 if dtype is F16 else 1e-4
    np.testing.assert_allclose(drawn, expected, atol=step)


def test_rand2_fills_its_interval_evenly() -> None:
    bench = Bench(7)
    out = bench.pattern((128, 100))
    drawn = bench.results(Rand2(dst=out, low=-1.0, high=3.0), out)[0]
    assert drawn.min() >= -1 and drawn.max() <= 3
    counts = np.histogram(drawn, bins=8, range=(-1, 3))[0]
    assert np.abs(counts / drawn.size - 1 / 8).max() < 0.02


@pytest.mark.parametrize("dtype", [*FLOATS, S32, U8], ids=str)
def test_dropout_of_probability_0_keeps_every_bit_and_of_1_none(dtype: DType) -> None:
    bench = Bench(8)
    data, out = bench.pattern((6, 3, 4), dtype), bench.pattern((6, 12), dtype)
    bench.check(Dropout(dst=out, data=data, probability=0.0), dst=bench.value(data))
    bench.check(Dropout(dst=out, data=data, probability=1.0), dst=np.zeros((6, 12), dtype.numpy))


@pytest.mark.parametrize("dtype", [F32, BF16, S16], ids=str)
def test_dropout_drops_each_partition_with_its_own_probability(dtype: DType) -> None:
    bench = Bench(9, starts=(32,))
    state, words = lanes(bench, "vector")
    probability = bench.pattern((6, 1), values=np.array([[0.0, 0.2, 0.5, 0.7, 0.9, 1.0]]).T)
    values = 1 + bench.random.integers(0, 90, (6, 40))
    data, out = bench.pattern((6, 40), dtype, values=values), bench.pattern((6, 40), dtype)
    program = (
        RandSetState(seeds=state, on="vector"),
        Memset(dst=out, value=5),
        Dropout(dst=out, data=data, probability=probability),
    )
    kept = (numbers_of(words, 40)[0] >> 8) / 2.0**24 >= bench.value(probability)
    expected = np.where(kept, wide(bench.value(data)), 0)
    np.testing.assert_array_equal(wide(bench.results(program, out)[0]), expected)


def test_a_probability_of_0_drops_not_even_at_the_least_number() -> None:
    bench = Bench(11, starts=(32,))
    words = np.zeros((2, 24), np.uint32)
    words[:, 5] = 2**32 - 362437  # the first number is 0
    state = bench.pattern((2, 24), U32, values=words)
    data, out = bench.pattern((2, 1), values=np.ones((2, 1))), bench.pattern((2, 1))
    seeding = RandSetState(seeds=state, on="vector")
    drop = Dropout(dst=out, data=data, probability=0.0)
    assert bench.results((seeding, drop), out)[0].tolist() == [[1.0], [1.0]]


def test_dropout_converts_floats() -> None:
    bench = Bench(10)
    data, out = bench.pattern((6, 9), F32), bench.pattern((6, 9), BF16)
    bench.check(Dropout(dst=out, data=data, probability=0.0), dst=bench.value(data))
