"""Do-while loops on the device: a `while` on an nt.scalar is traced as one loop.

Python evaluates the condition before the first iteration and after each one. The first evaluation
opens the loop and gives every loop-carried name a tile of its own; each later one copies the names'
new values to those tiles. Simulated, Python runs all iterations; compiled, it runs only the first.
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
    """A loop-carried name: its value and its tensor's write count as an iteration begins."""

    value: Any
    home: Tensor | None = None  # the tile that carries it between iterations
    write_count: int = 0


@dataclass(eq=False)
class OpenWhile:
    """An open loop; `sums` has (storage, tile, holds_sums, last_block) of PSUM tiles at entry."""

    place: LoopSite
    user: FrameType
    register: VirtualRegister
    body: LoopBody
    carried: dict[str, CarriedName]
    sums: list[tuple[Storage, PhysicalTile, bool, int]]


def condition_holds(condition: Any, statement: ast.While, user: FrameType) -> bool:
    """The truth of an nt.scalar that is the condition of a `while` in the frame `user`.

    WhileNeedsEntry unless the first iteration always runs, EndlessWhile when none can be the last.
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


# --- entry ---------------------------------------------------------------------------------------


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
    """The initial value of a carried name; one that is rebound gets a tile of its own."""
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
    """A new tile with the contents of `value`, if any were written."""
    dtype, shape = value.dtype_name, value.shape
    storage = Storage(frame, frame.unique_name("", name), value.buffer.unplaced, dtype, (), shape)
    home = Tensor.of_storage(storage)
    tile = value.physical_tile()
    if tile.is_written or tile.fill is not None:
        FUNCTIONS["assign"](home, value)
        frame.flush()
    return home


# --- the end of an iteration ---------------------------------------------------------------------


def _end_iteration(frame: Frame, loop: OpenWhile, condition: Any) -> bool:
    """Close an iteration; whether another follows."""
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
    """SumsChangeInWhile when PSUM tiles would enter the next iteration in another state."""
    for storage, tile, holds_sums, owner in loop.sums:
        if tile.holds_sums != holds_sums or tile.last_block != owner:
            raise SumsChangeInWhile(name=storage.name, loc=caller())


def _carry_values(frame: Frame, loop: OpenWhile) -> None:
    """Copy the new values of the carried names to their tiles, and rebind the names to those."""
    variables = dict(loop.user.f_locals)
    changed: list[tuple[str, CarriedName, Tensor, Tensor]] = []
    for name, carried in loop.carried.items():
        tile = _carried_tile(name, carried, variables.get(name))
        if tile is not None:
            assert carried.home is not None
            changed.append((name, carried, carried.home, tile))
    _parallel_copy(frame, [(home, tile) for _, _, home, tile in changed])
    for name, carried, home, _ in changed:
        carried.write_count = home.storage.write_count
        set_local(loop.user, name, carried.value)


def _carried_tile(name: str, carried: CarriedName, new: Any) -> Tensor | None:
    """The new tile of a carried name, None when unchanged; PythonChanges for other values."""
    old = carried.value
    if new is old:
        return None
    if hasattr(old, "to_tile") and hasattr(new, "to_tile"):
        new.value = new.to_tile()
        old, new = carried.home, new.value
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        if isinstance(old, CONSTANT_TYPES) and type(new) is type(old) and new == old:
            return None
        _raise_python_changes(
            name, "only tiles and nt.scalar change from one iteration to the next"
        )
    for what in ("shape", "dtype_name", "region"):
        before, behind = getattr(old, what), getattr(new, what)
        if before != behind:
            _raise_python_changes(name, f"{before} before an iteration, {behind} after it")
    if carried.home is None or not new.is_on_chip or new.block_dims:
        _raise_python_changes(name, "only tiles on chip are carried")
    if old.storage.write_count != carried.write_count and new.storage is not old.storage:
        _raise_python_changes(name, "an iteration both writes its tile and binds it to a new one")
    return new


def _raise_python_changes(name: str, why: str) -> NoReturn:
    raise PythonChanges(name=name, why=why, loc=caller())


def _parallel_copy(frame: Frame, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy as if simultaneously: a source that is also a destination is copied aside first."""
    homes = {id(home.storage) for home, _ in pairs}
    aside = [
        (home, _copy_to_own_tile(frame, "carried", new) if id(new.storage) in homes else new)
        for home, new in pairs
    ]
    for home, new in aside:
        FUNCTIONS["assign"](home, new)
        frame.flush()


def set_local(user: FrameType, name: str, value: Any) -> None:
    """Bind a local name of a running Python frame to another value, as debuggers do."""
    user.f_locals[name] = value
    if sys.version_info < (3, 13):  # where f_locals is a copy
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(user), ctypes.c_int(0))
