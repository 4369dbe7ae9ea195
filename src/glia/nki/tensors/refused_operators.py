"""Python's operators, which tensors of the current NKI do not have: each names its function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from glia.nki.names.errors import NoOperator
from glia.nki.session.session import caller
from glia.nki.tensors.nki_object import NKIObject

# The operator and the function of nki.language that does the same. `==` and `!=` compare
# tensors, not contents, as they do for any object of Python.
FUNCTIONS = {
    "add": ("+", "add"),
    "sub": ("-", "subtract"),
    "mul": ("*", "multiply"),
    "truediv": ("/", "divide"),
    "mod": ("%", "mod"),
    "pow": ("**", "power"),
    "and": ("&", "bitwise_and"),
    "or": ("|", "bitwise_or"),
    "xor": ("^", "bitwise_xor"),
    "lshift": ("<<", "left_shift"),
    "rshift": (">>", "right_shift"),
    "matmul": ("@", "matmul"),
}
COMPARISONS = {
    "lt": ("<", "less"),
    "le": ("<=", "less_equal"),
    "gt": (">", "greater"),
    "ge": (">=", "greater_equal"),
}
UNARY = {"neg": ("-", "negative"), "invert": ("~", "invert"), "abs": ("abs()", "abs")}


class RefusedOperators(NKIObject):
    """Refuses every operator, naming the function of nki.language to call."""

    __slots__ = ()

    if TYPE_CHECKING:  # the brackets of an annotation, `nt.tensor[128, 512]`

        def __class_getitem__(cls, shape: Any) -> Any: ...


def _refusing_operator(sign: str, function: str, arguments: str) -> Any:
    def refuse(_: object, *__: object) -> NoReturn:
        raise NoOperator(sign=sign, call=f"nl.{function}({arguments})", loc=caller())

    return refuse


for _name, (_sign, _function) in (FUNCTIONS | COMPARISONS).items():
    setattr(RefusedOperators, f"__{_name}__", _refusing_operator(_sign, _function, "x, y"))
for _name, (_sign, _function) in FUNCTIONS.items():
    setattr(RefusedOperators, f"__r{_name}__", _refusing_operator(_sign, _function, "x, y"))
    setattr(RefusedOperators, f"__i{_name}__", _refusing_operator(f"{_sign}=", _function, "x, y"))
for _name, (_sign, _function) in UNARY.items():
    setattr(RefusedOperators, f"__{_name}__", _refusing_operator(_sign, _function, "x"))
