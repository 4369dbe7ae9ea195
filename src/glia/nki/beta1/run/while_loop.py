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
from glia.nki.beta1.run.frame import Frame, LoopBody, require_frame
from glia.nki.beta1.run.loop_carried import assigned_names, carried_names
from glia.nki.beta1.tensors.storage import PhysicalTile, Storage
from glia.nki.beta1.tensors.tensor import FUNCTIONS, Tensor
from glia.nki.issue.register_functions import register_alloc, register_load, register_move
from glia.nki.session.session import caller
from glia.nki.tensors.registers import VirtualRegister

LoopSite = tuple[str, int, int]
CONSTANT_TYPES = (bool, int, float, str, bytes, tuple, type(None), np.generic)


@dataclass(eq=False)
class CarriedName:
    """A name: what it holds when a turn begins, of a tensor how often it was written by then."""

    value: Any
    home: Tensor | None = None  # a tile of its own, which the turns of the program share
    write_count: int = 0


@dataclass(eq=False)
class OpenWhile:
    """A loop that runs; `sums` is what is known of tiles in PSUM when a turn begins."""

    place: LoopSite
    user: FrameType
    register: VirtualRegister
    body: LoopBody
    carried: dict[str, CarriedName]
    sums: list[tuple[Storage, PhysicalTile, bool, int]]


def condition_holds(condition: Any, statement: ast.While, user: FrameType) -> bool:
    """The truth of an nt.scalar that is the condition of a `while` in the frame `user`.

    WhileNeedsEntry unless the first turn always runs, EndlessWhile when no turn can be the last.
    """
    frame = require_frame("while")
    place = user.f_code.co_filename, statement.lineno, statement.col_offset
    if (
        frame.while_loops
        and frame.while_loops[-1].place == place
        and frame.while_loops[-1].user is user
    ):
        return _end_iteration(frame, frame.while_loops[-1], condition)
    if not condition.is_known:
        raise WhileNeedsEntry(loc=caller())
    if condition.value:
        _open_loop(frame, place, statement, user)
    return bool(condition.value)


# --- the first turn ------------------------------------------------------------------------------


def _open_loop(frame: Frame, place: LoopSite, statement: ast.While, user: FrameType) -> None:
    frame.materialize_all()
    variables = dict(user.f_locals)
    found = [name for name in carried_names(statement) if name in variables]
    is_set = assigned_names(statement)
    carried = {
        name: _initial_value(frame, user, name, variables[name], name in is_set) for name in found
    }
    register = register_alloc(1)
    body = LoopBody()
    sums = [
        (storage, tile, tile.holds_sums, tile.last_block)
        for storage in frame.live_storages()
        for tile in storage.tiles_in_psum()
    ]
    frame.while_loops.append(OpenWhile(place, user, register, body, carried, sums))
    frame.session.evaluate_while(register.expression, place, caller())
    frame.bodies.append(body)


def _initial_value(
    frame: Frame, user: FrameType, name: str, value: Any, is_set: bool
) -> CarriedName:
    """What a name begins with: where a turn sets it anew, a tile of its own with the contents."""
    if hasattr(value, "to_tile"):
        home = _copy_to_own_tile(frame, name, value.to_tile())
        number = value.from_tile(home)
        set_local(user, name, number)
        return CarriedName(number, home, home.storage.write_count)
    if not isinstance(value, Tensor) or not is_set:
        return CarriedName(value)
    if not value.is_on_chip or value.block_dims:
        return CarriedName(value)
    home = _copy_to_own_tile(frame, name, value)
    set_local(user, name, home)
    return CarriedName(home, home, home.storage.write_count)


def _copy_to_own_tile(frame: Frame, name: str, value: Tensor) -> Tensor:
    """A tile of its own with the contents, unless nothing wrote any."""
    dtype, shape = value.dtype_name, value.shape
    storage = Storage(frame, frame.unique_name("", name), value.buffer.unplaced, dtype, (), shape)
    home = Tensor.whole(storage)
    tile = value.physical_tile()
    if tile.is_written or tile.fill is not None:
        FUNCTIONS["assign"](home, value)
        frame.flush()
    return home


# --- the turns behind it -------------------------------------------------------------------------


def _end_iteration(frame: Frame, loop: OpenWhile, condition: Any) -> bool:
    """End a turn; whether another follows."""
    if condition.is_known and condition.value:
        raise EndlessWhile(loc=caller())
    truth = None if condition.is_known else condition.truth()
    frame.flush()
    _check_sums(loop)
    _carry_values(frame, loop)
    if truth is None:
        register_move(loop.register, 0)
    else:
        register_load(loop.register, truth.read_view())
    goes_on = frame.session.evaluate_while(loop.register.expression, loop.place, caller())
    if goes_on:
        loop.body.begin()
    else:
        loop.body.end()
        frame.while_loops.remove(loop)
        frame.bodies = frame.bodies[: frame.bodies.index(loop.body)]
    return goes_on


def _check_sums(loop: OpenWhile) -> None:
    """SumsChangeInWhile where a product of the next turn finds other contents than traced."""
    for storage, tile, holds_sums, owner in loop.sums:
        if tile.holds_sums != holds_sums or tile.last_block != owner:
            raise SumsChangeInWhile(name=storage.name, loc=caller())


def _carry_values(frame: Frame, loop: OpenWhile) -> None:
    """Let the next turn begin with what this one made of the names."""
    variables = dict(loop.user.f_locals)
    made = {n: _carried_tile(n, each, variables.get(n)) for n, each in loop.carried.items()}
    changed = {n: (loop.carried[n], tile) for n, tile in made.items() if tile is not None}
    _parallel_copy(frame, [(each.home, tile) for each, tile in changed.values()])
    for name, (each, _) in changed.items():
        each.write_count = each.home.storage.write_count
        set_local(loop.user, name, each.value)


def _carried_tile(name: str, carried: CarriedName, new: Any) -> Tensor | None:
    """The tile that a turn gave a name; None where the name holds what it held before."""
    old = carried.value
    if new is old:
        return None
    if hasattr(old, "to_tile") and hasattr(new, "to_tile"):
        new.value = new.to_tile()
        old, new = carried.home, new.value
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        if isinstance(old, CONSTANT_TYPES) and type(new) is type(old) and new == old:
            return None
        _raise_python_changes(name, "only tiles and nt.scalar change from turn to turn")
    for what in ("shape", "dtype_name", "region"):
        before, behind = getattr(old, what), getattr(new, what)
        if before != behind:
            _raise_python_changes(name, f"{before} before a turn, {behind} behind it")
    if carried.home is None or not new.is_on_chip or new.block_dims:
        _raise_python_changes(name, "only tiles on chip are carried")
    if old.storage.write_count != carried.write_count and new.storage is not old.storage:
        _raise_python_changes(name, "a turn writes its tile, and gives it a new one")
    return new


def _raise_python_changes(name: str, why: str) -> NoReturn:
    raise PythonChanges(name=name, why=why, loc=caller())


def _parallel_copy(frame: Frame, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy all at once: what is read after it was written is copied aside first."""
    homes = {id(home.storage) for home, _ in pairs}
    aside = [
        (home, _copy_to_own_tile(frame, "carried", new) if id(new.storage) in homes else new)
        for home, new in pairs
    ]
    for home, new in aside:
        FUNCTIONS["assign"](home, new)
        frame.flush()


def set_local(user: FrameType, name: str, value: Any) -> None:
    """Let a name of a function that runs hold another value, as debuggers do."""
    user.f_locals[name] = value
    if sys.version_info < (3, 13):  # where f_locals is a copy
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(user), ctypes.c_int(0))
