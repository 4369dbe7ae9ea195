"""What a kernel computes or keeps for nothing, and what it would gain without.

Each finding is a fact of a run or of the program. Where it costs time, the kernel is compiled once
more with the cure and timed: what gains nothing is not advised. See
docs/decisions/advice-by-trial.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

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
from glia.nki.session.ordering import Edit
from glia.profile.report import Profile, profile_programs
from glia.sim.order.concurrent import run_cores
from glia.sim.run import run
from glia.sim.uses import InstructionUse, UseLog, is_product

Inputs = Mapping[str, np.ndarray]
Place = tuple[int, int]  # core, number of an instruction as recorded: of its first occurrence


class Compile(Protocol):
    """Gives the placed and synchronised programs of a kernel's cores after an edit of each."""

    def __call__(self, edit: Edit, *, as_written: bool = False) -> tuple[Program, ...]: ...


SMALL_GAIN = 0.001  # of the time: less is an effect of order, not of what was removed
WORTH_SPREADING = 0.05  # of the time
MOST_LINKS = 8  # of a chain of results that end in one that nothing reads
SPARE_BYTES = 512  # of a partition: from here on a tile is too large
MOST_QUEUES = 3  # that engines wait for most are looked at
FEW_TRANSFERS = 4  # of a queue, that there is something to spread


_Access = tuple[Instr, str, Pattern, Footprint]


@dataclass(frozen=True)
class Advice:
    """A finding with its cure and what that gains; a fault is wrong, the others are only slow."""

    text: str
    loc: Loc
    is_fault: bool = False


def advise(
    compiles: Compile, inputs: Inputs, target: Target, *, chooses_queues: bool
) -> list[Advice]:
    """What is found in a kernel when it runs on these inputs, faults first.

    `chooses_queues`: the kernel's language says which engine issues a transfer.
    """
    recorded: list[Program] = []

    def record(program: Program, core: int) -> dict[int, Instr | None]:
        recorded.append(program)
        return {}

    profile = profile_programs(compiles(record), target)
    adviser = _Adviser(_Recording(recorded, inputs, compiles), compiles, profile)
    found = [*adviser.lost_products(), *adviser.unknown(), *adviser.unused()]
    found += adviser.oversized()
    return [*found, *adviser.crowded()] if chooses_queues else found


class _Recording:
    """The programs of a kernel's cores as recorded, and runs of them.

    One core runs what was recorded; several, which wait for each other, run what is compiled of it
    as written.
    """

    def __init__(self, programs: Sequence[Program], inputs: Inputs, compiles: Compile) -> None:
        self.programs, self.inputs, self.compiles = programs, inputs, compiles
        self.instructions: dict[Place, Instr] = {}
        self.occurrences: dict[Place, list[int]] = {}
        for core, program in enumerate(programs):
            first: dict[int, Place] = {}
            for number, instr in enumerate(walk(program.body)):
                place = first.setdefault(id(instr), (core, number))
                self.instructions[place] = instr
                self.occurrences.setdefault(place, []).append(number)

    def numbers(self, places: Iterable[Place]) -> dict[int, list[int]]:
        """By core the numbers of all occurrences of some instructions."""
        found: dict[int, list[int]] = {core: [] for core in range(len(self.programs))}
        for place in places:
            found[place[0]] += self.occurrences[place]
        return found

    def removal_of(self, places: Iterable[Place]) -> Edit:
        """The edit that leaves instructions out."""
        numbers = self.numbers(places)
        return lambda program, core: dict.fromkeys(numbers[core])

    def run(self, removed: Iterable[Place]) -> _Run:
        """A run without some instructions."""
        edit = self.removal_of(removed)
        if len(self.programs) == 1:
            recorded = self.programs[0]
            programs: Sequence[Program] = (rewrite_at(recorded, edit(recorded, 0)),)
            log = UseLog(*programs)
            run(programs[0], self.inputs, uses=log)
        else:
            programs = self.compiles(edit, as_written=True)
            log = UseLog(*programs)
            run_cores(programs, [self.inputs] * len(programs), uses=log)
        return _Run(programs, log.uses())

    def uses_by_place(self, ran: _Run, removed: Iterable[Place]) -> dict[Place, InstructionUse]:
        """What became of the results of the instructions that were left in a run.

        Nothing is known of a program that compiling put in another order: where fills wait for the
        first use of their tile, as a kernel fits on chip only so.
        """
        numbers = self.numbers(removed)
        found: dict[Place, InstructionUse] = {}
        for core, (program, recorded) in enumerate(zip(ran.programs, self.programs, strict=True)):
            gone = {*numbers[core]}
            left = [(n, each) for n, each in enumerate(walk(recorded.body)) if n not in gone]
            there = [*walk(program.body)]
            if [*map(_kind, there)] != [_kind(each) for _, each in left]:
                return {}
            for (number, _), instr in zip(left, there, strict=True):
                if (core, number) in self.instructions and (use := ran.uses.get(id(instr))):
                    found[core, number] = use
        return found


@dataclass(frozen=True)
class _Run:
    """Programs that ran, and what became of the results of their instructions, by identity."""

    programs: Sequence[Program]
    uses: Mapping[int, InstructionUse]

    def used(self) -> Iterator[tuple[Instr, InstructionUse]]:
        """Each instruction that was executed, once."""
        instructions = (each for program in self.programs for each in walk(program.body))
        for instr in {id(each): each for each in instructions}.values():
            if use := self.uses.get(id(instr)):
                yield instr, use


def _kind(instr: Instr) -> tuple[str, Loc]:
    return instr.mnemonic(), instr.loc


