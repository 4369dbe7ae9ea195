"""Runs the code of a document and compares what it prints with what the document shows.

A block of `python` is run after those before it; a block of `text` right after one is what it
prints. `python tests/house/tour.py docs/tour.md` rewrites what is shown.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """One block of code, the line it starts at and what the document shows for it."""

    code: str
    line: int
    shown: str | None
    span: tuple[int, int]  # of what is shown, in the document


def blocks(text: str) -> Iterator[Block]:
    """Every block of Python in a document."""
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        yield Block(match["code"], line, match["shown"], match.span("shown"))


def printed(block: Block, name: str, variables: dict[str, object]) -> str:
    """What a block prints when it is run; its lines are numbered as in the document."""
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.code, name, "exec")
    with redirect_stdout(out):
        exec(code, variables)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().rstrip().splitlines())


def agree(shown: str, found: str, tolerance: float) -> bool:
    """Whether two texts are the same but for numbers with a point, which may differ a little."""
    if NUMBER.sub("#", shown) != NUMBER.sub("#", found):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(found), strict=True)
    return all(abs(float(a) - float(b)) <= tolerance * abs(float(a)) for a, b in pairs)


def rewrite(path: Path) -> None:
    """Put what the code prints into the document."""
    text = path.read_text(encoding="utf-8")
    variables: dict[str, object] = {"__name__": "tour"}
    result, end = [], 0
    for block in blocks(text):
        found = printed(block, path.name, variables)
        if block.shown is not None:
            result += [text[end : block.span[0]], found]
            end = block.span[1]
    path.write_text("".join([*result, text[end:]]), encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        rewrite(Path(argument))
