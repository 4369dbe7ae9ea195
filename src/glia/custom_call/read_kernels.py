"""Decode the hand-written kernels that a program calls, as programs for one core.

A model runs on one core; a kernel of several cores becomes one program that does the work of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from glia.arch import get_target
from glia.custom_call.backend_config import read_kernel
from glia.frontend.errors import BadCustomCall, KernelOfAnotherTarget, KernelOfAnotherVersion
from glia.isa.operand import Memory
from glia.machine.aliased_tiles import join_overlapping
from glia.machine.binary.errors import UnsupportedNeffVersion
from glia.machine.ir import Program
from glia.machine.merge_cores import merge_cores
from glia.options import CompileOptions
from glia.tile.ir import Call
from glia.tile.ir import Program as TileProgram
from glia.tile.nest_rewriting import map_calls


def read_kernels(program: TileProgram, options: CompileOptions) -> TileProgram:
    """Give every call its kernel; BadCustomCall when one does not fit its buffers or the target."""
    decoded: dict[str, Program] = {}
    return map_calls(program, lambda call: _bind_kernel(call, program, options.target, decoded))


def _bind_kernel(
    call: Call, program: TileProgram, target: str, decoded: dict[str, Program]
) -> Call:
    """The call with its kernel, which must fit; `decoded` holds kernels by their config."""
    kernel = decoded.get(call.config)
    if kernel is None:
        kernel = decoded[call.config] = decode_kernel(call)
    if kernel.target != target:
        facts = {"name": kernel.name, "kernel": kernel.target, "model": target}
        raise KernelOfAnotherTarget(**facts, loc=call.loc)
    for what, names, bindings in (
        ("inputs", call.inputs, kernel.inputs),
        ("results", call.outputs, kernel.outputs),
    ):
        expected = [f"{b.dtype}{list(b.shape)}" for b in bindings]
        actual = [f"{b.dtype}{list(b.shape)}" for b in map(program.buffers.__getitem__, names)]
        if expected != actual:
            text = ", ".join(expected) or "none"
            raise _bad_call(call, f"{kernel.name} has the {what} {text}; here {', '.join(actual)}")
    return replace(call, kernel=kernel)


def decode_kernel(call: Call) -> Program:
    """The kernel in a call's config, for one core and without addresses of its own.

    Raises BadCustomCall or KernelOfAnotherVersion.
    """
    try:
        neff, fixed = read_kernel(call.config)
    except ValueError as problem:
        if isinstance(problem.__cause__, UnsupportedNeffVersion):
            reason = f"supported {problem.__cause__.facts['supported']}"
            raise KernelOfAnotherVersion(name=call.name, reason=reason, loc=call.loc) from problem
        raise _bad_call(call, str(problem)) from problem
    if len({program.target for program in neff.programs}) != 1:
        raise _bad_call(call, f"{neff.name} has cores of different targets")
    programs = [
        _join_aliased_tiles(call, program, names)
        for program, names in itertools.zip_longest(neff.programs, fixed, fillvalue=())
        if isinstance(program, Program)
    ]
    try:
        return merge_cores(programs)
    except ValueError as problem:
        raise _bad_call(call, f"{neff.name} cannot run on one core: {problem}") from problem


def _join_aliased_tiles(call: Call, kernel: Program, fixed: Sequence[str]) -> Program:
    """One tile for each group of `fixed` tiles that share bytes: placement must not part them."""
    try:
        joined = join_overlapping(kernel, [name for name in fixed if name in kernel.addresses])
    except ValueError as problem:
        raise _bad_call(call, str(problem)) from problem
    bank = get_target(kernel.target).arch.psum_bank_bytes
    for name, tile in joined.tiles.items():
        is_new = name not in kernel.tiles
        if is_new and tile.memory is Memory.PSUM and tile.bytes_per_partition > bank:
            raise _bad_call(call, f"{name} overlap in more than one bank of PSUM")
    return joined


def _bad_call(call: Call, reason: str) -> BadCustomCall:
    return BadCustomCall(target=call.target, reason=reason, instruction=call.name, loc=call.loc)
