"""Loops, and the position of a kernel's program in the grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from glia.base.affine import Affine
from glia.isa.instructions.sync import Barrier, RegisterMove
from glia.nki.issue.instruction import issue
from glia.nki.names.errors import BrokenRule, NotInNki
from glia.nki.names.language_errors import advise
from glia.nki.session.session import Session, caller, current, value_text
from glia.nki.tensors.dynamic_offsets import DynamicSlice
from glia.nki.tensors.registers import VirtualRegister, integer_or_register

Bound = int | VirtualRegister


def _checked_range(start: int, stop: int | None, step: int) -> range:
    for each in (start, stop, step):
        if each is not None and not hasattr(each, "__index__"):
            raise NotInNki(
                feature=f"a range with a bound of type {type(each).__name__}", loc=caller()
            )
    return range(start) if stop is None else range(start, stop, step)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's range: the loop is unrolled."""
    return _checked_range(start, stop, step)


def sequential_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's range: the loop is unrolled."""
    return _checked_range(start, stop, step)


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's range: the loop is unrolled."""
    return _checked_range(start, stop, step)


def dynamic_range(
    start: Bound, stop: Bound | None = None, step: int = 1
) -> Iterator[VirtualRegister]:
    """A loop on the device over start, start + step, ... below stop; bounds may be registers.

    The body runs once when the kernel is compiled, its index is a register that cannot be written.
    NKI 0.6 deprecates it for nl.fori_loop, and 0.7 removes it.
    """
    advise("nl.dynamic_range is gone in NKI 0.7: call nl.fori_loop(lower, upper, body)", caller())
    lower, upper = (0, start) if stop is None else (start, stop)
    session, first, last = _loop_bounds("nl.dynamic_range", lower, upper, step)
    for index in session.iterations(first, last, step, caller()):
        yield VirtualRegister(index, frozen=True)


def fori_loop(
    lower: Bound, upper: Bound, body_fun: Callable[[VirtualRegister], Any], step: int = 1
) -> None:
    """Call body_fun(i) on the device for i = lower, lower + step, ... below upper."""
    session, first, last = _loop_bounds("nl.fori_loop", lower, upper, step)
    for index in session.iterations(first, last, step, caller()):
        with session.loop_scope():
            returned = body_fun(VirtualRegister(index, frozen=True))
        if returned is not None:
            raise NotInNki(feature="a body of nl.fori_loop that returns a value", loc=caller())


def while_loop(
    init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]
) -> None:
    """r = init; while r != 0: r = body_fun(r), on the device."""
    session = _reorderable_session("nl.while_loop")
    register = session.new_register("while")
    _emit_move(session, register, init)

    def body() -> None:
        given = VirtualRegister(session.new_register("r"))
        _emit_move(session, given.writable_name(), VirtualRegister(register))
        with session.loop_scope():
            _emit_move(session, register, body_fun(given))

    session.run_while(Affine.of(register), body, caller())


def _emit_move(session: Session, register: str, value: Any) -> None:
    expression = integer_or_register(value, "the condition of a loop")
    fields = {"register": register, "value": expression}
    issue(session, "register_move", RegisterMove, fields)
    session.issue(Barrier(loc=caller()))


def _loop_bounds(
    function: str, lower: Bound, upper: Bound, step: int
) -> tuple[Session, int | Affine, int | Affine]:
    session = _reorderable_session(function)
    if not isinstance(step, int) or isinstance(step, bool) or step < 1:
        rule = f"{function} step must be a positive integer; here it is {value_text(step)}"
        raise BrokenRule(rule=rule, function=function, loc=caller())
    first, last = (integer_or_register(each, f"a bound of {function}") for each in (lower, upper))
    return session, first, last


def _reorderable_session(function: str) -> Session:
    session = current(function)
    if session.orders_strictly:
        feature = f"{function} inside nl.no_reorder() (put the block inside the body)"
        raise NotInNki(feature=feature, loc=caller())
    return session


@contextmanager
def _program_order() -> Iterator[None]:
    session = current("nl.no_reorder")
    before, session.orders_strictly = session.orders_strictly, True
    session.has_strict_blocks = True
    try:
        yield
    finally:
        session.orders_strictly = before


def no_reorder() -> Any:
    """A context manager whose block keeps program order."""
    return _program_order()


def program_id(axis: int = 0) -> int:
    """The number of this program along an axis of the grid."""
    _check_axis(axis)
    return current("nl.program_id").rank


def num_programs(axes: int | tuple[int, ...] | None = 0) -> int:
    """How many programs run; 1 without a grid."""
    for axis in axes if isinstance(axes, tuple | list) else (axes or 0,):
        _check_axis(axis)
    return max(1, current("nl.num_programs").ranks)


def program_ndim() -> int:
    """Dimensions of the grid: 1, or 0 when the kernel was launched without one."""
    return 1 if current("nl.program_ndim").ranks else 0


def _check_axis(axis: int) -> None:
    if axis != 0:
        raise NotInNki(feature=f"axis {axis!r} of a grid of one dimension", loc=caller())


def ds(start: int | VirtualRegister, size: int) -> Any:
    """`size` elements from `start`, for indexing; start may be a register."""
    if isinstance(start, VirtualRegister):
        return DynamicSlice(start, int(size))
    return slice(int(start), int(start) + int(size))
