"""The law of the machine level: every rule of every instruction, placement, scopes and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from glia.arch import Arch, Target, get_target
from glia.base.affine import Affine
from glia.base.errors import InternalError
from glia.isa.kit import Instr, Operand
from glia.isa.operand import Memory, Pattern, Tile, reach
from glia.isa.rules import COMMON_RULES
from glia.isa.sync import register_variable
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While
from glia.machine.text import print_instruction, print_pattern

_REPORTED = 8  # violations shown in one error


def violations(instr: Instr, arch: Arch) -> list[str]:
    """Every law the instruction breaks on this generation, each as a sentence with its numbers."""
    broken = list(_structure(instr, arch))
    if broken:
        return broken
    rules = (*COMMON_RULES, *instr.rules)
    return [
        f"{rule.sentence}; here {_numbers(instr)} ({rule.source})"
        for rule in rules
        if not rule.holds(instr, arch)
    ]


def verify(program: Program, target: Target | str | None = None) -> None:
    """InternalError, listing the first violations, unless the program is legal on its target."""
    if target is None or isinstance(target, str):
        target = get_target(target or program.target)
    broken = list(program_violations(program, target))
    if broken:
        shown = "\n".join(f"  {text}" for text in broken[:_REPORTED])
        more = f"\n  and {len(broken) - _REPORTED} more" if len(broken) > _REPORTED else ""
        raise InternalError(
            f"{program.name} is not a legal program for {target.name}:\n{shown}{more}"
        )


def program_violations(program: Program, target: Target) -> Iterator[str]:
    """Every law a program breaks, in program order."""
    for tile in program.tiles.values():
        yield from _tile(tile, program.addresses.get(tile.name), target)
    yield from _bindings(program)
    yield from _overlaps(program)
    yield from _counts(program, target.arch)
    yield from _Walk(program, target.arch).block(program.body, {})


def _counts(program: Program, arch: Arch) -> Iterator[str]:
    """A core has so many semaphores, and every DMA engine so many rings."""
    semaphores: set[str] = set()
    queues: set[str] = set()
    for instr in program.instructions():
        semaphores.update(wait.semaphore for wait in instr.waits)
        semaphores.update(signal.semaphore for signal in instr.signals)
        if instr.queue:
            queues.add(instr.queue)
    if len(semaphores) > arch.semaphores:
        yield f"{len(semaphores)} semaphores are named; a core has {arch.semaphores}"
    if len(queues) > arch.dma_queues:
        yield f"{len(queues)} DMA queues are named; each DMA engine has {arch.dma_queues} rings"


def _structure(instr: Instr, arch: Arch) -> Iterator[str]:
    """What must hold before the rules can be asked."""
    if instr.runs_on not in instr.engines:
        yield f"{instr.mnemonic()} runs on {', '.join(instr.engines)}, not on {instr.runs_on}"
    if arch.generation not in instr.generations:
        yield f"{instr.mnemonic()} does not exist on generation {arch.generation}"
    for name, declared in instr.operand_declarations.items():
        yield from _operand(instr, name, declared)
    for name, kept in instr.states.items():
        if instr.runs_on not in kept.state.words:
            yield f"{instr.runs_on} has no {kept.state.name} for {name}"


def _operand(instr: Instr, name: str, declared: Operand) -> Iterator[str]:
    value = getattr(instr, name)
    if declared.is_several:
        is_tuple = isinstance(value, tuple) and value
        if not is_tuple or not all(isinstance(each, Pattern) for each in value):
            yield f"{name} must be one or more patterns; here it is {value!r}"
            return
        for each in value:
            yield from _pattern_operand(name, each, declared)
    elif isinstance(value, Pattern):
        yield from _pattern_operand(name, value, declared)
    elif value is None:
        if not declared.is_optional:
            yield f"{name} is missing"
    elif not declared.allows_immediate or not isinstance(value, int | float):
        yield f"{name} must be a pattern; here it is {value!r}"


def _pattern_operand(name: str, pattern: Pattern, declared: Operand) -> Iterator[str]:
    if pattern.memory not in declared.memories:
        allowed = " or ".join(memory.value for memory in declared.memories)
        yield f"{name} must be in {allowed}; here it is in {pattern.memory.value}"
    if not pattern.dims:
        yield f"{name} has no dimensions"


def _numbers(instr: Instr) -> str:
    """The operands' shapes and places, and the attributes: what a broken rule is about."""
    parts = [
        f"{name} is {p.dtype}{list(p.shape)} in {p.memory.value}"
        + (f" from partition {p.partition}" if p.memory is not Memory.HBM else "")
        for name, _, p in instr.operands()
    ]
    parts += [
        f"{name} is {value!r}"
        for name, value in instr.attributes().items()
        if isinstance(value, int | float | str | tuple) and value != ""
    ]
    return ", ".join((*parts, f"engine is {instr.runs_on}"))


