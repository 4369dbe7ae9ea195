"""What a program does that no kernel may, found as it runs or, where loops are, before it does.

A simulated kernel hears of it at the instruction that breaks the law, a compiled one when its
program is verified: in the same words, since both ask the functions here.
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
from glia.machine.ir import Branch, Loop, Program, Statement, While
from glia.machine.legal import verify
from glia.nki.names.errors import BrokenRule, IndexNotInTable, NotInNki
from glia.sim.psum_banks import WITHOUT_BANKS

Extents = dict[str, int]  # how often each loop around a statement runs
Moment = tuple[int, ...]  # place in a block, turn of its loop, place in that ...: in order of time


def require_legal(program: Program, target: Target) -> None:
    """`verify`, with the kernel's error where the kernel is at fault."""
    try:
        verify(program, target)
    except InternalError:
        _refuse_first(program, target)
        raise
    if target.arch.generation < WITHOUT_BANKS and _has_moving_products(program.body):
        _refuse_first(program, target)


def _has_moving_products(body: tuple[Statement, ...]) -> bool:
    """Whether turns of loops write products to different places, which `verify` leaves open."""
    return any(
        _has_moving_products(each.body)
        if isinstance(each, Loop | While)
        else isinstance(each, Instr) and _moves_product(each)
        for each in body
    )


def _moves_product(instr: Instr) -> bool:
    written = instr.written_patterns() if instr.runs_on == "tensor" else ()
    return any(not pattern.offset.is_constant for pattern in written)


def _refuse_first(program: Program, target: Target) -> None:
    found = _first(program, target)
    if found is not None:
        raise found from None


def _first(program: Program, target: Target) -> CompileError | None:
    """What goes wrong first when the program runs."""
    found = list(_Walk(program, target).block(program.body, {}, ()))
    return min(found, key=lambda each: each[0])[1] if found else None


class _Walk:
    """Finds what goes wrong, each with its moment, in program order."""

    def __init__(self, program: Program, target: Target) -> None:
        self.program = program
        self.arch = target.arch
        self.registers: set[str] = set()

    def block(
        self, body: tuple[Statement, ...], extents: Extents, turns: tuple[tuple[int, str], ...]
    ) -> Iterator[tuple[Moment, CompileError]]:
        """`turns` are the places of the loops around the block, with their variables."""
        for place, statement in enumerate(body):
            if isinstance(statement, Loop):
                inner = extents | {statement.variable: statement.trips}
                around = (*turns, (place, statement.variable))
                yield from self.block(statement.body, inner, around)
            elif isinstance(statement, While):
                both = (*statement.condition, *statement.body)
                yield from self.block(both, extents, (*turns, (place, "")))
            elif isinstance(statement, Branch):
                for arm in statement.arms:
                    yield from self.block(arm, extents, (*turns, (place, "")))
            else:
                for at, error in self._instruction(statement, extents):
                    moment = [part for p, v in turns for part in (p, at.get(v, 0))]
                    yield (*moment, place), error

    def _instruction(
        self, instr: Instr, extents: Extents
    ) -> Iterator[tuple[Extents, CompileError]]:
        for variable in instr.variables():
            if is_register(variable) and variable not in self.registers:
                yield {}, unset(instr.loc)
        if instr.sets_register:
            self.registers.add(instr.sets_register)
        for pattern in instr.written_patterns():
            if pattern.tile.name in self.program.constants:
                yield {}, constant_written(instr.loc)
        for problem in (outside, lambda i, now: self._bank(i, now)):
            turn = _first_turn(instr, extents, problem)
            if turn is not None:
                error = problem(instr, turn)
                assert error is not None
                yield turn, error

    def _bank(self, instr: Instr, now: Mapping[str, int]) -> CompileError | None:
        addresses = self.program.addresses
        return crosses_bank(instr, now, self.arch, lambda tile: addresses.get(tile.name, 0))


def _first_turn(
    instr: Instr, extents: Extents, problem: Callable[[Instr, Mapping[str, int]], object]
) -> Extents | None:
    """The first turn of the loops around an instruction in which it has the problem."""
    used = set(instr.variables())
    if any(variable not in extents for variable in used):
        return None
    loops = [(variable, trips) for variable, trips in extents.items() if variable in used]
    return next((turn for turn in _turns_of(loops) if problem(instr, turn) is not None), None)


def _turns_of(loops: list[tuple[str, int]]) -> Iterator[Extents]:
    """Every turn of nested loops, in order."""
    if not loops:
        yield {}
        return
    (variable, trips), *inner = loops
    for turn in range(trips):
        for others in _turns_of(inner):
            yield {variable: turn, **others}


# --- the refusals --------------------------------------------------------------------------------


def at_moment(pattern: Pattern, now: Mapping[str, int]) -> Pattern:
    """The pattern with the values of this moment for its variables."""
    if pattern.offset.is_constant and pattern.partition.is_constant:
        return pattern
    offset = Affine.of(pattern.offset.evaluate(now))
    return replace(pattern, offset=offset, partition=Affine.of(pattern.partition.evaluate(now)))


def outside(instr: Instr, now: Mapping[str, int]) -> IndexNotInTable | None:
    """The first operand's index that names no element, or no partition, of its tile."""
    for pattern in instr.patterns():
        here = at_moment(pattern, now)
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
                return IndexNotInTable(problem=no_such(index, limit), row="", loc=instr.loc)
    return None


def no_such(index: int, size: int) -> str:
    """In the documented simulator's words, which programs look for."""
    return f"index {index} is out of bounds for axis 0 with size {size}"


def unset(loc: Loc) -> NotInNki:
    """A register is read that no instruction before wrote."""
    feature = "a register that nothing has set (give nki.isa.register_alloc its first value)"
    return NotInNki(feature=feature, loc=loc)


def constant_written(loc: Loc) -> NotInNki:
    """An instruction writes to a constant."""
    return NotInNki(feature="writing to nl.shared_constant (copy it to a tensor first)", loc=loc)


def crosses_bank(
    instr: Instr, now: Mapping[str, int], arch: Arch, address_of: Callable[[Tile], int]
) -> BrokenRule | None:
    """A product that lies in more than one bank of PSUM, where the generation has not that.

    A tile without an address of its own starts at a bank if it is larger than one.
    """
    if instr.runs_on != "tensor" or arch.generation >= WITHOUT_BANKS:
        return None
    bank = arch.psum_bank_bytes
    for pattern in instr.written_patterns():
        if pattern.memory is not Memory.PSUM:
            continue
        here = at_moment(pattern, now)
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
