"""Merging of the programs of a logical core's physical cores into one program for one core.

Between two rendezvous the cores share no data that one of them changes, so one core can run these
stretches one after the other. At a rendezvous barriers vanish, and exchanges become copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np

from glia.arch import Arch, get_target
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.multicore import CoreBarrier, Sendrecv
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, row_major
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.instruction_rewriting import control_variables, rename_block
from glia.machine.ir import Binding, Block, Loop, Program, Statement, While, walk
from glia.machine.program_cache import ProgramDigest
from glia.machine.queues import QUEUE_OWNERS


def merge_cores(programs: Sequence[Program]) -> Program:
    """One program without addresses, with the inputs and outputs of all, each name once.

    HBM tiles of equal name and address are shared. ValueError, with the reason, where the cores
    synchronise in a way that is not known at compile time, or with other logical cores.
    """
    if len(programs) == 1:
        return programs[0]
    for program in programs:
        if instr := _meets_ranks(program):
            raise ValueError(f"its cores compute {instr.mnemonic()} with other logical cores")
    return _merged(programs)


def join_cores(programs: Sequence[Program]) -> Program:
    """One program to be run here, with the tensors of all cores at their addresses in HBM.

    Each core's SBUF and PSUM lie behind those of the core before: see `arch_of`. ValueError, with
    the reason, where the cores synchronise in a way that is not known before they run, or where
    several of them exchange with other logical cores.
    """
    if len(programs) == 1:
        return programs[0]
    if sum(_meets_ranks(program) is not None for program in programs) > 1:
        raise ValueError("several of its cores exchange with other logical cores")
    merged = _merged(programs)
    arch = get_target(programs[0].target).arch
    room = {
        Memory.SBUF: arch.sbuf_bytes_per_partition,
        Memory.PSUM: arch.psum_bytes_per_partition,
        Memory.HBM: 0,
    }
    addresses = {}
    for rank, program in enumerate(programs):
        names = _tiles(program, programs[0], rank)
        for name, address in program.addresses.items():
            tile = names[name]
            addresses[tile.name] = address + rank * room[tile.memory]
    return replace(merged, addresses=addresses, cores=len(programs))


@dataclass(frozen=True)
class _Joined:
    """What joins the programs of a logical core, kept with the first; None for nothing."""

    programs: tuple[Program, ...]
    program: Program | None


def joined_program(programs: Sequence[Program]) -> Program | None:
    """`join_cores`, made once; None where cores cannot be joined."""
    if len(programs) == 1:
        return programs[0]
    kept = programs[0].cache.get(_Joined)
    if kept is None or [*map(id, kept.programs)] != [*map(id, programs)]:
        kept = _Joined(tuple(programs), _join_where_possible(programs))
        programs[0].cache.put(kept)
    return kept.program


def _join_where_possible(programs: Sequence[Program]) -> Program | None:
    """`join_cores`, with a digest where those of all programs are known."""
    try:
        joined = join_cores(programs)
    except ValueError:
        return None
    known = [program.cache.get(ProgramDigest) for program in programs]
    text = " ".join(each.digest for each in known if each)
    if all(known):
        joined.cache.put(ProgramDigest(sha256(f"joined {text}".encode()).hexdigest()))
    return joined


def arch_of(program: Program) -> Arch:
    """What a program runs on here: a core, with the on-chip memory of all cores that it joins."""
    arch = get_target(program.target).arch
    if program.cores == 1:
        return arch
    return replace(
        arch,
        sbuf_bytes_per_partition=arch.sbuf_bytes_per_partition * program.cores,
        psum_banks=arch.psum_banks * program.cores,
    )


def _merged(programs: Sequence[Program]) -> Program:
    """The program of all cores, without addresses."""
    tiles: dict[str, Tile] = {}
    constants: dict[str, np.ndarray] = {}
    inputs: dict[str, Binding] = {}
    outputs: dict[str, Binding] = {}
    bodies: list[Block] = []
    for rank, program in enumerate(programs):
        local_tiles = _tiles(program, programs[0], rank)
        names = {name: _core_name(name, rank) for name in control_variables(program.body)}
        bodies.append(rename_block(program.body, local_tiles, names))
        tiles |= {tile.name: tile for tile in local_tiles.values()}
        constants |= {local_tiles[name].name: value for name, value in program.constants.items()}
        for bindings, found in ((program.inputs, inputs), (program.outputs, outputs)):
            for each in bindings:
                found.setdefault(each.name, replace(each, tile=local_tiles[each.tile.name]))
        _check_inputs(program, local_tiles, inputs)
    return replace(
        programs[0],
        tiles=tiles,
        inputs=tuple(inputs.values()),
        outputs=tuple(outputs.values()),
        constants=constants,
        body=_BodyMerger(tiles).body(bodies),
        addresses={},
    )


def _meets_ranks(program: Program) -> Instr | None:
    """An instruction at which logical cores synchronise; None where there is none."""
    for instr in program.instructions():
        is_among_ranks = isinstance(instr, CrossCoreInstr) and instr.among == "ranks"
        if is_among_ranks and "register" not in instr.attribute_names:
            return instr
    return None


def _check_inputs(
    program: Program, local_tiles: Mapping[str, Tile], inputs: Mapping[str, Binding]
) -> None:
    """ValueError unless the program reads its inputs from the same tiles as earlier cores."""
    for each in program.inputs:
        if inputs[each.name].tile != local_tiles[each.tile.name]:
            raise ValueError(f"its cores have different inputs {each.name}")


def _tiles(program: Program, first: Program, rank: int) -> dict[str, Tile]:
    """A core's tiles, renamed apart, except HBM tiles that it shares with the first core."""
    found: dict[str, Tile] = {}
    for name, tile in program.tiles.items():
        same = first.tiles.get(name)
        is_shared = tile.memory is Memory.HBM and tile == same
        if is_shared and program.addresses.get(name) == first.addresses.get(name):
            found[name] = tile
        else:
            found[name] = replace(tile, name=_core_name(name, rank))
    return found


