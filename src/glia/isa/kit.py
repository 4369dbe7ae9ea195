"""How an instruction is declared: operands, rules, meaning, cost, prose and source in one class."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

import numpy as np

from glia.arch import generations_from
from glia.base.affine import Affine
from glia.base.dtype import DType
from glia.base.loc import UNKNOWN, Loc
from glia.isa.form import Form
from glia.isa.operand import Memory, Pattern, Signal, Wait

if TYPE_CHECKING:
    from glia.arch import Arch

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
INSTRUCTIONS: dict[str, type[Instr]] = {}


@dataclass(frozen=True)
class Operand:
    """The declaration of one operand field."""

    access: str  # "reads" | "writes" | "updates" (reads and writes)
    memories: tuple[Memory, ...]
    is_optional: bool = False
    allows_immediate: bool = False
    is_column: bool = False  # [P, 1]: one value per partition, the same for all its elements
    is_raw: bool = False  # `compute` takes it in its own dtype, never widened to float32
    is_several: bool = False  # a tuple of patterns; `compute` takes a tuple of arrays


_REQUIRED: Any = dataclasses.MISSING


def reads(
    *memories: str,
    immediate: bool = False,
    column: bool = False,
    raw: bool = False,
    several: bool = False,
    default: Any = _REQUIRED,
) -> Any:
    """Declare an operand that is read; `immediate` also admits a Python number.

    One whose default is None may be left out, here and in `writes` and `updates`; one of several
    patterns may be none where its default is ().
    """
    may_be_left_out = default is None or default == ()
    declared = Operand(
        "reads", _memories(memories), may_be_left_out, immediate, column, raw, several
    )
    return _operand(declared, default)


def writes(
    *memories: str, column: bool = False, several: bool = False, default: Any = _REQUIRED
) -> Any:
    """Declare an operand that is written."""
    declared = Operand(
        "writes", _memories(memories), default is None, False, column, False, several
    )
    return _operand(declared, default)


def updates(
    *memories: str,
    column: bool = False,
    raw: bool = False,
    several: bool = False,
    default: Any = _REQUIRED,
) -> Any:
    """Declare an operand that is read and written, as an accumulator is."""
    declared = Operand("updates", _memories(memories), default is None, False, column, raw, several)
    return _operand(declared, default)


def _memories(names: tuple[str, ...]) -> tuple[Memory, ...]:
    return tuple(Memory(name) for name in names)


def _operand(declared: Operand, default: Any) -> Any:
    return field(default=default, kw_only=True, metadata={"operand": declared})


@dataclass(frozen=True)
class IndexCheck:
    """Indices as a program gives them, before they are clamped or dropped.

    Those outside 0..limit are reported; `extent` is that of the dimension they index.
    """

    indices: Pattern
    limit: int
    extent: int


@dataclass(frozen=True)
class State:
    """Registers of an engine that persist between instructions.

    `words` is by engine the number of values of `dtype` in each of its lanes; lane i serves
    partition i. `start(lanes, words)` gives the initial values; without it they are unknown until
    an instruction sets them.
    """

    name: str
    dtype: DType
    words: Mapping[str, int]
    start: Callable[[int, int], np.ndarray] | None = None


@dataclass(frozen=True)
class StateUse:
    """The use of a state by an instruction, in the lanes of one operand's partitions."""

    state: State
    lanes: str  # an operand; "" for all lanes


def engine_state(state: State, *, lanes: str = "") -> Any:
    """Declare that an instruction reads or writes a state of its engine.

    `compute` takes them under the name of the declaration, [lanes, words] (None when unused or
    invalidated), and returns the new ones after the results of all operands (None: unchanged).
    """
    return StateUse(state, lanes)


@dataclass(frozen=True)
class Rule:
    """One law of an instruction: a sentence, its test (True = holds) and where it is documented.

    `template` is the sentence with operands and attributes in braces, as "{dst} must be float32",
    because an interface may give them names of its own. `cure` is what to write instead, where
    that is known.
    """

    template: str
    holds: Callable[[Any, Any], bool]  # (instruction, arch) -> bool
    source: str
    cure: str = ""

    @property
    def sentence(self) -> str:
        """The law in the names of the declaration."""
        return self.text({})

    def text(self, names: Mapping[str, str]) -> str:
        """The law with operands and attributes called as `names` says, the others by their own."""
        return self.template.format_map(_OwnNames(names))


class _OwnNames(dict[str, str]):
    """Names by field; a field that is not among them keeps its own."""

    def __missing__(self, field_name: str) -> str:
        return field_name


