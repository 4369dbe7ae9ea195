"""The tables of a program's instructions that the rules of `timing.events` read, from its columns.

An instruction is a step with its number in program order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glia.base.affine import Affine
from glia.base.machine_code.native import Library
from glia.base.machine_code.native_records import arrays_of
from glia.isa.kit import ENGINES
from glia.isa.operand import Dims, Memory
from glia.machine.columns.table import READS, AffineColumn, Columns
from glia.machine.columns.value_numbering import (
    Array,
    DictionaryColumn,
    group_rows,
    ranks_within,
    row_offsets,
)
from glia.machine.ir import Program
from glia.timing import producers as writers
from glia.timing.costs import Costs
from glia.timing.registers import DependenceRecord

if TYPE_CHECKING:
    from glia.arch import Arch

# Engines that access a memory one at a time where the core has a shared port
SBUF_PORT, PSUM_PORT = 0, 1
SBUF_PORT_ENGINES = ("vector", "gpsimd")
PSUM_PORT_ENGINES = ("vector", "scalar")

FEW_STEPS = 500  # up to so many are faster in Python than compiling the rules
LIBRARY = Library(
    writers,
    writers.FUNCTIONS,
    tuple(arrays_of(DependenceRecord)),
    is_optimised=False,
)

Record = dict[str, Array]


@dataclass(frozen=True)
class Scopes:
    """Which loops are around the steps: from `begin[i]` on it is scope `number[i]`.

    A scope gives the slot of every loop variable that can be named in it.
    """

    begin: Array
    number: Array
    slots: Sequence[dict[str, int]]


@dataclass(frozen=True)
class Terms:
    """The terms of a column of expressions, those of one behind the other.

    `is_unknown` is 1 where an expression also names what is no loop around it: a register.
    """

    begin: Array
    slot: Array
    factor: Array
    is_unknown: Array


def step_tables(
    program: Program,
    columns: Columns,
    costs: Costs,
    scopes: Scopes,
    schedule: Sequence[tuple[bool, int, int]],
    arch: Arch,
) -> Record:
    """All tables of the steps; `schedule` orders them as `_dependences` needs it."""
    signals, units = _signals(columns)
    waits = _terms(columns.waits.value, _owners(columns.waits.begin), scopes)
    tiles = _tile_names(columns)
    weights, weights_terms = _weights(columns, costs, scopes, tiles)
    zeros = np.zeros(len(columns.instructions), np.int64)
    return {
        "cost": costs.number,
        "engine": costs.engine[costs.number],
        "ports": memory_ports(program, columns, costs, arch),
        **signals,
        "unit": units,
        **_dependences(columns, costs, schedule, tiles),
        "step_wait": columns.waits.begin,
        "wait_semaphore": columns.waits.semaphore,
        "wait_constant": columns.waits.value.constant,
        "wait_is_unknown": waits.is_unknown,
        "stalled": np.zeros(columns.waits.semaphore.size, np.int64),
        **weights,
        "wait_term": waits.begin,
        "step_term": waits.begin[-1] + weights_terms.begin,
        "term_slot": np.concatenate([waits.slot, weights_terms.slot]),
        "term_factor": np.concatenate([waits.factor, weights_terms.factor]),
        **dict.fromkeys(("visible", "counts", "busied", "table_loads", "throttled"), zeros),
    }


def _owners(begin: Array) -> Array:
    """The instruction that each row belongs to."""
    return np.repeat(np.arange(begin.size - 1), np.diff(begin))


def _tile_names(columns: Columns) -> Array:
    """A number for the name of each pattern's tile."""
    names: dict[str, int] = {}
    return columns.patterns.tile.map(lambda tile: names.setdefault(tile.name, len(names)))


def _terms(expressions: AffineColumn, owner: Array, scopes: Scopes) -> Terms:
    """Which slots the expressions of some steps name; `owner` ascends."""
    counts, unknown = np.zeros((2, owner.size), np.int64)
    rows = expressions.varying
    scope = scopes.number[np.searchsorted(scopes.begin, owner[rows], "right") - 1]
    alike = group_rows(scope, expressions.terms.number[rows])
    found = []
    for row in alike.first.tolist():
        slots = scopes.slots[scope[row]]
        terms = expressions.terms.distinct[expressions.terms.number[rows[row]]]
        known = [(slots[variable], factor) for variable, factor in terms if variable in slots]
        found.append((known, len(known) < len(terms)))
    lengths = np.array([len(known) for known, _ in found], np.int64)
    counts[rows] = lengths[alike.number]
    unknown[rows] = np.array([is_unknown for _, is_unknown in found], np.int64)[alike.number]
    table = np.array([term for known, _ in found for term in known], np.int64).reshape(-1, 2)
    of_row = counts[rows]
    chosen = np.repeat(row_offsets(lengths)[alike.number], of_row) + ranks_within(of_row)
    return Terms(row_offsets(counts), table[chosen, 0], table[chosen, 1], unknown)


