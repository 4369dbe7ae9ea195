"""Level 2: loop nests over buffers with affine accesses.

A program is a sequence of nests (and whiles and branches) over named buffers. A nest says WHAT is
computed: named axes, a scalar body that reads buffers through affine maps, an optional reduction
and one write. HOW it runs (which axis lies on the partitions, tile extents, what stays in SBUF) is
said beside it by schedules, layouts and groups, and never changes the meaning.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import DType
from glia.base.loc import UNKNOWN, Loc


@dataclass(frozen=True)
class Buffer:
    """A dense row-major tensor; role is input, output, constant, temporary or shared.

    What is shared lies in HBM, and another core of the logical core reads or writes it too.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    role: str = "temporary"

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.bytes


@dataclass(frozen=True)
class Axis:
    """A named iteration axis running over 0 .. extent-1."""

    name: str
    extent: int


@dataclass(frozen=True)
class Guard:
    """Holds where 0 <= expression < extent; the expression is one index of the guarded load."""

    expression: Affine
    extent: int


@dataclass(frozen=True)
class Dynamic:
    """A run-time offset added to one dimension of an access, read from an integer buffer.

    The value is clamped into 0 .. limit when `clamps`, else an access with a value outside that
    range does nothing (a write is dropped; a read is not allowed). A `load` whose index names no
    axis is uniform: it becomes a register; otherwise the access is indirect.
    """

    dimension: int
    load: Load
    limit: int
    clamps: bool = True

    @property
    def is_uniform(self) -> bool:
        """Whether the offset is the same for all of a nest: it becomes a register."""
        return not self.load.dynamic and not any(each.terms for each in self.load.index)


@dataclass(frozen=True)
class Load:
    """Read buffer[index]; where a guard fails the value is `fill`.

    `dtype` is the buffer's, or tf32 for a float32 buffer: the PE then reads the value rounded to
    10 bits of mantissa.
    """

    buffer: str
    dtype: DType
    index: tuple[Affine, ...]
    guards: tuple[Guard, ...] = ()
    fill: float | int = 0
    dynamic: tuple[Dynamic, ...] = ()


@dataclass(frozen=True)
class Index:
    """The value of an affine expression of the axes (iota)."""

    expression: Affine
    dtype: DType


@dataclass(frozen=True)
class Literal:
    """A constant scalar."""

    value: float | int
    dtype: DType


