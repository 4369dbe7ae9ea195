"""Random numbers: the generators in the Vector and GpSimd Engines, what seeds and what reads them.

Documented is a XORWOW generator with 6 words of state in every GpSimd lane and 24 in every Vector
lane. The order of the words, what a seed expands to, and the numbers before any seed are not; they
are fixed here, so that programs repeat, and are not those of the hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from glia.arch import generations_from
from glia.base.dtype import (
    BF16,
    F8E4M3,
    F8E5M2,
    F16,
    F32,
    S8,
    S16,
    S32,
    TF32,
    U8,
    U16,
    U32,
)
from glia.isa.cost import stream_cycles
from glia.isa.examples import chip
from glia.isa.kit import Array, Instr, Rule, State, engine_state, reads, writes
from glia.isa.operand import Pattern
from glia.isa.rules import (
    FLOATS,
    column,
    dtypes,
    operand,
    same_elements,
)

if TYPE_CHECKING:
    from glia.arch import Arch

RNG = "NKI nki.isa.rng"
SEED = "NKI nki.isa.set_rng_seed"
SET_STATE = "NKI nki.isa.rand_set_state"
GET_STATE = "NKI nki.isa.rand_get_state"
RAND2 = "NKI nki.isa.rand2"
DROPOUT = "NKI nki.isa.dropout"
WORDS = {"vector": 24, "gpsimd": 6}  # in each lane
RANDOM_FLOATS = (F8E4M3, F8E5M2, F16, BF16, F32, TF32)
RANDOM_INTEGERS = (S8, S16, S32, U8, U16, U32)
NUMBERS_ASSUMED = (
    "the words of a XORWOW generator are x, y, z, w, v and the counter, as in Marsaglia's paper; "
    "a Vector lane has four generators, one after the other, which give its numbers in turn"
)

_WEYL = np.uint32(362437)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix64(numbers: Array) -> Array:
    """The SplitMix64 finaliser: 64 well mixed bits of each 64-bit number."""
    z = numbers * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def seeded(seed: int, lanes: int, words: int) -> Array:
    """The generators' state [lanes, words] that a 32-bit seed gives; never all zero."""
    first = (np.uint64(seed) << np.uint64(32)) + np.uint64(1)
    numbers = first + np.arange(lanes * words, dtype=np.uint64)
    state = (_splitmix64(numbers) >> np.uint64(32)).astype(np.uint32)
    return np.maximum(state, np.uint32(1)).reshape(lanes, words)


def _seeded_with_zero(lanes: int, words: int) -> Array:
    return seeded(0, lanes, words)


GENERATORS = State("generators", U32, WORDS, start=_seeded_with_zero)


