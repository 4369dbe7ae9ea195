"""`Frame`: the state of one run of a Beta 1 kernel: grid position, open loops, deferred write.

A function returns its result before its destination is known, so its instruction is deferred: an
assignment to a slot that follows directly makes the slot the destination, anything else first
allocates a tile. At most one instruction is deferred, so instructions keep program order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from glia.nki.names.errors import OutsideKernel
from glia.nki.names.language_errors import Beta1InKernel
from glia.nki.session.session import Session, caller, is_running

if TYPE_CHECKING:
    from glia.nki.beta1.run.grid import Programs
    from glia.nki.beta1.run.while_loop import OpenWhile
    from glia.nki.beta1.tensors.storage import Storage
    from glia.nki.beta1.tensors.tensor import Tensor
    from glia.nki.tensors.nki_tensor import NkiTensor


class Scope:
    """The lifetime of tensors: one iteration of a loop, or the whole kernel."""

    is_closed = False


class LoopBody:
    """The body of a loop, which the compiler traces once.

    Python runs every iteration here, while the compiler repeats the first one. What must not vary,
    the allocator at each source line, is therefore recorded in the first iteration and reused.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._counts: dict[Any, int] = {}
        self.scope = Scope()
        self.is_affine = False
        self.iteration = 0
        self.own_tiles: set[str] = set()  # tiles that nothing outside of an iteration accesses
        self._written: dict[Any, int] = {}  # iteration that wrote each place of an outer tensor

    def enter(self, *, is_affine: bool) -> None:
        """Start the loop, possibly another time."""
        self.is_affine = is_affine
        self.own_tiles.clear()
        self._written.clear()

    def record_write(self, place: Any) -> bool:
        """Record that this iteration writes a place; False if another one wrote it before."""
        return self._written.setdefault(place, self.iteration) == self.iteration

    def begin(self) -> None:
        """Start the next iteration."""
        self.iteration += 1
        self._counts.clear()
        self.end()
        self.scope = Scope()

    def end(self) -> None:
        """Close the scope of the current iteration."""
        self.scope.is_closed = True

    def first_iteration_value(self, place: Any, value: Any) -> Any:
        """The value that the first iteration had at this visit of a source place, else `value`."""
        count = self._counts[place] = self._counts.get(place, 0) + 1
        return self._known.setdefault((place, count), value)


class Frame:
    """One run of a kernel on a `grid`; `position` is that of the running program."""

    def __init__(self, session: Session, grid: tuple[int, ...] = ()) -> None:
        self.session = session
        self.grid = grid
        self.position: tuple[int, ...] = (0,) * len(grid)
        self.shared: list[Tensor] = []  # tensors in shared HBM, in order of creation
        self.shared_count = 0  # how many of them the running program has created
        self.placed_ranges: list[Any] = []  # (AddressRange, weak reference) of placed tiles
        self.pending: Storage | None = None  # whose write is deferred
        self.number = 0
        self._stored = 0
        self.ignores_allocation = False  # the compiler chooses all addresses
        self.bodies: list[LoopBody] = [LoopBody()]  # of the open loops, the kernel's own first
        self.programs: Programs | None = None  # of the grid, while they run
        self.while_loops: list[OpenWhile] = []  # on the device
        self.combines = False  # whether writes accumulate into what is there
        self._storages: WeakValueDictionary[int, Storage] = WeakValueDictionary()
        self._ones: NkiTensor | None = None

    def ones(self, make: Callable[[], NkiTensor]) -> NkiTensor:
        """The row of ones that broadcasts along the partitions, `make`d where none is known.

        One that a loop on the device writes is not known behind it, which may not run.
        """
        if self.while_loops:
            return make()
        if self._ones is None:
            self._ones = make()
        return self._ones

    def begin(self, position: tuple[int, ...]) -> None:
        """Start the next program of the grid."""
        self.flush()
        self.position = position
        self.shared_count = 0
        self.bodies = [LoopBody()]

    @contextmanager
    def loop(self, place: Any, *, is_affine: bool) -> Iterator[LoopBody]:
        """Open a traced loop at a source place; the caller starts its iterations."""
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

    def register_storage(self, storage: Storage) -> int:
        """Track a storage while it is alive; returns its number."""
        self._stored += 1
        self._storages[self._stored] = storage
        return self._stored

    def live_storages(self) -> list[Storage]:
        """The storages that are alive, in order of creation."""
        return [storage for _, storage in sorted(self._storages.items())]

    def materialize_all(self) -> None:
        """Issue all deferred writes and copies, before instructions that run repeatedly."""
        self.flush()
        for storage in self.live_storages():
            storage.materialize()
        self.flush()

    @contextmanager
    def combining(self) -> Iterator[None]:
        """Writes in the block accumulate, so that the order of iterations is irrelevant."""
        before, self.combines = self.combines, True
        try:
            yield
        finally:
            self.combines = before

    def conflicts_across_iterations(self, depth: int, place: Any) -> bool:
        """Record a write to a tensor created under `depth` bodies.

        True if two iterations of an nl.affine_range write the same place.
        """
        inside = [] if self.combines else [e for e in self.bodies[depth:] if e.is_affine]
        firsts = [each.record_write(place) for each in inside]  # every open loop records it
        return not all(firsts)

    def flush(self) -> None:
        """Issue the deferred instruction, if any, to a tile of its own."""
        storage, self.pending = self.pending, None
        if storage is not None:
            storage.issue_deferred()

    def unique_name(self, name: str, stem: str) -> str:
        """The given name of a tensor, else a numbered one."""
        self.number += 1
        return name or f"{stem}{self.number}"


_FRAME: ContextVar[Frame | None] = ContextVar("beta1_frame", default=None)


def require_frame(function: str) -> Frame:
    """The running Beta 1 kernel; else OutsideKernel, which names the function that needs one.

    Beta1InKernel in a kernel of the current generation.
    """
    frame = _FRAME.get()
    if frame is None:
        error = Beta1InKernel if is_running() else OutsideKernel
        raise error(function=function, loc=caller())
    return frame


def running_frame() -> Frame | None:
    """The running Beta 1 kernel, None without one."""
    return _FRAME.get()


def is_in_kernel() -> bool:
    """Whether a Beta 1 kernel is running."""
    return _FRAME.get() is not None


@contextmanager
def activate_frame(frame: Frame) -> Iterator[Frame]:
    """Make a frame the running one within the block, and flush it at the end."""
    token = _FRAME.set(frame)
    try:
        yield frame
        frame.flush()
    finally:
        _FRAME.reset(token)