def _core_name(name: str, rank: int) -> str:
    """A name made unique to a core, in characters that the text form accepts."""
    return f"{name}.core{rank}" if rank else name


@dataclass(frozen=True)
class _BodyMerger:
    """Merges the bodies of several cores; adds the tiles of exchanges to `tiles`."""

    tiles: dict[str, Tile]

    def body(self, bodies: Sequence[Block]) -> Block:
        """The cores' stretches one after the other, each group followed by its rendezvous."""
        found: list[Statement] = []
        parts = [list(_split_at_rendezvous(each)) for each in bodies]
        if len({len(each) for each in parts}) > 1:
            raise ValueError("one core reaches a synchronisation point that another does not reach")
        for stretches in zip(*parts, strict=True):
            for stretch, _ in stretches:
                found += stretch
            points = [rendezvous for _, rendezvous in stretches if rendezvous is not None]
            if points:
                found += self.rendezvous(points)
        return tuple(found)

    def rendezvous(self, each: Sequence[Statement]) -> Iterable[Statement]:
        """The merged statements of a rendezvous, or of a loop that contains some."""
        loops = [loop for loop in each if isinstance(loop, Loop)]
        if len(loops) == len(each) and len({loop.trips for loop in loops}) == 1:
            variable = loops[0].variable
            bodies = [rename_block(loop.body, {}, {loop.variable: variable}) for loop in loops]
            return [replace(loops[0], body=self.body(bodies))]
        whiles = [loop for loop in each if isinstance(loop, While)]
        if len(whiles) == len(each) and {loop.iterations for loop in whiles} == {
            max(1, whiles[0].iterations)
        }:  # each counts for itself, and so the first counts for all
            conditions = sum((loop.condition for loop in whiles), ())
            inner = self.body([loop.body for loop in whiles])
            return [replace(whiles[0], condition=conditions, body=inner)]
        if all(isinstance(instr, CoreBarrier) for instr in each):
            return []
        sends = [instr for instr in each if isinstance(instr, Sendrecv)]
        if len(sends) < len(each) or len({instr.pipe_id for instr in sends}) > 1:
            raise ValueError("its cores do not synchronise at places known before they run")
        return list(self.exchange(sends))

    def exchange(self, sends: Sequence[Sendrecv]) -> Iterator[Statement]:
        """Copies of what each core sends; through HBM where it receives into the source tile."""
        sources = {}
        for rank, instr in enumerate(sends):
            sources[rank] = instr.src
            if instr.src.tile == instr.dst.tile:
                sources[rank] = self.allocate_exchange_tile(instr.src)
                yield _copy(sources[rank], instr.src, instr)
        for rank, instr in enumerate(sends):
            if sends[instr.recv_from_rank].send_to_rank != rank:
                raise ValueError(f"core {rank} receives what is not sent to it")
            yield _copy(instr.dst, sources[instr.recv_from_rank], instr)

    def allocate_exchange_tile(self, pattern: Pattern) -> Pattern:
        """A new tile of HBM for the elements of a pattern."""
        name = f"sent@{len(self.tiles)}"
        tile = Tile(name, Memory.HBM, pattern.dtype, 1, pattern.elements)
        self.tiles[name] = tile
        return Pattern(tile, pattern.dtype, row_major(pattern.shape))


def _copy(dst: Pattern, src: Pattern, instr: Sendrecv) -> DmaCopy:
    return DmaCopy(dst=dst, src=src, queue="load", on=QUEUE_OWNERS["load"], loc=instr.loc)


def _split_at_rendezvous(body: Block) -> Iterator[tuple[Block, Statement | None]]:
    """(statements of one core, the rendezvous after them), the last with None."""
    stretch: list[Statement] = []
    for statement in body:
        if any(_is_rendezvous(instr) for instr in walk((statement,))):
            yield tuple(stretch), statement
            stretch = []
        else:
            stretch.append(statement)
    yield tuple(stretch), None


def _is_rendezvous(instr: Instr) -> bool:
    """Whether physical cores synchronise at an instruction."""
    return isinstance(instr, CrossCoreInstr) and instr.among == "cores"
