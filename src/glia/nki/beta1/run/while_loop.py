"""`while` on the device: entered without a condition, and traced once, whatever Python does.

Python asks for the truth of the condition at the head and after every turn. The first time the loop
opens; from the second time on what the turn made of the names that it carries is what the next one
begins with: they hold tiles of their own, which the end of a turn copies to. Simulated, Python runs
all turns, compiled it runs the first.
"""

from __future__ import annotations

import ast
import ctypes
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from glia.nki.beta1.errors import (
    EndlessWhile,
    PythonChanges,
    SumsChangeInWhile,
    WhileNeedsEntry,
)
from glia.nki.beta1.run.frame import Body, Frame, frame_of
from glia.nki.beta1.run.loop_carried import assigned_names, carried_names
from glia.nki.beta1.tensors.storage import Physical, Storage
from glia.nki.beta1.tensors.tensor import FUNCTIONS, Tensor
from glia.nki.issue.register_functions import register_alloc, register_load, register_move
from glia.nki.session.session import caller
from glia.nki.tensors.registers import VirtualRegister

Place = tuple[str, int, int]
PLAIN = (bool, int, float, str, bytes, tuple, type(None), np.generic)


@dataclass(eq=False)
class Carried:
    """A name: what it holds when a turn begins, of a tensor how often it was written by then."""

    value: Any
    home: Tensor | None = None  # a tile of its own, which the turns of the program share
    writes: int = 0


@dataclass(eq=False)
class While:
    """A loop that runs; `sums` is what is known of tiles in PSUM when a turn begins."""

    place: Place
    user: FrameType
    register: VirtualRegister
    body: Body
    carried: dict[str, Carried]
    sums: list[tuple[Storage, Physical, bool, int]]


def condition_holds(condition: Any, statement: ast.While, user: FrameType) -> bool:
    """The truth of an nt.scalar that is the condition of a `while` in the frame `user`.

    WhileNeedsEntry unless the first turn always runs, EndlessWhile when no turn can be the last.
    """
    frame = frame_of("while")
    place = user.f_code.co_filename, statement.lineno, statement.col_offset
    if frame.whiles and frame.whiles[-1].place == place and frame.whiles[-1].user is user:
        return _goes_on(frame, frame.whiles[-1], condition)
    if not condition.is_known:
        raise WhileNeedsEntry(loc=caller())
    if condition.value:
        _enter(frame, place, statement, user)
    return bool(condition.value)


# --- the first turn ------------------------------------------------------------------------------


def _enter(frame: Frame, place: Place, statement: ast.While, user: FrameType) -> None:
    frame.settle()
    variables = dict(user.f_locals)
    found = [name for name in carried_names(statement) if name in variables]
    is_set = assigned_names(statement)
    carried = {name: _begun(frame, user, name, variables[name], name in is_set) for name in found}
    register = register_alloc(1)
    body = Body()
    sums = [
        (storage, tile, tile.is_sums, tile.owner)
        for storage in frame.known()
        for tile in storage.tiles_in_psum()
    ]
    frame.whiles.append(While(place, user, register, body, carried, sums))
    frame.session.evaluate_while(register.expression, place, caller())
    frame.bodies.append(body)


def _begun(frame: Frame, user: FrameType, name: str, value: Any, is_set: bool) -> Carried:
    """What a name begins with: where a turn sets it anew, a tile of its own with the contents."""
    if hasattr(value, "on_device"):
        home = _copied(frame, name, value.on_device())
        number = value.of_tile(home)
        bind(user, name, number)
        return Carried(number, home, home.storage.writes)
    if not isinstance(value, Tensor) or not is_set:
        return Carried(value)
    if not value.is_on_chip or value.block_dims:
        return Carried(value)
    home = _copied(frame, name, value)
    bind(user, name, home)
    return Carried(home, home, home.storage.writes)


def _copied(frame: Frame, name: str, value: Tensor) -> Tensor:
    """A tile of its own with the contents, unless nothing wrote any."""
    dtype, shape = value.name_of_dtype, value.shape
    storage = Storage(frame, frame.label("", name), value.buffer.plain, dtype, (), shape)
    home = Tensor.whole(storage)
    tile = value.physical()
    if tile.is_written or tile.fill is not None:
        FUNCTIONS["assign"](home, value)
        frame.flush()
    return home


# --- the turns behind it -------------------------------------------------------------------------


def _goes_on(frame: Frame, loop: While, condition: Any) -> bool:
    """End a turn; whether another follows."""
    if condition.is_known and condition.value:
        raise EndlessWhile(loc=caller())
    truth = None if condition.is_known else condition.truth()
    frame.flush()
    _check_sums(loop)
    _carry(frame, loop)
    if truth is None:
        register_move(loop.register, 0)
    else:
        register_load(loop.register, truth.nki())
    goes_on = frame.session.evaluate_while(loop.register.expression, loop.place, caller())
    if goes_on:
        loop.body.begin()
    else:
        loop.body.end()
        frame.whiles.remove(loop)
        frame.bodies = frame.bodies[: frame.bodies.index(loop.body)]
    return goes_on


def _check_sums(loop: While) -> None:
    """SumsChangeInWhile where a product of the next turn finds other contents than traced."""
    for storage, tile, is_sums, owner in loop.sums:
        if tile.is_sums != is_sums or tile.owner != owner:
            raise SumsChangeInWhile(name=storage.name, loc=caller())


def _carry(frame: Frame, loop: While) -> None:
    """Let the next turn begin with what this one made of the names."""
    variables = dict(loop.user.f_locals)
    made = {n: _made(n, each, variables.get(n)) for n, each in loop.carried.items()}
    changed = {n: (loop.carried[n], tile) for n, tile in made.items() if tile is not None}
    _copy_together(frame, [(each.home, tile) for each, tile in changed.values()])
    for name, (each, _) in changed.items():
        each.writes = each.home.storage.writes
        bind(loop.user, name, each.value)


def _made(name: str, carried: Carried, new: Any) -> Tensor | None:
    """The tile that a turn gave a name; None where the name holds what it held before."""
    old = carried.value
    if new is old:
        return None
    if hasattr(old, "on_device") and hasattr(new, "on_device"):
        new.value = new.on_device()
        old, new = carried.home, new.value
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        if isinstance(old, PLAIN) and type(new) is type(old) and new == old:
            return None
        _refuse(name, "only tiles and nt.scalar change from turn to turn")
    for what in ("shape", "name_of_dtype", "region"):
        before, behind = getattr(old, what), getattr(new, what)
        if before != behind:
            _refuse(name, f"{before} before a turn, {behind} behind it")
    if carried.home is None or not new.is_on_chip or new.block_dims:
        _refuse(name, "only tiles on chip are carried")
    if old.storage.writes != carried.writes and new.storage is not old.storage:
        _refuse(name, "a turn writes its tile, and gives it a new one")
    return new


def _refuse(name: str, why: str) -> NoReturn:
    raise PythonChanges(name=name, why=why, loc=caller())


def _copy_together(frame: Frame, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy all at once: what is read after it was written is copied aside first."""
    homes = {id(home.storage) for home, _ in pairs}
    aside = [
        (home, _copied(frame, "carried", new) if id(new.storage) in homes else new)
        for home, new in pairs
    ]
    for home, new in aside:
        FUNCTIONS["assign"](home, new)
        frame.flush()


def bind(user: FrameType, name: str, value: Any) -> None:
    """Let a name of a function that runs hold another value, as debuggers do."""
    user.f_locals[name] = value
    if sys.version_info < (3, 13):  # where f_locals is a copy
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(user), ctypes.c_int(0))
