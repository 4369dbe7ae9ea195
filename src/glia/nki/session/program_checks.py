"""Faults of a program that are the kernel's: bounds, unset registers, constants, PSUM banks.

A simulated kernel raises them at the faulting instruction, a compiled one when its program is
verified, and with the same texts, since both use the functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from glia.arch import Arch, Target
from glia.base.affine import Affine
from glia.base.errors import CompileError, InternalError
from glia.base.loc import Loc
from glia.isa.kit import Instr, is_register
from glia.isa.operand import Memory, Pattern, Tile, reach
from glia.machine.columns.table import READS, columns_of
from glia.machine.ir import Branch, Loop, Program, Statement, While
from glia.machine.legal import verify
from glia.nki.names.errors import BrokenRule, IndexNotInTable, NotInNki

Extents = dict[str, int]  # trip count of each enclosing loop, or an iteration of each
TimeKey = tuple[int, ...]  # position in a block, iteration, position in its body ...: sorts by time


def require_legal(program: Program, target: Target) -> None:
    """Verify a program, raising the NKI error where the kernel is at fault."""
    try:
        verify(program, target)
    except InternalError:
        _refuse_first(program, target)
        raise
    has_banks = not target.arch.capabilities.has_products_across_banks
    if has_banks and _has_dynamic_products(program):
        _refuse_first(program, target)


def _has_dynamic_products(program: Program) -> bool:
    """Whether products are written at offsets of loop variables, which `verify` leaves open."""
    columns = columns_of(program)
    patterns = columns.patterns
    rows = patterns.offset.varying
    written = patterns.owner[rows[patterns.access[rows] != READS]].tolist()
    return any(columns.instructions[number].runs_on == "tensor" for number in written)


def _refuse_first(program: Program, target: Target) -> None:
    found = _first_fault(program, target)
    if found is not None:
        raise found from None


def _first_fault(program: Program, target: Target) -> CompileError | None:
    """The fault that occurs first in execution order."""
    found = list(_FaultFinder(program, target).block(program.body, {}, ()))
    return min(found, key=lambda each: each[0])[1] if found else None


class _FaultFinder:
    """Yields the faults of a program, each with the time of its occurrence."""

    def __init__(self, program: Program, target: Target) -> None:
        self.program = program
        self.arch = target.arch
        self.registers: set[str] = set()

    def block(
        self, body: tuple[Statement, ...], extents: Extents, loops: tuple[tuple[int, str], ...]
    ) -> Iterator[tuple[TimeKey, CompileError]]:
        """Faults of a block; `loops` has (position, variable) of each enclosing loop."""
        for place, statement in enumerate(body):
            if isinstance(statement, Loop):
                inner = extents | {statement.variable: statement.trips}
                around = (*loops, (place, statement.variable))
                yield from self.block(statement.body, inner, around)
            elif isinstance(statement, While):
                both = (*statement.condition, *statement.body)
                yield from self.block(both, extents, (*loops, (place, "")))
            elif isinstance(statement, Branch):
                for arm in statement.arms:
                    yield from self.block(arm, extents, (*loops, (place, "")))
            else:
                for at, error in self._instruction(statement, extents):
                    key = [part for p, v in loops for part in (p, at.get(v, 0))]
                    yield (*key, place), error

    def _instruction(
        self, instr: Instr, extents: Extents
    ) -> Iterator[tuple[Extents, CompileError]]:
        for variable in instr.variables():
            if is_register(variable) and variable not in self.registers:
                yield {}, unset_register(instr.loc)
        if instr.sets_register:
            self.registers.add(instr.sets_register)
        for pattern in instr.written_patterns():
            if pattern.tile.name in self.program.constants:
                yield {}, write_to_constant(instr.loc)
        for problem in (out_of_bounds, lambda i, values: self._bank(i, values)):
            iteration = _first_failing_iteration(instr, extents, problem)
            if iteration is not None:
                error = problem(instr, iteration)
                assert error is not None
                yield iteration, error

    def _bank(self, instr: Instr, values: Mapping[str, int]) -> CompileError | None:
        addresses = self.program.addresses
        return bank_crossing(instr, values, self.arch, lambda tile: addresses.get(tile.name, 0))


def _first_failing_iteration(
    instr: Instr, extents: Extents, problem: Callable[[Instr, Mapping[str, int]], object]
) -> Extents | None:
    """The first iteration of the enclosing loops in which an instruction has the problem."""
    used = set(instr.variables())
    if any(variable not in extents for variable in used):
        return None
    loops = [(variable, trips) for variable, trips in extents.items() if variable in used]
    return next(
        (iteration for iteration in _iterations_of(loops) if problem(instr, iteration) is not None),
        None,
    )


def _iterations_of(loops: list[tuple[str, int]]) -> Iterator[Extents]:
    """Every iteration of nested loops, in order."""
    if not loops:
        yield {}
        return
    (variable, trips), *inner = loops
    for iteration in range(trips):
        for others in _iterations_of(inner):
            yield {variable: iteration, **others}


# --- the faults ----------------------------------------------------------------------------------


def evaluate_pattern(pattern: Pattern, values: Mapping[str, int]) -> Pattern:
    """The pattern with values for its variables."""
    if pattern.offset.is_constant and pattern.partition.is_constant:
        return pattern
    offset = Affine.of(pattern.offset.evaluate(values))
    return replace(pattern, offset=offset, partition=Affine.of(pattern.partition.evaluate(values)))


def out_of_bounds(instr: Instr, values: Mapping[str, int]) -> IndexNotInTable | None:
    """The error of the first operand that reaches outside its tile; None if all are inside."""
    for pattern in instr.patterns():
        here = evaluate_pattern(pattern, values)
        is_hbm = here.memory is Memory.HBM
        dims = here.dims if is_hbm else here.dims[1:]
        size = here.tile.bytes if is_hbm else here.tile.bytes_per_partition
        ranges = [(here.offset.constant, dims, size // here.dtype.bytes)]
        if not is_hbm:
            ranges.append((here.partition.constant, here.dims[:1], here.tile.partitions))
        for first, steps, limit in ranges:
            last = first + sum(step * (count - 1) for step, count in steps)
            if first < 0 or last >= limit:
                index = last if 0 <= first < limit else first
                return IndexNotInTable(
                    problem=out_of_bounds_text(index, limit), row="", loc=instr.loc
                )
    return None


def out_of_bounds_text(index: int, size: int) -> str:
    """The documented simulator's text for an index out of bounds, which programs match."""
    return f"index {index} is out of bounds for axis 0 with size {size}"


