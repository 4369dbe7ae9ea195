"""A program as two: each core has its parts of the nests, and barriers where they meet.

Inputs, outputs and what one core reads of another lie in HBM that both address; everything else is
a core's own, of which it has the elements that it uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from glia.arch.instances import get_target
from glia.options import CompileOptions
from glia.tile.boxes import Box, elements, holds, hull, read_boxes, written_box
from glia.tile.cores.sharing import ALONE, BOTH, CORES, Sharing, parts
from glia.tile.dependences import is_barrier
from glia.tile.estimated_time import estimated_ns
from glia.tile.ir import (
    Buffer,
    Exchange,
    Nest,
    Program,
    Statement,
    accessed_buffers,
)
from glia.tile.nest_rewriting import in_boxes, load_in_boxes, map_loads

WORTH_SHARE = 0.95  # of the time of one core: with more, two are not tried


def divide(program: Program, options: CompileOptions) -> tuple[Program, ...]:
    """The programs of two cores; none where, by rough times, they would not be faster than one."""
    arch = get_target(options.target).arch
    alone = sum(estimated_ns(each, program.buffers, arch) for each in program.body)
    most_saved = alone - alone / CORES
    if most_saved <= arch.logical_core_ns:
        return ()
    sharing = Sharing(program, arch)
    if sharing.search() + arch.logical_core_ns > WORTH_SHARE * sharing.alone_ns:
        return ()
    return divided(sharing)


def divided(sharing: Sharing) -> tuple[Program, ...]:
    """The programs of all cores, as is chosen for each nest."""
    return tuple(_CoreProgram(sharing, core).program() for core in range(CORES))


@dataclass
class _CoreProgram:
    """Makes the program of one core."""

    sharing: Sharing
    core: int

    def program(self) -> Program:
        whole = self.sharing.program
        body = self._body()
        met = {name for each in body if is_barrier(each) for name in each.outputs}
        kept = self._private_boxes(body, met)
        buffers: dict[str, Buffer] = {}
        accessed = {name for each in body for name in accessed_buffers(each)}
        for name, buffer in whole.buffers.items():
            if buffer.role in ("input", "output"):
                buffers[name] = buffer
            elif name in met:
                buffers[name] = replace(buffer, role="shared")
            elif name in accessed:
                shape = tuple(high - low for low, high in kept[name]) if name in kept else None
                buffers[name] = replace(buffer, shape=shape) if shape else buffer
        return replace(
            whole,
            buffers=buffers,
            body=tuple(moved(each, kept, whole.buffers) for each in body),
            constants={
                name: value[_slices(kept[name])] if name in kept else value
                for name, value in whole.constants.items()
                if name in accessed
            },
            cores=CORES,
            notes=(*whole.notes, self._note()),
        )

    def _body(self) -> list[Statement]:
        sharing = self.sharing
        body: list[Statement] = []
        outputs = {source: output for output, source in sharing.program.aliases}
        barriers = sharing.barriers()
        for position, statement in enumerate(sharing.body):
            for name in barriers.get(position, ()):
                body.append(_barrier(outputs.get(name, name), str(position)))
            part = parts(statement, sharing.chosen[position])[self.core]
            if part is not None:
                body.append(part)
        for name in sharing.program.outputs:
            if any(
                sharing.chosen[n] == ALONE for n in sharing.writers[sharing.root.get(name, name)]
            ):
                body.append(_barrier(name, "end"))
        return body

    def _private_boxes(self, body: Sequence[Statement], met: set[str]) -> dict[str, Box]:
        """Of buffers that are this core's own, the box that it uses where that is not all."""
        buffers = self.sharing.program.buffers
        nests = [each for each in body if isinstance(each, Nest)]
        read: dict[str, Box] = {}
        written: dict[str, Box] = {}
        fixed = {
            offset.load.buffer for nest in nests for load in nest.loads for offset in load.dynamic
        }
        fixed |= {offset.load.buffer for nest in nests for offset in nest.target.dynamic}
        fixed |= {
            name for each in body if not isinstance(each, Nest) for name in accessed_buffers(each)
        }
        for nest in nests:
            for name, box in read_boxes(nest, buffers):
                read[name] = hull(read[name], box) if name in read else box
            name, box = nest.target.buffer, written_box(nest, buffers)
            written[name] = hull(written[name], box) if name in written else box
        found = {}
        for name, buffer in buffers.items():
            used = {"temporary": written, "constant": read}.get(buffer.role, {}).get(name)
            if used is None or name in met or name in fixed:
                continue
            is_part = 0 < elements(used) < buffer.elements
            if is_part and (name not in read or holds(used, read[name])):
                found[name] = used
        return found

    def _note(self) -> str:
        sharing = self.sharing
        pairs = zip(sharing.chosen, sharing.body, strict=True)
        chosen = [choice for choice, each in pairs if isinstance(each, Nest)]
        both, alone = chosen.count(BOTH), chosen.count(ALONE)
        others = len(sharing.body) - len(chosen)
        whole = f"; the first runs loops, branches, kernels and exchanges: {others}" * bool(others)
        return (
            f"core {self.core} of {CORES}: {len(chosen) - both - alone} nests are divided, {both} "
            f"computed by each core, {alone} by the first; they meet {len(sharing.barriers())} "
            f"times{whole}"
        )


def _barrier(buffer: str, place: str) -> Exchange:
    """Where the cores wait for each other, and see what both have written to a buffer."""
    return Exchange(f"barrier.{place}.{buffer}", "barrier", "", (), (), (buffer,))


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in box)


def moved(
    statement: Statement, kept: Mapping[str, Box], buffers: Mapping[str, Buffer]
) -> Statement:
    """A statement whose accesses reach the boxes that buffers hold."""
    if not isinstance(statement, Nest) or kept.keys().isdisjoint(accessed_buffers(statement)):
        return statement
    nest = map_loads(statement, lambda load: load_in_boxes(load, kept, buffers))
    return replace(nest, target=in_boxes(nest.target, kept))