@dataclass(frozen=True)
class Indirect:
    """Which operands of an instruction may be views that an index on chip chooses elements of.

    `operands` names them, the written one first; its index starts on the partition of the operand
    `beside`. Only `engines` (all, when empty) take them. `group` partitions share a list of
    offsets. `rules` are (sentence, test) of an instruction and the index of each such operand.
    """

    operands: tuple[str, ...]
    beside: str
    source: str
    engines: tuple[str, ...] = ()
    group: int = 16
    rules: tuple[tuple[str, Callable[[Any, Mapping[str, Pattern]], bool]], ...] = ()


def register_variable(register: str) -> str:
    """The name a register has in affine expressions: `$` and its own name."""
    return register if is_register(register) else "$" + register


def is_register(variable: str) -> bool:
    """Whether a variable of an affine expression is a register, not that of a loop."""
    return variable.startswith("$")


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(field, reads, writes, updates)
)
@dataclass(frozen=True)
class Instr:
    """One instruction; subclasses declare operands, attributes, rules, compute and cycles.

    `compute` is given every operand as an array and every attribute by name. Operands arrive in
    float32 unless the operand is declared raw or `is_exact` says that all keep their dtype; an
    immediate arrives as a scalar of the same dtype. `arrives` says in which shape:

    * "elementwise": all in the shape of the destination, columns as [P, 1, ...];
    * "flat": as [partitions, elements per partition];
    * "natural": in the shape of their patterns;
    * "memory": as writable views in their own dtype; `compute` stores its result itself;
    * "participants": the operands of every participating core, see `glia.isa.rendezvous`.

    What `compute` returns is rounded once to the dtype of the destination. It returns one array
    for each written operand, in the order of declaration (None leaves an operand as it is).
    """

    engine: ClassVar[str] = ""  # the default engine; `on` overrides it per instruction
    engines: ClassVar[tuple[str, ...]] = ()  # every engine that has it
    generations: ClassVar[tuple[int, ...]] = generations_from(1)  # of the cores that have it
    rules: ClassVar[tuple[Rule, ...]] = ()
    forms: ClassVar[tuple[Form, ...]] = ()  # expressions that selection covers with it
    cost_source: ClassVar[str] = "assumed"
    operand_declarations: ClassVar[dict[str, Operand]] = {}
    attribute_names: ClassVar[tuple[str, ...]] = ()
    arrives: ClassVar[str] = "elementwise"
    read_when: ClassVar[Mapping[str, str]] = {}  # updated operand: attribute that is not 0 if read
    arrives_by_dma: ClassVar[bool] = False  # DMA engines, not a compute engine, touch the operands
    sums: ClassVar[Mapping[str, str]] = {}  # operand: attribute that is None where a sum goes on
    maps_outer: ClassVar[bool] = False  # every index of an outermost free dimension by itself
    hints: ClassVar[tuple[str, ...]] = ()  # what changes no value: `compute` does not take it
    partly_written: ClassVar[tuple[str, ...]] = ()  # updated operands, perhaps uninitialized parts
    starts_anywhere: ClassVar[tuple[str, ...]] = ()  # operands that may start at any partition
    tables: ClassVar[tuple[str, ...]] = ()  # operands whose rows an index chooses: dimension 0
    takes_packed: ClassVar[tuple[str, ...]] = ()  # operands that may hold packed floats
    indirect: ClassVar[Indirect | None] = None  # operands that an index on chip may choose
    takes_capabilities: ClassVar[tuple[str, ...]] = ()  # of the core, that `compute` also takes
    states: ClassVar[Mapping[str, StateUse]] = {}  # what it keeps in its engine, by name
    assumed: ClassVar[tuple[str, ...]] = ()  # what no public document says, and is so here

    on: str = field(default="", kw_only=True)  # engine that runs it ("" = the default engine)
    queue: str = field(default="", kw_only=True)  # DMA queue, for instructions that move data
    waits: tuple[Wait, ...] = field(default=(), kw_only=True)
    signals: tuple[Signal, ...] = field(default=(), kw_only=True)
    loc: Loc = field(default=UNKNOWN, kw_only=True)

    def __init_subclass__(
        cls, engine: str = "", engines: tuple[str, ...] = (), is_abstract: bool = False
    ) -> None:
        super().__init_subclass__()
        if engine:
            cls.engine, cls.engines = engine, engines or (engine,)
        dataclass(frozen=True, kw_only=True)(cls)
        declared = {f.name: f.metadata["operand"] for f in dataclasses.fields(cls) if f.metadata}
        cls.operand_declarations = declared
        own = {name: kept for name, kept in vars(cls).items() if isinstance(kept, StateUse)}
        cls.states = {**cls.states, **own}
        hidden = {"on", "queue", "waits", "signals", "loc", *declared}
        cls.attribute_names = tuple(f.name for f in dataclasses.fields(cls) if f.name not in hidden)
        if not is_abstract:
            INSTRUCTIONS[cls.mnemonic()] = cls

    @classmethod
    def mnemonic(cls) -> str:
        """The name in text form: the class name in snake case."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

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
            elif declared.is_several:
                for pattern in value:
                    if isinstance(pattern, Pattern):
                        yield name, declared, pattern

    def immediates(self) -> Iterator[tuple[str, float | int]]:
        """(name, number) of every operand that is a number."""
        for name, declared in self.operand_declarations.items():
            if declared.allows_immediate and isinstance(value := getattr(self, name), int | float):
                yield name, value

    def numbers(self) -> tuple[tuple[str, object], ...]:
        """(name, value) of all that decides what it does beside patterns: numbers, attributes."""
        return (*self.immediates(), *self.attributes().items())

    def patterns(self) -> Iterator[Pattern]:
        """The pattern of every operand that is one."""
        return (pattern for _, _, pattern in self.operands())

    def access(self, name: str) -> str:
        """The access of this instruction to an operand: "reads", "writes" or "updates"."""
        condition = self.read_when.get(name)
        if condition is not None and getattr(self, condition) in (False, 0):
            return "writes"
        return self.operand_declarations[name].access

    def may_be_fresh(self, name: str) -> bool:
        """Whether an updated operand may hold uninitialized elements."""
        return name in self.partly_written

    def rows_touched(self, name: str, views: Mapping[str, Array]) -> Array | None:
        """The entries of an operand's first dimension that it accesses; None for all of them.

        `views` are the operands of an instruction whose `arrives` is "memory".
        """
        return None

    def index_checks(self) -> tuple[IndexCheck, ...]:
        """The indices that are reported at run time where they are outside their table."""
        return ()

    def state_access(self, name: str) -> str:
        """The access of this instruction to a state.

        "reads", "writes", "updates", "forgets" (invalidates it) or "" (does not use it).
        """
        return "updates"

    def states_touched(self) -> Iterator[tuple[str, StateUse, str]]:
        """(name, declaration, access) of every state that it uses."""
        for name, kept in self.states.items():
            if access := self.state_access(name):
                yield name, kept, access

    def read_condition(self, name: str) -> Affine:
        """Not 0 where an operand that is read is read whole; a sum that only a run tells is not."""
        value = getattr(self, self.read_when.get(name, ""), True)
        return Affine.of(False if value is None else value)

    def variables(self) -> tuple[str, ...]:
        """The loop variables and registers that its operands and attributes depend on, each once.

        Those that its waits count by are not among them.
        """
        varying: list[Affine | Pattern] = [*self.patterns()]
        varying += [v for v in self.attributes().values() if isinstance(v, Affine)]
        return tuple(dict.fromkeys(name for each in varying for name in each.variables))

    @property
    def sets_register(self) -> str | None:
        """The variable of the register that it sets; None for an instruction that sets none."""
        register = getattr(self, "register", None)
        return register_variable(register) if isinstance(register, str) else None

    @property
    def uses_registers(self) -> bool:
        """Whether it writes a register or reads one."""
        return self.sets_register is not None or any(map(is_register, self.variables()))

    def read_patterns(self) -> Iterator[Pattern]:
        """Patterns this instruction reads."""
        for name, _, pattern in self.operands():
            if self.access(name) != "writes":
                yield pattern

    def written_patterns(self) -> Iterator[Pattern]:
        """Patterns this instruction writes."""
        for name, _, pattern in self.operands():
            if self.access(name) != "reads":
                yield pattern

    @property
    def is_exact(self) -> bool:
        """Whether operands keep their dtypes instead of being widened to float32."""
        return False

    @property
    def is_sum(self) -> bool:
        """Whether what it writes to the operands of `sums` is a sum that can go on."""
        return True

    def attributes(self) -> Mapping[str, Any]:
        """Every attribute by name."""
        return {name: getattr(self, name) for name in self.attribute_names}

    @staticmethod
    def compute(*arrays: Any, **operands: Any) -> Any:
        """The meaning on NumPy arrays named as the operands; returns the written operand(s)."""
        raise TypeError("an instruction must declare its meaning")

    @classmethod
    def example(cls) -> Self:
        """A legal instruction of this class on generation 3, or 4 where it begins there."""
        raise TypeError("an instruction must declare an example")

    def cycles(self, arch: Arch) -> int:
        """Cycles the engine is busy, in cycles of its own clock."""
        raise TypeError("an instruction must declare its cost")


Array = np.ndarray
