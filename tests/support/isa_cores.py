"""A bench for instructions at which cores meet: each core in a thread, and one place to meet."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from glia.isa.instructions.dma import DmaCopy
from glia.isa.operand import Memory, Pattern, Tile
from glia.isa.rendezvous import Participant
from glia.machine.ir import Binding, Program, Statement, walk
from glia.machine.legal import verify
from glia.sim.run import Executor

Array = np.ndarray[Any, Any]
PATIENCE = 20  # seconds until a core that waits for others gives up


class Abandoned(Exception):
    """A core waited for others that did not come."""


class MeetingPlace:
    """Where cores wait for each other; who comes last computes for all."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._come: dict[Any, dict[int, Participant]] = defaultdict(dict)
        self._results: dict[Any, dict[int, Any]] = {}
        self._times: dict[Any, int] = defaultdict(int)
        self._is_over = False

    def meet(self, instr: Any, own: Participant) -> tuple[Any, ...]:
        with self._changed:
            ranks, topic = instr.ranks(own.rank), instr.topic()
            self._times[topic, own.rank] += 1
            key = (topic, ranks, self._times[topic, own.rank])
            self._come[key][own.rank] = own
            if len(self._come[key]) == len(ranks):
                given = type(instr).compute([self._come[key][rank] for rank in ranks])
                self._results[key] = dict(zip(ranks, given, strict=True))
                self._changed.notify_all()
            self._changed.wait_for(lambda: key in self._results or self._is_over, PATIENCE)
            if key not in self._results:
                raise Abandoned(f"core {own.rank} waits at {key}")
            return tuple(self._results[key][own.rank])

    def leave(self) -> None:
        """Release who waits, after a failure."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


def run_together(
    programs: Sequence[Program], inputs: Sequence[dict[str, Array]]
) -> list[dict[str, Array]]:
    """Each core's outputs; the first failure is raised."""
    place = MeetingPlace()
    failures: list[Exception] = []
    outputs: list[dict[str, Array]] = [{} for _ in programs]

    def run(rank: int, program: Program) -> None:
        try:
            executor = Executor(program)
            executor.indices = {"cores": rank, "ranks": rank}
            executor.exchange = place.meet
            for binding in program.inputs:
                executor.set_input(binding, inputs[rank][binding.name])
            executor.execute()
            outputs[rank] = {
                b.name: executor.memories.read(b.tile, b.dtype, b.shape) for b in program.outputs
            }
        except Exception as error:
            failures.append(error)
            place.leave()

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(programs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return outputs


def program_of(*body: Statement, target: str = "trn3") -> Program:
    """A program that loads every on-chip tile from HBM, runs, and gives back every tile."""
    tiles = {p.tile.name: p.tile for i in walk(body) for _, _, p in i.operands()}
    loads, stores, bindings = [], [], []
    for name, tile in list(tiles.items()):
        away, shape = tile, (tile.partitions, tile.elements)
        if tile.memory is not Memory.HBM:
            away = Tile(f"{name}.hbm", Memory.HBM, tile.dtype, 1, tile.partitions * tile.elements)
            tiles[away.name] = away
            here = Pattern(tile, tile.dtype, ((1, shape[0]), (1, shape[1])))
            there = Pattern(away, tile.dtype, ((shape[1], shape[0]), (1, shape[1])))
            loads.append(DmaCopy(dst=here, src=there, queue="in"))
            stores.append(DmaCopy(dst=there, src=here, queue="out"))
        bindings.append(Binding(name, away, shape, tile.dtype))
    bound = tuple(bindings)
    program = Program("core", target, tiles, bound, bound, {}, (*loads, *body, *stores))
    verify(program)
    return program
