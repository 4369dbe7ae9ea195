"""Random bits are those of the published generators, for every seed, dtype and target."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import glia
from support.targets import CORES

DTYPES = ("uint8", "uint16", "uint32", "uint64")
WORD = 0xFFFFFFFF
SEED = (0x0123456789ABCDEF, 0x00000001FFFFFFFE)  # the counter's low word overflows soon
ALGORITHMS = {
    "default": lax.RandomAlgorithm.RNG_DEFAULT,
    "philox": lax.RandomAlgorithm.RNG_PHILOX,
    "three_fry": lax.RandomAlgorithm.RNG_THREE_FRY,
}


def rotated(x: int, by: int) -> int:
    return (x << by | x >> (32 - by)) & WORD


def three_fry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """ThreeFry 2x32 with 20 rounds (Salmon and others, Parallel random numbers, SC 2011)."""
    schedule = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    a, b = ((c + k) & WORD for c, k in zip(counter, schedule, strict=False))
    for turn in range(20):
        a = (a + b) & WORD
        b = rotated(b, (13, 15, 26, 6, 17, 29, 16, 24)[turn % 8]) ^ a
        if turn % 4 == 3:
            step = turn // 4 + 1
            a = (a + schedule[step % 3]) & WORD
            b = (b + schedule[(step + 1) % 3] + step) & WORD
    return a, b


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Philox 4x32 with 10 rounds (the same paper)."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & WORD, (left >> 32) ^ c3 ^ k1, left & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


def test_the_generators_above_give_the_published_answers() -> None:
    """Known answers of the authors' library, for zeros and for ones."""
    assert three_fry((0, 0), (0, 0)) == (0x6B200159, 0x99BA4EFE)
    assert three_fry((WORD, WORD), (WORD, WORD)) == (0x1CB996FC, 0xBB002BE7)
    zeros = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert philox((0, 0), (0, 0, 0, 0)) == zeros
    assert philox((WORD, WORD), (WORD,) * 4) == ones


def words(x: int) -> tuple[int, int]:
    return x & WORD, x >> 32 & WORD


def published(algorithm: str, count: int) -> list[int]:
    """The first 32-bit words for SEED: its first number is the key, its second the counter."""
    key, start = words(SEED[0]), SEED[1]
    found: list[int] = []
    for block in range(count):
        if algorithm == "three_fry":
            found += three_fry(key, words((start + block) % 2**64))
        else:
            total = start + block
            high = (SEED[0] + (total >> 64)) % 2**64
            found += philox(key, (*words(total % 2**64), *words(high)))
    return found[:count]


@cache
def compiled(algorithm: str, dtype: str, shape: tuple[int, ...], target: str) -> Any:
    with jax.enable_x64(True):
        module = jax.jit(
            lambda key: lax.rng_bit_generator(
                key, shape, dtype=jnp.dtype(dtype), algorithm=ALGORITHMS[algorithm]
            )
        ).lower(jax.ShapeDtypeStruct((2,), "uint64"))
        return glia.load(glia.compile(module, target=target))


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("algorithm", ["philox", "three_fry"])
def test_bits_of_a_seed_are_the_published_ones(algorithm: str, target: str) -> None:
    _, bits = compiled(algorithm, "uint32", (24,), target)(np.array(SEED, np.uint64))
    kind = "three_fry" if algorithm == "three_fry" else "philox"
    assert bits.tolist() == published(kind, 24)


def check_against_xla(algorithm: str, dtype: str, shape: tuple[int, ...], target: str) -> None:
    seed = np.array(SEED, np.uint64)
    with jax.enable_x64(True):
        wanted = lax.rng_bit_generator(
            jnp.asarray(seed), shape, dtype=jnp.dtype(dtype), algorithm=ALGORITHMS[algorithm]
        )
        state, bits = (np.asarray(each) for each in wanted)
    found = compiled(algorithm, dtype, shape, target)(seed)
    np.testing.assert_array_equal(found[0], state)
    np.testing.assert_array_equal(found[1], bits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ["default", "three_fry"])
def test_every_dtype_has_the_bits_of_xla(algorithm: str, dtype: str) -> None:
    check_against_xla(algorithm, dtype, (6,), "trn1")


@pytest.mark.nightly
@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_dtype_has_the_bits_of_xla_on_every_target(
    algorithm: str, dtype: str, target: str
) -> None:
    check_against_xla(algorithm, dtype, (3, 5), target)


@pytest.mark.parametrize("algorithm", ["philox", "three_fry"])
def test_another_seed_gives_other_bits(algorithm: str) -> None:
    model = compiled(algorithm, "uint32", (24,), "trn2")
    bits = [model(np.array([seed, 0], np.uint64))[1].tolist() for seed in (0, 1, 2**63)]
    assert bits[0] != bits[1] != bits[2] != bits[0]
    again = model(np.array([1, 0], np.uint64))[1].tolist()
    assert again == bits[1]


def test_the_state_goes_on_where_it_ended() -> None:
    model = compiled("philox", "uint32", (24,), "trn2")
    seed = np.array([7, 0], np.uint64)
    state, first = model(seed)
    _, second = model(state)
    long = compiled("philox", "uint32", (48,), "trn2")(seed)[1]
    np.testing.assert_array_equal(np.concatenate([first, second]), long)
