"""The session of a running kernel: it allocates tiles and takes the issued instructions.

There are two: `recorder.Recorder` records a machine program, `interpreter.Interpreter` executes
every instruction at once. The functions of nl and nisa use only this interface.
"""

from __future__ import annotations

import contextlib
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
from glia.nki.names.language_errors import ExpiredTensor, advise

# Whose frames are never the user's: glia.nki, NumPy, contextlib, and what `hide_frames_of` adds
_HIDDEN_FOLDERS: tuple[str, ...] = (
    str(Path(__file__).parents[1]),
    str(Path(np.__file__).parent),
    contextlib.__file__,
)


def hide_frames_of(folder: Path) -> None:
    """Exclude frames of files below a folder from the results of `caller`."""
    global _HIDDEN_FOLDERS
    _HIDDEN_FOLDERS = (*_HIDDEN_FOLDERS, str(folder))


# (written operand, whether it then holds a sum that products may accumulate into); operands in SBUF
# may be left out.
WriteEffects = tuple[tuple[str, bool], ...]


def write_effects(instruction: Instr) -> WriteEffects:
    """The write effects of an instruction."""
    is_sum = instruction.is_sum
    kind = instruction.__class__
    written = _DECLARED_EFFECTS.get(kind)
    if written is None:
        declared = kind.operand_declarations.items()
        names = [name for name, operand in declared if operand.access != "reads"]
        written = _DECLARED_EFFECTS[kind] = tuple((name, name in kind.sums) for name in names)
    return tuple([(name, adds and is_sum) for name, adds in written])


_DECLARED_EFFECTS: dict[type[Instr], WriteEffects] = {}


@dataclass(frozen=True)
class OrderEdge:
    """The consumer waits until the producer is complete; `loc` is where the kernel says so."""

    consumer: Instr
    producer: Instr
    loc: Loc


class Session(ABC):
    """One run of a kernel for one core.

    `rank` is the core's number in the grid and `ranks` the size of the grid, 0 without one.
    `is_eager` says whether instructions execute as they are issued.
    """

    is_eager = False
    widens_floats = False  # low-precision tensors are stored as float32
    # Tiles by name; weak unless the session keeps all tiles anyway.
    new_scope: Callable[[], MutableMapping[str, Tile]] = WeakValueDictionary

    def __init__(self, target: Target, rank: int = 0, ranks: int = 0) -> None:
        self.target = target
        self.arch_name = target.arch.name
        self.specs: dict[Any, Any] = {}  # results of `allocation.tensor_spec`
        self.rank = rank
        self.ranks = ranks
        self.orders_strictly = False  # inside nl.no_reorder()
        self.has_strict_blocks = False  # has had such a block
        self.in_order: list[Instr] = []  # issued inside nl.no_reorder()
        self.keeps_order = False  # part of the kernel requires program order
        self.engines_chosen: set[Loc] = set()  # lines that name the engine of an instruction
        self.instructions_by_name: dict[str, list[Instr]] = {}
        self.orders: list[OrderEdge] = []  # besides those of data
        self.truths: set[str] = set()  # tiles that comparisons made: `if` asks for their contents
        self.scattered_tiles: set[str] = set()  # PSUM tiles with products at run-time offsets
        self._name_counts: dict[str, int] = {}
        # Tiles allocated in running bodies of nl.fori_loop and nl.while_loop, and in ended ones.
        self.scopes: list[MutableMapping[str, Tile]] = []
        self.expired_tiles = self.new_scope()
        self.has_expired_tiles = False
        self.left_early: list[Loc] = []  # loops on the device that Python left by break or return

    @property
    def fixes_order(self) -> bool:
        """Whether the kernel's author fixes the order of some instructions."""
        return self.keeps_order or self.has_strict_blocks or bool(self.orders)

    @property
    def arch(self) -> Arch:
        return self.target.arch

    def unique(self, name: str) -> str:
        """`name`, with a numeric suffix if it is taken."""
        count = self._name_counts.get(name, 0)
        self._name_counts[name] = count + 1
        if not count:
            return name
        unique = f"{name}.{count}"
        return self.unique(unique) if unique in self._name_counts else unique

    def iterations(
        self, lower: int | Affine, upper: int | Affine, step: int, loc: Loc
    ) -> Iterator[Affine]:
        """The values of `loop`; a loop that Python leaves before its end goes to `left_early`."""
        is_finished = False
        try:
            yield from self.loop(lower, upper, step, loc)
            is_finished = True
        finally:
            if not is_finished:
                self.left_early.append(loc)

    @contextmanager
    def loop_scope(self) -> Iterator[None]:
        """One iteration of a device loop; tiles allocated in it expire at its end."""
        self.scopes.append(self.new_scope())
        try:
            yield
        finally:
            self.expired_tiles.update(self.scopes.pop())
            self.has_expired_tiles = True

    def require_scope(self, tiles: Iterable[Tile]) -> None:
        """AfterItsLoop when a tile was allocated in a loop body that has ended."""
        for tile in tiles:
            if tile.name in self.expired_tiles:
                raise ExpiredTensor(tensor=tile.name, loc=caller())

    def new_register(self, stem: str) -> str:
        """The name of an unused register."""
        return f"${self.unique(stem)}"

    @abstractmethod
    def new_tile(
        self, name: str, memory: Memory, dtype: DType, partitions: int, elements: int,
        address: int | None = None, is_shared: bool = False,
    ) -> Tile:  # fmt: skip
        """An uninitialised tile, at a byte address in its memory when one is given."""

    @abstractmethod
    def constant(self, name: str, array: np.ndarray) -> Tile:
        """An HBM tile initialised with the array."""

    @abstractmethod
    def issue(self, instruction: Instr, effects: WriteEffects | None = None) -> None:
        """Record or execute one legal instruction; `effects` are its write effects if known."""

    @abstractmethod
    def issue_if(self, condition: Affine, instruction: Instr) -> None:
        """Issue an instruction predicated on `condition` not being 0."""

    @abstractmethod
    def accumulates(self, pattern: Pattern, loc: Loc) -> bool | None:
        """Whether a product accumulates into `pattern`: only if products wrote it last.

        None: each element decides at run time.
        """

    @abstractmethod
    def has_sum(self, pattern: Pattern) -> bool | None:
        """Whether all (True), none (False) or some (None) elements hold sums of products."""

    @abstractmethod
    def value_of(self, register: Affine) -> int | None:
        """The current value of a register; None when it is known only at run time."""

    @abstractmethod
    def loop(
        self, lower: int | Affine, upper: int | Affine, step: int, loc: Loc
    ) -> Iterator[Affine]:
        """Yield the index of a device loop over range(lower, upper, step).

        The caller issues the body each time; a Recorder yields once.
        """

    @abstractmethod
    def run_while(self, register: Affine, body: Callable[[], None], loc: Loc) -> None:
        """Run `body` on the device while the register is not 0."""

    @abstractmethod
    def evaluate_while(self, register: Affine, place: object, loc: Loc) -> bool:
        """Whether the `while register:` statement at source position `place` continues."""

    @abstractmethod
    def open_while(self) -> object | None:
        """The source position of a device `while` that was entered and not left; None without."""

    @abstractmethod
    def read(self, pattern: Pattern) -> np.ndarray | None:
        """A copy of the pattern's contents; None when they are known only at run time."""

    @abstractmethod
    def print_tensor(self, prefix: str, pattern: Pattern, dtype: str) -> None:
        """Print a tensor's contents, now or after the compiled program has run."""


