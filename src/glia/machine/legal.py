"""The verifier of the machine level: rules of instructions, placement, scopes and bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from glia.arch import Arch, Target, get_target
from glia.base.affine import Affine
from glia.base.errors import InternalError
from glia.isa.kit import Instr, is_register, register_variable
from glia.isa.operand import Memory, Pattern, Tile, reach
from glia.machine.columns.legal_columns import (
    MAXIMUM_MAGNITUDE,
    MAXIMUM_SIGNAL,
    has_legal_instructions,
)
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While
from glia.machine.legal_instruction import violations
from glia.machine.text import print_instruction, print_pattern

_REPORTED = 8  # violations shown in one error


def verify(program: Program, target: Target | str | None = None) -> None:
    """InternalError, listing the first violations, unless the program is legal on its target."""
    if target is None or isinstance(target, str):
        target = get_target(target or program.target)
    broken = list(program_violations(program, target))
    if broken:
        listed = "\n".join(f"  {text}" for text in broken[:_REPORTED])
        more = f"\n  and {len(broken) - _REPORTED} more" if len(broken) > _REPORTED else ""
        raise InternalError(
            f"{program.name} is not a legal program for {target.name}:\n{listed}{more}"
        )


def program_violations(program: Program, target: Target) -> Iterator[str]:
    """Every rule that a program breaks, in program order."""
    if not _has_legal_tensors(program, target) or not has_legal_instructions(program, target.arch):
        yield from violations_by_instruction(program, target)


def violations_by_instruction(program: Program, target: Target) -> Iterator[str]:
    """`program_violations` without the fast check by columns."""
    yield from _tensors(program, target)
    yield from _counts(program, target.arch)
    yield from _ScopeChecker(program, target.arch).block(program.body, {})


def _has_legal_tensors(program: Program, target: Target) -> bool:
    return next(_tensors(program, target), None) is None


def _tensors(program: Program, target: Target) -> Iterator[str]:
    """Violations of the rules for tiles, inputs, outputs and constants."""
    sizes = _memory_sizes(target)
    address = program.addresses.get
    for tile in program.tiles.values():
        limit, partitions = sizes[tile.memory]
        if tile.memory is Memory.HBM and tile.name not in program.addresses:
            limit = tile.elements * tile.dtype.bytes  # placement says what does not fit
        at, width = address(tile.name, 0), tile.dtype.bytes
        is_inside = 0 <= at <= limit - tile.elements * width and 1 <= tile.partitions <= partitions
        if not is_inside or at % width:
            yield from _tile(tile, at, limit, partitions)
    yield from _bindings(program)
    yield from _overlaps(program)


def _memory_sizes(target: Target) -> dict[Memory, tuple[int, int]]:
    """(bytes of a partition, partitions) of each memory."""
    arch = target.arch
    return {
        Memory.SBUF: (arch.sbuf_bytes_per_partition, arch.partitions),
        Memory.PSUM: (arch.psum_bytes_per_partition, arch.partitions),
        Memory.HBM: (target.chip_hbm_bytes, 1),
    }


def _counts(program: Program, arch: Arch) -> Iterator[str]:
    """Violations of the limits on semaphores of a core and rings of a DMA engine."""
    semaphores: set[str] = set()
    queues: set[str] = set()
    for instr in program.instructions():
        semaphores.update(wait.semaphore for wait in instr.waits)
        semaphores.update(signal.semaphore for signal in instr.signals)
        yield from _amounts(instr)
        if instr.queue:
            queues.add(instr.queue)
    if len(semaphores) > arch.semaphores:
        yield f"{len(semaphores)} semaphores are named; a core has {arch.semaphores}"
    if len(queues) > arch.dma_queues:
        yield f"{len(queues)} DMA queues are named; each DMA engine has {arch.dma_queues} rings"


def _amounts(instr: Instr) -> Iterator[str]:
    """Violations of the amounts that signals may add."""
    for signal in instr.signals:
        if not 1 <= signal.amount <= MAXIMUM_SIGNAL:
            yield (
                f"{print_instruction(instr)} adds {signal.amount} to semaphore {signal.semaphore}; "
                f"a signal adds 1 to {MAXIMUM_SIGNAL}"
            )


def _tile(tile: Tile, address: int, limit: int, partitions: int) -> Iterator[str]:
    if not 1 <= tile.partitions <= partitions:
        yield f"tile {tile.name} has {tile.partitions} of {partitions} partitions"
    width = tile.dtype.bytes
    end = address + tile.elements * width
    if address < 0 or end > limit:
        yield f"tile {tile.name} ends at byte {end} of {limit} in {tile.memory.value}"
    if address % width:
        unit = f"the {width} bytes of {tile.dtype}"
        yield f"tile {tile.name} is at byte {address}, which is not a multiple of {unit}"


def _bindings(program: Program) -> Iterator[str]:
    for binding in (*program.inputs, *program.outputs):
        yield from _binding(binding, program)
    for name, contents in program.constants.items():
        tile = program.tiles.get(name)
        if tile is None or tile.memory is not Memory.HBM:
            yield f"constant {name} has no tile in HBM"
        elif getattr(contents, "nbytes", tile.bytes) != tile.bytes:
            yield f"constant {name} does not fill its tile of {tile.bytes} bytes"


def _binding(binding: Binding, program: Program) -> Iterator[str]:
    elements = math.prod(binding.shape)
    if program.tiles.get(binding.tile.name) != binding.tile:
        yield f"{binding.name} is bound to {binding.tile.name}, which is not a tile of the program"
    elif binding.tile.memory is not Memory.HBM:
        yield f"{binding.name} is bound to {binding.tile.name} in {binding.tile.memory.value}"
    elif elements * binding.dtype.bytes != binding.tile.bytes:
        yield f"{binding.name} does not fill its tile of {binding.tile.bytes} bytes"


def _overlaps(program: Program) -> Iterator[str]:
    """Inputs, outputs and constants that overlap: they are live throughout the program."""
    names = {b.tile.name for b in (*program.inputs, *program.outputs)} | set(program.constants)
    placed = sorted(
        (program.addresses[name], program.tiles[name].bytes, name)
        for name in names & program.addresses.keys() & program.tiles.keys()
    )
    for (start, count, first), (following, _, second) in pairwise(placed):
        if start + count > following:
            yield f"{first} and {second} overlap in HBM at byte {following}"


class _ScopeChecker:
    """Checks statements in program order, tracking enclosing loops and registers set so far."""

    def __init__(self, program: Program, arch: Arch) -> None:
        self._program = program
        self._arch = arch
        self._registers: set[str] = set()

    def block(self, body: tuple[Statement, ...], extents: dict[str, int]) -> Iterator[str]:
        for statement in body:
            if isinstance(statement, Loop):
                yield from self._loop(statement, extents)
            elif isinstance(statement, While):
                yield from self.block(statement.condition, extents)
                yield from self._require_register(statement.register, "while")
                yield from self.block(statement.body, extents)
            elif isinstance(statement, Branch):
                yield from self._require_register(statement.register, "branch")
                if not statement.arms:
                    yield f"branch {statement.register} has no arms"
                for arm in statement.arms:
                    yield from self.block(arm, extents)
            else:
                yield from self._instruction(statement, extents)

    def _loop(self, loop: Loop, extents: dict[str, int]) -> Iterator[str]:
        if loop.trips < 1:
            yield f"loop {loop.variable} runs {loop.trips} times"
            return
        if loop.variable in extents:
            yield f"loop {loop.variable} hides a loop of the same name around it"
        yield from self.block(loop.body, extents | {loop.variable: loop.trips})

    def _require_register(self, register: str, where: str) -> Iterator[str]:
        if register_variable(register) not in self._registers:
            yield f"{where} reads register {register} before anything sets it"

    def _instruction(self, instr: Instr, extents: dict[str, int]) -> Iterator[str]:
        found = [
            *violations(instr, self._arch),
            *self._scopes(instr, extents),
            *self._counts(instr, extents),
            *(text for p in instr.patterns() for text in self._pattern(p, extents)),
            *self._banks(instr),
            *self._constants(instr),
        ]
        if instr.sets_register:
            self._registers.add(instr.sets_register)
        for text in found:
            where = f" at {instr.loc}" if str(instr.loc) else ""
            yield f"{print_instruction(instr)}{where}: {text}"

    def _scopes(self, instr: Instr, extents: dict[str, int]) -> Iterator[str]:
        used = {*instr.variables(), *(v for wait in instr.waits for v in wait.value.variables)}
        for variable in sorted(used - extents.keys() - self._registers):
            kind = "register" if is_register(variable) else "loop variable"
            yield f"{kind} {variable} is not set here"

    def _counts(self, instr: Instr, extents: dict[str, int]) -> Iterator[str]:
        for wait in instr.waits:
            if set(wait.value.variables) <= extents.keys():
                low, high = wait.value.bounds(extents)
                if max(-low, high) > MAXIMUM_MAGNITUDE:
                    yield f"it waits for {high} of {wait.semaphore}; no run counts so far"

    def _pattern(self, pattern: Pattern, extents: dict[str, int]) -> Iterator[str]:
        tile = pattern.tile
        if self._program.tiles.get(tile.name) != tile:
            yield f"{tile.name} is not a tile of the program"
        if not pattern.dims:
            return
        is_hbm = tile.memory is Memory.HBM
        limit = (tile.bytes if is_hbm else tile.bytes_per_partition) // pattern.dtype.bytes
        dims = pattern.dims if is_hbm else pattern.dims[1:]
        yield from _bounds_violations(pattern, "elements", pattern.offset, dims, limit, extents)
        if not is_hbm:
            first = pattern.dims[:1]
            partitions = tile.partitions
            yield from _bounds_violations(
                pattern, "partitions", pattern.partition, first, partitions, extents
            )

    def _constants(self, instr: Instr) -> Iterator[str]:
        for pattern in instr.written_patterns():
            if pattern.tile.name in self._program.constants:
                yield f"{pattern.tile.name} is a constant, which no instruction may write"

    def _banks(self, instr: Instr) -> Iterator[str]:
        """A matrix product stays within one PSUM bank, on cores that require it."""
        if instr.runs_on != "tensor" or self._arch.capabilities.has_products_across_banks:
            return
        bank = self._arch.psum_bank_bytes
        for pattern in instr.written_patterns():
            address = self._program.addresses.get(pattern.tile.name)
            if pattern.memory is not Memory.PSUM or address is None:
                continue
            if not pattern.offset.is_constant:
                continue
            low, high = reach(pattern.dims[1:])
            width = pattern.dtype.bytes
            start = address + (pattern.offset.constant + low) * width
            end = address + (pattern.offset.constant + high + 1) * width
            if start // bank != (end - 1) // bank:
                yield f"dst covers bytes {start}..{end - 1} of PSUM, more than one bank of {bank}"


def _bounds_violations(
    pattern: Pattern,
    unit: str,
    start: Affine,
    dims: tuple[tuple[int, int], ...],
    limit: int,
    extents: dict[str, int],
) -> Iterator[str]:
    """A violation unless start + dims stays in 0..limit-1; a run checks what registers decide."""
    if not set(start.variables) <= extents.keys():
        return
    low, high = start.bounds(extents)
    below, above = reach(dims)
    if low + below < 0 or high + above >= limit:
        yield (f"{print_pattern(pattern)} reaches {unit} {low + below}..{high + above} of {limit}")
