"""`a and b` of masks means `a & b`.

Python evaluates the truth of the left operand and drops it. The left operand therefore records the
bytecode range of the right operand; a comparison made in that range is conjoined with it.
"""

from __future__ import annotations

import dis
import sys
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_FOLDER = str(Path(__file__).parents[1])
# Frame, first and last bytecode offset of the right operand, left operand
_OPEN: ContextVar[tuple[FrameType, int, int, Any] | None] = ContextVar("conjunction", default=None)


def opens_conjunction(mask: Any) -> bool:
    """Whether the user's code tests `mask` as the left operand of `and`; if so records it."""
    frame = _users_frame()
    end = _conjunction_ends(frame.f_code).get(frame.f_lasti)
    if end is None:
        return False
    _OPEN.set((frame, frame.f_lasti, end, mask))
    return True


def conjoin_left_side(mask: Any) -> Any:
    """`mask`, conjoined with the left operand when it is the right operand of an `and`."""
    opened = _OPEN.get()
    if opened is None:
        return mask
    _OPEN.set(None)
    frame, first, end, left = opened
    here = _users_frame()
    is_right_side = here is frame and first < here.f_lasti < end
    return left & mask if is_right_side else mask


def _users_frame() -> FrameType:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_FOLDER):
        frame = frame.f_back
    assert frame is not None
    return frame


@lru_cache(maxsize=256)
def _conjunction_ends(code: CodeType) -> dict[int, int]:
    """By the bytecode offset of each `and` test of a function, where its expression ends."""
    found: dict[int, int] = {}
    before: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        keeps = name == "JUMP_IF_FALSE_OR_POP"
        copied = name.startswith("POP_JUMP") and "IF_FALSE" in name and _is_copy(before)
        if keeps or copied:
            end = instruction.argval
            found[instruction.offset] = end
            if copied and before[-1].opname == "TO_BOOL":
                found[before[-1].offset] = end
        before = [*before[-1:], instruction]
    return found


def _is_copy(before: list[dis.Instruction]) -> bool:
    names = [each.opname for each in before if each.opname != "CACHE"]
    if names and names[-1] == "TO_BOOL":
        names = names[:-1]
    return bool(names) and names[-1] == "COPY"