CURRENT: ContextVar[Session | None] = ContextVar("session", default=None)


@contextmanager
def running(session: Any) -> Iterator[Any]:
    """Make `session` the current one of nl and nisa while the block runs."""
    token = CURRENT.set(session)
    try:
        yield session
    finally:
        CURRENT.reset(token)


def is_running() -> bool:
    """Whether a kernel is running."""
    return CURRENT.get() is not None


def session_or_none() -> Session | None:
    """The session of the running kernel, None outside of one."""
    return CURRENT.get()


def current(function: str) -> Session:
    """The session of the running kernel; OutsideKernel, naming `function`, outside of one."""
    session = CURRENT.get()
    if session is None:
        raise OutsideKernel(function=function, loc=caller())
    return session


def value_text(value: object) -> str:
    """The text of a value in a message, the same in a simulated and in a compiled kernel."""
    if isinstance(value, np.ndarray):
        return "an array of NumPy (compute with nl and nki.isa; nl.shared_constant holds constants)"
    is_plain = isinstance(value, int | float | str | tuple | list | None)
    return repr(value) if is_plain else f"a {type(value).__name__}"


MAX_CODES = 1 << 12  # code objects with cached locations
# By id of code: the code, and the locations of its instructions; None for code not the user's.
_LOCATIONS: dict[int, tuple[CodeType, dict[int, Loc] | None]] = {}


def caller(depth: int = 1) -> Loc:
    """The user's line: of the nearest caller, `depth` calls up, not in this package or NumPy."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        known = _LOCATIONS.get(id(code))
        if known is None:
            if len(_LOCATIONS) >= MAX_CODES:
                _LOCATIONS.clear()
            is_own = code.co_filename.startswith(_HIDDEN_FOLDERS)
            known = _LOCATIONS[id(code)] = (code, None if is_own else {})
        locations = known[1]
        if locations is not None:
            loc = locations.get(frame.f_lasti)
            if loc is None:
                loc = Loc(code.co_filename, frame.f_lineno, code.co_name)
                locations[frame.f_lasti] = loc
            return loc
        frame = frame.f_back
    return UNKNOWN


def contents_of(pattern: Pattern, use: str) -> np.ndarray:
    """A copy of a pattern's contents; UnknownWhenTraced, naming `use`, in a compiled kernel."""
    contents = current(use).read(pattern)
    if contents is None:
        raise UnknownWhenTraced(value="a tensor", use=use, loc=caller())
    return contents


def truth_of(pattern: Pattern) -> bool:
    """Whether all elements are true, with a KernelAdvice that only a simulated kernel can tell.

    UnknownWhenTraced in a compiled one.
    """
    contents = contents_of(pattern, "a condition")
    advise("a condition on a tensor's contents is known only while simulated", caller())
    return bool(np.all(contents))
