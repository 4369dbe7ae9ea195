"""The session a kernel runs in: where its tensors come from and its instructions go.

There are two: `recorder.Recorder` keeps a machine program, `interpreter.Interpreter` executes every
instruction at once. The functions of nl and nisa know only this interface.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from glia.arch import Arch, Target
from glia.base.affine import Affine
from glia.base.dtype import DType
from glia.base.loc import UNKNOWN, Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.nki.names.errors import OutsideKernel, UnknownWhenTraced
from glia.nki.names.language_errors import AfterItsLoop, advise

# Folders whose frames are never the user's: all of glia.nki, NumPy, and what `hide_frames_of` adds
_HIDDEN_FOLDERS: tuple[str, ...] = (str(Path(__file__).parents[1]), str(Path(np.__file__).parent))


def hide_frames_of(folder: Path) -> None:
    """Leave the frames of the files below a folder out of what `caller` answers."""
    global _HIDDEN_FOLDERS
    _HIDDEN_FOLDERS = (*_HIDDEN_FOLDERS, str(folder))


# Operands that an instruction writes, and whether it leaves sums there that can go on; what is in
# SBUF may be left out.
Notes = tuple[tuple[str, bool], ...]


def notes_of(instruction: Instr) -> Notes:
    """The notes of an instruction."""
    is_sum = instruction.is_sum
    kind = instruction.__class__
    written = _WRITTEN.get(kind)
    if written is None:
        declared = kind.operand_declarations.items()
        names = [name for name, operand in declared if operand.access != "reads"]
        written = _WRITTEN[kind] = tuple((name, name in kind.sums) for name in names)
    return tuple([(name, adds and is_sum) for name, adds in written])


_WRITTEN: dict[type[Instr], Notes] = {}


@dataclass(frozen=True)
class Order:
    """That one instruction waits until another is complete, and where the kernel says so."""

    consumer: Instr
    producer: Instr
    loc: Loc


class Session(ABC):
    """One run of a kernel for one core.

    `rank` is the core's number in the grid and `ranks` the size of the grid, 0 without one.
    `is_eager` says whether instructions are executed as they are issued.
    """

    is_eager = False
    keeps_wide = False  # low-precision tensors are held in float32
    # Tiles by name, which a session that does not need them all does not keep.
    new_scope: Callable[[], MutableMapping[str, Tile]] = WeakValueDictionary

    def __init__(self, target: Target, rank: int = 0, ranks: int = 0) -> None:
        self.target = target
        self.arch_name = target.arch.name
        self.forms: dict[Any, Any] = {}  # what `allocate.form_of` found
        self.rank = rank
        self.ranks = ranks
        self.orders_strictly = False  # inside nl.no_reorder()
        self.keeps_order = False  # a kernel asked for program order somewhere
        self.engines_chosen: set[Loc] = set()  # lines that name the engine of an instruction
        self.named: dict[str, list[Instr]] = {}  # instructions that have a name
        self.orders: list[Order] = []  # that data does not demand
        self.scattered: set[str] = set()  # tiles of PSUM with products at run-time offsets
        self._counts: dict[str, int] = {}
        # Tiles made in the bodies of nl.fori_loop and nl.while_loop that run, and that have ended.
        self.bodies: list[MutableMapping[str, Tile]] = []
        self.ended = self.new_scope()
        self.has_ended = False
        self.left_early: list[Loc] = []  # loops on the device that Python left by break or return

    @property
    def arch(self) -> Arch:
        return self.target.arch

    def unique(self, name: str) -> str:
        """`name`, with a number behind it when it was given out before."""
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        if not count:
            return name
        unique = f"{name}.{count}"
        return self.unique(unique) if unique in self._counts else unique

    def turns(
        self, lower: int | Affine, upper: int | Affine, step: int, loc: Loc
    ) -> Iterator[Affine]:
        """The values of `loop`; notes when Python does not come back for the next one."""
        is_finished = False
        try:
            yield from self.loop(lower, upper, step, loc)
            is_finished = True
        finally:
            if not is_finished:
                self.left_early.append(loc)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One turn of a loop on the device: tiles made in it end with it."""
        self.bodies.append(self.new_scope())
        try:
            yield
        finally:
            self.ended.update(self.bodies.pop())
            self.has_ended = True

    def require_scope(self, tiles: Iterable[Tile]) -> None:
        """AfterItsLoop when a tile was made in the body of a loop that ended."""
        for tile in tiles:
            if tile.name in self.ended:
                raise AfterItsLoop(tensor=tile.name, loc=caller())

    def new_register(self, stem: str) -> str:
        """The name of a register that nothing uses yet."""
        return f"${self.unique(stem)}"

    @abstractmethod
    def new_tile(
        self, name: str, memory: Memory, dtype: DType, partitions: int, elements: int,
        address: int | None = None, is_shared: bool = False,
    ) -> Tile:  # fmt: skip
        """A tile without contents, at a byte address when one is given."""

    @abstractmethod
    def constant(self, name: str, array: np.ndarray) -> Tile:
        """A tile of HBM that holds the array from the start."""

    @abstractmethod
    def issue(self, instruction: Instr, notes: Notes | None = None) -> None:
        """Record or execute one instruction, which is legal; `notes` are given where known."""

    @abstractmethod
    def issue_if(self, condition: Affine, instruction: Instr) -> None:
        """Issue an instruction that runs only when `condition` is not 0."""

    @abstractmethod
    def accumulates(self, pattern: Pattern, loc: Loc) -> bool | None:
        """Whether a product adds to `pattern`: after products yes, after anything else no.

        None leaves it to the running program, element by element.
        """

    @abstractmethod
    def has_sum(self, pattern: Pattern) -> bool | None:
        """Whether all (True), none (False) or some elements hold sums of products."""

    @abstractmethod
    def value_of(self, register: Affine) -> int | None:
        """What a register holds now; None when only the running program knows."""

    @abstractmethod
    def loop(
        self, lower: int | Affine, upper: int | Affine, step: int, loc: Loc
    ) -> Iterator[Affine]:
        """Run what the caller does for each value, given in turn, on the device."""

    @abstractmethod
    def repeat(self, register: Affine, body: Callable[[], None], loc: Loc) -> None:
        """Run `body` while the register is not 0."""

    @abstractmethod
    def continues(self, register: Affine, place: object, loc: Loc) -> bool:
        """The truth of a register in the head of the `while` statement at `place`."""

    @abstractmethod
    def open_while(self) -> object | None:
        """The place of a `while` statement on the device that was entered and not left."""

    @abstractmethod
    def read(self, pattern: Pattern) -> np.ndarray | None:
        """A copy of what a pattern holds now; None when only the running program knows."""

    @abstractmethod
    def print_tensor(self, prefix: str, pattern: Pattern, dtype: str) -> None:
        """Show a tensor's contents to the user."""


