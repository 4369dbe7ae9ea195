"""`Interpreter`: the session that executes every instruction as it is issued."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from glia.arch import Target
from glia.base.affine import Affine
from glia.base.dtype import PRED, DType
from glia.base.errors import InternalError
from glia.base.loc import Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Program
from glia.nki.names.dtypes import DTYPES
from glia.nki.names.errors import IndexNotInTable
from glia.nki.session.capacity import Room, Use
from glia.nki.session.cores import Cores
from glia.nki.session.loop_invariance import Repeated
from glia.nki.session.program_checks import (
    at_moment,
    constant_written,
    crosses_bank,
    outside,
    unset,
)
from glia.nki.session.psum_accumulation import Sums
from glia.nki.session.session import Notes, Session
from glia.sim.memory import Memories, Region, storage_dtype, viewer
from glia.sim.policy import AccessOutOfBounds
from glia.sim.psum_banks import WITHOUT_BANKS
from glia.sim.run import Executor

Unwritten = tuple[float, int]
UNWRITTEN: Unwritten = float("nan"), 4  # what the documented simulator fills fresh tensors with


class HeldTile(Tile):
    """A tile with its memory, which goes when nothing names the tile any more."""

    __slots__ = ("region", "use")

    region: Region
    use: Use

    def __init__(self, *fields: Any, region: Region) -> None:
        super().__init__(*fields)
        object.__setattr__(self, "region", region)
        object.__setattr__(self, "use", Use())


class _Held(Memories):
    """The memories of tiles that hold their own."""

    def region(self, tile: Tile) -> Region:
        """Where the tile lies."""
        return tile.region if isinstance(tile, HeldTile) else super().region(tile)


class Interpreter(Session):
    """One core that executes a kernel instruction by instruction."""

    is_eager = True

    def __init__(
        self,
        target: Target,
        rank: int = 0,
        ranks: int = 0,
        *,
        cores: Cores | None = None,
        keeps_wide: bool = False,
        unwritten: Unwritten = UNWRITTEN,
    ) -> None:
        super().__init__(target, rank, ranks)
        self._unwritten = unwritten
        self.keeps_wide = keeps_wide
        self.environment: dict[str, int] = {}
        self._free_names: dict[tuple[Loc, bool], str] = {}  # of the indices of loops that ended
        self._whiles: dict[object, Repeated] = {}  # `while` statements that go on, by place
        self._repeated: list[Repeated] = []  # loops on the device that run
        self.written: set[str] = set()  # HBM tiles that an instruction wrote
        self._cores = cores or Cores(1)
        program = Program("kernel", target.name, {}, (), (), {}, ())
        self._executor = Executor(program, arch=target.arch)
        self._executor.memories = _Held(target.arch, program)
        if self._cores.count > 1:
            self._executor.numbers["cores"] = rank
            self._executor.meet = self._cores.meet
        self._chips: dict[Memory, np.ndarray] = {}
        self._sums = Sums()
        self._shared: set[str] = set()  # HBM tiles that all cores have
        self._constants: set[str] = set()  # HBM tiles that no instruction may write
        self.room = Room(target.arch)
        self._has_banks = target.arch.generation < WITHOUT_BANKS

    # --- tiles ---------------------------------------------------------------------------------

    def new_tile(
        self, name: str, memory: Memory, dtype: DType, partitions: int, elements: int,
        address: int | None = None, is_shared: bool = False,
    ) -> Tile:  # fmt: skip
        """A tile filled with NaN or 4, so that reading what nobody wrote shows."""
        unique = self.unique(name)
        if self._repeated:
            self._repeated[-1].make(unique)
        pitch = elements * dtype.bytes
        if address is not None:
            region = self._chip(memory, address)
        elif is_shared:
            self._shared.add(unique)
            shared = self._cores.shared(unique, lambda: self._fresh(partitions * pitch, dtype))
            region = Region(shared, 0, 0)
        else:
            fresh = self._fresh(partitions * pitch, dtype)
            region = Region(fresh, 0, 0 if memory is Memory.HBM else pitch)
        tile = HeldTile(unique, memory, dtype, partitions, elements, region=region)
        self.room.add(tile, tile.use, address)
        return tile

    def _fresh(self, count: int, dtype: DType) -> np.ndarray:
        """Bytes that hold what nobody wrote."""
        buffer = np.empty(count, np.uint8)
        real, integer = self._unwritten
        buffer.view(storage_dtype(dtype))[...] = real if dtype.is_float else integer
        return buffer

    def _chip(self, memory: Memory, address: int) -> Region:
        """A place in the whole of an on-chip memory, where tiles with addresses meet."""
        arch = self.arch
        pitch = {
            Memory.SBUF: arch.sbuf_bytes_per_partition,
            Memory.PSUM: arch.psum_bytes_per_partition,
        }[memory]
        if memory not in self._chips:
            self._chips[memory] = np.full(pitch * arch.partitions, 0xFF, np.uint8)
        return Region(self._chips[memory], address, pitch)

    def constant(self, name: str, array: np.ndarray) -> Tile:
        """A tile of HBM that holds a copy of the array."""
        tile = self.bind(name, np.array(array, order="C"))
        self._constants.add(tile.name)
        return tile

    def bind(self, name: str, array: np.ndarray) -> Tile:
        """A tile of HBM whose memory is that of a contiguous array."""
        dtype = next(d for d in DTYPES.values() if d.numpy == array.dtype)
        region = Region(array.reshape(-1).view(np.uint8), 0, 0)
        unique = self.unique(name)
        self._shared.add(unique)
        return HeldTile(unique, Memory.HBM, dtype, 1, array.size, region=region)

    # --- instructions --------------------------------------------------------------------------

    def issue(self, instruction: Instr, notes: Notes | None = None) -> None:
        """Execute an instruction; IndexNotInTable when an address of its registers is outside."""
        if self._repeated:
            self._repeated[-1].issue(instruction)
        self.room.note(instruction)
        self._execute(instruction, notes)

    def _execute(self, instruction: Instr, notes: Notes | None = None) -> None:
        if self.has_ended:
            self.require_scope(pattern.tile for pattern in instruction.patterns())
        if self._has_banks and instruction.runs_on == "tensor":
            self._require_one_bank(instruction)
        try:
            self._executor.step(instruction, self.environment)
        except (AccessOutOfBounds, InternalError) as fault:
            raise self._refusal(instruction, fault) from fault
        for pattern in () if notes == () else instruction.written_patterns():
            if pattern.memory is Memory.PSUM:
                self._sums.write(self._now(pattern), instruction, self.arch)
            elif pattern.memory is Memory.HBM:
                self.written.add(pattern.tile.name)
                if pattern.tile.name in self._constants:
                    raise constant_written(instruction.loc)
        if self._cores.count > 1:
            self._watch(instruction)
            self._cores.take_turns()

    def _watch(self, instruction: Instr) -> None:
        """CoresRace when another core uses what this instruction does to a shared tensor."""
        operands = () if instruction.arrives == "participants" else instruction.operands()
        for name, _, pattern in operands:
            if pattern.tile.name in self._shared and pattern.memory is Memory.HBM:
                access, now = instruction.access(name), self._now(pattern)
                for act in ("reads", "writes"):
                    if access in (act, "updates"):
                        races = self._cores.races
                        races.access(self.rank, instruction, now, writes=act == "writes")

    def _refusal(self, instruction: Instr, fault: Exception) -> Exception:
        """What an access outside its tile, or to a register nobody set, is for the user."""
        if isinstance(fault, AccessOutOfBounds):
            found = outside(instruction, self.environment)
            return found or IndexNotInTable(problem=fault.message, row="", loc=instruction.loc)
        return unset(instruction.loc) if isinstance(fault.__cause__, KeyError) else fault

    def _require_one_bank(self, instruction: Instr) -> None:
        def address(tile: Tile) -> int:
            return tile.region.start if isinstance(tile, HeldTile) else 0

        crossed = crosses_bank(instruction, self.environment, self.arch, address)
        if crossed is not None:
            raise crossed

    def issue_if(self, condition: Affine, instruction: Instr) -> None:
        """Execute the instruction when the condition holds now."""
        if self._repeated:
            self._repeated[-1].issue(instruction)
        self.room.note(instruction)
        if condition.evaluate(self.environment):
            self._execute(instruction)

    def accumulates(self, pattern: Pattern, loc: Loc) -> bool | None:
        """Whether a product adds; elements without a sum among others become 0 first."""
        now = self._now(pattern)
        has_sum = self._sums.has_sum(now)
        if has_sum is None:
            self._view(now)[~self._sums.elements(now)] = 0
        return has_sum is not False

    def has_sum(self, pattern: Pattern) -> bool | None:
        """Whether elements hold sums now."""
        return self._sums.has_sum(self._now(pattern))

    def _now(self, pattern: Pattern) -> Pattern:
        """The pattern with the registers' values of this moment."""
        return at_moment(pattern, self.environment)

    def _view(self, pattern: Pattern) -> np.ndarray:
        tile = pattern.tile
        region = self._executor.memories.region(tile)
        return viewer(pattern, region, storage_dtype(pattern.dtype))({})

    # --- loops ---------------------------------------------------------------------------------

    def loop(
        self, lower: int | Affine, upper: int | Affine, step: int, loc: Loc
    ) -> Iterator[Affine]:
        """Python's own loop; its index is what it is in a program, and the law sees the same."""
        is_fixed = isinstance(lower, int) and isinstance(upper, int)
        first, last = (self._bound(end, loc) for end in (lower, upper))
        values = range(first, last, step)
        name = self._free_names.pop((loc, is_fixed), None)
        if name is None and values:
            name = self.unique("i") if is_fixed else self.new_register("i")
        with self._repeating() as repeated:
            for turn, value in enumerate(values):
                assert name is not None
                self.environment[name] = turn if is_fixed else value
                repeated.begin()
                yield Affine.of(name) * step + first if is_fixed else Affine.of(name)
        if name is not None:
            self._free_names[loc, is_fixed] = name

    @contextmanager
    def _repeating(self) -> Iterator[Repeated]:
        """A loop that runs while the block does."""
        repeated = Repeated()
        self._repeated.append(repeated)
        try:
            yield repeated
        finally:
            self._repeated.remove(repeated)

    def _bound(self, end: int | Affine, loc: Loc) -> int:
        value = self.value_of(Affine.of(end))
        if value is None:
            raise unset(loc)
        return value

    def repeat(self, register: Affine, body: Callable[[], None], loc: Loc) -> None:
        """Python's own loop."""
        with self._repeating() as repeated:
            while self._bound(register, loc):
                repeated.begin()
                body()

    def continues(self, register: Affine, place: object, loc: Loc) -> bool:
        """Whether the register is not 0."""
        is_true = self._bound(register, loc) != 0
        if not is_true:
            repeated = self._whiles.pop(place, None)
            if repeated is not None:
                self._repeated.remove(repeated)
            return False
        if place not in self._whiles:
            self._whiles[place] = Repeated()
            self._repeated.append(self._whiles[place])
        self._whiles[place].begin()
        return True

    def open_while(self) -> object | None:
        """The place of a `while` whose last condition was true."""
        return next(iter(self._whiles), None)

    # --- what is known now -----------------------------------------------------------------------

    def value_of(self, register: Affine) -> int | None:
        """What the registers hold; None before anything set them."""
        if not set(register.variables) <= self.environment.keys():
            return None
        return register.evaluate(self.environment)

    def read(self, pattern: Pattern) -> np.ndarray | None:
        """A copy of the elements."""
        view = self._view(self._now(pattern))
        return view != 0 if pattern.dtype is PRED else view.copy()

    def print_tensor(self, prefix: str, pattern: Pattern, dtype: str) -> None:
        """Write the contents to standard output at once."""
        sys.stdout.write(f"{prefix} {self.read(pattern)}\n")