@dataclass(frozen=True)
class Apply:
    """A scalar function of `graph.scalar`, or `convert` / `bitcast` to `dtype`.

    Arguments may share parts, which are hashed once: an expression has more paths than parts.
    """

    function: str
    args: tuple[Expr, ...]
    dtype: DType

    @cached_property
    def _hash(self) -> int:
        return hash((self.function, self.args, self.dtype))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """The fields: another process hashes strings in another way."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class Scan(Apply):
    """The states of a recurrence along a parallel axis: args are (factor, term), float32.

    The state at i is factor[i] times the state at i - 1, combined with term[i] by what `function`
    names: scan_add, scan_multiply, scan_maximum, scan_minimum. Before 0 it is the identity of that.
    """

    axis: str

    __hash__ = Apply.__hash__


PLACES = "places"  # the function of reductions with a rank
SCANS = {f"scan_{monoid}": monoid for monoid in ("add", "multiply", "maximum", "minimum")}


@dataclass(frozen=True)
class Accumulator:
    """In `Nest.finish`: the reduced value."""

    dtype: DType


Expr = Load | Index | Literal | Apply | Accumulator


@dataclass(frozen=True)
class Reduction:
    """Combine the body over `axes` with a monoid (add multiply maximum minimum and or xor).

    `dtype` is that of the accumulator; the value of an empty reduction is the monoid's identity.
    With a parallel axis as `rank`, which the body does not name, `function` is `places`: value i
    along it is where, on the one reduced axis, element number i is in descending order. Equal
    elements are in order; they are finite float32, and places int32.
    """

    axes: tuple[str, ...]
    function: str
    dtype: DType
    rank: str = ""


@dataclass(frozen=True)
class Store:
    """Write buffer[index]; `combine` is '' to overwrite or a monoid to update what is there."""

    buffer: str
    index: tuple[Affine, ...]
    dynamic: tuple[Dynamic, ...] = ()
    combine: str = ""


@dataclass(frozen=True)
class Nest:
    """For every point of the parallel axes: target = finish(reduce(body)).

    Without `combine` each element of the target is written at most once; axes that are in no
    reduction are parallel. Equal subexpressions may be one object: traverse by identity.
    """

    name: str
    axes: tuple[Axis, ...]
    body: Expr
    target: Store
    reduction: Reduction | None = None
    finish: Expr | None = None
    loc: Loc = UNKNOWN

    @property
    def extents(self) -> dict[str, int]:
        return {axis.name: axis.extent for axis in self.axes}

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Every load, those of run-time offsets included."""
        offsets = (loads(offset.load) for offset in self.target.dynamic)
        return tuple(itertools.chain(loads(self.body), loads(self.finish), *offsets))

    @cached_property
    def distinct_loads(self) -> tuple[Load, ...]:
        """The loads, equal ones once."""
        return tuple(dict.fromkeys(self.loads))

    @property
    def accesses(self) -> tuple[Load | Store, ...]:
        """The write, and every load."""
        return (self.target, *self.loads)

    @property
    def dtype(self) -> DType:
        """The dtype of the values that the nest writes."""
        if self.finish is not None:
            return self.finish.dtype
        return self.reduction.dtype if self.reduction else self.body.dtype

    @property
    def parallel_axes(self) -> tuple[Axis, ...]:
        reduced = self.reduction.axes if self.reduction else ()
        return tuple(axis for axis in self.axes if axis.name not in reduced)

    @property
    def reduced_axes(self) -> tuple[Axis, ...]:
        reduced = self.reduction.axes if self.reduction else ()
        return tuple(axis for axis in self.axes if axis.name in reduced)


@dataclass(frozen=True)
class While:
    """Run `condition`; while the pred scalar `predicate` is true run `body` and start over.

    `iterations` is how often the body runs where that is known, and not never, else 0.
    """

    name: str
    condition: tuple[Statement, ...]
    predicate: str
    body: tuple[Statement, ...]
    iterations: int = 0


@dataclass(frozen=True)
class Branch:
    """Run the arm that the scalar s32 buffer `selector` names, the last one when out of range."""

    name: str
    selector: str
    arms: tuple[tuple[Statement, ...], ...]


