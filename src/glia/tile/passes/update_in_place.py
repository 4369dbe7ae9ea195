"""Updates in place: what is copied to a buffer in the end is computed there.

`build` computes the new value of a loop's state, and of an output that shares the memory of a
donated input, in a temporary and copies it when all reads of the old value are done. The temporary
becomes the buffer itself where nothing needs the old elements by the time new ones are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from glia.tile.ir import (
    Branch,
    Layout,
    Nest,
    Program,
    Statement,
    While,
    accessed_buffers,
)
from glia.tile.nest_rewriting import copied_buffer, rename_buffer


def update_in_place(program: Program, options: object = None) -> Program:
    """Merge temporaries with the buffers they are copied to, and drop the copies.

    What stays in SBUF for other readers is still stored by the copy, its only way to HBM; a group
    that has the copy among other nests streams through it.
    """
    merging = _Merging(program)
    body = merging.block(program.body, frozenset())
    if not merging.merged:
        return program
    dead = {nest.name for nest in program.nests()} - {
        nest.name for nest in replace(program, body=body).nests()
    }
    return replace(
        program,
        body=body,
        buffers={n: each for n, each in program.buffers.items() if n not in merging.merged},
        layouts={n: each for n, each in program.layouts.items() if n not in merging.merged},
        schedules={n: each for n, each in program.schedules.items() if n not in dead},
        groups=tuple(g for g in program.groups if dead.isdisjoint(m.nest for _, m in g.members())),
    )


class _Merging:
    """Goes through the blocks of a program; `merged` are the temporaries that are gone."""

    def __init__(self, program: Program) -> None:
        self.buffers = program.buffers
        self.layouts: Mapping[str, Layout] = program.layouts
        self.sources = dict(program.aliases)
        self.on_chip = {name for group in program.groups for name in group.on_chip}
        members = ([member.nest for _, member in group.members()] for group in program.groups)
        self.grouped = {name for names in members if len(names) > 1 for name in names}
        self.merged: set[str] = set()

    def block(self, body: Sequence[Statement], outside: Set[str]) -> tuple[Statement, ...]:
        """The block with temporaries merged; `outside` are buffers that the rest accesses."""
        users = _Users(body)
        shared = outside | {name for name, positions in users.by_buffer.items() if positions[1:]}
        for position, each in enumerate(body):
            users.statements[position] = self._inside(each, shared)
        for position, each in enumerate(body):
            if self._copied(each):
                self._try_copy(position, users, outside)
        return tuple(each for each in users.statements if each is not None)

    def _inside(self, statement: Statement, outside: Set[str]) -> Statement:
        """The statement with the blocks inside of it done."""
        if isinstance(statement, While):
            inner = accessed_buffers(replace(statement, body=()))
            body = self.block(statement.body, outside | inner)
            return replace(statement, body=body)
        if isinstance(statement, Branch):
            arms = []
            for arm in statement.arms:
                others = replace(statement, arms=tuple(x for x in statement.arms if x is not arm))
                arms.append(self.block(arm, outside | accessed_buffers(others)))
            return replace(statement, arms=tuple(arms))
        return statement

    def _try_copy(self, position: int, users: _Users, outside: Set[str]) -> None:
        """Merge the two buffers of a copy, where that keeps every value."""
        copy = users.statements[position]
        assert isinstance(copy, Nest)
        temporary, target = self._copied(copy), copy.target.buffer
        old = {target, self.sources.get(target, target)}
        positions = users.by_buffer[temporary]
        is_last_use = positions[-1] == position and len(positions) > 1
        is_own = self.buffers[temporary].role == "temporary" and temporary not in outside
        is_own &= temporary not in self.on_chip
        if not (is_own and is_last_use and self._have_one_home(temporary, target, positions)):
            return
        first = users.statements[positions[0]]
        assert first is not None
        overwritten = {n for name in old for n in users.between(name, positions[0], position)}
        if overwritten or not _may_overwrite(first, old):
            return
        users.merge(temporary, target)
        users.remove(position)
        if self._copied(first) in old:
            users.remove(positions[0])
        self.merged.add(temporary)

    def _copied(self, statement: Statement) -> str:
        """The buffer that a nest copies, by itself; "" of other statements."""
        if not isinstance(statement, Nest) or statement.name in self.grouped:
            return ""
        return copied_buffer(statement, self.buffers)

    def _have_one_home(self, temporary: str, target: str, users: Sequence[int]) -> bool:
        """Whether all users reach the target where it lies, as they reached the temporary."""
        if self.layouts.get(temporary) == self.layouts.get(target):
            return True
        return target not in self.layouts and len(users) == 2  # its only writer, and the copy


class _Users:
    """The statements of a block, None where one is gone, and which of them access a buffer."""

    def __init__(self, body: Sequence[Statement]) -> None:
        self.statements: list[Statement | None] = [*body]
        self.by_buffer: dict[str, list[int]] = {}  # positions, in order
        for position, each in enumerate(body):
            for name in accessed_buffers(each):
                self.by_buffer.setdefault(name, []).append(position)

    def between(self, buffer: str, first: int, last: int) -> list[int]:
        """Positions strictly between two at which a buffer is accessed."""
        return [n for n in self.by_buffer.get(buffer, ()) if first < n < last]

    def merge(self, old: str, new: str) -> None:
        """Let statements access `new` where they accessed `old`."""
        moved = self.by_buffer.pop(old)
        for position in moved:
            statement = self.statements[position]
            assert statement is not None
            self.statements[position] = rename_buffer(statement, old, new)
        self.by_buffer[new] = sorted({*self.by_buffer.get(new, ()), *moved})

    def remove(self, position: int) -> None:
        """Drop a statement."""
        statement = self.statements[position]
        assert statement is not None
        for name in accessed_buffers(statement):
            self.by_buffer[name].remove(position)
        self.statements[position] = None


def _may_overwrite(statement: Statement, old: Set[str]) -> bool:
    """Whether each element of `old` buffers is read only in the iteration that writes its place."""
    if not old & accessed_buffers(statement):
        return True
    if not isinstance(statement, Nest) or statement.target.dynamic or statement.target.combine:
        return False
    # a nest without `combine` writes each element in one iteration at most
    reads = [load for load in statement.loads if load.buffer in old]
    is_plain = not any(each.guards or each.dynamic for each in reads)
    return is_plain and all(each.index == statement.target.index for each in reads)
