"""Straight lines of instructions as the records that dependences and schedules are found in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from glia.arch import Arch
from glia.base.machine_code.native import Library
from glia.base.machine_code.native_records import arrays_of, as_words, words_of
from glia.isa.kit import ENGINES, is_register
from glia.isa.operand import Memory, Tile, usable_bytes_per_partition
from glia.machine.columns.extents import Extents, extents_of
from glia.machine.columns.table import READS, WRITES, Columns
from glia.machine.columns.value_numbering import Array, group_rows, row_offsets
from glia.machine.ir import Program
from glia.nki.back_end import dependence_rules, order_rules
from glia.nki.session.ordering import is_fence
from glia.timing.costs import Costs, cost_instructions
from glia.timing.instruction_tables import memory_ports
from glia.timing.plan_tables import core_parameters, cost_tables, result_latency
from glia.timing.registers import LANES

FEW_NODES = 64  # up to so many are faster in Python than compiling the rules
DEPENDENCES = Library(
    dependence_rules, dependence_rules.FUNCTIONS,
    tuple(arrays_of(dependence_rules.GraphRecord)), is_optimised=False,
)  # fmt: skip
ORDERS = Library(
    order_rules,
    order_rules.FUNCTIONS,
    tuple(arrays_of(order_rules.OrderRecord)),
    is_optimised=False,
)
MEMORIES = (Memory.SBUF, Memory.PSUM)
PORTS = 64
LIVE_SHARE = 0.5  # of a memory: then what a tile takes over has been out of use for long
Record = dict[str, Array]


@dataclass(frozen=True)
class ListPolicy:
    """How a schedule takes instructions; see `order_rules`."""

    kind: int
    window: int
    slack_ps: int = 0


class KernelTables:
    """What all straight lines of a kernel need; `chains` lists instructions that keep their order.

    Instructions are named by number.
    """

    def __init__(
        self, program: Program, columns: Columns, arch: Arch, chains: Sequence[Sequence[int]]
    ) -> None:
        self.program, self.columns, self.arch = program, columns, arch
        self.costs: Costs = cost_instructions(columns, arch)
        self.extents: Extents = extents_of(columns.patterns)
        self.chains = [*chains, *_engine_chains(columns)]
        self.ports = memory_ports(program, columns, self.costs, arch)

    @cached_property
    def cost_tables(self) -> Record:
        """The rows of `order_rules` for the distinct costs."""
        tables = cost_tables(self.costs.distinct)
        queue = [cost.queue for cost in self.costs.distinct]
        return as_words(tables | {"queue": queue})

    @cached_property
    def loads(self) -> Array:
        """By cost the picoseconds that it keeps each engine, then each lane, busy."""
        loads = np.zeros((len(self.costs.distinct), len(ENGINES) + LANES), np.int64)
        for cost in self.costs.distinct:
            loads[cost.number, cost.engine] = cost.busy
            for work, lanes in cost.transfer.lanes if cost.transfer else ():
                loads[cost.number, [len(ENGINES) + lane for lane in lanes]] += work
        return loads

    @cached_property
    def is_fence(self) -> Array:
        """By instruction, whether nothing moves across it."""
        forms = self.columns.form
        examples = [self.columns.instructions[row] for row in forms.first.tolist()]
        return np.array([*map(is_fence, examples)], bool)[forms.number]


class TileNumbers:
    """The tile of every pattern by number, and which instructions are there to use them."""

    def __init__(self, tables: KernelTables, tile: Array, kept: Array) -> None:
        self.tables, self.tile, self.kept = tables, tile, kept

    @cached_property
    def weights(self) -> Array:
        """By instruction the number of the weights that a product holds, -1 for none."""
        patterns, costs = self.tables.columns.patterns, self.tables.costs
        is_held = costs.is_matmul[costs.number][patterns.owner]
        is_held &= patterns.name.map(lambda name: name == "stationary") > 0
        rows = np.flatnonzero(is_held)
        weights = np.full(costs.number.size, -1)
        weights[patterns.owner[rows]] = group_rows(
            self.tile[rows], patterns.dims.number[rows], patterns.dtype.number[rows],
            patterns.offset.constant[rows], patterns.partition.constant[rows],
        ).number  # fmt: skip
        return weights

    @cached_property
    def aliased(self) -> tuple[Array, Array]:
        """By pattern the number of the tile or group of overlapping tiles, and its first byte."""
        patterns = self.tables.columns.patterns
        number, start = self.tile.copy(), np.zeros(self.tile.size, np.int64)
        group = int(number.max(initial=-1)) + 1
        for tiles in _overlapping(self.tables.program):
            begins = {name: begin for begin, _, name in tiles}
            at = patterns.tile.map(partial(_begin_in, begins))
            number[at >= 0], start[at >= 0] = group, at[at >= 0]
            group += 1
        return number, start

    @cached_property
    def spans(self) -> tuple[Array, Array]:
        """By tile number the first and last instruction that uses it."""
        owner, count = self.tables.columns.patterns.owner, int(self.tile.max(initial=-1)) + 1
        first, last = np.full(count, owner.size + 1), np.full(count, -1)
        np.minimum.at(first, self.tile, owner)
        np.maximum.at(last, self.tile, owner)
        return first, last

    def most_live(self, memory: Memory) -> float:
        """The part of a memory that is live at one time, if no tile outlives its last use."""
        patterns, arch = self.tables.columns.patterns, self.tables.arch
        first, last = self.spans
        size = np.zeros(first.size, np.int64)
        size[self.tile] = patterns.tile.map(partial(_occupied, arch))
        is_there = np.zeros(first.size, bool)
        is_there[self.tile] = patterns.tile.map(lambda tile: tile.memory is memory) > 0
        change = np.zeros(len(self.tables.columns.instructions) + 2, np.int64)
        np.add.at(change, first[is_there], size[is_there])
        np.add.at(change, last[is_there] + 1, -size[is_there])
        return int(change.cumsum().max()) / usable_bytes_per_partition(memory, arch)


def _begin_in(begins: Mapping[str, int], tile: Tile) -> int:
    return begins.get(tile.name, -1)


def _engine_chains(columns: Columns) -> list[list[int]]:
    """The instructions that use registers, and those that use each state of each engine."""
    chains: dict[object, list[int]] = {}
    names: list[set[object]] = []
    for row in columns.form.first.tolist():
        example = columns.instructions[row]
        found: set[object] = {
            (example.runs_on, kept.state.name) for _, kept, _ in example.states_touched()
        }
        if example.uses_registers or example.sets_register is not None:
            found.add("registers")
        names.append(found)
    in_registers = _named_by_registers(columns)
    wanted = np.array([bool(found) for found in names], bool)[columns.form.number]
    wanted[in_registers] = True
    is_named = np.zeros(wanted.size, bool)
    is_named[in_registers] = True
    for number in np.flatnonzero(wanted).tolist():
        found = names[columns.form.number[number]]
        for name in found | {"registers"} if is_named[number] else found:
            chains.setdefault(name, []).append(number)
    return [*chains.values()]


def _named_by_registers(columns: Columns) -> Array:
    """The instructions with a pattern that a register moves."""
    patterns = columns.patterns
    moved = np.zeros(patterns.owner.size, bool)
    for expressions in (patterns.offset, patterns.partition):
        moved |= expressions.terms.map(lambda terms: any(is_register(n) for n, _ in terms)) > 0
    return patterns.owner[moved]


def _overlapping(program: Program) -> list[list[tuple[int, int, str]]]:
    """Groups of (begin, end, name) of tiles on chip whose addresses meet, two or more of them."""
    groups: list[list[tuple[int, int, str]]] = []
    for memory in MEMORIES:
        tiles = [program.tiles[name] for name in program.addresses]
        placed = sorted(
            (program.addresses[t.name], program.addresses[t.name] + t.bytes_per_partition, t.name)
            for t in tiles if t.memory is memory
        )  # fmt: skip
        end = -1
        for entry in placed:
            if entry[0] >= end:
                groups.append([])
            groups[-1].append(entry)
            end = max(end, entry[1])
    return [group for group in groups if len(group) > 1]


class StraightLine:
    """Instructions `begin` to `end` of a kernel, without control flow or fences among them."""

    def __init__(self, numbers: TileNumbers, begin: int, end: int) -> None:
        self.numbers, self.begin, self.end = numbers, begin, end
        self.tables = tables = numbers.tables
        self.nodes = begin + np.flatnonzero(numbers.kept[begin:end])
        first, last = tables.columns.patterns.begin[[begin, end]].tolist()
        owner = tables.columns.patterns.owner[first:last]
        self.rows = first + np.flatnonzero(numbers.kept[owner])
        self.owner = np.searchsorted(self.nodes, tables.columns.patterns.owner[self.rows])
        self.is_native = self.nodes.size > FEW_NODES
        cost = tables.costs.number[self.nodes]
        self.common: Record = {
            "nodes": words_of([self.nodes.size]),
            "cost": words_of(cost),
            "engine": words_of(tables.costs.engine[cost]),
            "queue": words_of(tables.cost_tables["queue"][cost]),
        }

    @cached_property
    def graph(self) -> Record:
        """The dependences: `pred` and `source` by node, and the same from their sources."""
        record = self._dependence_record()
        room = 8 * self.rows.size + 8 * dependence_rules.MAXIMUM_KNOWN
        while True:
            attempt = {name: values.copy() for name, values in record.items()}
            attempt["room"] = words_of([room])
            attempt |= {name: np.zeros(room, np.int64) for name in ("source", "strength")}
            if not DEPENDENCES.call("find_dependences", attempt, is_native=self.is_native):
                break
            room *= 4
        found = int(attempt["found"][0])
        pred, source = attempt["pred"], attempt["source"][:found]
        order = np.argsort(source, kind="stable")
        dependent = np.repeat(np.arange(self.nodes.size), np.diff(pred))
        return {
            "pred": pred,
            "succ": row_offsets(np.bincount(source, minlength=self.nodes.size)),
            "dependent": words_of(dependent[order]),
            "strength": words_of(attempt["strength"][:found][order]),
        }

    def _dependence_record(self) -> Record:
        tables, rows = self.tables, self.rows
        patterns, extents = tables.columns.patterns, tables.extents
        number, start = (each[rows] for each in self.numbers.aliased)
        access = patterns.access[rows]
        boxes = extents.boxes(rows)
        boxes |= {name: boxes[name] + start for name in ("first", "last")}
        local = group_rows(number)
        written = np.zeros(local.first.size, bool)
        written[local.number[access != READS]] = True
        tile = np.where(written[local.number], local.number, -1)
        entries = rows.size + 1
        record = {
            **{name: self.common[name] for name in ("nodes", "engine", "queue")},
            "found": [0],
            "begin": row_offsets(np.bincount(self.owner, minlength=self.nodes.size)),
            **self._chains(),
            "tile": tile, "is_write": access != READS, "is_read": access != WRITES,
            **boxes,
            "known": np.full(local.first.size, -1), "known_count": np.zeros(local.first.size),
            "entry_next": np.append(np.arange(1, entries), -1),
            **{name: np.zeros(entries) for name in ("entry_access", "entry_node", "entry_write")},
            "unused": [0], "pred": np.zeros(self.nodes.size + 1),
            "slot": np.full(self.nodes.size, -1),
        }  # fmt: skip
        return as_words(record)

    def _chains(self) -> dict[str, list[int]]:
        """The links of nodes to the chains that they are in."""
        chain = [-1] * self.nodes.size
        following: list[int] = []
        chain_of: list[int] = []
        for number, members in enumerate(self.tables.chains):
            inside = np.array(members)[
                np.searchsorted(members, self.begin) : np.searchsorted(members, self.end)
            ]
            inside = inside[self.numbers.kept[inside]]
            for node in np.searchsorted(self.nodes, inside).tolist():
                following.append(chain[node])
                chain_of.append(number)
                chain[node] = len(chain_of) - 1
        last = [-1] * len(self.tables.chains)
        return {"chain": chain, "chain_next": following, "chain_of": chain_of, "chain_last": last}

    @cached_property
    def _order_record(self) -> Record:
        tables, arch, nodes = self.tables, self.tables.arch, self.nodes.size
        queues = len(tables.costs.queues)
        record = {
            **self.common, **self.graph, **self._tile_uses(),
            **{n: v for n, v in tables.cost_tables.items() if n != "queue"},
            "parameter": core_parameters(arch, queues),
            "latency": [result_latency(arch, engine) for engine in ENGINES],
            "weights": self.numbers.weights[self.nodes], "ports": tables.ports[self.nodes],
            **{name: np.zeros(nodes) for name in (
                "waiting", "ready", "height", "available", "is_issued", "following",
            )},
            "live": [0, 0],
            "state": [0, 0, 0, 0, 0, 0, -1, -1],
            "free": [0] * len(ENGINES), "generator": [0] * len(ENGINES), "port": [0] * PORTS,
            "queue_ready": [0] * queues, "lane": [0] * (LANES * queues),
        }  # fmt: skip
        return as_words(record)

    def _tile_uses(self) -> dict[str, object]:
        """Which tiles on chip the nodes use, and how much of the memories may be live."""
        tables, rows, arch = self.tables, self.rows, self.tables.arch
        patterns = tables.columns.patterns
        memory = patterns.tile.map(_memory_number)
        size = patterns.tile.map(partial(_occupied, arch))
        free = memory >= 0
        free &= patterns.tile.map(lambda tile: tile.name not in tables.program.addresses) > 0
        tile_of = self.numbers.tile
        first, last = self.numbers.spans
        inside = (first >= self.begin) & (last < self.end)
        own = rows[free[rows] & inside[tile_of[rows]]]
        uses = group_rows(np.searchsorted(self.nodes, patterns.owner[own]), tile_of[own])
        node = np.searchsorted(self.nodes, patterns.owner[own[uses.first]])
        tile = group_rows(tile_of[own[uses.first]])
        examples = own[uses.first][tile.first]
        capacity = [
            round(LIVE_SHARE * usable_bytes_per_partition(each, arch))
            - self._bytes_held(memory == number, size, inside)
            for number, each in enumerate(MEMORIES)
        ]
        return {
            "begin_tile": row_offsets(np.bincount(node, minlength=self.nodes.size)),
            "used_tile": tile.number,
            "tile_memory": memory[examples],
            "tile_bytes": size[examples],
            "uses_left": np.bincount(tile.number, minlength=tile.first.size),
            "is_live": np.zeros(tile.first.size),
            "capacity": capacity,
        }

    def _bytes_held(self, is_there: Array, size: Array, inside: Array) -> int:
        """Bytes that tiles hold in a memory which live longer than this line."""
        tile_of = self.numbers.tile
        first, last = self.numbers.spans
        example = np.zeros(first.size, np.int64)
        example[tile_of] = np.arange(tile_of.size)
        crosses = (first < self.end) & (last >= self.begin) & ~inside
        return int(size[example[crosses & is_there[example]]].sum())

    @property
    def least_ps(self) -> int:
        """What the busiest engine or lane has to do: no order takes less."""
        counts = np.bincount(self.common["cost"], minlength=len(self.tables.loads))
        return int((counts @ self.tables.loads).max(initial=0))

    def schedule(self, policy: ListPolicy) -> Array:
        """The nodes in the order of a schedule by this policy."""
        return self._run(policy, np.zeros(self.nodes.size, np.int64))[0]

    def picoseconds(self, order: Array) -> int:
        """How long the nodes take in an order."""
        return self._run(ListPolicy(order_rules.GIVEN, self.nodes.size), order)[1]

    def _run(self, policy: ListPolicy, order: Array) -> tuple[Array, int]:
        record = {name: values.copy() for name, values in self._order_record.items()}
        record |= {"policy": words_of([policy.kind]), "window": words_of([policy.window])}
        record |= {"slack": words_of([policy.slack_ps]), "order": words_of(order).copy()}
        took = ORDERS.call("schedule", record, is_native=self.is_native)
        return record["order"], took


def _memory_number(tile: Tile) -> int:
    """The number of a tile's memory on chip; -1 for HBM."""
    return MEMORIES.index(tile.memory) if tile.memory in MEMORIES else -1


def _occupied(arch: Arch, tile: Tile) -> int:
    """Bytes of a partition that a tile keeps from others: in PSUM none crosses a bank."""
    size = tile.bytes_per_partition
    if tile.memory is not Memory.PSUM or 2 * size <= arch.psum_bank_bytes:
        return size
    return -(-size // arch.psum_bank_bytes) * arch.psum_bank_bytes


def line_bounds(tables: KernelTables, begin: int, end: int) -> list[tuple[int, int]]:
    """The first instruction and the one after the last of each line between fences."""
    fences = begin + np.flatnonzero(tables.is_fence[begin:end])
    bounds = [begin - 1, *fences.tolist(), end]
    return [(before + 1, after) for before, after in pairwise(bounds)]