def _signals(columns: Columns) -> tuple[Record, Array]:
    """What each step counts, in units; and by semaphore the counts in a unit, dividing all."""
    signals = columns.signals
    units = np.zeros(len(columns.semaphores), np.int64)
    alike = group_rows(signals.semaphore, signals.amount)
    for row in alike.first.tolist():
        semaphore = signals.semaphore[row]
        units[semaphore] = math.gcd(int(units[semaphore]), int(signals.amount[row]))
    units[units == 0] = 1
    counted = signals.amount // units[signals.semaphore]
    return {
        "step_signal": signals.begin,
        "signal_semaphore": signals.semaphore,
        "signal_units": counted,
    }, units


def memory_ports(program: Program, columns: Columns, costs: Costs, arch: Arch) -> Array:
    """The memory ports a step shares with other engines, as bits.

    One for SBUF and one for all of PSUM where the core has such ports. Without a port for all of
    PSUM there is one for each bank: that where an access begins; none when it moves or is not
    placed.
    """
    patterns = columns.patterns
    cost = costs.number[patterns.owner]
    shares = ~(costs.is_matmul | costs.is_transfer)[cost]
    engine = costs.engine[cost]
    in_sbuf = patterns.tile.map(lambda tile: tile.memory is Memory.SBUF) > 0
    in_psum = patterns.tile.map(lambda tile: tile.memory is Memory.PSUM) > 0
    in_sbuf &= shares & np.isin(engine, _engine_numbers(SBUF_PORT_ENGINES))
    in_psum &= shares & np.isin(engine, _engine_numbers(PSUM_PORT_ENGINES))
    port = np.full(cost.size, PSUM_PORT)
    if not arch.capabilities.has_shared_sbuf_port:
        in_sbuf[:] = False
    if not arch.capabilities.has_shared_psum_port:
        address = patterns.tile.map(lambda tile: program.addresses.get(tile.name, -1))
        in_psum &= (address >= 0) & (patterns.offset.terms.map(len) == 0)
        byte = address + patterns.offset.constant * patterns.dtype.map(lambda dtype: dtype.bytes)
        port += byte // arch.psum_bank_bytes % arch.psum_banks
    ports = np.zeros(costs.number.size, np.int64)
    np.bitwise_or.at(ports, patterns.owner[in_sbuf], 1 << SBUF_PORT)
    np.bitwise_or.at(ports, patterns.owner[in_psum], 1 << port[in_psum])
    return ports


def _engine_numbers(engines: Sequence[str]) -> list[int]:
    return [ENGINES.index(engine) for engine in engines]


def _weights(columns: Columns, costs: Costs, scopes: Scopes, tiles: Array) -> tuple[Record, Terms]:
    """Which weights a product holds, at which place in their tile, and which weights are spoilt.

    Weights differ if their tile, shape or dtype does; -1 for none.
    """
    patterns = columns.patterns
    is_held = costs.is_matmul[costs.number][patterns.owner]
    is_held &= patterns.name.map(lambda name: name == "stationary") > 0
    rows = np.flatnonzero(is_held)
    steps = patterns.owner[rows]
    weights, place, held, spoils = np.full((4, costs.number.size), -1)
    weights[steps] = group_rows(
        tiles[rows], patterns.dims.number[rows], patterns.dtype.number[rows]
    ).number
    elements = patterns.tile.map(lambda tile: tile.elements)[rows]
    address = _address(patterns.offset, patterns.partition, rows, elements)
    place[:] = 0
    place[steps] = address.constant
    held[steps] = tiles[rows]
    written = np.flatnonzero((patterns.access != READS) & np.isin(tiles, tiles[rows]))
    last = np.full(costs.number.size, -1)
    np.maximum.at(last, patterns.owner[written], written)
    spoils[last >= 0] = tiles[last[last >= 0]]
    terms = _terms(address, steps, scopes)
    counts = np.zeros(costs.number.size, np.int64)
    counts[steps] = np.diff(terms.begin)
    record = {
        "weights": weights, "weights_place": place, "weights_tile": held, "spoils": spoils,
    }  # fmt: skip
    return record, Terms(row_offsets(counts), terms.slot, terms.factor, counts)


def _address(
    offset: AffineColumn, partition: AffineColumn, rows: Array, elements: Array
) -> AffineColumn:
    """Of some patterns, a number that tells their places in a tile of so many elements a row."""
    constant = offset.constant[rows] + partition.constant[rows] * elements
    across, down = offset.terms.number[rows], partition.terms.number[rows]
    alike = group_rows(across, down, elements)
    terms = []
    for row in alike.first.tolist():
        start = Affine(offset.terms.distinct[across[row]])
        terms.append(
            (start + Affine(partition.terms.distinct[down[row]]) * int(elements[row])).terms
        )
    return AffineColumn(constant, DictionaryColumn(alike.number, terms))


