"""The range of a latency follows from what publications give for the constants."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from glia.arch import ARCHS, get_target
from glia.arch.constant import Constant, Reading
from glia.arch.instances import COMPILED_TARGETS
from glia.arch.kit import Arch
from glia.machine.builder.program_builder import ProgramBuilder
from glia.machine.ir import Program
from glia.profile.report import profile_program
from glia.timing.constant_table import timing_constants
from glia.timing.latency_range import GROUPS, extremes, latency_range
from glia.timing.simulate import TIMED_CONSTANTS, simulate_timing

THRESHOLDS = {  # sizes and shares that no time is proportional to
    "collective_mesh_bytes", "collective_doubling_bytes", "strided_access_bytes",
    "tensor_ramp_rate",
}  # fmt: skip


def program(target: str) -> Program:
    """A load, an addition, a reciprocal and a store."""
    b = ProgramBuilder("sample", target=target)
    x, y = b.input("x", (128, 512), "f32"), b.output("y", (128, 512), "f32")
    tile, turned = b.sbuf((128, 512), "f32"), b.sbuf((128, 512), "f32")
    b.dma_copy(tile, x)
    b.tensor_tensor(tile, tile, tile, op="add")
    b.reciprocal(turned, tile)
    b.dma_copy(y, turned)
    return b.finish()


@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_a_latency_lies_within_its_range(target: str) -> None:
    profile = profile_program(program(target), target)
    low, high = profile.latency_range_us
    assert low < profile.latency_us < high
    assert profile.to_dict()["latency_range_us"] == [low, high]


@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_the_slow_end_is_slower_and_the_parts_add_up_as_squares(target: str) -> None:
    arch, written = get_target(target).arch, program(target)
    found = latency_range([written], arch)
    for side, whole in enumerate((found.sooner_ns, found.later_ns)):
        parts = [part[side] for part in found.parts.values()]
        np.testing.assert_allclose(whole, np.linalg.norm(parts))
    fast, slow = extremes(arch, "DMA rates")
    times = [simulate_timing(written, arch.with_values(v)).latency_ns for v in (fast, {}, slow)]
    assert times == sorted(times) and times[0] < times[2]


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_every_constant_of_time_is_in_one_group(arch: Arch) -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(TIMED_CONSTANTS) - set(grouped) == THRESHOLDS
    assert {name.partition(".")[0] for name in arch.constants} >= set(grouped)


def test_other_values_change_what_they_name_only() -> None:
    arch = get_target("trn2").arch
    changed = arch.with_values({"latency_cycles.vector": 1.0, "dma_start_ns": 2.0})
    assert changed.latency_cycles == {**arch.latency_cycles, "vector": 1.0}
    assert changed.dma_start_ns == changed.constants["dma_start_ns"].value == 2.0
    same = dataclasses.replace(
        changed,
        latency_cycles=arch.latency_cycles,
        dma_start_ns=arch.dma_start_ns,
        constants=arch.constants,
    )
    assert same == arch


def test_a_constant_without_a_publication_is_what_the_others_give() -> None:
    one, two = Reading("one", 10, 12, "here"), Reading("two", 20, 22, "there")
    constant = Constant(11, "ns", "one", "medium", (one, two))
    assert constant.spread == (10, 22)
    assert one.supports(11) and not two.supports(11)
    assert constant.leave_out("three") is constant
    left_out = constant.leave_out("one")
    assert left_out is not None and left_out.value == 21
    assert constant.leave_out("two") == dataclasses.replace(constant, readings=(one,))
    assert dataclasses.replace(constant, readings=(one,)).leave_out("one") is None


def test_the_table_of_constants_shows_every_reading() -> None:
    text = timing_constants()
    for arch in ARCHS:
        for name, constant in arch.constants.items():
            for reading in constant.readings:
                assert any(reading.publication in line and reading.where in line for line in text)
            if constant.readings and constant.spread[0] < constant.spread[1]:
                low, high = constant.spread
                lines = [line for line in text if line.startswith(f"{arch.name} {name} = ")]
                assert f", {low:g} to {high:g} [" in lines[0]
