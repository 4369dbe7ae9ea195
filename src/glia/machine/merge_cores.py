"""The programs of a logical core's cores as one program, which computes what they do together.

Between two meetings the cores share nothing that one of them changes, so that there one core can
run their programs one after the other. A meeting ends such a stretch: there barriers vanish, and
what cores send each other is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.multicore import CoreBarrier, Sendrecv
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, row_major
from glia.isa.rendezvous import Meeting
from glia.machine.instruction_rewriting import rename_block, variables
from glia.machine.ir import Binding, Block, Loop, Program, Statement, walk
from glia.machine.queues import QUEUE_OWNERS


def on_one_core(programs: Sequence[Program]) -> Program:
    """One program without addresses; its inputs and outputs are those of all, each name once.

    Tiles of HBM with equal names are one where they have the same address. ValueError, with the
    reason, where the cores do not meet in a way that is known before the program runs.
    """
    if len(programs) == 1:
        return programs[0]
    tiles: dict[str, Tile] = {}
    constants: dict[str, object] = {}
    inputs: dict[str, Binding] = {}
    outputs: dict[str, Binding] = {}
    bodies: list[Block] = []
    for rank, program in enumerate(programs):
        own = _tiles(program, programs[0], rank)
        names = {name: _name(name, rank) for name in variables(program.body)}
        bodies.append(rename_block(program.body, own, names))
        tiles |= {tile.name: tile for tile in own.values()}
        constants |= {own[name].name: value for name, value in program.constants.items()}
        for bindings, found in ((program.inputs, inputs), (program.outputs, outputs)):
            for each in bindings:
                found.setdefault(each.name, replace(each, tile=own[each.tile.name]))
        _check_inputs(program, own, inputs)
    return replace(
        programs[0],
        tiles=tiles,
        inputs=tuple(inputs.values()),
        outputs=tuple(outputs.values()),
        constants=constants,
        body=_Together(tiles).body(bodies),
        addresses={},
    )


def _check_inputs(program: Program, own: Mapping[str, Tile], inputs: Mapping[str, Binding]) -> None:
    """ValueError unless the program takes its inputs from where the cores before it do."""
    for each in program.inputs:
        if inputs[each.name].tile != own[each.tile.name]:
            raise ValueError(f"its cores have different inputs {each.name}")


def _tiles(program: Program, first: Program, rank: int) -> dict[str, Tile]:
    """A core's tiles under names of its own, but for those in HBM that it has with the first."""
    found: dict[str, Tile] = {}
    for name, tile in program.tiles.items():
        same = first.tiles.get(name)
        is_shared = tile.memory is Memory.HBM and tile == same
        if is_shared and program.addresses.get(name) == first.addresses.get(name):
            found[name] = tile
        else:
            found[name] = replace(tile, name=_name(name, rank))
    return found


def _name(name: str, rank: int) -> str:
    """The name of what is another core's, in the letters that the text form has for names."""
    return f"{name}.core{rank}" if rank else name


@dataclass(frozen=True)
class _Together:
    """Puts the bodies of several cores together; `tiles` grow by what that needs."""

    tiles: dict[str, Tile]

    def body(self, bodies: Sequence[Block]) -> Block:
        """One block after the other, up to the first meeting of each, then what they do there."""
        found: list[Statement] = []
        parts = [list(_until_meetings(each)) for each in bodies]
        if len({len(each) for each in parts}) > 1:
            raise ValueError("one core comes to a meeting that the other does not come to")
        for together in zip(*parts, strict=True):
            for stretch, _ in together:
                found += stretch
            meetings = [meeting for _, meeting in together if meeting is not None]
            if meetings:
                found += self.meeting(meetings)
        return tuple(found)

    def meeting(self, each: Sequence[Statement]) -> Iterable[Statement]:
        """What cores do at a meeting, or in a loop with meetings."""
        loops = [loop for loop in each if isinstance(loop, Loop)]
        if len(loops) == len(each) and len({loop.trips for loop in loops}) == 1:
            variable = loops[0].variable
            bodies = [rename_block(loop.body, {}, {loop.variable: variable}) for loop in loops]
            return [replace(loops[0], body=self.body(bodies))]
        if all(isinstance(instr, CoreBarrier) for instr in each):
            return []
        sends = [instr for instr in each if isinstance(instr, Sendrecv)]
        if len(sends) < len(each) or len({instr.pipe_id for instr in sends}) > 1:
            raise ValueError("its cores do not meet at the same place, known before they run")
        return list(self.exchange(sends))

    def exchange(self, sends: Sequence[Sendrecv]) -> Iterator[Statement]:
        """Copies of what each core sends; through HBM where it receives in the same tile."""
        sources = {}
        for rank, instr in enumerate(sends):
            sources[rank] = instr.src
            if instr.src.tile == instr.dst.tile:
                sources[rank] = self.held(instr.src)
                yield _copy(sources[rank], instr.src, instr)
        for rank, instr in enumerate(sends):
            if sends[instr.recv_from_rank].send_to_rank != rank:
                raise ValueError(f"core {rank} receives what is not sent to it")
            yield _copy(instr.dst, sources[instr.recv_from_rank], instr)

    def held(self, pattern: Pattern) -> Pattern:
        """A new tile of HBM for the elements of a pattern."""
        name = f"sent@{len(self.tiles)}"
        tile = Tile(name, Memory.HBM, pattern.dtype, 1, pattern.elements)
        self.tiles[name] = tile
        return Pattern(tile, pattern.dtype, row_major(pattern.shape))


def _copy(dst: Pattern, src: Pattern, instr: Sendrecv) -> DmaCopy:
    return DmaCopy(dst=dst, src=src, queue="load", on=QUEUE_OWNERS["load"], loc=instr.loc)


def _until_meetings(body: Block) -> Iterator[tuple[Block, Statement | None]]:
    """(what a core does alone, the meeting after it), the last without a meeting."""
    alone: list[Statement] = []
    for statement in body:
        if any(_meets(instr) for instr in walk((statement,))):
            yield tuple(alone), statement
            alone = []
        else:
            alone.append(statement)
    yield tuple(alone), None


def _meets(instr: Instr) -> bool:
    """Whether cores meet at an instruction; ValueError where logical cores do."""
    if not isinstance(instr, Meeting):
        return False
    if instr.among == "ranks" and "register" not in instr.attribute_names:
        raise ValueError(f"its cores compute {instr.mnemonic()} with other logical cores")
    return instr.among == "cores"