def _dependences(
    columns: Columns, costs: Costs, schedule: Sequence[tuple[bool, int, int]], tiles: Array
) -> Record:
    """Which steps of its own engine each step needs the results of.

    `schedule` lists spans of steps in the order in which they are gone through: (whether what they
    need is looked up, first step, first after); else they are only remembered as writers.
    """
    patterns, steps = columns.patterns, costs.number.size
    engine = costs.engine[costs.number]
    is_engine = ~costs.by_dma[costs.number] & (engine != ENGINES.index("tensor"))
    group = _groups(patterns.access, is_engine[patterns.owner], engine[patterns.owner], tiles)
    reach = [_reach(dims) for dims in patterns.dims.distinct]
    row_reach, free_reach = np.array(reach, np.int64).reshape(-1, 2)[patterns.dims.number].T
    registers = _registers(columns, engine)
    found = 2 * patterns.owner.size + registers["register_read"].size
    groups = int(group.max(initial=-1)) + 1
    spans = np.array(schedule, np.int64).reshape(-1, 3)
    record = {
        "extent": np.array([len(schedule), 0]),
        "item_is_planned": spans[:, 0], "item_begin": spans[:, 1], "item_end": spans[:, 2],
        "begin": patterns.begin, "is_engine": is_engine, "access": patterns.access,
        "group": group, "place": patterns.group_by_place().number,
        "dtype": patterns.dtype.number,
        "row_term": patterns.partition.terms.number, "row_start": patterns.partition.constant,
        "row_reach": row_reach,
        "free_term": patterns.offset.terms.number, "free_start": patterns.offset.constant,
        "free_reach": free_reach,
        "remembered": np.zeros(groups, np.int64),
        "writer_step": np.zeros(groups * writers.REMEMBERED, np.int64),
        "writer_row": np.zeros(groups * writers.REMEMBERED, np.int64),
        **registers,
        "step_read": np.zeros(steps + 1, np.int64), "read_step": np.zeros(found, np.int64),
    }  # fmt: skip
    record = {name: np.ascontiguousarray(each, np.int64) for name, each in record.items()}
    is_long = int((spans[:, 2] - spans[:, 1]).sum()) > FEW_STEPS
    count = LIBRARY.call("depend", record, is_native=is_long)
    return {"step_read": record["step_read"], "read_step": record["read_step"][:count]}


def _groups(access: Array, is_engine: Array, engine: Array, tiles: Array) -> Array:
    """Numbers for the pairs of tile and engine that an engine's instruction writes; else -1."""
    pair = tiles * len(ENGINES) + engine
    written = np.zeros(int(pair.max(initial=-1)) + 1, bool)
    written[pair[is_engine & (access != READS)]] = True
    numbers = np.where(written, np.cumsum(written) - 1, -1)
    return np.where(is_engine, numbers[pair], -1)


def _reach(dims: Dims) -> tuple[int, int]:
    """Partitions and elements of each that a pattern reaches over."""
    (row_step, rows), *free = dims or ((0, 1),)
    return 1 + abs(row_step) * (rows - 1), 1 + sum(abs(step) * (n - 1) for step, n in free)


def _registers(columns: Columns, engine: Array) -> Record:
    """The registers, numbered for each engine, that steps set and that their patterns name."""
    instructions, patterns = columns.instructions, columns.patterns
    numbers: dict[tuple[int, str], int] = {}
    register_set = np.full(engine.size, -1)
    sets = [instructions[row].sets_register is not None for row in columns.family.first.tolist()]
    for step in np.flatnonzero(np.array(sets, bool)[columns.family.number]).tolist():
        name = str(instructions[step].sets_register)
        register_set[step] = numbers.setdefault((int(engine[step]), name), len(numbers))
    owners, read = [], []
    for expressions in (patterns.offset, patterns.partition) if numbers else ():
        for row in expressions.varying.tolist():
            step = int(patterns.owner[row])
            for name, _ in expressions.terms.distinct[expressions.terms.number[row]]:
                if (int(engine[step]), name) in numbers:
                    owners.append(step)
                    read.append(numbers[int(engine[step]), name])
    order = np.argsort(np.array(owners, np.int64), kind="stable")
    counts = np.bincount(np.array(owners, np.int64), minlength=engine.size)
    return {
        "register_set": register_set,
        "register_begin": row_offsets(counts),
        "register_read": np.array(read, np.int64)[order],
        "register_writer": np.full(len(numbers), -1),
    }
