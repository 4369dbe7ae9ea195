"""A run of instructions as the records that its dependences and orders are found in."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glia.arch import Arch
from glia.base.machine_code.native import Library
from glia.base.machine_code.native_records import arrays_of, as_words, words_of
from glia.isa.operand import Memory, Tile
from glia.machine.columns.value_numbering import Array, group_rows, row_offsets
from glia.machine.ordering import dependence_rules, order_rules
from glia.machine.ordering.order_rules import NONE, REPETITIONS
from glia.machine.ordering.structure import Structure, Structures
from glia.machine.ordering.ways import DMA, WayTable
from glia.machine.passes.on_chip_space import occupied_bytes

DEPENDENCES = Library(
    dependence_rules, dependence_rules.FUNCTIONS,
    tuple(arrays_of(dependence_rules.RunRecord)), is_optimised=False,
)  # fmt: skip
ORDERS = Library(
    order_rules,
    order_rules.FUNCTIONS,
    tuple(arrays_of(order_rules.ListOrderRecord)),
    is_optimised=False,
)
MEMORIES = (Memory.SBUF, Memory.PSUM)  # as `order_rules` numbers them
Record = dict[str, Array]


@dataclass(frozen=True)
class Order:
    """The nodes of a run in order, and the variant of each, by its number in the table of ways."""

    nodes: Array
    variants: Array


@dataclass(frozen=True)
class InstructionRun:
    """A run of instructions: its structure, and by node the number of its ways.

    Nodes in `is_stateless` use no state of their engines, and what accesses `unread` tiles keeps no
    order. `aliases` lists by tile those whose addresses overlap. Tiles in `placed` have addresses.
    """

    structures: Structures
    structure: Structure
    ways: Array
    is_stateless: Array
    unread: Container[str]
    aliases: Mapping[str, Sequence[str]]
    placed: Container[str]
    arch: Arch

    @cached_property
    def forms(self) -> Array:
        return np.array(self.structure.forms, np.int64)

    @cached_property
    def accesses(self) -> Record:
        """The accesses of all nodes, with the tile and the node of each."""
        found = self.structures.accesses(self.forms)
        node_of = np.repeat(np.arange(self.forms.size), np.diff(found["begin"]))
        return found | {"tile": np.array(self.structure.uses, np.int64), "node_of": node_of}

    @cached_property
    def is_live_before(self) -> Array:
        """By tile, whether a body accesses it first by a read: the iteration before wrote it."""
        tile, node_of = self.accesses["tile"], self.accesses["node_of"]
        first = np.full(len(self.structure.tiles), self.forms.size)
        np.minimum.at(first, tile, node_of)
        found = np.zeros(first.size, bool)
        found[tile[(self.accesses["is_read"] > 0) & (node_of == first[tile])]] = True
        return found

    def is_in(self, memory: Memory) -> Array:
        """By tile, whether it is in a memory."""
        return np.array([each.memory is memory for each in self.structure.tiles], bool)

    def _memory(self, tile: Tile) -> int:
        """The memory in which a tile needs space; -1 where it has it already, or is in HBM."""
        is_given = tile.memory is Memory.HBM or tile.name in self.placed
        return NONE if is_given else MEMORIES.index(tile.memory)

    @cached_property
    def tile_uses(self) -> Record:
        """The tiles that nodes use of the memories on chip, each once, and what they take."""
        memory = np.array([self._memory(each) for each in self.structure.tiles], np.int64)
        taken = [occupied_bytes(each, self.arch) for each in self.structure.tiles]
        tile, node_of = self.accesses["tile"], self.accesses["node_of"]
        own = np.flatnonzero(memory[tile] >= 0)
        first = own[group_rows(node_of[own], tile[own]).first]
        return {
            "begin_tile": row_offsets(np.bincount(node_of[first], minlength=self.forms.size)),
            "used_tile": tile[first],
            "tile_memory": np.maximum(memory, 0),
            "tile_bytes": np.array(taken, np.int64),
            "uses": np.bincount(tile[first], minlength=memory.size),
        }

    def most_live_bytes(self, memory: Memory) -> int:
        """The bytes per partition that are live at most in the order given."""
        uses = self.tile_uses
        users = np.repeat(np.arange(self.forms.size), np.diff(uses["begin_tile"]))
        here = uses["tile_memory"][uses["used_tile"]] == MEMORIES.index(memory)
        tile, users = uses["used_tile"][here], users[here]
        first, last = (np.full(uses["uses"].size, at) for at in (self.forms.size, NONE))
        np.minimum.at(first, tile, users)
        np.maximum.at(last, tile, users)
        used = np.flatnonzero(last >= 0)
        change = np.zeros(self.forms.size + 2, np.int64)
        np.add.at(change, first[used], uses["tile_bytes"][used])
        np.add.at(change, last[used] + 1, -uses["tile_bytes"][used])
        return int(change.cumsum().max())


class TaskGraph:
    """What waits for what in a run, and the orders in which it may be issued."""

    def __init__(self, run: InstructionRun, table: WayTable) -> None:
        self.run, self.table = run, table
        self.count = run.forms.size

    @cached_property
    def pred(self) -> Record:
        """By node what it depends on: `pred` and `source`, and whether it reads its result."""
        return self._dependences(1)

    @cached_property
    def succ(self) -> Record:
        """By node what depends on it: `succ` and `dependent`, and whether that reads its result."""
        return dict(
            zip(("succ", "dependent", "is_read"), _by_source(self.pred, self.count), strict=True)
        )

    @cached_property
    def next_succ(self) -> Record:
        """The same, in its iteration of a loop and, beyond the nodes of that, in the next."""
        names = "next_succ", "follower", "is_next_read"
        return dict(zip(names, _by_source(self._dependences(2), self.count), strict=True))

    def successors(self) -> list[list[int]]:
        """By node the nodes that depend on it."""
        dependent, ends = self.succ["dependent"].tolist(), self.succ["succ"].tolist()
        return [dependent[ends[n] : ends[n + 1]] for n in range(self.count)]

    def earliest_starts(self) -> list[int]:
        """When each node can start, with engines enough."""
        starts = [0] * self.count
        for node, (ways, after) in enumerate(
            zip(self.run.ways.tolist(), self.successors(), strict=True)
        ):
            variants = self.table.ways[ways].variants
            own = min(each.duration_ps for each in variants) + variants[0].latency_ps
            for other in after:
                starts[other] = max(starts[other], starts[node] + own)
        return starts

    def _dependences(self, iterations: int) -> Record:
        """The dependences in iterations of a body; of one, whatever the loop's variable is."""
        record = self._dependence_record(iterations)
        nodes = iterations * self.count
        room = 8 * int(record["node_of"].size) + nodes
        while True:
            attempt = {name: values.copy() for name, values in record.items()}
            attempt["room"] = words_of([room])
            attempt |= {name: np.zeros(room + 1, np.int64) for name in ("source", "is_result")}
            if not DEPENDENCES.call("find_dependences", attempt):
                break
            room *= 4
        found = int(attempt["found"][0])
        return {
            "pred": attempt["pred"][: nodes + 1],
            "source": attempt["source"][:found],
            "is_result": attempt["is_result"][:found],
        }

    def _dependence_record(self, iterations: int) -> Record:
        run, structures = self.run, self.run.structures
        accesses, count = run.accesses, self.count
        chains = structures.chains(run.forms, run.is_stateless)
        begin, chain = accesses["begin"], chains["chain"]
        unread = [n for n, tile in enumerate(run.structure.tiles) if tile.name in run.unread]
        tile = np.where(np.isin(accesses["tile"], unread), NONE, accesses["tile"])
        steps_of = {"first": "start_step", "last": "start_step", "top": "row_step",
                    "bottom": "row_step"}  # fmt: skip
        moved = {
            name: [accesses[name] + number * accesses[step] for number in range(iterations)]
            for name, step in steps_of.items()
        }
        terms = ("start", "row") if iterations == 1 else ("other_start", "other_row")
        alias, alias_tile = self._aliases()

        def unrolled(column: Array) -> Array:
            return np.tile(column, iterations)

        def offsets(column: Array) -> Array:
            return row_offsets(unrolled(np.diff(column)))

        node_of = [accesses["node_of"] + number * count for number in range(iterations)]
        steps = [step for each in structures.shapes for step in each.steps]
        return as_words({
            "nodes": [iterations * count], "found": [0],
            "chain": offsets(chain), "chain_of": unrolled(chains["chain_of"]),
            "chain_last": np.full(structures.chain_count, NONE),
            "begin": offsets(begin), "node_of": np.concatenate(node_of),
            "tile": unrolled(tile),
            **{name: unrolled(accesses[name])
               for name in ("is_write", "is_read", "shape", "is_dense")},
            "start": unrolled(accesses[terms[0]]), "row": unrolled(accesses[terms[1]]),
            **{name: np.concatenate(columns) for name, columns in moved.items()},
            "width": [each.width for each in structures.shapes],
            "step": row_offsets(np.array([len(each.steps) for each in structures.shapes])),
            "step_size": [size for size, _ in steps], "step_count": [runs for _, runs in steps],
            "earlier": np.full(iterations * tile.size, NONE),
            "latest": np.full(len(run.structure.tiles), NONE),
            "alias": alias, "alias_tile": alias_tile,
            "pred": np.zeros(iterations * count + 1), "slot": np.full(iterations * count, NONE),
        })  # fmt: skip

    def _aliases(self) -> tuple[Array, list[int]]:
        """By tile the others of the run whose addresses overlap its own."""
        names = [tile.name for tile in self.run.structure.tiles]
        if not self.run.aliases:
            return np.zeros(len(names) + 1, np.int64), []
        numbers = {name: number for number, name in enumerate(names)}
        found = [
            [numbers[other] for other in self.run.aliases.get(name, ()) if other in numbers]
            for name in names
        ]
        counts = np.array([len(each) for each in found], np.int64)
        return row_offsets(counts), [each for others in found for each in others]


