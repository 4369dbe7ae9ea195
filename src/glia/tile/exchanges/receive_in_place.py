"""A loop's state that an exchange gives is received where it lies.

`build` copies what an iteration gives to the next into the loop's state when all reads of the old
value are done. Of weights that are gathered one iteration ahead that moves their bytes twice more.
An exchange whose result is only copied goes behind the last read of the state, and writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from glia.tile.ir import (
    Exchange,
    Nest,
    Program,
    Statement,
    While,
    accessed_buffers,
    control_buffers,
    leaves,
)
from glia.tile.nest_rewriting import copied_buffer, rename_buffer, with_blocks


def receive_in_place(program: Program, options: object = None) -> Program:
    """The program without copies of what exchanges give to loops; no option changes it."""
    receiving = _Receiving(program)
    body = receiving.block(program.body)
    buffers = {n: each for n, each in program.buffers.items() if n not in receiving.merged}
    return replace(program, body=body, buffers=buffers)


class _Receiving:
    """Goes through the blocks of a program; `merged` are the temporaries that are gone."""

    def __init__(self, program: Program) -> None:
        self.buffers = program.buffers
        self.merged: set[str] = set()
        controls = control_buffers(program.body, with_exchanges=False)
        uses = Counter(name for each in leaves(program.body) for name in accessed_buffers(each))
        self.received = {  # temporaries that one statement makes, and one reads
            name
            for name, count in uses.items()
            if count == 2 and program.buffers[name].role == "temporary" and name not in controls
        }

    def block(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """The statements of a block, with exchanges in the loops inside of it changed."""
        changed = [with_blocks(each, self.block) for each in body]
        return tuple(
            replace(each, body=self._iteration(each.body)) if isinstance(each, While) else each
            for each in changed
        )

    def _iteration(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """A loop's body with exchanges that write its state."""
        for copy in body:
            temporary = copied_buffer(copy, self.buffers) if isinstance(copy, Nest) else ""
            if temporary in self.received:
                assert isinstance(copy, Nest)
                body = self._received(body, copy, temporary)
        return (*body,)

    def _received(
        self, body: Sequence[Statement], copy: Nest, temporary: str
    ) -> Sequence[Statement]:
        """The body without a copy; as it is where something else is in the way."""
        state = copy.target.buffer
        sender = next((s for s in body if isinstance(s, Exchange) and temporary in s.outputs), None)
        if sender is None or state in accessed_buffers(sender):
            return body
        begin, end = body.index(sender), body.index(copy)
        users = [n for n, s in enumerate(body) if s is not copy and state in accessed_buffers(s)]
        last = max([begin, *users])
        overwritten = {name for each in body[begin + 1 : last + 1] for name in _written(each)}
        if last > end or overwritten & accessed_buffers(sender):
            return body
        self.merged.add(temporary)
        moved = rename_buffer(sender, temporary, state)
        before = (each for each in body[: last + 1] if each is not sender)
        return [*before, moved, *(each for each in body[last + 1 :] if each is not copy)]


def _written(statement: Statement) -> set[str]:
    """The buffers that a statement, or one inside of it, may write."""
    return {statement.target.buffer} if isinstance(statement, Nest) else accessed_buffers(statement)
