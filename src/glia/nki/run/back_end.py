"""The back end of kernels: it decides what their author has left open.

See docs/decisions/back-end-of-kernels.md for what an author fixes.
"""

from __future__ import annotations

from glia.machine.ir import Program
from glia.machine.passes.remove_dead_fills import remove_dead_fills
from glia.machine.passes.rename_tiles import rename_tiles
from glia.nki.session.recorder import Recorder


def run_back_end(program: Program, session: Recorder) -> Program:
    """The program of a kernel, before placement, with the same results in less time."""
    in_order = {id(each) for each in session.in_order}
    return rename_tiles(remove_dead_fills(program, lambda each: id(each) not in in_order))