def _by_source(record: Record, count: int) -> tuple[Array, Array, Array]:
    """Dependences by their sources, of the first `count` nodes: offsets, nodes that wait, reads."""
    nodes = np.repeat(np.arange(record["pred"].size - 1), np.diff(record["pred"]))
    inside = np.flatnonzero(record["source"] < count)
    order = inside[np.argsort(record["source"][inside], kind="stable")]
    offsets = row_offsets(np.bincount(record["source"][order], minlength=count))
    return offsets, nodes[order], record["is_result"][order]


class Orders:
    """The orders of a graph; what is live in the memories on chip stays within `capacity`.

    `kept` says by tile whether it is live throughout. With `repeats` the run is a loop's body.
    """

    def __init__(
        self,
        graph: TaskGraph,
        capacity: Mapping[Memory, float],
        kept: Array | None = None,
        *,
        repeats: bool = False,
    ) -> None:
        self.graph, self.table = graph, graph.table
        self.record = as_words(self._record(capacity, kept, repeats=repeats))
        self._call = ORDERS.bind(self.record)

    def _record(
        self, capacity: Mapping[Memory, float], kept: Array | None, *, repeats: bool
    ) -> dict[str, object]:
        run, arch, count = self.graph.run, self.table.arch, self.graph.count
        ways = self.table.record()
        streams, tiles = len(self.table.streams), len(run.structure.tiles)
        first, end = ways["first_variant"][run.ways], ways["end_variant"][run.ways]
        variants = np.arange(int((end - first).sum())) + np.repeat(
            first - row_offsets(end - first)[:-1], end - first
        )
        is_used = np.zeros(streams, bool)
        is_used[ways["stream"][variants]] = True
        shortest = np.minimum.reduceat(ways["duration"][variants], row_offsets(end - first)[:-1])
        free = np.flatnonzero(end - first > 1)
        tables = ways["table"][first]
        following = self.graph.next_succ if repeats else {
            "next_succ": np.zeros(count + 1), "follower": [], "is_next_read": [],
        }  # fmt: skip
        return {
            "nodes": [count], "window": [0], "stream_count": [streams],
            "table_load": [round(1000 * arch.activation_table_load_ns)],
            "first_table": [next((each for each in tables.tolist() if each >= 0), NONE)],
            "ways": run.ways, "only": np.full(count, NONE), "even": np.zeros(count),
            "choosing": free[np.argsort(-shortest[free], kind="stable")],
            **ways, "is_used": is_used,
            "pred": self.graph.pred["pred"], **self.graph.succ, **following,
            **run.tile_uses,
            "is_kept": np.zeros(tiles) if kept is None else kept,
            "capacity": [int(capacity[memory]) for memory in MEMORIES],
            **{name: np.zeros(streams) for name in ("start_free", "free", "load", "steady_free")},
            **{name: np.zeros(tiles) for name in ("uses_left", "is_live")},
            **{name: np.zeros(count) for name in (
                "start_ready", "ready", "waiting", "height", "available", "is_issued", "order",
                "chosen", "stream_at",
            )},
            "live": [0, 0], "state": np.zeros(order_rules.STATES),
            "steady_ready": np.zeros(count * (REPETITIONS + 1) if repeats else 1),
        }  # fmt: skip

    def listed(self, window: int, *, is_even: bool = False) -> Order:
        """The order of list scheduling from the present start."""
        self.record["window"][0] = window
        self.record["only"][:] = self.record["even"] if is_even else NONE
        self._call("list_order")
        return Order(self.record["order"].copy(), self.record["chosen"].copy())

    def divide_evenly(self) -> int:
        """Choose ways with which the busiest engine has little to do; returns its time in ps."""
        self._call("divide_evenly")
        return self.busiest_ps(self.record["even"])

    def least_ps(self) -> int:
        """The time of the busiest engine, or of DMA, if ways are divided evenly."""
        self._call("divide_evenly")
        return int(self.loads_ps(self.record["even"]).max())

    def repeat(self, order: Order) -> int:
        """The time from one run of an order to the next, once they follow each other evenly; ps."""
        self.record["order"][:] = order.nodes
        self.record["chosen"][:] = order.variants
        return self._call("repeat")

    def start_after_repetition(self) -> None:
        """Let orders start as the next run does after the one that was last repeated."""
        self._call("start_next")

    def start_at(self, free_ps: Mapping[str, int], ready_ps: Sequence[int] = ()) -> None:
        """Let orders start when streams are free, and what nodes wait for is there; else at 0."""
        streams = self.table.streams[: self.record["start_free"].size]
        self.record["start_free"][:] = [free_ps.get(name, 0) for name in streams]
        self.record["start_ready"][:] = 0
        self.record["start_ready"][: len(ready_ps)] = ready_ps

    def loads_ps(self, variants: Array) -> Array:
        """By resource, the time that variants take of it."""
        streams = self.record["stream"][variants]
        return np.bincount(
            self.record["resource"][streams], self.record["duration"][variants],
            minlength=self.record["resource"].size,
        ).astype(np.int64)  # fmt: skip

    def busiest_ps(self, variants: Array) -> int:
        """The time of the busiest engine; DMA is none."""
        loads = self.loads_ps(variants)
        loads[self.table.stream(DMA)] = 0
        return int(loads.max(initial=0))