class _Adviser:
    """Looks at one kernel: its programs as recorded, what became of results, its time."""

    def __init__(self, recording: _Recording, compiles: Compile, profile: Profile) -> None:
        self.recording, self.compiles, self.profile = recording, compiles, profile
        self.instructions = recording.instructions
        self.whole = recording.run(())
        self.uses = recording.uses_by_place(self.whole, ())

    def lost_products(self) -> Iterator[Advice]:
        """Products that were replaced in PSUM before anything read them, by source line."""
        lost: dict[Loc, list[InstructionUse]] = {}
        executions: Counter[Loc] = Counter()
        for instr, use in self.whole.used():
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

    def unknown(self) -> Iterator[Advice]:
        """That it is not known which results are read, where it is not."""
        if self.whole.uses and not self.uses:
            loc = next(iter(self.instructions.values())).loc
            yield Advice("fills were moved so that the kernel fits on chip: results that nothing "
                         "reads were not looked for", loc)  # fmt: skip

    def unused(self) -> Iterator[Advice]:
        """Instructions of which nothing reads any result, by source line.

        Then those whose results only such instructions read, and so on.
        """
        removed: list[Place] = []
        uses = self.uses
        for _ in range(MOST_LINKS):
            found: dict[tuple[str, Loc], list[Place]] = {}
            executions: Counter[tuple[str, Loc]] = Counter()
            for place, use in self.uses.items():
                instr = self.instructions[place]
                executions[_kind(instr)] += use.executions
                now = uses.get(place)
                is_unused = now is not None and now.unused == now.executions
                if is_unused and _only_writes(instr) and not use.overwritten_by:
                    found.setdefault(_kind(instr), []).append(place)
            if not found:
                return
            for key, places in found.items():
                gain = self._gain(self.recording.removal_of([*removed, *places]))
                if not gain and is_product(self.instructions[places[0]]):
                    gain = "that takes as long on these arguments"
                if gain:
                    yield Advice(
                        self._unused_text(places, executions[key], gain, is_first=not removed),
                        key[1],
                    )
            removed += [place for each in found.values() for place in each]
            uses = self.recording.uses_by_place(self.recording.run(removed), removed)

    def _unused_text(
        self, places: list[Place], executions: int, gain: str, *, is_first: bool
    ) -> str:
        instr = self.instructions[places[0]]
        count = sum(self.uses[each].executions for each in places)
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
        found: dict[tuple[Loc, str, int, str], list[str]] = {}
        for (_, name), touched in self._accesses_on_chip().items():
            tile, loc = touched[0][2].tile, touched[0][0].loc
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
            yield _oversized(loc, [*dict.fromkeys(names)], size, spare, reason)

    def _accesses_on_chip(self) -> dict[tuple[int, str], list[_Access]]:
        """By core and tile on chip: (instruction, access, pattern, what its loops sweep)."""
        accesses: dict[tuple[int, str], list[_Access]] = {}
        for core, program in enumerate(self.recording.programs):
            for instr, loops in _with_loops(program.body, {}):
                for name, _, pattern in instr.operands():
                    if pattern.memory is not Memory.HBM:
                        swept = Footprint.of(pattern)
                        for variable, trips in loops.items():
                            swept = swept.swept(variable, trips)
                        access = instr, instr.access(name), pattern, swept
                        accesses.setdefault((core, pattern.tile.name), []).append(access)
        return accesses

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
        cores = self.profile.cores or (self.profile,)
        waited: Counter[str] = Counter()
        for stall in (each for core in cores for each in core.timing.stalls):
            _, is_queue, name = stall.semaphore.partition("queue.")
            if is_queue:
                waited[name] += round(stall.ns)
        for queue, nanoseconds in waited.most_common(MOST_QUEUES):
            transfers = [
                place for place, instr in self.instructions.items() if _is_movable(instr, queue)
            ]
            if len(transfers) < FEW_TRANSFERS:
                continue
            other = min(
                (name for name in DmaCopy.engines if name != self._engine(transfers[0])),
                key=lambda name: sum(core.engines[name].busy_us for core in cores),
            )
            stores = [each for each in transfers if _is_store(self.instructions[each])]
            for what, moved in (("the stores", stores), ("every other one", transfers[1::2])):
                if 0 < len(moved) < len(transfers) and (
                    gain := self._gain(self._reissue_by(other, moved), WORTH_SPREADING)
                ):
                    loc = self.instructions[moved[0]].loc
                    yield Advice(
                        f"engines wait {nanoseconds / 1000:.2f} us for the DMA queue {queue}, "
                        f"which has {len(transfers)} transfers of the program\n"
                        f"source: {loc}\n"
                        f"help: issue {what} with engine=nisa.engine.{other}: {gain}",
                        loc,
                    )
                    return

    def _engine(self, place: Place) -> str:
        return self.instructions[place].runs_on

    def _reissue_by(self, engine: str, transfers: list[Place]) -> Edit:
        """The edit that has transfers issued by another engine, on its queue."""
        numbers = {core: {*each} for core, each in self.recording.numbers(transfers).items()}

        def edit(program: Program, core: int) -> dict[int, Instr | None]:
            return {
                number: replace(instr, on=engine, queue=f"dma.{engine}")
                for number, instr in enumerate(walk(program.body))
                if number in numbers[core]
            }

        return edit

    def _gain(self, edit: Edit, least: float = SMALL_GAIN) -> str:
        """The text of what an edit saves; "" for less than `least` of the time and no bytes."""
        changed = profile_programs(self.compiles(edit), self.profile.target)
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
