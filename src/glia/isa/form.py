"""Forms: the expressions an instruction computes, which instruction selection covers with.

A form is a small term over the scalar functions of programs, its leaves the instruction's operands.
It is declared beside the instruction's meaning: `func(scale * data + bias)` for an activation,
`(data op0 operand0) op1 operand1` for a tensor-scalar operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from glia.base.dtype import PRED, DType

ORDER_FREE = frozenset(
    ("add", "multiply", "maximum", "minimum", "equal", "not_equal", "and", "or", "xor")
)


def family_of(dtype: DType) -> str:
    """The kind of number a dtype holds: "float", "integer" or "pred"."""
    return "float" if dtype.is_float else "pred" if dtype is PRED else "integer"


@dataclass(frozen=True)
class Vocabulary:
    """Values of an attribute that names a function, by scalar function of the graph.

    `families` are the kinds of numbers it computes these functions on: "float", "integer", "pred".
    """

    values: Mapping[str, str]
    families: tuple[str, ...]


ARITHMETIC = Vocabulary(
    {
        name: name
        for name in (
            "add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "less",
            "less_equal", "greater", "greater_equal",
        )
    },
    ("float", "integer"),
)  # fmt: skip
POWER = Vocabulary({"power": "power"}, ("float",))
UNARY = Vocabulary({"abs": "abs", "square": "square"}, ("float",))
BITWISE = Vocabulary(
    {
        "and": "bitwise_and",
        "or": "bitwise_or",
        "xor": "bitwise_xor",
        "shift_left": "left_shift",
        "shift_right_logical": "right_shift",
        "shift_right_arithmetic": "arithmetic_right_shift",
    },
    ("integer", "pred"),
)
INVERT = Vocabulary({"not": "invert"}, ("integer",))
TABLES = Vocabulary(
    {
        "exp": "exp", "log": "log", "tanh": "tanh", "logistic": "sigmoid", "erf": "erf",
        "sin": "sin", "sqrt": "sqrt", "rsqrt": "rsqrt", "sign": "sign", "abs": "abs",
        "square": "square", "gelu": "gelu", "gelu_tanh": "gelu_apprx_tanh", "silu": "silu",
        "softplus": "softplus",
    },
    ("float",),
)  # fmt: skip
ANY = ("float", "integer", "pred")


@dataclass(frozen=True)
class Choice:
    """Any function of some vocabularies; the attribute says which.

    With `exchanged`, a boolean attribute of that name exchanges the function's two arguments.
    """

    attribute: str
    vocabularies: tuple[Vocabulary, ...]
    exchanged: str = ""

    def value(self, function: str, family: str) -> str | None:
        """The attribute's value for a function on a family of numbers; None when it has none."""
        for vocabulary in self.vocabularies:
            if family in vocabulary.families and function in vocabulary.values:
                return vocabulary.values[function]
        return None


@dataclass(frozen=True)
class Fixed:
    """One function, on some families of numbers."""

    function: str
    families: tuple[str, ...] = ("float",)


@dataclass(frozen=True)
class Negative:
    """Minus an operand: a column or a number whose sign selection changes beforehand."""

    operand: str


Leaf = str | Negative


@dataclass(frozen=True)
class Step:
    """A function of operands, named by their fields, and of other steps (in float32)."""

    function: Choice | Fixed
    arguments: tuple[Step | Leaf, ...]

    def functions(self) -> Iterator[tuple[str, str]]:
        """Every (function, family) that the step itself may be."""
        if isinstance(self.function, Fixed):
            yield from ((self.function.function, family) for family in self.function.families)
            return
        for vocabulary in self.function.vocabularies:
            for name in vocabulary.values:
                yield from ((name, family) for family in vocabulary.families)

    def __str__(self) -> str:
        listed = ", ".join(
            f"-{each.operand}" if isinstance(each, Negative) else str(each)
            for each in self.arguments
        )
        function = self.function
        name = function.function if isinstance(function, Fixed) else function.attribute
        return f"{name}({listed})"


@dataclass(frozen=True)
class Form:
    """`computes` is what the instruction writes when its other attributes are as in `settings`."""

    computes: Step
    settings: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def __str__(self) -> str:
        given = ", ".join(f"{name} = {value}" for name, value in self.settings.items())
        return f"{self.computes} with {given}" if given else str(self.computes)


def chosen(
    attribute: str, *arguments: Step | Leaf, among: tuple[Vocabulary, ...], exchanged: str = ""
) -> Step:
    """A step whose function an attribute names."""
    return Step(Choice(attribute, among, exchanged), arguments)


def fixed(function: str, *arguments: Step | Leaf, families: tuple[str, ...] = ("float",)) -> Step:
    """A step of one function."""
    return Step(Fixed(function, families), arguments)
