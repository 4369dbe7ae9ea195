"""Which instruction made a value: back through the executions of a program.

Programs are run again for every step back, which is simple and takes as long as it takes: they are
small, or `glia reduce` makes them so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from glia.base.loc import UNKNOWN
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.tensor import NcTranspose
from glia.isa.instructions.vector import TensorCopy
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Tile, row_major
from glia.machine.ir import Program
from glia.machine.text import print_instruction
from glia.sim.byte_tags import ByteTags, access_granule
from glia.sim.last_writer import touched_rows
from glia.sim.memory import Environment
from glia.sim.run import Executor, Step

Array = np.ndarray[Any, Any]
IsRight = Callable[[Array], Array]  # which values a nest reads or computes
LONGEST_PATH = 64
MOVERS = (DmaCopy, NcTranspose, TensorCopy)


@dataclass(frozen=True)
class Maker:
    """An execution: its instruction and the variables it has, and what it read, a few of each.

    `path` are the instructions between it and the wrong value, the last one first.
    """

    instruction: Instr
    variables: Mapping[str, int]
    path: tuple[Instr, ...] = ()
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Address:
    """A byte of the buffer that holds a tile; buffers of several runs are laid out alike."""

    tile: Tile
    offset: int


class _NextIsReached(Exception):
    """The execution that is looked for comes next."""


class NumberedRun(Executor):
    """One run that numbers executions from 1, and every byte by the one that wrote it last.

    With `stop` it ends before the execution of that number.
    """

    def __init__(self, program: Program, inputs: Mapping[str, Array], stop: int = 0) -> None:
        super().__init__(program)
        self._granule = access_granule([program])
        self._tags: dict[str, ByteTags] = {}
        self._stop = stop
        self.executions: list[Instr] = []
        self.environment: Environment = {}
        self.set_inputs(inputs)
        try:
            self.execute()
        except _NextIsReached:
            return

    def writer(self, address: Address) -> int:
        """The execution that wrote a byte, 0 for none."""
        return self._tags_of(address.tile).number(address.offset)

    def offsets(self, pattern: Pattern) -> Array:
        """The offset of every element of a pattern in its buffer, in the pattern's shape."""
        data = self.memories.view(pattern, self.environment)
        found = np.array(self._tags_of(pattern.tile).offset(data))
        for stride, count in zip(data.strides, data.shape, strict=True):
            found = found[..., None] + np.arange(count) * stride
        return found

    def view(self, pattern: Pattern) -> Array:
        """The elements of a pattern where the run has ended."""
        return self.memories.view(pattern, self.environment)

    def written(self, tile: Tile) -> tuple[Array, Array]:
        """The elements of a tile that were written, and the offset of each in the buffer."""
        offsets, values = self.offsets(whole_pattern(tile)), self.view(whole_pattern(tile))
        tags = self._tags_of(tile).at(values)
        chosen = tags.reshape(*values.shape, -1).any(axis=-1)
        return values[chosen], offsets[chosen]

    def _tags_of(self, tile: Tile) -> ByteTags:
        if tile.name not in self._tags:
            region = self.memories.region(tile)
            alike = (t for t in self._tags.values() if t.region.buffer is region.buffer)
            self._tags[tile.name] = next(alike, None) or ByteTags(region, self._granule)
        return self._tags[tile.name]

    def reporting_step(self, instr: Instr) -> Step:
        execute, marks = super().reporting_step(instr), [*self._marks(instr)]

        def step(environment: Environment) -> None:
            self.executions.append(instr)
            number = len(self.executions)
            if number == self._stop:
                self.environment = dict(environment)
                raise _NextIsReached
            chosen = [rows(environment) for _, _, rows in marks]
            execute(environment)
            for (view, tags, _), some in zip(marks, chosen, strict=True):
                tags.at(view(environment))[... if some is None else some] = number

        return step

    def _marks(self, instr: Instr) -> Iterator[tuple[Callable[..., Array], ByteTags, Any]]:
        for name, _, pattern in instr.operands():
            if instr.access(name) != "reads":
                rows = touched_rows(self.memories, instr, name)
                yield self.memories.viewer(pattern), self._tags_of(pattern.tile), rows


def whole_pattern(tile: Tile) -> Pattern:
    """All elements of a tile."""
    if tile.memory.value == "HBM":
        return Pattern(tile, tile.dtype, row_major((tile.elements,)))
    return Pattern(tile, tile.dtype, ((1, tile.partitions), (1, tile.elements)))


def find_maker(
    program: Program, inputs: Mapping[str, Array], wrong: Address, is_right: IsRight | None = None
) -> Maker | None:
    """The first execution on the way to a wrong byte whose result is none of the right values.

    An instruction that has the value in an operand passed it on. One that computed it from values
    of which some are not right is not the first. None where nothing wrote the byte.
    """
    executions = NumberedRun(program, inputs).executions
    stop = 0
    path: list[Instr] = []
    while len(path) < LONGEST_PATH:
        number = NumberedRun(program, inputs, stop).writer(wrong)
        if not number:
            return None
        instruction = executions[number - 1]
        run = NumberedRun(program, inputs, number)
        source = _source(
            run, NumberedRun(program, inputs, number + 1), instruction, wrong, is_right
        )
        if source is None or not run.writer(source):
            given = _operands_read(run, instruction)
            return Maker(instruction, run.environment, tuple(path), given)
        path.append(instruction)
        wrong, stop = source, number
    return None


