"""`Interpreter`: the session that executes every instruction as it is issued."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.arch import Target
from glia.base.affine import Affine
from glia.base.dtype import PRED, DType
from glia.base.fast_objects import set_field
from glia.base.loc import Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Program
from glia.nki.names.dtypes import DTYPES
from glia.nki.names.errors import IndexNotInTable
from glia.nki.session.capacity import OnChipUsage, UseInterval
from glia.nki.session.cores import Cores
from glia.nki.session.loop_invariance import LoopTrace
from glia.nki.session.program_checks import (
    bank_crossing,
    evaluate_pattern,
    out_of_bounds,
    unset_register,
    write_to_constant,
)
from glia.nki.session.psum_accumulation import AccumulationState
from glia.nki.session.session import Session, WriteEffects
from glia.sim.memory import Memories, Region, storage_dtype, viewer
from glia.sim.policy import DEVICE_VARIABLE, AccessOutOfBounds, MalformedProgram
from glia.sim.run import Executor

if TYPE_CHECKING:
    from glia.sim.host.classes.single_steps import SingleSteps

WORK_BY_MEANING = 1 << 23  # elements of operands, before machine code is asked for: some 20 ms
Unwritten = tuple[float, int]
UNWRITTEN: Unwritten = float("nan"), 4  # the documented simulator's fill of fresh tensors


class BackedTile(Tile):
    """A tile that owns its simulated memory, freed when the last reference to the tile goes."""

    __slots__ = ("interval", "region")

    region: Region
    interval: UseInterval

    def __init__(self, *fields: Any, region: Region) -> None:
        super().__init__(*fields)
        set_field(self, "region", region)
        set_field(self, "interval", UseInterval())


class _TileMemories(Memories):
    """The memories of tiles that own theirs."""

    def region(self, tile: Tile) -> Region:
        """The bytes of the tile."""
        return tile.region if isinstance(tile, BackedTile) else super().region(tile)


class Interpreter(Session):
    """Executes the instructions of one core as its kernel issues them."""

    is_eager = True

    def __init__(
        self,
        target: Target,
        rank: int = 0,
        ranks: int = 0,
        *,
        cores: Cores | None = None,
        widens_floats: bool = False,
        unwritten: Unwritten = UNWRITTEN,
        by_meaning: bool = False,
    ) -> None:
        """`by_meaning`: never as machine code, of which results may differ in the last places.

        So does GLIA_DEVICE=reference in the environment.
        """
        super().__init__(target, rank, ranks)
        self._unwritten = unwritten
        self.widens_floats = widens_floats
        self.environment: dict[str, int] = {}
        self._free_names: dict[tuple[Loc, bool], str] = {}  # induction variables of ended loops
        self._whiles: dict[object, LoopTrace] = {}  # running `while` statements, by position
        self._loops: list[LoopTrace] = []  # running device loops, innermost last
        self.written: set[str] = set()  # HBM tiles that an instruction wrote
        self._cores = cores or Cores(1)
        is_reference = os.environ.get(DEVICE_VARIABLE) == "reference"
        self._may_be_native = not (by_meaning or is_reference)
        self._work = 0  # elements of operands so far
        self._native: SingleSteps | None = None
        program = Program("kernel", target.name, {}, (), (), {}, ())
        self._executor = Executor(program, arch=target.arch)
        self._executor.memories = _TileMemories(target.arch, program)
        self._executor.indices["cores"] = rank
        self._executor.exchange = self._cores.synchronise
        self._on_chip_bytes: dict[Memory, np.ndarray] = {}
        self._accumulation = AccumulationState()
        self._shared: set[str] = set()  # HBM tiles that all cores share
        self._constants: set[str] = set()  # HBM tiles that no instruction may write
        self.on_chip = OnChipUsage(target.arch)
        self._has_banks = not target.arch.capabilities.has_products_across_banks

    # --- tiles ---------------------------------------------------------------------------------

    def new_tile(
        self, name: str, memory: Memory, dtype: DType, partitions: int, elements: int,
        address: int | None = None, is_shared: bool = False,
    ) -> Tile:  # fmt: skip
        """A tile filled with NaN or 4, so that reads of uninitialised memory show."""
        unique = self.unique(name)
        if self._loops:
            self._loops[-1].add_tile(unique)
        pitch = elements * dtype.bytes
        if address is not None:
            region = self._addressed_region(memory, address)
        elif is_shared:
            self._shared.add(unique)
            shared = self._cores.shared(
                unique, lambda: self._uninitialised(partitions * pitch, dtype)
            )
            region = Region(shared, 0, 0)
        else:
            fresh = self._uninitialised(partitions * pitch, dtype)
            region = Region(fresh, 0, 0 if memory is Memory.HBM else pitch)
        tile = BackedTile(unique, memory, dtype, partitions, elements, region=region)
        self.on_chip.add(tile, tile.interval, address)
        return tile

    def _uninitialised(self, count: int, dtype: DType) -> np.ndarray:
        """Bytes filled as uninitialised memory is."""
        buffer = np.empty(count, np.uint8)
        real, integer = self._unwritten
        buffer.view(storage_dtype(dtype))[...] = real if dtype.is_float else integer
        return buffer

    def _addressed_region(self, memory: Memory, address: int) -> Region:
        """The bytes at an address of an on-chip memory, where tiles may alias."""
        arch = self.arch
        pitch = {
            Memory.SBUF: arch.sbuf_bytes_per_partition,
            Memory.PSUM: arch.psum_bytes_per_partition,
        }[memory]
        if memory not in self._on_chip_bytes:
            self._on_chip_bytes[memory] = np.full(pitch * arch.partitions, 0xFF, np.uint8)
        return Region(self._on_chip_bytes[memory], address, pitch)

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
        return BackedTile(unique, Memory.HBM, dtype, 1, array.size, region=region)

    # --- instructions --------------------------------------------------------------------------

    def issue(self, instruction: Instr, effects: WriteEffects | None = None) -> None:
        """Execute an instruction; IndexNotInTable when an address of its registers is outside."""
        if self._loops:
            self._loops[-1].compare(instruction)
        self.on_chip.record(instruction)
        self._execute(instruction, effects)

    def _execute(self, instruction: Instr, effects: WriteEffects | None = None) -> None:
        if self.has_expired_tiles:
            self.require_scope(pattern.tile for pattern in instruction.patterns())
        if self._has_banks and instruction.runs_on == "tensor":
            self._require_one_bank(instruction)
        try:
            is_shared = self._cores.count > 1
            before = self._contested_elements(instruction) if is_shared else {}
            self._step(instruction)
        except (AccessOutOfBounds, MalformedProgram) as fault:
            raise self._user_error(instruction, fault) from fault
        for pattern in () if effects == () else instruction.written_patterns():
            if pattern.memory is Memory.PSUM:
                self._accumulation.write(self._evaluated(pattern), instruction, self.arch)
            elif pattern.memory is Memory.HBM:
                self.written.add(pattern.tile.name)
                if pattern.tile.name in self._constants:
                    raise write_to_constant(instruction.loc)
        if self._cores.count > 1:
            self._record_accesses(instruction, before)
            self._cores.yield_control()

    def _step(self, instruction: Instr) -> None:
        """As machine code in a run long enough for that, else by the meaning."""
        if self._native is None and self._may_be_native:
            self._work += sum(pattern.elements for pattern in instruction.patterns())
            if self._work >= WORK_BY_MEANING:
                # LLVM is imported by the runs that use it
                from glia.sim.host.classes.single_steps import native_steps

                self._native = native_steps(self._executor)
                self._may_be_native = self._native is not None
        if self._native is None or not self._native.execute(instruction, self.environment):
            self._executor.step(instruction, self.environment)

    def _contested_elements(self, instruction: Instr) -> dict[int, np.ndarray]:
        """By operand, what is in shared elements to write that another core accessed lately."""
        found = {}
        for number, name, pattern in self._shared_operands(instruction):
            is_known = self.environment.keys() >= set(pattern.variables)
            if instruction.access(name) == "reads" or not is_known:
                continue
            now = self._evaluated(pattern)
            if self._cores.races.is_contested(self.rank, instruction, now):
                found[number] = self._bits(now).copy()
        return found

    def _record_accesses(self, instruction: Instr, before: dict[int, np.ndarray]) -> None:
        """Record accesses to shared HBM tiles; CoresRace where another core's conflicts."""
        races = self._cores.races
        for number, name, pattern in self._shared_operands(instruction):
            access, now = instruction.access(name), self._evaluated(pattern)
            if access != "writes":
                races.access(self.rank, instruction, now, writes=False)
            if access != "reads":
                kept = self._bits(now) == before[number] if number in before else None
                races.access(self.rank, instruction, now, writes=True, kept=kept)

    def _shared_operands(self, instruction: Instr) -> Iterator[tuple[int, str, Pattern]]:
        """(number, name, pattern) of the operands in shared HBM."""
        operands = () if instruction.arrives == "participants" else instruction.operands()
        for number, (name, _, pattern) in enumerate(operands):
            if pattern.memory is Memory.HBM and pattern.tile.name in self._shared:
                yield number, name, pattern

    def _bits(self, pattern: Pattern) -> np.ndarray:
        """The elements of a pattern as integers of their width."""
        region = self._executor.memories.region(pattern.tile)
        return viewer(pattern, region, np.dtype(f"u{pattern.dtype.bytes}"))({})

    def _user_error(self, instruction: Instr, fault: Exception) -> Exception:
        """The NKI error for an out-of-bounds access or the read of an unset register."""
        if isinstance(fault, AccessOutOfBounds):
            found = out_of_bounds(instruction, self.environment)
            return found or IndexNotInTable(problem=fault.message, row="", loc=instruction.loc)
        return unset_register(instruction.loc)

    def _require_one_bank(self, instruction: Instr) -> None:
        def address(tile: Tile) -> int:
            return tile.region.start if isinstance(tile, BackedTile) else 0

        crossed = bank_crossing(instruction, self.environment, self.arch, address)
        if crossed is not None:
            raise crossed

    def issue_if(self, condition: Affine, instruction: Instr) -> None:
        """Execute the instruction if the condition is not 0."""
        if self._loops:
            self._loops[-1].compare(instruction)
        self.on_chip.record(instruction)
        if condition.evaluate(self.environment):
            self._execute(instruction)

    def accumulates(self, pattern: Pattern, loc: Loc) -> bool | None:
        """Whether a product accumulates; of mixed elements those without a sum are zeroed first."""
        now = self._evaluated(pattern)
        has_sum = self._accumulation.has_sum(now)
        if has_sum is None:
            self._view(now)[~self._accumulation.elements(now)] = 0
        return has_sum is not False

    def has_sum(self, pattern: Pattern) -> bool | None:
        """Whether all (True), none (False) or some (None) elements hold sums of products."""
        return self._accumulation.has_sum(self._evaluated(pattern))

    def _evaluated(self, pattern: Pattern) -> Pattern:
        """The pattern with the current values of registers and induction variables."""
        return evaluate_pattern(pattern, self.environment)

    def _view(self, pattern: Pattern) -> np.ndarray:
        tile = pattern.tile
        region = self._executor.memories.region(tile)
        return viewer(pattern, region, storage_dtype(pattern.dtype))({})

    # --- loops ---------------------------------------------------------------------------------

    def loop(
        self, lower: int | Affine, upper: int | Affine, step: int, loc: Loc
    ) -> Iterator[Affine]:
        """A Python loop whose index is the same expression as in a compiled program.

        Rules about operands thus see the same patterns in both.
        """
        is_fixed = isinstance(lower, int) and isinstance(upper, int)
        first, last = (self._register_value(end, loc) for end in (lower, upper))
        values = range(first, last, step)
        name = self._free_names.pop((loc, is_fixed), None)
        if name is None and values:
            name = self.unique("i") if is_fixed else self.new_register("i")
        with self._traced_loop() as loop:
            for iteration, value in enumerate(values):
                assert name is not None
                self.environment[name] = iteration if is_fixed else value
                loop.begin_iteration()
                yield Affine.of(name) * step + first if is_fixed else Affine.of(name)
        if name is not None:
            self._free_names[loc, is_fixed] = name

    @contextmanager
    def _traced_loop(self) -> Iterator[LoopTrace]:
        """The trace of a loop that is innermost while the block runs."""
        loop = LoopTrace()
        self._loops.append(loop)
        try:
            yield loop
        finally:
            self._loops.remove(loop)

    def _register_value(self, end: int | Affine, loc: Loc) -> int:
        value = self.value_of(Affine.of(end))
        if value is None:
            raise unset_register(loc)
        return value

    def run_while(self, register: Affine, body: Callable[[], None], loc: Loc) -> None:
        """A Python loop."""
        with self._traced_loop() as loop:
            while self._register_value(register, loc):
                loop.begin_iteration()
                body()

    def evaluate_while(self, register: Affine, place: object, loc: Loc) -> bool:
        """Whether the register is not 0."""
        is_true = self._register_value(register, loc) != 0
        if not is_true:
            loop = self._whiles.pop(place, None)
            if loop is not None:
                self._loops.remove(loop)
            return False
        if place not in self._whiles:
            self._whiles[place] = LoopTrace()
            self._loops.append(self._whiles[place])
        self._whiles[place].begin_iteration()
        return True

    def open_while(self) -> object | None:
        """The source position of a `while` whose last condition was true."""
        return next(iter(self._whiles), None)

    # --- run-time values -------------------------------------------------------------------------

    def value_of(self, register: Affine) -> int | None:
        """The value of an expression of registers; None where one was never set."""
        if not set(register.variables) <= self.environment.keys():
            return None
        return register.evaluate(self.environment)

    def read(self, pattern: Pattern) -> np.ndarray | None:
        """A copy of the elements."""
        view = self._view(self._evaluated(pattern))
        return view != 0 if pattern.dtype is PRED else view.copy()

    def print_tensor(self, prefix: str, pattern: Pattern, dtype: str) -> None:
        """Write the contents to standard output at once."""
        sys.stdout.write(f"{prefix} {self.read(pattern)}\n")
