"""Sequencer instructions, which every engine has: registers, and the barrier of all engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import S32
from glia.isa.examples import chip
from glia.isa.kit import Array, IndexCheck, Instr, Rule, reads, writes
from glia.isa.numerics import register_word, whole_number, words_of, wrapped_word
from glia.isa.operand import Pattern
from glia.isa.rules import INTEGERS, dtypes

if TYPE_CHECKING:
    from glia.arch import Arch

REGISTERS = "NKI nki.isa.register_load and register_move"
STORE = "NKI nki.isa.register_store"
SEQUENCERS = ("sync", "tensor", "vector", "scalar", "gpsimd")
REGISTER_OPS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
}


class RegisterLoad(Instr, engine="sync", engines=SEQUENCERS):
    """Load one integer of up to 32 bits from memory into a register of the engine's sequencer.

    Where it indexes a dimension of `extent`, one outside 0..limit is reported when it runs, which
    changes no value.
    """

    src: Pattern = reads("SBUF", "HBM", raw=True)
    register: str
    limit: int = 0
    extent: int = 0

    hints: ClassVar = ("limit", "extent")
    starts_anywhere: ClassVar = ("src",)  # NKI Library, cross_entropy: an index of every partition
    arrives = "natural"
    cost_source = "Trainium/Inferentia2 guide: dynamic accesses cost about 600 cycles"
    rules = (
        Rule("{src} must be one element", lambda i, _: i.src.elements == 1, REGISTERS),
        dtypes("src", INTEGERS, source=REGISTERS),
        Rule(
            "{limit} must be less than {extent}",
            lambda i, _: 0 <= i.limit < max(1, i.extent),
            REGISTERS,
        ),
    )
    assumed = ("an integer of fewer than 32 bits is extended by its sign, if it has one",)

    def index_checks(self) -> tuple[IndexCheck, ...]:
        return (IndexCheck(self.src, self.limit, self.extent),) if self.extent else ()

    @staticmethod
    def compute(src: Array, register: str) -> int:
        return whole_number(src.reshape(()))

    def cycles(self, arch: Arch) -> int:
        """The floor of copies whose address comes from a register."""
        return round(arch.register_load_cycles)

    @classmethod
    def example(cls) -> Self:
        return cls(register="n", src=chip("one", 1, 1, dtype=S32))


class RegisterStore(Instr, engine="sync", engines=SEQUENCERS):
    """Store a register of the engine's sequencer, or an expression of registers, to memory.

    A narrower integer takes the least significant bits.
    """

    dst: Pattern = writes("SBUF", "HBM")
    value: int | Affine

    arrives = "natural"
    cost_source = "assumed"
    assumed = ("storing to an integer of fewer than 32 bits drops the others",)
    rules = (
        Rule("{dst} must be one element", lambda i, _: i.dst.elements == 1, STORE),
        dtypes("dst", INTEGERS, source=STORE),
    )

    @staticmethod
    def compute(value: int) -> int:
        return whole_number(value)

    def cycles(self, arch: Arch) -> int:
        """As register_load."""
        return round(arch.register_load_cycles)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("one", 1, 1, dtype=S32), value=3)


class RegisterMove(Instr, engine="sync", engines=SEQUENCERS):
    """Set a register to a constant or to an affine expression of registers and loop variables.

    What 32 bits do not hold, with a sign or without one, wraps around.
    """

    register: str
    value: int | Affine

    arrives = "natural"
    cost_source = "assumed"
    rules = ()

    @staticmethod
    def compute(register: str, value: int) -> int:
        return whole_number(register_word(value))

    def cycles(self, arch: Arch) -> int:
        """One issue of the sequencer."""
        return round(arch.sequencer_cycles)

    @classmethod
    def example(cls) -> Self:
        return cls(register="n", value=4)


class RegisterAlu(Instr, engine="sync", engines=SEQUENCERS):
    """Set a register to a `op` b in int32 with wraparound; comparisons give 0 or 1."""

    register: str
    op: str
    a: int | Affine
    b: int | Affine

    arrives = "natural"
    cost_source = "assumed"
    rules = (
        Rule("{op} must be a register operator", lambda i, _: i.op in REGISTER_OPS, "assumed"),
    )

    @staticmethod
    def compute(register: str, op: str, a: int, b: int) -> int:
        result = REGISTER_OPS[op](words_of(a), words_of(b)).astype(np.int64)
        return whole_number(wrapped_word(result))

    def cycles(self, arch: Arch) -> int:
        """One issue of the sequencer."""
        return round(arch.sequencer_cycles)

    @classmethod
    def example(cls) -> Self:
        return cls(register="n", op="add", a=1, b=2)


class Barrier(Instr, engine="sync", engines=SEQUENCERS):
    """All engines meet: none passes before all earlier instructions and transfers are complete.

    Every semaphore starts again at 0, and registers are known to all engines.
    """

    arrives = "natural"
    cost_source = "assumed"
    rules = ()

    @staticmethod
    def compute() -> None:
        return None

    def cycles(self, arch: Arch) -> int:
        """One semaphore instruction."""
        return max(1, round(arch.semaphore_ns * arch.clocks_ghz["sync"]))

    @classmethod
    def example(cls) -> Self:
        return cls()