CURRENT: ContextVar[Session | None] = ContextVar("session", default=None)


@contextmanager
def running(session: Any) -> Iterator[Any]:
    """The functions of nl and nisa write to `session` while the block runs."""
    token = CURRENT.set(session)
    try:
        yield session
    finally:
        CURRENT.reset(token)


def is_running() -> bool:
    """Whether a kernel runs at the moment."""
    return CURRENT.get() is not None


def session_or_none() -> Session | None:
    """The session of the kernel that runs, if one does."""
    return CURRENT.get()


def current(function: str) -> Session:
    """The session of the kernel that runs; OutsideKernel, naming `function`, without one."""
    session = CURRENT.get()
    if session is None:
        raise OutsideKernel(function=function, loc=caller())
    return session


def shown(value: object) -> str:
    """A value in a message: the same while a kernel is simulated and while it is compiled."""
    if isinstance(value, np.ndarray):
        return "an array of NumPy (compute with nl and nki.isa; nl.shared_constant holds constants)"
    is_plain = isinstance(value, int | float | str | tuple | list | None)
    return repr(value) if is_plain else f"a {type(value).__name__}"


MOST_CODES = 1 << 12  # whose places are remembered
# By id of code: the code, and the places of its instructions; None for code of no user.
_PLACES: dict[int, tuple[CodeType, dict[int, Loc] | None]] = {}


def caller(depth: int = 1) -> Loc:
    """The user's line: of the nearest caller, `depth` calls up, not in this package or NumPy."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        known = _PLACES.get(id(code))
        if known is None:
            if len(_PLACES) >= MOST_CODES:
                _PLACES.clear()
            is_own = code.co_filename.startswith(_HIDDEN_FOLDERS)
            known = _PLACES[id(code)] = (code, None if is_own else {})
        places = known[1]
        if places is not None:
            loc = places.get(frame.f_lasti)
            if loc is None:
                loc = Loc(code.co_filename, frame.f_lineno, code.co_name)
                places[frame.f_lasti] = loc
            return loc
        frame = frame.f_back
    return UNKNOWN


def contents_of(pattern: Pattern, use: str) -> np.ndarray:
    """A copy of what a pattern holds; UnknownWhenTraced, naming the use, in a compiled kernel."""
    contents = current(use).read(pattern)
    if contents is None:
        raise UnknownWhenTraced(value="a tensor", use=use, loc=caller())
    return contents


def truth_of(pattern: Pattern) -> bool:
    """Whether all elements are true; a warning, since only a simulated kernel knows it.

    UnknownWhenTraced in a compiled one.
    """
    contents = contents_of(pattern, "a condition")
    advise("a condition on a tensor's contents is known only while simulated", caller())
    return bool(np.all(contents))
