"""How an instruction is declared: operands, rules, meaning, cost, prose and source in one class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from glia.base.loc import UNKNOWN, Loc
from glia.isa.operand import Memory, Pattern, Signal, Wait

if TYPE_CHECKING:
    from glia.arch import Arch

INSTRUCTIONS: dict[str, type[Instr]] = {}


@dataclass(frozen=True)
class Operand:
    """The declaration of one operand field."""

    access: str  # "reads" | "writes" | "updates" (reads and writes)
    memories: tuple[Memory, ...]
    is_optional: bool = False
    allows_immediate: bool = False


def reads(*memories: str, optional: bool = False, immediate: bool = False) -> Any:
    """Declare an operand that is read; `immediate` also admits a Python number."""
    return _operand("reads", memories, optional, immediate)


def writes(*memories: str, optional: bool = False) -> Any:
    """Declare an operand that is written."""
    return _operand("writes", memories, optional, False)


def updates(*memories: str, optional: bool = False) -> Any:
    """Declare an operand that is read and written, as an accumulator is."""
    return _operand("updates", memories, optional, False)


def _operand(access: str, memories: tuple[str, ...], optional: bool, immediate: bool) -> Any:
    declared = Operand(access, tuple(Memory(m) for m in memories), optional, immediate)
    if optional:
        return field(default=None, kw_only=True, metadata={"operand": declared})
    return field(kw_only=True, metadata={"operand": declared})


@dataclass(frozen=True)
class Rule:
    """One law of an instruction: a sentence, its test (True = holds) and where it is documented."""

    sentence: str
    holds: Callable[[Any, Any], bool]  # (instruction, arch) -> bool
    source: str


@dataclass(frozen=True)
class Instr:
    """One instruction; subclasses declare operands, attributes, rules, compute and cycles."""

    engine: ClassVar[str] = ""  # the default engine; `on` overrides it per instruction
    engines: ClassVar[tuple[str, ...]] = ()  # every engine that has it
    generations: ClassVar[tuple[int, ...]] = (2, 3, 4)
    rules: ClassVar[tuple[Rule, ...]] = ()
    cost_source: ClassVar[str] = "assumed"
    operand_declarations: ClassVar[dict[str, Operand]] = {}
    attribute_names: ClassVar[tuple[str, ...]] = ()

    on: str = field(default="", kw_only=True)  # engine that runs it ("" = the default engine)
    queue: str = field(default="", kw_only=True)  # DMA queue, for instructions that move data
    waits: tuple[Wait, ...] = field(default=(), kw_only=True)
    signals: tuple[Signal, ...] = field(default=(), kw_only=True)
    loc: Loc = field(default=UNKNOWN, kw_only=True)

    def __init_subclass__(cls, engine: str = "", engines: tuple[str, ...] = (), **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.engine = engine or cls.engine
        cls.engines = engines or (cls.engine,)
        dataclass(frozen=True)(cls)
        declared = {f.name: f.metadata["operand"] for f in dataclasses.fields(cls) if f.metadata}
        cls.operand_declarations = declared
        hidden = {"on", "queue", "waits", "signals", "loc", *declared}
        cls.attribute_names = tuple(f.name for f in dataclasses.fields(cls) if f.name not in hidden)
        INSTRUCTIONS[cls.mnemonic()] = cls

    @classmethod
    def mnemonic(cls) -> str:
        """The name in text form: the class name in snake case."""
        name = cls.__name__
        return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))

    @property
    def runs_on(self) -> str:
        """The engine whose instruction stream this is in."""
        return self.on or self.engine

    def operands(self) -> Iterator[tuple[str, Operand, Pattern]]:
        """(name, declaration, pattern) of every operand that is a pattern."""
        for name, declared in self.operand_declarations.items():
            value = getattr(self, name)
            if isinstance(value, Pattern):
                yield name, declared, value

    def read_patterns(self) -> Iterator[Pattern]:
        """Patterns this instruction reads."""
        for _, declared, pattern in self.operands():
            if declared.access != "writes":
                yield pattern

    def written_patterns(self) -> Iterator[Pattern]:
        """Patterns this instruction writes."""
        for _, declared, pattern in self.operands():
            if declared.access != "reads":
                yield pattern

    @staticmethod
    def compute(**operands: Any) -> Any:
        """The meaning on NumPy arrays named as the operands; returns the written operand(s)."""
        raise TypeError("an instruction must declare its meaning")

    def cycles(self, arch: Arch) -> int:
        """Cycles the engine is busy, in cycles of its own clock."""
        raise TypeError("an instruction must declare its cost")


Array = np.ndarray
