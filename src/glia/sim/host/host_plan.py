"""What is decided about a program before its first run: which program runs instead, as a table.

The plan of a program that was read from a NEFF is kept beside the object code of its classes, and
the next process takes it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path

import ml_dtypes
import numpy as np

import glia
from glia.base.garbage_collection import collector_paused
from glia.machine.ir import Program, walk
from glia.machine.merge_cores import arch_of
from glia.machine.program_cache import ProgramDigest
from glia.sim.host.library import host_library
from glia.sim.host.rewriting.direct_writes import with_direct_writes
from glia.sim.host.rewriting.element_moves import MoveTracer
from glia.sim.host.rewriting.exposed_tiles import exposed_tiles
from glia.sim.host.rewriting.forwarding import without_copies
from glia.sim.host.rewriting.iterations_at_once import has_short_loops, with_iterations_at_once
from glia.sim.host.rewriting.lives import ProgramAccesses
from glia.sim.host.rewriting.product_groups import with_joined_products
from glia.sim.host.rewriting.unread_results import ALL_READ, UnreadResults
from glia.sim.host.table import Table, TableBuilder
from glia.sim.host.table_file import TableFile, read_table_file, table_file
from glia.sim.host.threads.pool import PoolCode, lanes
from glia.sim.run import Executor

IS_READ_THROUGH = "what reads the copy reads what was copied"
IS_WRITTEN_THERE = "what it copied is written there at once"
IS_JOINED = "it is part of a longer product"
MOST_PLANS = 256  # that are kept
DECIDING = ("arch", "base", "isa", "machine", "sim")  # rooms whose text decides what a plan is
Why = tuple[str, str]  # mnemonic and reason


@dataclass(frozen=True)
class HostPlan:
    """A table with the tiles that it writes, by name, and what was left out, by mnemonic and why.

    `builder` has made the table; None for one that was kept, which has the instructions that Python
    executes then. `copies` are tiles that stand for others in some iterations of a loop.
    """

    table: Table
    written: frozenset[str]
    left_out: Mapping[Why, int]
    unread: UnreadResults = ALL_READ
    builder: TableBuilder | None = None
    copies: Mapping[str, str] = field(default_factory=dict)


class HostPlanner:
    """Makes or finds the plan of a program."""

    def __init__(self, program: Program, *, rewrites: bool) -> None:
        """With `rewrites` a program of the same results takes the program's place."""
        self._program, self._rewrites = program, rewrites

    @cached_property
    def stored_plan(self) -> bytes | None:
        """The plan of an equal program, of an earlier process; that program was sound."""
        return host_library().kept.find(self._name) if self._name else None

    def plan(self, executor: Executor) -> HostPlan:
        """The plan that was kept, or a new one, which is kept if it can be."""
        if (
            self.stored_plan is not None
            and (found := self._read(self.stored_plan, executor)) is not None
        ):
            return found
        made = self.new_plan(executor)
        if self._name and (data := self._written(made)) is not None:
            host_library().kept.store(self._name, data, most=MOST_PLANS)
        return made

    @collector_paused()
    def new_plan(self, executor: Executor) -> HostPlan:
        """A plan, whether one is stored or not."""
        program, arch = self._program, arch_of(self._program)
        rewritten, bases, unread = program, None, ALL_READ
        left_out: dict[Why, int] = {}
        copies: Mapping[str, str] = {}
        if self._rewrites:
            tracer = MoveTracer(arch, executor.memories)
            found = ProgramAccesses.of(program, tracer)
            exposed = exposed_tiles(program, found)
            if has_short_loops(program.body):
                widened = with_iterations_at_once(program, found, exposed)
                program, copies = widened.program, widened.copies
            forwarded = without_copies(program, tracer, exposed)
            direct = with_direct_writes(forwarded.program, tracer, exposed)
            bases = tracer.bases
            rewritten, joined = with_joined_products(direct.program, bases)
            unread = UnreadResults.of(rewritten, bases, exposed)
            left_out |= {(name, IS_READ_THROUGH): n for name, n in forwarded.left_out.items()}
            left_out |= {(name, IS_WRITTEN_THERE): n for name, n in direct.left_out.items()}
            left_out |= {(name, IS_JOINED): n for name, n in joined.items()}
        builder = TableBuilder(executor, rewritten, arch, bases=bases, unread=unread)
        written = {p.tile.name for i in walk(rewritten.body) for p in i.written_patterns()}
        return HostPlan(builder.build(), frozenset(written), left_out, unread, builder, copies)

    @cached_property
    def _name(self) -> str:
        """What the plan is kept under; "" where it is not kept."""
        digest = self._program.cache.get(ProgramDigest)
        if digest is None or not self._rewrites or host_library().kept.folder is None:
            return ""
        key = f"{digest.digest} {lanes()} {_text_digest()} {np.__version__} {ml_dtypes.__version__}"
        return "plan_" + sha256(key.encode()).hexdigest()[:24]

    def _read(self, kept: bytes, executor: Executor) -> HostPlan | None:
        found = read_table_file(kept, self._program, executor.memories)
        if found is None:
            return None
        if not host_library().load_kept([PoolCode.name, *found.table.codes.values()]):
            return None
        left_out = {(name, why): count for name, why, count in found.left_out}
        return HostPlan(found.table, frozenset(found.written), left_out)

    def _written(self, plan: HostPlan) -> bytes | None:
        """The bytes of a new plan, if it can be kept."""
        assert plan.builder is not None
        bases = {name: tile.name for name, tile in plan.builder.bases.items()}
        left_out = [(*why, count) for why, count in plan.left_out.items()]
        kept = TableFile(plan.table, bases, plan.copies, sorted(plan.written), left_out)
        return table_file(kept, self._program)


@cache
def _text_digest() -> str:
    """Equal where glia's text is that decides what a plan is."""
    found, root = sha256(), Path(glia.__file__).parent
    for room in DECIDING:
        for path in sorted((root / room).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