def _tile(tile: Tile, address: int | None, target: Target) -> Iterator[str]:
    arch = target.arch
    limit = {
        Memory.SBUF: arch.sbuf_bytes_per_partition,
        Memory.PSUM: arch.psum_bytes_per_partition,
        Memory.HBM: target.chip_hbm_bytes,
    }[tile.memory]
    partitions = 1 if tile.memory is Memory.HBM else arch.partitions
    if not 1 <= tile.partitions <= partitions:
        yield f"tile {tile.name} has {tile.partitions} of {partitions} partitions"
    end = (address or 0) + tile.bytes_per_partition
    if (address or 0) < 0 or end > limit:
        yield f"tile {tile.name} ends at byte {end} of {limit} in {tile.memory.value}"
    if (address or 0) % tile.dtype.bytes:
        unit = f"the {tile.dtype.bytes} bytes of {tile.dtype}"
        yield f"tile {tile.name} is at byte {address}, which is no multiple of {unit}"


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
    elements = 1
    for extent in binding.shape:
        elements *= extent
    if program.tiles.get(binding.tile.name) != binding.tile:
        yield f"{binding.name} is bound to {binding.tile.name}, which is not a tile of the program"
    elif binding.tile.memory is not Memory.HBM:
        yield f"{binding.name} is bound to {binding.tile.name} in {binding.tile.memory.value}"
    elif elements * binding.dtype.bytes != binding.tile.bytes:
        yield f"{binding.name} does not fill its tile of {binding.tile.bytes} bytes"


def _overlaps(program: Program) -> Iterator[str]:
    """Inputs, outputs and constants live as long as the program, each in bytes of its own."""
    names = {b.tile.name for b in (*program.inputs, *program.outputs)} | set(program.constants)
    placed = sorted(
        (program.addresses[name], program.tiles[name].bytes, name)
        for name in names & program.addresses.keys() & program.tiles.keys()
    )
    for (start, count, first), (following, _, second) in pairwise(placed):
        if start + count > following:
            yield f"{first} and {second} overlap in HBM at byte {following}"


class _Walk:
    """Checks statements in program order, with the loops around them and the registers set."""

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
                yield from self._is_set(statement.register, "while")
                yield from self.block(statement.body, extents)
            elif isinstance(statement, Branch):
                yield from self._is_set(statement.register, "branch")
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

    def _is_set(self, register: str, where: str) -> Iterator[str]:
        if register_variable(register) not in self._registers:
            yield f"{where} reads register {register} before anything sets it"

    def _instruction(self, instr: Instr, extents: dict[str, int]) -> Iterator[str]:
        found = [
            *violations(instr, self._arch),
            *self._scopes(instr, extents),
            *(text for _, _, p in instr.operands() for text in self._pattern(p, extents)),
            *self._banks(instr),
            *self._constants(instr),
        ]
        register = getattr(instr, "register", None)
        if isinstance(register, str):
            self._registers.add(register_variable(register))
        for text in found:
            where = f" at {instr.loc}" if str(instr.loc) else ""
            yield f"{print_instruction(instr)}{where}: {text}"

    def _scopes(self, instr: Instr, extents: dict[str, int]) -> Iterator[str]:
        expressions: list[Affine] = [wait.value for wait in instr.waits]
        expressions += [v for v in instr.attributes().values() if isinstance(v, Affine)]
        for _, _, pattern in instr.operands():
            expressions += [pattern.offset, pattern.partition]
        used = {variable for expression in expressions for variable in expression.variables}
        for variable in sorted(used - extents.keys() - self._registers):
            kind = "register" if variable.startswith("$") else "loop variable"
            yield f"{kind} {variable} is not set here"

    def _pattern(self, pattern: Pattern, extents: dict[str, int]) -> Iterator[str]:
        tile = pattern.tile
        if self._program.tiles.get(tile.name) != tile:
            yield f"{tile.name} is not a tile of the program"
        if not pattern.dims:
            return
        is_hbm = tile.memory is Memory.HBM
        limit = (tile.bytes if is_hbm else tile.bytes_per_partition) // pattern.dtype.bytes
        dims = pattern.dims if is_hbm else pattern.dims[1:]
        yield from _inside(pattern, "elements", pattern.offset, dims, limit, extents)
        if not is_hbm:
            first = pattern.dims[:1]
            partitions = tile.partitions
            yield from _inside(pattern, "partitions", pattern.partition, first, partitions, extents)

    def _constants(self, instr: Instr) -> Iterator[str]:
        for pattern in instr.written_patterns():
            if pattern.tile.name in self._program.constants:
                yield f"{pattern.tile.name} is a constant, which no instruction may write"

    def _banks(self, instr: Instr) -> Iterator[str]:
        """A multiplication stays within one PSUM bank before generation 4."""
        if instr.runs_on != "tensor" or self._arch.generation >= 4:
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


def _inside(
    pattern: Pattern,
    unit: str,
    start: Affine,
    dims: tuple[tuple[int, int], ...],
    limit: int,
    extents: dict[str, int],
) -> Iterator[str]:
    """Whether start + dims stays in 0..limit-1; what a register decides shows when it runs."""
    if not set(start.variables) <= extents.keys():
        return
    low, high = start.bounds(extents)
    below, above = reach(dims)
    if low + below < 0 or high + above >= limit:
        yield (f"{print_pattern(pattern)} reaches {unit} {low + below}..{high + above} of {limit}")