@dataclass(frozen=True)
class Call:
    """Run a kernel written by hand: it reads the buffers `inputs` and writes all of `outputs`.

    `target` and `config` are those of the custom call it comes from. `kernel` is the machine
    program, once it has been decoded; the text form leaves it out.
    """

    name: str
    target: str
    config: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    loc: Loc = UNKNOWN
    kernel: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Exchange:
    """Exchange the buffers `inputs` with other ranks: all of `outputs` is what this rank gets.

    `kind` is one of `EXCHANGES`, along the first dimension where that matters; `groups` are of
    ranks, or pairs of a source and a target, whose rank alone gets what it has. `function` combines
    in reductions. At a `barrier` it is the cores of a logical core that meet: what each has written
    to `outputs` before, both see after.
    """

    name: str
    kind: str
    function: str  # "" | add | maximum | minimum
    groups: tuple[tuple[int, ...], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    loc: Loc = UNKNOWN


EXCHANGES = (
    "all-gather", "all-reduce", "all-to-all", "barrier", "collective-permute", "rank-id",
    "reduce-scatter",
)  # fmt: skip

WholeBuffers = Call | Exchange  # statements that read and write whole buffers in HBM
Statement = Nest | While | Branch | WholeBuffers


@dataclass(frozen=True)
class Layout:
    """Where a buffer lives: in HBM row-major, or in SBUF with one dimension on the partitions.

    In SBUF index i of `partition_dim` lies on partition i % 128 of block i // 128; the blocks come
    first in the free dimension, then the other dimensions in order.
    """

    memory: str = "HBM"
    partition_dim: int = -1


@dataclass(frozen=True)
class BlockLoop:
    """A loop over blocks of `extent` values of an axis, around the loops over tiles.

    Each iteration brings in what its block needs of the operands in `loads` ("left", "right"), for
    all loops inside. `copies` is the number of iterations that have tiles of their own.
    """

    axis: str
    extent: int
    copies: int = 1
    loads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """How a nest runs.

    `partition` is the axis on the 128 partitions of the result ("" for none). `tiles` says how many
    values of an axis one instruction sweeps (missing: all of them); `order` lists the axes to loop
    over, outermost first. A contraction on the PE (`engine` "tensor") sums over `contract` along
    the partitions of both operands; the operand named by `stationary` carries the partition axis.
    The tiles of the reduced axes `packed`, outermost first, lie on the partitions as well: all rows
    of `contract` for each of their values in turn. Of these axes only the first may be split.
    Of an axis in `coarse` a loop runs over blocks of so many values, and right inside of it the
    loop over the tiles of a block: what both need is staged between them.

    A contraction may run in `blocks`, outermost first. `order` then lists the loops over the tiles
    of one block. PSUM holds the sums of all tiles of the blocks around which a reduced axis loops.
    """

    engine: str
    partition: str
    tiles: Mapping[str, int]
    order: tuple[str, ...]
    contract: str = ""
    stationary: str = ""  # "left" | "right"
    packed: tuple[str, ...] = ()
    coarse: Mapping[str, int] = field(default_factory=dict)
    blocks: tuple[BlockLoop, ...] = ()


@dataclass(frozen=True)
class Member:
    """A nest of a group: `axes` of it run in the loops around it, outermost first.

    `schedule` says how the nest runs inside of one iteration of them.
    """

    nest: str
    axes: tuple[str, ...]
    schedule: Schedule


@dataclass(frozen=True)
class SharedLoop:
    """Run `body` for every `block` values of an axis of `extent` that each nest below has.

    `copies` is the number of iterations that have tiles of their own, at most.
    """

    extent: int
    block: int
    body: tuple[SharedLoop | Member, ...]
    copies: int = 1


@dataclass(frozen=True)
class Group:
    """How several consecutive nests run in common loops.

    Of the buffers `on_chip`, SBUF holds what one iteration writes; those that are needed outside of
    the group are stored to HBM as well. In a group that `is_whole` what masks make constant is
    computed too. `ended_by` says, to people, why it has no more nests.
    """

    name: str
    loop: SharedLoop
    on_chip: tuple[str, ...] = ()
    is_whole: bool = False
    ended_by: str = field(default="", compare=False)

    def members(self) -> Iterator[tuple[tuple[SharedLoop, ...], Member]]:
        """Every nest in order, with the loops around it, outermost first."""
        yield from _members((self.loop,), self.loop.body)


def _members(
    loops: tuple[SharedLoop, ...], body: tuple[SharedLoop | Member, ...]
) -> Iterator[tuple[tuple[SharedLoop, ...], Member]]:
    for each in body:
        if isinstance(each, Member):
            yield loops, each
        else:
            yield from _members((*loops, each), each.body)


@dataclass(frozen=True)
class Program:
    """Buffers and the statements over them; inputs and outputs are buffer names in order.

    Of several `cores` this is the program of one: its inputs, outputs and shared buffers are those
    of the others too.
    """

    name: str
    buffers: Mapping[str, Buffer]
    body: tuple[Statement, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)  # by buffer, read-only
    aliases: tuple[tuple[str, str], ...] = ()  # (output, input) pairs that share one buffer
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    schedules: Mapping[str, Schedule] = field(default_factory=dict)  # by nest name
    groups: tuple[Group, ...] = ()
    notes: tuple[str, ...] = ()
    cores: int = 1

    def nests(self) -> Iterator[Nest]:
        """Every nest in program order, entering whiles and branches."""
        yield from walk(self.body)


def schedules_in_groups(program: Program) -> dict[str, Schedule]:
    """By nest, the schedule that it runs under: in a group, that of the group."""
    found = dict(program.schedules)
    for group in program.groups:
        found |= {member.nest: member.schedule for _, member in group.members()}
    return found


def internal_buffers(program: Program) -> frozenset[str]:
    """The temporaries on chip of groups that nothing outside of their group accesses."""
    return frozenset(
        name
        for group in program.groups
        for name in group.on_chip
        if program.buffers[name].role == "temporary"
    ) - buffers_across_groups(program)


def buffers_across_groups(program: Program) -> frozenset[str]:
    """The buffers that are accessed outside of a group that accesses them, or by no nest."""
    group_of = {m.nest: group.name for group in program.groups for _, m in group.members()}
    found = {*program.outputs, *(name for pair in program.aliases for name in pair)}
    users: dict[str, str] = {}
    for nest in program.nests():
        user = group_of.get(nest.name, nest.name)
        for name in accessed_buffers(nest):
            if users.setdefault(name, user) != user:
                found.add(name)
    return frozenset(found | control_buffers(program.body))


def walk(body: tuple[Statement, ...]) -> Iterator[Nest]:
    """Every nest of a block in program order, entering whiles and branches."""
    return (each for each in leaves(body) if isinstance(each, Nest))


def calls(body: tuple[Statement, ...]) -> Iterator[Call]:
    """Every call in program order, entering whiles and branches."""
    return (each for each in leaves(body) if isinstance(each, Call))


def control_buffers(body: tuple[Statement, ...], *, with_exchanges: bool = True) -> set[str]:
    """The buffers that statements other than nests access: whole ones, conditions."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, While):
            inner = (*statement.condition, *statement.body)
            found |= {statement.predicate}
            found |= control_buffers(inner, with_exchanges=with_exchanges)
        elif isinstance(statement, Branch):
            found.add(statement.selector)
            for arm in statement.arms:
                found |= control_buffers(arm, with_exchanges=with_exchanges)
        elif isinstance(statement, Call) or (with_exchanges and isinstance(statement, Exchange)):
            found |= {*statement.inputs, *statement.outputs}
    return found


def leaves(body: tuple[Statement, ...]) -> Iterator[Nest | WholeBuffers]:
    """Every statement that holds none, in program order, entering whiles and branches."""
    for statement in body:
        if isinstance(statement, While):
            yield from leaves((*statement.condition, *statement.body))
        elif isinstance(statement, Branch):
            for arm in statement.arms:
                yield from leaves(arm)
        else:
            yield statement


def accessed_buffers(statement: Statement) -> set[str]:
    """What a statement, or one inside of it, reads or writes, run-time offsets included."""
    if isinstance(statement, Nest):
        return {statement.target.buffer, *(load.buffer for load in statement.loads)}
    if isinstance(statement, WholeBuffers):
        return {*statement.inputs, *statement.outputs}
    if isinstance(statement, While):
        inner, found = (*statement.condition, *statement.body), {statement.predicate}
    else:
        inner, found = sum(statement.arms, ()), {statement.selector}
    return found.union(*map(accessed_buffers, inner))


def ordered_axes(nest: Nest) -> frozenset[str]:
    """The parallel axes that a nest takes in order: those of recurrences, and of ranks."""
    rank = nest.reduction.rank if nest.reduction else ""
    return frozenset(scan.axis for scan in scans(nest)) | ({rank} if rank else set())


def scans(nest: Nest) -> tuple[Scan, ...]:
    """The recurrences of a nest, equal ones once."""
    found: dict[Scan, None] = {}
    stack: list[Expr | None] = [nest.body, nest.finish]
    seen: set[int] = set()
    while stack:
        part = stack.pop()
        if isinstance(part, Apply) and id(part) not in seen:
            seen.add(id(part))
            stack.extend(part.args)
            if isinstance(part, Scan):
                found[part] = None
    return tuple(found)


def loads(expression: Expr | None) -> Iterator[Load]:
    """Every load in an expression, those of dynamic offsets included, left to right.

    A shared subexpression is visited once.
    """
    stack: list[Expr | None] = [expression]
    seen: set[int] = set()
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Load):
            yield part
            stack.extend(offset.load for offset in reversed(part.dynamic))
        elif isinstance(part, Apply):
            stack.extend(reversed(part.args))
