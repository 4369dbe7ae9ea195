"""`VirtualRegister`: an integer known at run time only."""

from __future__ import annotations

import ast
import linecache
import sys
from functools import lru_cache
from types import CodeType
from typing import Any, NoReturn

from glia.base.affine import Affine
from glia.nki.names.errors import NotInNki, UnknownWhenTraced
from glia.nki.names.language_errors import advise
from glia.nki.session.session import caller, current, session_or_none
from glia.nki.tensors.nki_object import NKIObject


class VirtualRegister(NKIObject):
    """A 32-bit integer in a register of the engines' sequencers.

    `state` is the expression of the registers that hold it; a `frozen` register, such as the index
    of a loop, cannot be written. Python cannot see its value: `if`, int() and range() on it raise
    UnknownWhenTraced (a TypeError); `while register:` is a loop on the device.
    """

    def __init__(self, state: Any = None, frozen: bool = False) -> None:
        self.state = state if state is not None else Affine.of(current_register())
        self.frozen = frozen

    @property
    def expression(self) -> Affine:
        """Its value as an affine expression of machine registers."""
        return Affine.of(self.state)

    def writable_name(self) -> str:
        """The name of the machine register to write; NotInNki when it is frozen."""
        names = self.expression.variables
        if self.frozen or self.expression != Affine.of(names[0] if names else ""):
            raise NotInNki(
                feature="writing to the index of a loop (set a register of your own)", loc=caller()
            )
        return names[0]

    def __bool__(self) -> bool:
        frame = sys._getframe(1)
        statement = while_statement(frame.f_code, frame.f_lasti)
        if statement is None or not isinstance(statement.test, _REGISTER_CONDITIONS):
            self._refuse("a condition of `if`, `and`, `not` or assert")
        place = frame.f_code.co_filename, statement.lineno, statement.col_offset
        loc = caller()
        advise("`while register:` is gone in NKI 0.7: call nl.while_loop(register, body)", loc)
        return current("while").evaluate_while(self.expression, place, loc)

    def __int__(self) -> NoReturn:
        self._refuse("int()")

    __index__ = __int__
    __float__ = __int__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | float | VirtualRegister) and other is not self:
            self._refuse("a comparison by == or !=")
        return self is other

    __hash__ = object.__hash__

    def _arithmetic(self, *_: object) -> NoReturn:
        feature = (
            "arithmetic on a register (let the loop count in these steps, "
            "nl.fori_loop(0, rows, body, step=128); else store it, compute on the tile, load that)"
        )
        raise NotInNki(feature=feature, loc=caller())

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _arithmetic
    __floordiv__ = __mod__ = __lt__ = __le__ = __gt__ = __ge__ = _arithmetic

    def __repr__(self) -> str:
        session = session_or_none()
        value = session.value_of(self.expression) if session is not None else None
        return f"VirtualRegister({self.expression if value is None else value})"

    def _refuse(self, use: str) -> NoReturn:
        raise UnknownWhenTraced(value="a register", use=use, loc=caller())


def current_register() -> str:
    """The name of a new register in the running kernel."""
    return current("VirtualRegister").new_register("r")


def integer_or_register(value: Any, where: str) -> int | Affine:
    """A bound or offset as an integer or an expression of registers; NotInNki for others."""
    if isinstance(value, VirtualRegister):
        return value.expression
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise NotInNki(feature=f"{where} of type {type(value).__name__}", loc=caller())
    return int(value)


@lru_cache(maxsize=4096)
def while_statement(code: CodeType, instruction: int) -> ast.While | None:
    """The `while` statement whose entire condition an instruction of `code` evaluates."""
    here = list(code.co_positions())[instruction // 2]
    tree = _tree(code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.While) and here in (_positions(node), _positions(node.test)):
            return node
    return None


# Conditions that may evaluate to the register itself.
_REGISTER_CONDITIONS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def _positions(node: ast.stmt | ast.expr) -> tuple[int, int | None, int, int | None]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


@lru_cache(maxsize=64)
def _tree(filename: str) -> ast.Module | None:
    text = "".join(linecache.getlines(filename))
    return ast.parse(text) if text else None
