"""`Recorder`: the session that keeps what a kernel does as a machine program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from glia.arch import Target
from glia.base.affine import Affine
from glia.base.dtype import DType
from glia.base.loc import Loc
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.sync import RegisterAlu, RegisterMove
from glia.isa.instructions.vector import Memset
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, row_major
from glia.machine.ir import Branch, Loop, Statement, While
from glia.machine.queues import QUEUE_OWNERS
from glia.nki.names.dtypes import DTYPES
from glia.nki.session.psum_accumulation import AccumulationState
from glia.nki.session.session import Session, WriteEffects, write_effects

_PSUM, _HBM = Memory.PSUM, Memory.HBM  # hoisted out of the path of every instruction


@dataclass(frozen=True)
class PrintedTensor:
    """A tensor printed by nl.device_print: the HBM tile that holds its contents at program end.

    The tile has one copy for each iteration of the enclosing loops whose `trips` are known at
    compile time; iterations of other loops overwrite each other, so that the last one stays.
    """

    prefix: str
    tile: Tile
    shape: tuple[int, ...]
    trips: tuple[int, ...]


@dataclass(eq=False)
class _OpenLoop:
    """A device loop whose body is being recorded; `outer` holds the statements before it."""

    outer: list[Statement]
    place: object = None
    variable: str = ""  # the induction variable where the trip count is known
    trips: int = 1


class Recorder(Session):
    """Records the machine program of one core while its kernel is traced."""

    new_scope = dict

    def __init__(self, target: Target, rank: int = 0, ranks: int = 0) -> None:
        super().__init__(target, rank, ranks)
        self.tiles: dict[str, Tile] = {}
        self.addresses: dict[str, int] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.body: list[Statement] = []
        self.written: set[str] = set()  # tiles of HBM
        self.shared: set[str] = set()  # tiles of HBM that all cores have
        self.printed: list[PrintedTensor] = []
        self.merges_iterations = True  # of parallel loops, where that takes less time
        self._merged: Counter[tuple[Loc, int]] = Counter()  # loops, by line and iterations
        self._accumulation = AccumulationState()
        self._loops: tuple[_OpenLoop, ...] = ()
        # PSUM tile -> loops open at its last reset
        self._reset_loops: dict[str, tuple[_OpenLoop, ...]] = {}
        # PSUM tiles allocated in loops and not yet reset: the block, and the position in it
        self._unreset: dict[str, tuple[list[Statement], int]] = {}

    # --- tiles ---------------------------------------------------------------------------------

    def new_tile(
        self, name: str, memory: Memory, dtype: DType, partitions: int, elements: int,
        address: int | None = None, is_shared: bool = False,
    ) -> Tile:  # fmt: skip
        """A tile of the program, which placement gives an address unless it has one."""
        unique = self.unique(name)
        tile = Tile(unique, memory, dtype, partitions, elements)
        self.tiles[unique] = tile
        if address is not None:
            self.addresses[unique] = address
        if is_shared:
            self.shared.add(unique)
        if memory is Memory.PSUM:
            self._reset_loops[unique] = self._loops
            if self._loops:
                self._unreset[unique] = self.body, len(self.body)
        return tile

    def constant(self, name: str, array: np.ndarray) -> Tile:
        """A tile of HBM with contents from the start."""
        contents = np.ascontiguousarray(array)
        dtype = next(d for d in DTYPES.values() if d.numpy == contents.dtype)
        tile = self.new_tile(name, Memory.HBM, dtype, 1, contents.size)
        self.constants[tile.name] = contents
        return tile

    def widened_tile(self, tile: Tile, count: int) -> Tile:
        """A tile with room for `count` tiles like one that belongs to an iteration of a loop."""
        stem = tile.name.partition("*")[0]
        elements = count * tile.elements
        return self.new_tile(f"{stem}*{count}", tile.memory, tile.dtype, tile.partitions, elements)

    def record_merged(self, loc: Loc, iterations: int) -> None:
        """Count a loop of which so many iterations became one."""
        self._merged[loc, iterations] += 1

    def notes(self) -> tuple[str, ...]:
        """What was changed while the program was recorded."""
        return tuple(
            f"{iterations} iterations of the loop at {loc} run as one, {times} times"
            for (loc, iterations), times in self._merged.items()
        )

    # --- instructions --------------------------------------------------------------------------

    def issue(self, instruction: Instr, effects: WriteEffects | None = None) -> None:
        """Append an instruction."""
        if self.has_expired_tiles:
            self.require_scope(pattern.tile for pattern in instruction.patterns())
        self.body.append(instruction)
        if self.orders_strictly:
            self.in_order.append(instruction)
        if effects is None:
            effects = write_effects(instruction)
        if effects:
            self._record_writes(instruction, effects)

    def _record_writes(self, instruction: Instr, effects: WriteEffects) -> None:
        """Record HBM tiles as written, and PSUM writes as starting or ending an accumulation."""
        for name, is_sum in effects:
            pattern = getattr(instruction, name)
            if pattern.__class__ is Pattern:
                memory = pattern.tile.memory
                if memory is _PSUM:
                    if is_sum and self._accumulation.latest.get(pattern.tile.name) is pattern:
                        continue  # the sum goes on
                    if _is_fixed(pattern):
                        self._accumulation.write(pattern, instruction, self.arch)
                    if not is_sum:
                        self._reset_loops[pattern.tile.name] = self._loops
                elif memory is _HBM:
                    self.written.add(pattern.tile.name)
            elif pattern.__class__ is tuple:
                self.written.update([each.tile.name for each in pattern])

    def issue_if(self, condition: Affine, instruction: Instr) -> None:
        """A branch around the instruction."""
        register = self.new_register("condition")
        self.body.append(RegisterMove(register=register, value=condition, loc=instruction.loc))
        self.body.append(Branch(register, ((), (instruction,))))
        self._record_writes(instruction, write_effects(instruction))

    def accumulates(self, pattern: Pattern, loc: Loc) -> bool | None:
        """Whether a product accumulates; None where it depends on the iteration of a loop."""
        if self._accumulation.latest.get(pattern.tile.name) is pattern:
            return True
        has_sum = self.has_sum(pattern)
        if has_sum is not None:
            return has_sum
        self._reset(pattern.tile, loc)
        return None

    def _reset(self, tile: Tile, loc: Loc) -> None:
        """Overwrite a tile where a loop body allocates it: its memory keeps the last iteration."""
        made_in = self._unreset.pop(tile.name, None)
        if made_in is None:
            return
        body, position = made_in
        dims = ((1, tile.partitions), (1, tile.elements))
        whole = Pattern(tile, tile.dtype, dims)
        body.insert(position, Memset(dst=whole, value=0.0, loc=loc))
        for name, (other, at) in self._unreset.items():
            if other is body and at >= position:
                self._unreset[name] = body, at + 1

    def has_sum(self, pattern: Pattern) -> bool | None:
        """Whether elements hold sums; None also where that depends on the iteration of a loop."""
        has_sum = self._accumulation.has_sum(pattern) if _is_fixed(pattern) else None
        home = self._reset_loops.get(pattern.tile.name, ())
        if has_sum or home is self._loops:
            return has_sum
        return None if any(loop not in home for loop in self._loops) else has_sum

    # --- loops ---------------------------------------------------------------------------------

    def loop(
        self, lower: int | Affine, upper: int | Affine, step: int, loc: Loc
    ) -> Iterator[Affine]:
        """Emit a Loop, or a While where a bound is a register; its body is recorded once."""
        if isinstance(lower, int) and isinstance(upper, int):
            trips = len(range(lower, upper, step))
            if trips:
                variable = self.unique("i")
                loop = self._open_loop(variable, trips)
                yield Affine.of(variable) * step + lower
                body = self._close_loop(loop)
                self.body.append(Loop(variable, trips, body))
            return
        index, end, more = (self.new_register(stem) for stem in ("i", "end", "more"))
        at, limit = Affine.of(index), Affine.of(end)
        loop = self._open_loop()
        yield at
        self.body.append(RegisterAlu(register=index, op="add", a=at, b=step, loc=loc))
        body = self._close_loop(loop)
        for register, value in ((index, lower), (end, upper)):
            self.body.append(RegisterMove(register=register, value=value, loc=loc))
        test = RegisterAlu(register=more, op="less", a=at, b=limit, loc=loc)
        self.body.append(While((test,), more, body))

    @property
    def is_in_loop(self) -> bool:
        """Whether the body of a loop on the device is being recorded."""
        return bool(self._loops)

    def run_while(self, register: Affine, body: Callable[[], None], loc: Loc) -> None:
        """Emit a While; its body is recorded once."""
        loop = self._open_loop()
        body()
        self._close_while(loop, register, loc)

    def evaluate_while(self, register: Affine, place: object, loc: Loc) -> bool:
        """True at the first evaluation, which opens the loop; False at the second closes it."""
        if self._loops and self._loops[-1].place == place:
            self._close_while(self._loops[-1], register, loc)
            return False
        self._open_loop().place = place
        return True

    def open_while(self) -> object | None:
        """The source position of a `while` that was opened and not closed."""
        return self._loops[-1].place if self._loops else None

    def _close_while(self, loop: _OpenLoop, register: Affine, loc: Loc) -> None:
        more = self.new_register("more")
        test = RegisterMove(register=more, value=register, loc=loc)
        body = self._close_loop(loop)
        self.body.append(While((test,), more, body))

    def _open_loop(self, variable: str = "", trips: int = 1) -> _OpenLoop:
        loop = _OpenLoop(self.body, variable=variable, trips=trips)
        self._loops = (*self._loops, loop)
        self.body = []
        return loop

    def _close_loop(self, loop: _OpenLoop) -> tuple[Statement, ...]:
        """The statements recorded since the loop was opened; the outer block continues."""
        body, self.body = tuple(self.body), loop.outer
        self._loops = tuple(each for each in self._loops if each is not loop)
        return body

    # --- run-time values -------------------------------------------------------------------------

    def value_of(self, register: Affine) -> int | None:
        """None: registers have values at run time only."""
        return None

    def read(self, pattern: Pattern) -> np.ndarray | None:
        """None: tiles have contents at run time only."""
        return None

    def print_tensor(self, prefix: str, pattern: Pattern, dtype: str) -> None:
        """Copy the tensor to an HBM output, which is printed after the program has run."""
        loops = [loop for loop in self._loops if loop.variable]
        trips = tuple(loop.trips for loop in loops)
        steps = row_major((*trips, pattern.elements))
        stem = f"core{self.rank}.printed" if self.rank else "printed"
        tile = self.new_tile(stem, Memory.HBM, pattern.dtype, 1, steps[0][0] * steps[0][1])
        outer = zip(loops, steps, strict=False)
        offset = Affine.build({loop.variable: step for loop, (step, _) in outer})
        dst = Pattern(tile, pattern.dtype, row_major(pattern.shape), offset)
        self.issue(DmaCopy(dst=dst, src=pattern, queue="store", on=QUEUE_OWNERS["store"]))
        self.printed.append(PrintedTensor(prefix, tile, (*trips, *pattern.shape), trips))


def _is_fixed(pattern: Pattern) -> bool:
    return not (pattern.offset.terms or pattern.partition.terms)