def unset_register(loc: Loc) -> NotInNki:
    """The error of reading a register before its first write."""
    feature = "reading a register that was never set (give nki.isa.register_alloc its first value)"
    return NotInNki(feature=feature, loc=loc)


def write_to_constant(loc: Loc) -> NotInNki:
    """The error of an instruction that writes to a constant."""
    return NotInNki(feature="writing to nl.shared_constant (copy it to a tensor first)", loc=loc)


def bank_crossing(
    instr: Instr, values: Mapping[str, int], arch: Arch, address_of: Callable[[Tile], int]
) -> BrokenRule | None:
    """The error of a product that crosses a PSUM bank; None if legal in this generation.

    A tile without an address starts at a bank if it is larger than one.
    """
    if instr.runs_on != "tensor" or arch.capabilities.has_products_across_banks:
        return None
    bank = arch.psum_bank_bytes
    for pattern in instr.written_patterns():
        if pattern.memory is not Memory.PSUM:
            continue
        here = evaluate_pattern(pattern, values)
        low, high = reach(here.dims[1:])
        width, at = here.dtype.bytes, address_of(here.tile) % bank
        start = at + (here.offset.constant + low) * width
        end = at + (here.offset.constant + high + 1) * width - 1
        if start // bank != end // bank:
            function = instr.mnemonic()
            rule = (
                f"{function} dst must lie in one bank of PSUM, {bank} bytes of a partition, before "
                f"generation 4; here it covers bytes {start} to {end}\n  cure: let each product "
                f"write to a tile of its own of at most {bank} bytes per partition"
            )
            name = f"nki.isa.{function}"
            return BrokenRule(rule=rule, function=function, instruction=name, loc=instr.loc)
    return None