def _source(
    before: NumberedRun,
    after: NumberedRun,
    instruction: Instr,
    wrong: Address,
    is_right: IsRight | None,
) -> Address | None:
    """The byte that an instruction took a wrong value from; None where it made the value."""
    place, bits = _written_place(before, after, instruction, wrong)
    read = [p for n, _, p in instruction.operands() if instruction.access(n) != "writes"]
    for pattern in read:
        if bits is not None and pattern.dtype.bytes == bits.itemsize:
            data = _bits(before.view(pattern))
            if (found := _choose(data == bits, place)) is not None:
                return Address(pattern.tile, int(before.offsets(pattern).reshape(-1)[found]))
    for pattern in read if is_right else ():
        assert is_right is not None
        if (found := _choose(~is_right(before.view(pattern)), place)) is not None:
            return Address(pattern.tile, int(before.offsets(pattern).reshape(-1)[found]))
    return None


def _written_place(
    before: NumberedRun, after: NumberedRun, instruction: Instr, wrong: Address
) -> tuple[int, Array | None]:
    """Which element of what an instruction wrote has a byte, and its bits."""
    for name, _, pattern in instruction.operands():
        if instruction.access(name) == "reads":
            continue
        offsets = before.offsets(pattern).reshape(-1)
        holds = (offsets <= wrong.offset) & (wrong.offset < offsets + pattern.dtype.bytes)
        if (
            before.memories.region(pattern.tile).buffer
            is not before.memories.region(wrong.tile).buffer
            or not holds.any()
        ):
            continue
        place = int(holds.argmax())
        after.environment = before.environment
        return place, _bits(after.view(pattern)).reshape(-1)[place]
    return 0, None


def _choose(candidates: Array, place: int) -> int | None:
    """The element at a place if it is a candidate, else the first candidate."""
    flat = candidates.reshape(-1)
    if place < flat.size and flat[place]:
        return place
    return int(flat.argmax()) if flat.any() else None


def _bits(data: Array) -> Array:
    return np.ascontiguousarray(data).view(np.dtype(f"u{data.itemsize}"))


def _operands_read(run: NumberedRun, instruction: Instr) -> dict[str, tuple[str, ...]]:
    """The first values of each operand that is read."""
    found = {}
    for name, _, pattern in instruction.operands():
        if instruction.access(name) != "writes":
            found[name] = tuple(str(value) for value in run.view(pattern).reshape(-1)[:4])
    return found


class _RecordedRun(Executor):
    """One run that records, for each execution, what it is and a digest of what it wrote."""

    def __init__(self, program: Program, inputs: Mapping[str, Array]) -> None:
        super().__init__(program)
        self.records: list[tuple[str, bytes, Instr, Environment]] = []
        self.set_inputs(inputs)
        self.execute()

    def reporting_step(self, instr: Instr) -> Step:
        execute = super().reporting_step(instr)
        plain = replace(instr, loc=UNKNOWN, on="", queue="", waits=(), signals=())
        text, variables = print_instruction(plain), instr.variables()
        views = [
            self.memories.viewer(p) for n, _, p in instr.operands() if instr.access(n) != "reads"
        ]

        def step(environment: Environment) -> None:
            execute(environment)
            digest = hashlib.sha256(b"".join(view(environment).tobytes() for view in views))
            at = ",".join(f"{name}={environment.get(name)}" for name in variables)
            self.records.append((f"{text} {at}", digest.digest(), instr, dict(environment)))

        return step


class _CheckedRun(Executor):
    """One run that ends after the first execution that should only move data and changed it."""

    def __init__(self, program: Program, inputs: Mapping[str, Array]) -> None:
        super().__init__(program)
        self.changed: Maker | None = None
        self.set_inputs(inputs)
        try:
            self.execute()
        except _NextIsReached:
            return

    def reporting_step(self, instr: Instr) -> Step:
        execute = super().reporting_step(instr)
        if not isinstance(instr, MOVERS) or not _keeps_dtype(instr):
            return execute
        source, target = (self.memories.viewer(each) for each in _moved(instr))

        def step(environment: Environment) -> None:
            before = np.sort(_bits(source(environment)), axis=None)
            execute(environment)
            if not np.array_equal(before, np.sort(_bits(target(environment)), axis=None)):
                few = tuple(str(value) for value in source(environment).reshape(-1)[:4])
                self.changed = Maker(instr, dict(environment), given={"data": few})
                raise _NextIsReached

        return step


def _moved(instr: Instr) -> tuple[Pattern, Pattern]:
    """What a mover reads and what it writes."""
    (source,) = instr.read_patterns()
    (target,) = instr.written_patterns()
    return source, target


def _keeps_dtype(instr: Instr) -> bool:
    """Whether a mover reads and writes equally many elements of one dtype."""
    if len([*instr.read_patterns()]) != 1 or len([*instr.written_patterns()]) != 1:
        return False
    source, target = _moved(instr)
    return source.dtype is target.dtype and source.elements == target.elements


def changed_by_moving(program: Program, inputs: Mapping[str, Array]) -> Maker | None:
    """The first execution of an instruction that only moves data after which the data are others.

    Addresses are not checked: the same values may lie elsewhere.
    """
    return _CheckedRun(program, inputs).changed


def first_difference(before: Program, after: Program, inputs: Mapping[str, Array]) -> Maker | None:
    """The first execution of a program that writes what no equal one of another program writes."""
    known: dict[str, set[bytes]] = {}
    for text, digest, _, _ in _RecordedRun(before, inputs).records:
        known.setdefault(text, set()).add(digest)
    for text, digest, instruction, environment in _RecordedRun(after, inputs).records:
        if digest not in known.get(text, {digest}):
            return Maker(instruction, environment)
    return None
