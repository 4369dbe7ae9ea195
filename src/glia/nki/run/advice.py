"""What a kernel computes or keeps for nothing, and what it would gain without.

Each finding is a fact of a run or of the program. Where it costs time, the kernel is compiled once
more with the cure and timed: what gains nothing is not advised. See
docs/decisions/advice-by-trial.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glia.arch import Target
from glia.base.loc import Loc
from glia.isa.instructions.dma import DmaCopy, Transfer
from glia.isa.instructions.vector import TensorCopy
from glia.isa.kit import Instr, is_register
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.footprint import Footprint
from glia.machine.instruction_rewriting import rewrite_at
from glia.machine.ir import Block, Loop, Program, blocks, walk
from glia.profile.report import Profile, profile_programs
from glia.sim.order.concurrent import run_cores
from glia.sim.run import run
from glia.sim.uses import InstructionUse, UseLog, is_product

Change = Callable[[Program], Program]
Compile = Callable[[Change], tuple[Program, ...]]

SMALL_GAIN = 0.001  # of the time: less is an effect of order, not of what was removed
WORTH_SPREADING = 0.05  # of the time
MOST_LINKS = 8  # of a chain of results that end in one that nothing reads
SPARE_BYTES = 512  # of a partition: from here on a tile is too large
FEW_TRANSFERS = 4  # of a queue, that there is something to spread


@dataclass(frozen=True)
class Advice:
    """A finding with its cure and what that gains; a fault is wrong, the others are only slow."""

    text: str
    loc: Loc
    is_fault: bool = False


def advise(
    compiles: Compile, inputs: Mapping[str, np.ndarray], target: Target, *, chooses_queues: bool
) -> list[Advice]:
    """What is found in a kernel of one core when it runs on these inputs, faults first.

    `compiles` gives the placed and synchronised programs after a change of the recorded one;
    `chooses_queues`: the kernel's language says which engine issues a transfer.
    """
    recorded: list[Program] = []
    programs = compiles(lambda program: recorded.append(program) or program)  # type: ignore[func-returns-value]
    log = UseLog(*recorded)
    run(recorded[0], inputs, uses=log)
    uses = log.uses()
    profile = profile_programs(programs, target)
    adviser = _Adviser(recorded[0], inputs, uses, compiles, profile)
    found = [*_lost_products(recorded, uses), *adviser.unused(), *adviser.oversized()]
    return [*found, *adviser.crowded()] if chooses_queues else found


def lost_products(programs: Sequence[Program], inputs: Mapping[str, np.ndarray]) -> list[Advice]:
    """The faults among what `advise` finds, in the programs of cores that run together.

    They must be synchronised and as written: the back end gives each product a tile of its own.
    """
    log = UseLog(*programs)
    run_cores(programs, [inputs] * len(programs), uses=log)
    return list(_lost_products(programs, log.uses()))


def _lost_products(
    programs: Iterable[Program], uses: Mapping[int, InstructionUse]
) -> Iterator[Advice]:
    """Products that were replaced in PSUM before anything read them, by source line."""
    lost: dict[Loc, list[InstructionUse]] = {}
    executions: Counter[Loc] = Counter()
    for instr, use in _used(programs, uses):
        if is_product(instr):
            executions[instr.loc] += use.executions
        if use.overwritten_by is not None:
            lost.setdefault(instr.loc, []).append(use)
    for loc, found in lost.items():
        by = found[0].overwritten_by
        assert by is not None
        count = sum(use.unused for use in found)
        cure = "accumulate onto them (accumulate=True, or += in Beta 1)"
        if not is_product(by):
            cure = f"let {by.mnemonic()} write to another tile, or once before all products"
        yield Advice(
            f"{count} of {executions[loc]} products are lost: {by.mnemonic()} at {by.loc} "
            "overwrites them in PSUM before anything reads them\n"
            f"source: {loc}\nhelp: {cure}, or copy them out before",
            loc,
            is_fault=True,
        )


def _used(
    programs: Iterable[Program], uses: Mapping[int, InstructionUse]
) -> Iterator[tuple[Instr, InstructionUse]]:
    """Each instruction that was executed, once."""
    instructions = (each for program in programs for each in walk(program.body))
    for instr in {id(each): each for each in instructions}.values():
        if use := uses.get(id(instr)):
            yield instr, use


@dataclass(frozen=True)
class _Adviser:
    """Looks at one kernel: its program as recorded, what became of results, its time."""

    program: Program
    inputs: Mapping[str, np.ndarray]
    uses: Mapping[int, InstructionUse]
    compiles: Compile
    profile: Profile

    def unused(self) -> Iterator[Advice]:
        """Instructions of which nothing reads any result, by source line.

        Then those whose results only such instructions read, and so on.
        """
        removed: list[Instr] = []
        uses = self.uses
        for _ in range(MOST_LINKS):
            found: dict[tuple[Loc, str], list[Instr]] = {}
            executions: Counter[tuple[Loc, str]] = Counter()
            for instr, use in _used([self.program], self.uses):
                key = instr.loc, instr.mnemonic()
                executions[key] += use.executions
                now = uses.get(id(instr))
                is_unused = now is not None and now.unused == now.executions
                if is_unused and _only_writes(instr) and not use.overwritten_by:
                    found.setdefault(key, []).append(instr)
            if not found:
                return
            for key, instructions in found.items():
                gain = self._gain(self._removal_of([*removed, *instructions]))
                if not gain and is_product(instructions[0]):
                    gain = "that takes as long on these arguments"
                if gain:
                    yield Advice(
                        self._unused_text(
                            instructions, executions[key], gain, is_first=not removed
                        ),
                        key[0],
                    )
            removed += [instr for each in found.values() for instr in each]
            uses = self._uses_without(removed)

    def _uses_without(self, removed: list[Instr]) -> dict[int, InstructionUse]:
        """What becomes of the results of the other instructions where these are left out."""
        program = self._removal_of(removed)(self.program)
        log = UseLog(program)
        run(program, self.inputs, uses=log)
        return log.uses()

    def _unused_text(
        self, instructions: list[Instr], executions: int, gain: str, *, is_first: bool
    ) -> str:
        instr = instructions[0]
        count = sum(self.uses[id(each)].executions for each in instructions)
        is_load = isinstance(instr, Transfer) and any(
            pattern.memory is Memory.HBM for pattern in instr.read_patterns()
        )
        what = ("load" if is_load else "execution") + ("s" if executions > 1 else "")
        many = f"{count} of {executions}" if count < executions else f"{count}"
        tiles = ", ".join(dict.fromkeys(p.tile.name for p in instr.written_patterns()))
        readers = "nothing reads" if is_first else "only instructions of which nothing is read read"
        cure = "remove them" if is_first else "remove them and what reads them"
        verb = "write" if executions > 1 else "writes"
        return (
            f"{readers} what {many} {what} of {instr.mnemonic()} {verb} to {tiles}\n"
            f"source: {instr.loc}\nhelp: {cure}: {gain}"
        )

    def oversized(self) -> Iterator[Advice]:
        """Tiles on chip of which at most half is accessed, or whose values fit in half.

        The dtype of sums in PSUM is not the author's to choose.
        """
        accesses: dict[str, list[tuple[Instr, str, Pattern, Footprint]]] = {}
        for instr, loops in _with_loops(self.program.body, {}):
            for name, _, pattern in instr.operands():
                if pattern.memory is not Memory.HBM:
                    swept = Footprint.of(pattern)
                    for variable, trips in loops.items():
                        swept = swept.swept(variable, trips)
                    access = instr, instr.access(name), pattern, swept
                    accesses.setdefault(pattern.tile.name, []).append(access)
        found: dict[tuple[Loc, str, int, str], list[str]] = {}
        for name, touched in accesses.items():
            tile, loc = self.program.tiles[name], touched[0][0].loc
            used = _bytes_used(tile, [each for *_, each in touched])
            narrow = _narrow_dtype([(i, access, p) for i, access, p, _ in touched])
            whole = tile.bytes_per_partition
            size = f"{whole} bytes in each partition of {tile.memory.value}"
            if self._is_spare(tile.memory, whole, used):
                reason = f"only {used} of them are accessed on these arguments"
                found.setdefault((loc, size, whole - used, reason), []).append(name)
            elif narrow and whole / 2 >= SPARE_BYTES and tile.memory is Memory.SBUF:
                reason = f"each of its values is a {narrow}; give it that dtype"
                found.setdefault((loc, size, whole - whole // 2, reason), []).append(name)
        for (loc, size, spare, reason), names in found.items():
            yield _oversized(loc, names, size, spare, reason)

    def _is_spare(self, memory: Memory, whole: int, used: int) -> bool:
        """Whether a tile, of which so many bytes of a partition are used, could be half as large.

        In PSUM only whole banks are worth having: accumulation, and what may read, go by bank.
        """
        if memory is Memory.PSUM:
            bank = self.profile.target.arch.psum_bank_bytes
            whole, used = (bank * -(-count // bank) for count in (whole, used))
        return whole - used >= max(whole / 2, SPARE_BYTES)

    def crowded(self) -> Iterator[Advice]:
        """A queue that engines wait for, where moving transfers to another gains time."""
        waited: Counter[str] = Counter()
        for stall in self.profile.timing.stalls:
            _, is_queue, name = stall.semaphore.partition("queue.")
            if is_queue:
                waited[name] += round(stall.ns)
        for queue, nanoseconds in waited.most_common(1):
            transfers = [i for i in walk(self.program.body) if _is_movable(i, queue)]
            if len(transfers) < FEW_TRANSFERS:
                return
            other = min(
                (name for name in DmaCopy.engines if name != transfers[0].runs_on),
                key=lambda name: self.profile.engines[name].busy_us,
            )
            stores = [each for each in transfers if _is_store(each)]
            for what, moved in (("the stores", stores), ("every other one", transfers[1::2])):
                if 0 < len(moved) < len(transfers) and (
                    gain := self._gain(self._reissue_by(other, moved), WORTH_SPREADING)
                ):
                    yield Advice(
                        f"engines wait {nanoseconds / 1000:.2f} us for the DMA queue {queue}, "
                        f"which has {len(transfers)} transfers of the program\n"
                        f"source: {moved[0].loc}\n"
                        f"help: issue {what} with engine=nisa.engine.{other}: {gain}",
                        moved[0].loc,
                    )
                    return

    def _positions(self, instructions: list[Instr]) -> list[int]:
        """Where instructions stand in the program, and in every other recording of the kernel."""
        wanted = {id(each) for each in instructions}
        return [n for n, instr in enumerate(walk(self.program.body)) if id(instr) in wanted]

    def _removal_of(self, instructions: list[Instr]) -> Change:
        """The change that leaves instructions out."""
        change: dict[int, Instr | None] = dict.fromkeys(self._positions(instructions))
        return lambda program: rewrite_at(program, change)

    def _reissue_by(self, engine: str, transfers: list[Instr]) -> Change:
        """The change that has transfers issued by another engine, on its queue."""
        positions = set(self._positions(transfers))

        def change(program: Program) -> Program:
            moved: dict[int, Instr | None] = {
                number: replace(instr, on=engine, queue=f"dma.{engine}")
                for number, instr in enumerate(walk(program.body))
                if number in positions
            }
            return rewrite_at(program, moved)

        return change

    def _gain(self, change: Change, least: float = SMALL_GAIN) -> str:
        """The text of what a change saves; "" for less than `least` of the time and no bytes."""
        changed = profile_programs(self.compiles(change), self.profile.target)
        before, after = self.profile.latency_us, changed.latency_us
        fewer = self.profile.dma_bytes - changed.dma_bytes
        is_slower = after > before * (1 + SMALL_GAIN)
        if is_slower or (before - after < least * before and fewer <= 0):
            return ""
        text = f"{before:.2f} us become {after:.2f} us (simulated)"
        return f"{text}, {fewer} bytes fewer are moved" if fewer > 0 else text


def _only_writes(instr: Instr) -> bool:
    """Whether an instruction does nothing but write its operands."""
    writes = any(instr.access(name) != "reads" for name, _, _ in instr.operands())
    sets_state = any(access in ("writes", "updates") for *_, access in instr.states_touched())
    has_effects = instr.sets_register or sets_state or instr.arrives == "participants"
    return writes and not has_effects


def _with_loops(body: Block, loops: Mapping[str, int]) -> Iterator[tuple[Instr, dict[str, int]]]:
    """Every instruction with the trips of the counted loops around it, by variable."""
    for statement in body:
        if isinstance(statement, Instr):
            yield statement, dict(loops)
            continue
        own = {statement.variable: statement.trips} if isinstance(statement, Loop) else {}
        for block in blocks(statement):
            yield from _with_loops(block, {**loops, **own})


def _is_movable(instr: Instr, queue: str) -> bool:
    return type(instr) is DmaCopy and instr.queue == queue


def _is_store(instr: Instr) -> bool:
    return any(pattern.memory is Memory.HBM for pattern in instr.written_patterns())


def _bytes_used(tile: Tile, footprints: list[Footprint]) -> int:
    """Bytes of a partition from the first to the last that is accessed; all where a run decides."""
    if any(is_register(name) for each in footprints for name, _ in each.start.terms):
        return tile.bytes_per_partition
    return max(each.last for each in footprints) - min(each.first for each in footprints) + 1


def _narrow_dtype(accesses: list[tuple[Instr, str, Pattern]]) -> str:
    """The 16-bit float that every value of a float32 tile is a copy of, or is rounded to.

    "" where there is none, or where something needs the tile in float32.
    """
    if any(pattern.dtype.name != "f32" for _, _, pattern in accesses):
        return ""
    writers = [instr for instr, access, _ in accesses if access != "reads"]
    readers = [instr for instr, access, _ in accesses if access != "writes"]
    computing = [i for i in readers if not i.arrives_by_dma and i.runs_on != "tensor"]
    found: set[str] = set()
    if writers and len(computing) == len(readers):
        found = {_dtype_of(each, "src") for each in writers}
    if len(found) != 1 or found == {""}:
        rounded = not any(each.arrives_by_dma for each in writers)
        once = all(access != "updates" for _, access, _ in accesses)
        found = {_dtype_of(each, "dst") for each in readers} if rounded and once else set()
    return found.pop() if len(found) == 1 and found <= {"bf16", "f16"} else ""


def _dtype_of(instr: Instr, name: str) -> str:
    """The dtype of an operand of a plain copy; "" for any other instruction."""
    return getattr(instr, name).dtype.name if isinstance(instr, TensorCopy) else ""


def _oversized(loc: Loc, names: list[str], size: str, spare: int, reason: str) -> Advice:
    """The advice on tiles that one source line fills alike, with bytes of a partition to spare."""
    tiles = f"tile {names[0]} has" if len(names) == 1 else f"tiles {', '.join(names)} each have"
    return Advice(
        f"{tiles} {size}: {reason}\n"
        f"source: {loc}\nhelp: {spare * len(names)} bytes of each partition become free",
        loc,
    )
