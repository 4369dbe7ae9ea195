"""A program as two: each core has its parts of the nests, and barriers where they meet.

Inputs, outputs and what one core reads of another lie in HBM that both address; everything else is
a core's own, of which it has the elements that it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from glia.arch.instances import get_target
from glia.options import CompileOptions
from glia.tile.boxes import Box, elements, holds, hull, read_boxes, written_box
from glia.tile.cores.counted_loops import CountedLoop, Item, shared_loops
from glia.tile.cores.sharing import ALONE, BOTH, CORES, Sharing, parts
from glia.tile.dependences import is_barrier
from glia.tile.estimated_time import estimated_ns
from glia.tile.ir import (
    Buffer,
    Exchange,
    Nest,
    Program,
    Statement,
    While,
    accessed_buffers,
    leaves,
)
from glia.tile.nest_rewriting import in_boxes, load_in_boxes, map_loads, with_replacements

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
        met = {name for each in leaves(tuple(body)) if is_barrier(each) for name in each.outputs}
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
            body=with_replacements(body, lambda each: (moved(each, kept, whole.buffers),)),
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
        body = self._block(sharing.order)
        for name in sharing.program.outputs:
            if any(
                sharing.chosen[n] == ALONE for n in sharing.writers[sharing.root.get(name, name)]
            ):
                body.append(_barrier(name, "end"))
        return body

    def _block(self, order: Iterable[Item]) -> list[Statement]:
        """What this core runs of some statements, and of the loops around them."""
        sharing = self.sharing
        body: list[Statement] = []
        for item in order:
            if isinstance(item, CountedLoop):
                if self._takes_part(item.body):
                    condition, inner = self._block(item.condition), self._block(item.body)
                    body.append(replace(item.loop, condition=tuple(condition), body=tuple(inner)))
                continue
            for name in self._barriers.get(item, ()):
                body.append(_barrier(self._outputs.get(name, name), str(item)))
            part = parts(sharing.body[item], sharing.chosen[item])[self.core]
            if part is not None:
                body.append(part)
        return body

    def _takes_part(self, order: Iterable[Item]) -> bool:
        """Whether this core has more of a loop to run than its counting."""
        sharing = self.sharing
        return any(
            self._takes_part(item.body)
            if isinstance(item, CountedLoop)
            else item in self._barriers
            or (not sharing.is_counting(item) and (not self.core or sharing.chosen[item] != ALONE))
            for item in order
        )

    @cached_property
    def _barriers(self) -> dict[int, list[str]]:
        return self.sharing.barriers()

    @cached_property
    def _outputs(self) -> dict[str, str]:
        return {source: output for output, source in self.sharing.program.aliases}

    def _statements(self, body: Iterable[Statement]) -> Iterator[Statement]:
        """Statements with those of the loops that both cores run."""
        names = {each.loop.name for each in shared_loops(self.sharing.order)}
        for each in body:
            if isinstance(each, While) and each.name in names:
                yield from self._statements((*each.condition, *each.body))
            else:
                yield each

    def _private_boxes(self, body: Sequence[Statement], met: set[str]) -> dict[str, Box]:
        """Of buffers that are this core's own, the box that it uses where that is not all."""
        buffers = self.sharing.program.buffers
        statements = list(self._statements(body))
        nests = [each for each in statements if isinstance(each, Nest)]
        read: dict[str, Box] = {}
        written: dict[str, Box] = {}
        fixed = {
            offset.load.buffer for nest in nests for load in nest.loads for offset in load.dynamic
        }
        fixed |= {offset.load.buffer for nest in nests for offset in nest.target.dynamic}
        fixed |= {
            name
            for each in statements
            if not isinstance(each, Nest)
            for name in accessed_buffers(each)
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
