"""All that decides what a recorded kernel is compiled to, as text: what the compile cache asks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from glia.machine.ir import Program
from glia.machine.text import print_program
from glia.nki.session.recorder import Recorder


def recorded_text(
    cores: Sequence[tuple[Recorder, Program]], options: Sequence[tuple[str, bool]]
) -> str:
    """The program that each core recorded, what its author fixed, and options of the back end.

    Two kernels with the same text are compiled to the same programs. Source lines are part of it:
    the back end distinguishes instructions by them, and programs record them.
    """
    lines = [f"{name}: {value}" for name, value in options]
    for rank, (session, program) in enumerate(cores):
        lines += [f"core {rank} of {session.ranks}, {session.target.name}"]
        lines += [*_fixed_by_author(session, program), *_contents(program)]
        lines.append(print_program(program))
    return "\n".join(lines)


def _fixed_by_author(session: Recorder, program: Program) -> Iterator[str]:
    """What a recorder knows besides its program, instructions by number."""
    numbers = {id(each): number for number, each in enumerate(program.instructions())}

    def numbered(instruction: Any) -> object:
        return numbers.get(id(instruction), "gone")

    yield f"in program order: {session.keeps_order}, in part: {session.has_strict_blocks}"
    for edge in session.orders:
        yield f"{numbered(edge.consumer)} after {numbered(edge.producer)}"
    if session.in_order:
        yield f"in their order: {' '.join(str(numbered(each)) for each in session.in_order)}"
    yield from sorted(f"engine chosen at {loc!r}" for loc in session.engines_chosen)
    yield from sorted(f"shared by the cores: {name}" for name in session.shared)


def _contents(program: Program) -> Iterator[str]:
    """A digest of each constant: its contents are not part of a program's text."""
    for name, array in program.constants.items():
        yield f"constant {name} sha256 {hashlib.sha256(array.tobytes()).hexdigest()}"
