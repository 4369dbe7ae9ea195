"""Assertions for tests about the simulated time and the memory of a kernel."""

from __future__ import annotations

from typing import Any

from glia.isa.operand import Memory
from glia.machine.ir import Program
from glia.nki.names.targets import target_of_kernel
from glia.nki.run.kernel import as_kernel
from glia.nki.run.launch import bind
from glia.profile.report import Profile, profile_programs


def profile_kernel(
    kernel: Any,
    *arrays: Any,
    target: str | None = None,
    as_written: bool = False,
    **constants: Any,
) -> Profile:
    """The simulated time of a kernel for arguments of these shapes, dtypes and values.

    `kernel` is a function, decorated for either generation or not. The device is what a kernel of
    Beta 1 has as platform_target=, else `target`, else that on which a call would run.
    Nothing is computed, so large arguments cost no more than small ones. With `as_written` the back
    end changes nothing.
    """
    known = as_kernel(kernel)
    chosen = target_of_kernel(known, target)
    launch = bind(known.function, arrays, constants)
    traced = known.traced_launch(launch, chosen, as_written=as_written)
    return profile_programs(traced.programs, chosen)


def assert_latency(profile: Profile, *, at_most_us: float, at_least_us: float = 0.0) -> None:
    """AssertionError unless the latency, pre- and postamble included, is within the bounds."""
    latency = profile.latency_us
    assert at_least_us <= latency <= at_most_us, (
        f"{profile.program.name} takes {latency:.2f} us, "
        f"not between {at_least_us:.2f} and {at_most_us:.2f} us"
    )


def assert_engine_busy(profile: Profile, engine: str, *, at_least: float) -> None:
    """AssertionError unless an engine works for this part of the time.

    The time is that of the kernel: the latency without pre- and postamble.
    """
    span = (profile.timing.end_ns - profile.timing.begin_ns) / 1000
    assert engine in profile.engines, f"{engine!r} is none of {', '.join(profile.engines)}"
    busy = profile.engines[engine].busy_us / span
    assert busy >= at_least, (
        f"{engine} is busy {busy:.1%} of {span:.2f} us in {profile.program.name}, "
        f"not {at_least:.1%}"
    )


def assert_no_spill(program: Program | Profile) -> None:
    """AssertionError when an HBM tensor other than inputs and outputs is written and read.

    In a profile of several cores this holds for each.
    """
    if isinstance(program, Profile):
        for core in program.cores or (program,):
            assert_no_spill(core.program)
        return
    outside = {binding.tile.name for binding in (*program.inputs, *program.outputs)}
    instructions = list(program.instructions())
    written = {p.tile.name for i in instructions for p in i.written_patterns() if _in_hbm(p)}
    read = {p.tile.name for i in instructions for p in i.read_patterns() if _in_hbm(p)}
    spilled = sorted((written & read) - outside)
    total = sum(program.tiles[name].bytes for name in spilled)
    assert not spilled, f"{program.name} spills {total} bytes: {', '.join(spilled)}"


def _in_hbm(pattern: Any) -> bool:
    return pattern.memory is Memory.HBM