def draw(state: Array, count: int) -> tuple[Array, Array]:
    """(`count` numbers of 32 random bits for each lane, the state after them).

    `state` is [lanes, 6 k]: k generators that give the numbers of a lane in turn, as the recurrence
    of Marsaglia, "Xorshift RNGs" (2003), has it.
    """
    lanes, words = state.shape
    generators = words // 6
    rounds = -(-count // generators)
    numbers = np.empty((rounds, lanes, generators), np.uint32)
    now = before = list(state.reshape(lanes, generators, 6).transpose(2, 0, 1))
    for index in range(rounds):
        before, now = now, _next(now)
        np.add(now[4], now[5], out=numbers[index])
    is_drawn = np.arange(generators) < count - (rounds - 1) * generators  # in the last round
    kept = np.where(is_drawn, np.stack(now), np.stack(before))
    drawn = numbers.transpose(1, 0, 2).reshape(lanes, -1)[:, :count]
    return drawn, kept.transpose(1, 2, 0).reshape(lanes, words)


def _next(words: list[Array]) -> list[Array]:
    """One step of generators with the words x, y, z, w, v and the counter."""
    x, y, z, w, v, counter = words
    t = x ^ (x >> np.uint32(2))
    new = (v ^ (v << np.uint32(4))) ^ (t ^ (t << np.uint32(1)))
    return [y, z, w, v, new, counter + _WEYL]


def _fractions(numbers: Array) -> Array:
    """Multiples of 2**-24 in [0, 1) from the greater 24 bits."""
    return (numbers >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


class Rng(Instr, engine="vector", engines=("vector", "gpsimd")):
    """Write 32 random bits for every element, to a narrower dtype the least significant ones."""

    dst: Pattern = writes("SBUF", "PSUM")

    generators = engine_state(GENERATORS, lanes="dst")
    arrives = "flat"
    cost_source = "assumed"
    assumed = (NUMBERS_ASSUMED,)
    rules = (
        dtypes("dst", RANDOM_INTEGERS, source=RNG),
        Rule(
            "GpSimd generates random numbers from generation 3",
            lambda i, arch: i.runs_on != "gpsimd" or arch.capabilities.has_gpsimd_random,
            RNG,
        ),
    )

    @staticmethod
    def compute(elements: int, dtype: np.dtype, generators: Array) -> tuple[Array, Array]:
        numbers, after = draw(generators, elements)
        return numbers.astype(f"u{dtype.itemsize}").view(dtype), after

    def attributes(self) -> dict[str, object]:
        """How many numbers a lane gives, and in which host dtype."""
        return {"elements": self.dst.free, "dtype": self.dst.dtype.numpy}

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition."""
        return _stream(self, arch, self.dst.free)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("bits", 64, 32, dtype=U16))


def _stream(instr: Instr, arch: Arch, elements: float) -> int:
    dispatch = arch.gpsimd_dispatch_cycles if instr.runs_on == "gpsimd" else 0
    return stream_cycles(arch, instr.runs_on, elements) + round(dispatch)


class SetRngSeed(Instr, engine="vector"):
    """Seed the generators of all Vector lanes with one value of 32 bits.

    The same seed gives the same numbers.
    """

    seed: Pattern = reads("SBUF", "PSUM", raw=True)

    generators = engine_state(GENERATORS)
    arrives = "flat"
    cost_source = "assumed"
    assumed = ("how a seed becomes the state of every lane",)
    rules = (
        Rule("{seed} must be one element", lambda i, _: i.seed.elements == 1, SEED),
        dtypes("seed", (U32, S32, F32), source=SEED),
    )

    def state_access(self, name: str) -> str:
        """It sets all of it."""
        return "writes"

    @staticmethod
    def compute(seed: Array, generators: Array) -> Array:
        return seeded(int(seed.view(np.uint32)[0, 0]), *generators.shape)

    def cycles(self, arch: Arch) -> int:
        """One instruction of one element."""
        return stream_cycles(arch, "vector", 1)

    @classmethod
    def example(cls) -> Self:
        return cls(seed=chip("seed", 1, 1, dtype=U32))


def _has_all_words(name: str, source: str) -> Rule:
    return Rule(
        f"{{{name}}} must have 6 elements per partition on GpSimd, 24 on Vector",
        lambda i, _: getattr(i, name).free == GENERATORS.words.get(i.runs_on, 0),
        source,
    )


def _engine_has_state(source: str) -> Rule:
    return Rule(
        "the state of Vector can be set and read from generation 4",
        lambda i, arch: i.runs_on != "vector" or arch.capabilities.has_vector_random_state,
        source,
    )


class RandSetState(Instr, engine="gpsimd", engines=("gpsimd", "vector")):
    """Set the generators' state: each partition of seeds is the state of the same lane."""

    seeds: Pattern = reads("SBUF", raw=True)

    generators = engine_state(GENERATORS, lanes="seeds")
    generations = generations_from(3)
    arrives = "flat"
    cost_source = "assumed"
    assumed = (NUMBERS_ASSUMED,)
    rules = (
        dtypes("seeds", (U32,), source=SET_STATE),
        _has_all_words("seeds", SET_STATE),
        _engine_has_state(SET_STATE),
    )

    def state_access(self, name: str) -> str:
        """It sets all words of its lanes."""
        return "writes"

    @staticmethod
    def compute(seeds: Array, generators: Array) -> Array:
        return seeds

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition."""
        return _stream(self, arch, self.seeds.free)

    @classmethod
    def example(cls) -> Self:
        return cls(seeds=chip("state", 64, 6, dtype=U32))


class RandGetState(Instr, engine="gpsimd", engines=("gpsimd", "vector")):
    """Write the generators' state: each partition of dst takes the state of the same lane."""

    dst: Pattern = writes("SBUF", "PSUM")

    generators = engine_state(GENERATORS, lanes="dst")
    generations = generations_from(3)
    arrives = "flat"
    cost_source = "assumed"
    assumed = (NUMBERS_ASSUMED,)
    rules = (
        dtypes("dst", (U32,), source=GET_STATE),
        _has_all_words("dst", GET_STATE),
        _engine_has_state(GET_STATE),
    )

    def state_access(self, name: str) -> str:
        """It changes nothing."""
        return "reads"

    @staticmethod
    def compute(generators: Array) -> tuple[Array, None]:
        return generators, None

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition."""
        return _stream(self, arch, self.dst.free)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("state", 64, 6, dtype=U32))


class Rand2(Instr, engine="vector"):
    """Write random numbers, uniform from low to high in float32, converted to dst's dtype.

    low and high are one value per partition or a number.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    low: Pattern | float = reads("SBUF", "PSUM", immediate=True, column=True)
    high: Pattern | float = reads("SBUF", "PSUM", immediate=True, column=True)

    generators = engine_state(GENERATORS, lanes="dst")
    generations = generations_from(4)
    cost_source = "Trainium3 architecture guide: four numbers per lane and cycle"
    assumed = (NUMBERS_ASSUMED, "a number is low + (high - low) * n / 2**24 with 24 random bits n")
    rules = (
        dtypes("dst", (*RANDOM_FLOATS, *RANDOM_INTEGERS), source=RAND2),
        column("low", "dst", source=RAND2),
        column("high", "dst", source=RAND2),
        dtypes("low", (F32,), source=RAND2),
        dtypes("high", (F32,), source=RAND2),
        Rule(
            "{low} must be less than {high}",
            lambda i, _: (
                isinstance(i.low, Pattern) or isinstance(i.high, Pattern) or i.low < i.high
            ),
            RAND2,
        ),
    )

    @staticmethod
    def compute(
        low: Array, high: Array, shape: tuple[int, ...], generators: Array
    ) -> tuple[Array, Array]:
        numbers, after = draw(generators, int(np.prod(shape[1:], dtype=np.int64)))
        return low + (high - low) * _fractions(numbers).reshape(shape), after

    def attributes(self) -> dict[str, object]:
        """The shape of dst."""
        return {"shape": self.dst.shape}

    def cycles(self, arch: Arch) -> int:
        """Four elements per cycle and partition."""
        return stream_cycles(arch, "vector", self.dst.free / 4)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("out", 64, 32), low=0.0, high=1.0)


class Dropout(Instr, engine="vector"):
    """Copy data to dst with every element replaced by 0 with a probability.

    The probability is one value per partition or a number: 0 keeps all elements, 1 none.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM", raw=True)
    probability: Pattern | float = reads("SBUF", "PSUM", immediate=True, column=True)

    generators = engine_state(GENERATORS, lanes="data")
    cost_source = "NKI release 2.26.1, nki.isa.dropout"
    assumed = (
        NUMBERS_ASSUMED,
        "an element is dropped where n / 2**24 < probability, with 24 random bits n",
    )
    rules = (
        same_elements("dst", "data", source=DROPOUT),
        column("probability", "data", source=DROPOUT),
        Rule(
            "{dst} must have the dtype of {data} where data holds integers",
            lambda i, _: i.data.dtype.is_float or i.dst.dtype is i.data.dtype,
            DROPOUT,
        ),
        Rule(
            "{probability} must be float32 where data holds integers, else a float",
            lambda i, _: (
                (p := operand(i, "probability")) is None
                or (p.dtype in FLOATS if i.data.dtype.is_float else p.dtype is F32)
            ),
            DROPOUT,
        ),
    )

    @staticmethod
    def compute(data: Array, probability: Array, generators: Array) -> tuple[Array, Array]:
        rows = data.reshape(len(data), -1)
        numbers, after = draw(generators, rows.shape[1])
        dropped = (_fractions(numbers)).reshape(data.shape) < probability
        return np.where(dropped, np.zeros((), data.dtype), data), after

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition."""
        return stream_cycles(arch, "vector", self.data.free)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("out", 64, 32), data=chip("a", 64, 32), probability=0.5)
