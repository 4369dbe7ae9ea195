"""A kernel of Beta 1 while it runs: its place in the grid and what it defers.

A function returns its result before anybody says where it goes. Its instruction is therefore held
back: an assignment to a slot that follows at once gives the slot as its destination, anything else
gives it a tile of its own first. At most one instruction waits, so that the order is the program's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from glia.nki.names.errors import OutsideKernel
from glia.nki.names.language_errors import Beta1InKernel
from glia.nki.session.session import Session, caller, is_running


class Scope:
    """One turn of a loop, or the kernel itself: what is made in it is not used when it is over."""

    is_closed = False


class LoopBody:
    """The body of a loop, which the compiler traces once.

    Every iteration repeats what Python computed in the first one. Here Python runs in all of them,
    so that what must not change, the allocator at each line, is kept from the first.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._counts: dict[Any, int] = {}
        self.scope = Scope()
        self.is_affine = False
        self.iteration = 0
        self._written: dict[Any, int] = {}  # places of tensors from outside, and the turn that did

    def enter(self, *, is_affine: bool) -> None:
        """The loop starts, perhaps again."""
        self.is_affine = is_affine
        self._written.clear()

    def record_write(self, place: Any) -> bool:
        """Note that this iteration writes a place; whether it is the first that does."""
        return self._written.setdefault(place, self.iteration) == self.iteration

    def begin(self) -> None:
        """The next iteration starts."""
        self.iteration += 1
        self._counts.clear()
        self.end()
        self.scope = Scope()

    def end(self) -> None:
        """The last iteration is over."""
        self.scope.is_closed = True

    def first_iteration_value(self, place: Any, value: Any) -> Any:
        """What the first iteration had at this place, when it was there as often as now."""
        count = self._counts[place] = self._counts.get(place, 0) + 1
        return self._known.setdefault((place, count), value)


class Frame:
    """One run of a kernel: `position` in its `grid`, and tensors that its programs share."""

    def __init__(self, session: Session, grid: tuple[int, ...] = ()) -> None:
        self.session = session
        self.grid = grid
        self.position: tuple[int, ...] = (0,) * len(grid)
        self.shared: list[Any] = []  # tensors in shared HBM, in the order they were made
        self.shared_count = 0  # how many of them the current program has
        self.placed_ranges: list[Any] = []  # tiles at chosen addresses
        self.pending: Any = None  # the storage whose instruction waits
        self.number = 0
        self._stored = 0
        self.ignores_allocation = False  # the compiler chooses all addresses
        self.bodies: list[LoopBody] = [LoopBody()]  # of the loops that run, the kernel's own first
        self.programs: Any = None  # of the grid, while they run
        self.while_loops: list[Any] = []  # those on the device that run
        self.combines = False  # what is written is combined with what was there
        self._storages: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def begin(self, position: tuple[int, ...]) -> None:
        """The next program of the grid starts."""
        self.flush()
        self.position = position
        self.shared_count = 0
        self.bodies = [LoopBody()]

    @contextmanager
    def loop(self, place: Any, *, is_affine: bool) -> Iterator[LoopBody]:
        """A traced loop at a place of the program; the caller begins its iterations."""
        self.flush()
        body = self.bodies[-1].first_iteration_value(place, LoopBody())
        body.enter(is_affine=is_affine)
        self.bodies.append(body)
        try:
            yield body
        finally:
            body.end()
            if body in self.bodies:  # not where a loop around it was left
                self.bodies = self.bodies[: self.bodies.index(body)]

    def register_storage(self, storage: Any) -> int:
        """Know a storage, as long as something else holds it; its number."""
        self._stored += 1
        self._storages[self._stored] = storage
        return self._stored

    def live_storages(self) -> list[Any]:
        """The storages that are still held, in the order in which they were made."""
        return [storage for _, storage in sorted(self._storages.items())]

    def materialize_all(self) -> None:
        """Issue all that was put off, before instructions that run several times."""
        self.flush()
        for storage in self.live_storages():
            storage.materialize()
        self.flush()

    @contextmanager
    def combining(self) -> Iterator[None]:
        """What is written is combined with what is there, so that the order changes nothing."""
        before, self.combines = self.combines, True
        try:
            yield
        finally:
            self.combines = before

    def conflicts_across_iterations(self, depth: int, place: Any) -> bool:
        """Note a write to a tensor made under `depth` bodies; whether two iterations write it."""
        inside = [] if self.combines else [e for e in self.bodies[depth:] if e.is_affine]
        firsts = [each.record_write(place) for each in inside]  # all of them note it
        return not all(firsts)

    def flush(self) -> None:
        """Issue the instruction that waits, to a tile of its own."""
        storage, self.pending = self.pending, None
        if storage is not None:
            storage.issue_deferred()

    def unique_name(self, name: str, stem: str) -> str:
        """A name for a tensor: its own, else numbered."""
        self.number += 1
        return name or f"{stem}{self.number}"


_FRAME: ContextVar[Frame | None] = ContextVar("beta1_frame", default=None)


def require_frame(function: str) -> Frame:
    """The kernel that runs; OutsideKernel, naming the function, without one.

    EarlierInKernel in a kernel of the current generation.
    """
    frame = _FRAME.get()
    if frame is None:
        error = Beta1InKernel if is_running() else OutsideKernel
        raise error(function=function, loc=caller())
    return frame


def running_frame() -> Frame | None:
    """The kernel of this generation that runs, if one does."""
    return _FRAME.get()


def is_in_kernel() -> bool:
    """Whether a kernel of this generation runs."""
    return _FRAME.get() is not None


@contextmanager
def activate_frame(frame: Frame) -> Iterator[Frame]:
    """Functions of nl and nisa belong to this run while the block lasts."""
    token = _FRAME.set(frame)
    try:
        yield frame
        frame.flush()
    finally:
        _FRAME.reset(token)
