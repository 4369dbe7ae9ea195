"""`Recorder`: the session that keeps what a kernel does as a machine program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from glia.arch import Target
from glia.base.affine import ZERO, Affine
from glia.base.dtype import DType
from glia.base.loc import Loc
from glia.isa.dma import DmaCopy
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.isa.sync import RegisterAlu, RegisterMove
from glia.isa.tensor import NcMatmul
from glia.isa.vector import Memset
from glia.machine.emit.builder import QUEUE_OWNERS
from glia.machine.ir import Branch, Loop, Statement, While
from glia.nki.dtypes import DTYPES
from glia.nki.errors import NotInNki
from glia.nki.session import Session
from glia.nki.sums import Sums

QUADRANT = 32


@dataclass(frozen=True)
class Printed:
    """A tensor that nl.device_print shows: an HBM tile that holds it when the program ends."""

    prefix: str
    tile: Tile
    shape: tuple[int, ...]


@dataclass(eq=False)
class _OpenLoop:
    """A loop on the device whose body is being recorded.

    `counter` is 0 in its first iteration only. `decisions` are products that add to their
    destination in all iterations but the first, provided that the sum is still there at the end.
    """

    counter: Affine
    place: object = None
    body: list[Statement] = field(default_factory=list)
    decisions: list[Pattern] = field(default_factory=list)


class Recorder(Session):
    """The program of one core while its kernel is traced."""

    def __init__(self, target: Target, rank: int = 0, ranks: int = 0) -> None:
        super().__init__(target, rank, ranks)
        self.tiles: dict[str, Tile] = {}
        self.addresses: dict[str, int] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.body: list[Statement] = []
        self.printed: list[Printed] = []
        self.left_early: list[Loc] = []  # loops on the device that Python left by break or return
        self._sums = Sums()
        self._loops: list[_OpenLoop] = []
        self._homes: dict[str, list[_OpenLoop]] = {}  # PSUM tile: loops open when it was reset

    # --- tiles ---------------------------------------------------------------------------------

    def new_tile(
        self, name: str, memory: Memory, dtype: DType, partitions: int, elements: int,
        address: int | None = None, is_shared: bool = False,
    ) -> Tile:  # fmt: skip
        """A tile of the program, which placement gives an address unless it has one."""
        tile = Tile(self.unique(name), memory, dtype, partitions, elements)
        self.tiles[tile.name] = tile
        if address is not None:
            self.addresses[tile.name] = address
        if memory is Memory.PSUM:
            self._homes[tile.name] = list(self._loops)
        return tile

    def constant(self, name: str, array: np.ndarray) -> Tile:
        """A tile of HBM with contents from the start."""
        contents = np.ascontiguousarray(array)
        dtype = next(d for d in DTYPES.values() if d.numpy == contents.dtype)
        tile = self.new_tile(name, Memory.HBM, dtype, 1, contents.size)
        self.constants[tile.name] = contents
        return tile

    # --- instructions --------------------------------------------------------------------------

    def issue(self, instruction: Instr) -> None:
        """Append an instruction; what it writes to PSUM starts a sum, or ends one."""
        self.body.append(instruction)
        kind = type(instruction)
        if kind.arrives_by_dma:
            return
        for pattern in instruction.written_patterns():
            if pattern.memory is Memory.PSUM and _is_fixed(pattern):
                is_product = isinstance(instruction, NcMatmul)
                self._sums.mark(pattern, is_product)
                if not is_product:
                    self._homes[pattern.tile.name] = list(self._loops)

    def issue_if(self, condition: Affine, instruction: Instr) -> None:
        """A branch around the instruction."""
        register = self.new_register("condition")
        self.body.append(RegisterMove(register=register, value=condition, loc=instruction.loc))
        self.body.append(Branch(register, ((), (instruction,))))

    def accumulates(self, pattern: Pattern, loc: Loc) -> bool | Affine:
        """Whether a product adds: in a loop an expression that is 0 in the first iteration."""
        if not _is_fixed(pattern):
            feature = "nki.isa.nc_matmul with accumulate=None at an address of a register"
            raise NotInNki(feature=feature, loc=loc)
        has_sum = self._sums.has_sum(pattern)
        if has_sum is None:
            self._clear(pattern, loc)
            return True
        if has_sum:
            return True
        home = self._homes.get(pattern.tile.name, [])
        around = [loop for loop in self._loops if loop not in home]
        counter = ZERO
        for loop in around:
            counter = counter + loop.counter
            loop.decisions.append(pattern)
        return counter if around else False

    def _clear(self, pattern: Pattern, loc: Loc) -> None:
        """Write 0 to the elements that hold no sum, in as few rectangles as their columns form."""
        held = self._sums.elements(pattern)
        columns = held.reshape(held.shape[0], -1)
        free = [dim for dim in pattern.dims[1:] if dim[1] > 1] or [(1, 1)]
        blocks = [columns[row : row + QUADRANT] for row in range(0, len(columns), QUADRANT)]
        if len(free) > 1 or any((block != block[0]).any() for block in blocks):
            feature = "nki.isa.nc_matmul onto elements of which some hold a sum, in no rectangle"
            raise NotInNki(feature=feature, loc=loc)
        for number, block in enumerate(blocks):
            for start, end in _runs(~block[0]):
                part = replace(
                    pattern,
                    dims=((1, len(block)), (free[0][0], end - start)),
                    offset=pattern.offset + start * free[0][0],
                    partition=pattern.partition + QUADRANT * number,
                )
                self.body.append(Memset(dst=part, value=0.0, on="vector", loc=loc))

    # --- loops ---------------------------------------------------------------------------------

    def loop(
        self, lower: int | Affine, upper: int | Affine, step: int, loc: Loc
    ) -> Iterator[Affine]:
        """A loop of the program; its body is recorded once."""
        if isinstance(lower, int) and isinstance(upper, int):
            trips = len(range(lower, upper, step))
            if trips:
                variable = self.unique("i")
                loop = self._open(Affine.of(variable))
                yield from self._recorded(Affine.of(variable) * step + lower, loc)
                self.body.append(Loop(variable, trips, self._close(loop)))
            return
        index, end, more, count = (
            self.new_register(stem) for stem in ("i", "end", "more", "count")
        )
        loop = self._open(Affine.of(count))
        yield from self._recorded(Affine.of(index), loc)
        is_counted = bool(loop.decisions)
        for register in (index, count) if is_counted else (index,):
            amount = step if register == index else 1
            a = Affine.of(register)
            self.body.append(RegisterAlu(register=register, op="add", a=a, b=amount, loc=loc))
        body = self._close(loop)
        starts = {index: lower, end: upper} | ({count: 0} if is_counted else {})
        for register, value in starts.items():
            self.body.append(RegisterMove(register=register, value=value, loc=loc))
        test = RegisterAlu(register=more, op="less", a=Affine.of(index), b=Affine.of(end), loc=loc)
        self.body.append(While((test,), more, body))

    def repeat(self, register: Affine, body: Callable[[], None], loc: Loc) -> None:
        """A while of the program."""
        loop = self._open(Affine.of(self.new_register("count")))
        body()
        self._close_while(loop, register, loc)

    def continues(self, register: Affine, place: object, loc: Loc) -> bool:
        """True opens the loop, at its second evaluation False closes it."""
        if self._loops and self._loops[-1].place == place:
            self._close_while(self._loops[-1], register, loc)
            return False
        self._open(Affine.of(self.new_register("count"))).place = place
        return True

    def open_while(self) -> object | None:
        """The place of a `while` that was entered and never evaluated again."""
        return self._loops[-1].place if self._loops else None

    def _close_while(self, loop: _OpenLoop, register: Affine, loc: Loc) -> None:
        count, more = loop.counter, self.new_register("more")
        is_counted = bool(loop.decisions)
        name = count.variables[0]
        if is_counted:
            self.body.append(RegisterAlu(register=name, op="add", a=count, b=1, loc=loc))
        body = self._close(loop)
        if is_counted:
            self.body.append(RegisterMove(register=name, value=0, loc=loc))
        test = RegisterMove(register=more, value=register, loc=loc)
        self.body.append(While((test,), more, body))

    def _recorded(self, index: Affine, loc: Loc) -> Iterator[Affine]:
        """Give the index once; note when Python does not come back for the next one."""
        is_finished = False
        try:
            yield index
            is_finished = True
        finally:
            if not is_finished:
                self.left_early.append(loc)

    def _open(self, counter: Affine) -> _OpenLoop:
        loop = _OpenLoop(counter, body=self.body)
        self._loops.append(loop)
        self.body = []
        return loop

    def _close(self, loop: _OpenLoop) -> tuple[Statement, ...]:
        """What was recorded since the loop was opened."""
        body, self.body = tuple(self.body), loop.body
        self._loops.remove(loop)
        for pattern in loop.decisions:
            if self._sums.has_sum(pattern) is not True:
                body = _without_counter(body, pattern, loop.counter)
        return body

    # --- what only the running program knows -----------------------------------------------------

    def value_of(self, register: Affine) -> int | None:
        """Not known."""
        return None

    def read(self, pattern: Pattern) -> np.ndarray | None:
        """Not known."""
        return None

    def print_tensor(self, prefix: str, pattern: Pattern, dtype: str) -> None:
        """Copy the tensor to HBM, from where it is shown when the program has run."""
        tile = self.new_tile("printed", Memory.HBM, pattern.dtype, 1, pattern.elements)
        dims, step = [], pattern.elements
        for _, count in pattern.dims:
            step //= count
            dims.append((step, count))
        dst = Pattern(tile, pattern.dtype, tuple(dims))
        self.issue(DmaCopy(dst=dst, src=pattern, queue="store", on=QUEUE_OWNERS["store"]))
        self.printed.append(Printed(prefix, tile, pattern.shape))


def _is_fixed(pattern: Pattern) -> bool:
    return pattern.offset.is_constant and pattern.partition.is_constant


def _runs(wanted: np.ndarray) -> list[tuple[int, int]]:
    """(start, end) of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], wanted.astype(np.int8), [0]))))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _without_counter(
    body: tuple[Statement, ...], pattern: Pattern, counter: Affine
) -> tuple[Statement, ...]:
    """Products onto the pattern no longer add because of the loop of `counter`."""
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop | While):
            inner = _without_counter(statement.body, pattern, counter)
            result.append(replace(statement, body=inner))
        elif isinstance(statement, NcMatmul) and statement.dst == pattern:
            adds = statement.accumulate
            if isinstance(adds, Affine):
                left = Affine(tuple(term for term in adds.terms if term not in counter.terms))
                adds = left if left.terms else False
            result.append(replace(statement, accumulate=adds))
        else:
            result.append(statement)
    return tuple(result)
