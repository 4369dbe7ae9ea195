"""Hardware numbers have sources, costs follow the published formulas, the pages are current."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from glia.arch import ARCHS, TARGETS, Arch, Constant, core_v2, get_target
from glia.arch.kit import Capability, build_arch
from glia.base.dtype import BF16, F32, DType
from glia.isa import INSTRUCTIONS
from glia.isa.activation import ACTIVATIONS
from glia.isa.alu import ALU_OPS
from glia.isa.examples import chip, examples
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import TensorCopy, TensorTensor
from glia.machine.reference_pages import pages

V2, V3, V4 = (get_target(name).arch for name in ("trn1", "trn2", "trn3"))
DOCS = Path(__file__).parents[3] / "docs" / "isa"


@pytest.mark.parametrize("arch", ARCHS, ids=lambda a: a.name)
def test_every_number_is_declared_with_unit_source_and_confidence(arch: Arch) -> None:
    for name, constant in arch.constants.items():
        head, _, key = name.partition(".")
        held = getattr(arch, head)
        assert (held[key] if key else held) == constant.value
        assert (constant.confidence == "assumed") == (name in arch.assumed)
        if constant.confidence != "assumed":
            assert "not published;" not in constant.source or "v3" in constant.source


@pytest.mark.parametrize("fields", [("", "page", "high"), ("ns", "", "high"), ("ns", "p", "sure")])
def test_a_number_without_a_source_cannot_be_declared(fields: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match="needs a unit, a source"):
        Constant(1.0, *fields)


def test_a_missing_or_unknown_constant_is_refused() -> None:
    constants = dict(V2.constants)
    del constants["psum_banks"]
    with pytest.raises(TypeError, match="psum_banks"):
        build_arch("core_v2", 2, constants, core_v2.CAPABILITIES, V2.fabric)
    with pytest.raises(TypeError, match="warp_size"):
        more = {**V2.constants, "warp_size": V2.constants["psum_banks"]}
        build_arch("core_v2", 2, more, core_v2.CAPABILITIES, V2.fabric)


def test_a_missing_or_unknown_capability_is_refused() -> None:
    capabilities = dict(core_v2.CAPABILITIES)
    capabilities["has_wings"] = capabilities.pop("has_nki")
    with pytest.raises(TypeError, match=r"has_nki.*has_wings"):
        build_arch("core_v2", 2, V2.constants, capabilities, V2.fabric)
    with pytest.raises(ValueError, match="source"):
        Capability(True, "")


@pytest.mark.parametrize(
    "name,generation,sbuf,gib",
    [("inf1", 1, 192, 8), ("trn1", 2, 192, 32), ("inf2", 2, 192, 32), ("trn2", 3, 224, 96),
     ("trn3", 4, 256, 144)],
)  # fmt: skip
def test_targets(name: str, generation: int, sbuf: int, gib: int) -> None:
    target = get_target(name)
    assert target.arch.generation == generation
    assert target.arch.sbuf_bytes_per_partition == sbuf * 1024
    assert target.chip_hbm_bytes == gib << 30 == target.hbm_bytes * target.cores_per_chip
    assert target.arch.sbuf_usable_bytes_per_partition <= target.arch.sbuf_bytes_per_partition


def test_an_unknown_target_is_named_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match="trn9"):
        get_target("trn9")
    assert set(TARGETS) == {"inf1", "trn1", "trn1n", "inf2", "trn2", "trn3"}


@pytest.mark.parametrize("name", ["bf16", "f32"])
@pytest.mark.parametrize("arch", ARCHS[1:], ids=lambda a: a.name)
def test_peak_flops_agree_with_clock_and_passes(arch: Arch, name: str) -> None:
    derived = 128 * 128 * 2 * arch.clocks_ghz["tensor"] * 1e9 / arch.tensor_passes[name]
    assert abs(derived / arch.peak_flops[name] - 1) < 0.01


def _matmul(columns: int, dtype: DType) -> NcMatmul:
    return NcMatmul(
        dst=chip("s", 128, columns, memory="PSUM"),
        stationary=chip("a", 128, 128, dtype=dtype),
        moving=chip("b", 128, columns, dtype=dtype),
    )


@pytest.mark.parametrize(
    "columns,dtype,cycles",
    [(512, BF16, 512), (16, BF16, 64), (512, F32, 2048)],
)
def test_matmul_cycles_follow_the_published_formula(
    columns: int, dtype: DType, cycles: int
) -> None:
    assert _matmul(columns, dtype).cycles(V2) == cycles
    assert _matmul(columns, dtype).cycles(V3) == cycles


def test_fp32_matmul_takes_the_published_time_on_trn2() -> None:
    nanoseconds = V3.cycles_to_ns("tensor", _matmul(512, F32).cycles(V3))
    assert abs(nanoseconds / (2 * 428.5) - 1) < 0.02


def test_vector_time_agrees_with_the_published_profiles() -> None:
    a, b, out = (chip(n, 128, 512) for n in "abo")
    in_psum = chip("p", 128, 512, memory="PSUM")
    add = TensorTensor(dst=out, data1=in_psum, data2=b, op="add")
    assert abs(V3.cycles_to_ns("vector", add.cycles(V3)) / 604 - 1) < 0.02
    wide = [chip(n, 128, 8192) for n in "abo"]
    multiply = TensorTensor(dst=wide[2], data1=wide[0], data2=wide[1], op="multiply")
    assert abs(V2.cycles_to_ns("vector", multiply.cycles(V2)) / 14987 - 1) < 0.03
    small = TensorTensor(dst=out, data1=a, data2=b, op="multiply")
    assert abs(V2.cycles_to_ns("vector", small.cycles(V2)) / 931 - 1) < 0.03


@pytest.mark.parametrize(
    "dtype,memory,speedup",
    [(BF16, "SBUF", 4), (BF16, "PSUM", 2), (F32, "SBUF", 2), (F32, "PSUM", 1)],
)  # fmt: skip
def test_copies_have_the_documented_fast_modes_from_generation_3(
    dtype: DType, memory: str, speedup: int
) -> None:
    copy = TensorCopy(
        dst=chip("o", 128, 2048, dtype=dtype), src=chip("i", 128, 2048, dtype=dtype, memory=memory)
    )
    gap = {arch.generation: round(arch.issue_gap_cycles["vector"]) for arch in (V2, V3)}
    assert copy.cycles(V3) - gap[3] == 2048 // speedup
    assert copy.cycles(V2) - gap[2] == 2048


@pytest.mark.parametrize(
    "name,rate",
    [("dropout", 1), ("range_select", 1), ("tensor_scalar_reduce", 1), ("activate2", 1),
     ("exponential", 4), ("rand2", 4), ("select_reduce", 1),
     ("tensor_scalar_cumulative", 0.5)],
)  # fmt: skip
def test_cycles_grow_with_the_elements_of_a_partition(name: str, rate: float) -> None:
    instr = examples()[name]

    def cycles(count: int) -> int:
        changes = {}
        for field, declared, pattern in instr.operands():
            if not declared.is_column:
                changes[field] = replace(pattern, dims=((1, 64), (1, count)))
        return replace(instr, **changes).cycles(V4)

    assert abs((cycles(4096) - cycles(2048)) * rate / 2048 - 1) < 0.01
    assert V4.min_issue_cycles[instr.runs_on] <= cycles(1) <= cycles(2) <= cycles(1) + 2 / rate


def test_reading_the_accumulator_costs_64_cycles_more() -> None:
    plain = Activation(dst=chip("o", 8, 512), data=chip("i", 8, 512), function="exp")
    summed = replace(plain, reduced=chip("r", 8, 1), command="reset_reduce")
    assert summed.cycles(V3) - plain.cycles(V3) == 64


@pytest.mark.parametrize("arch", ARCHS, ids=lambda a: a.name)
def test_a_large_transfer_runs_at_the_rate_of_all_engines_and_a_small_one_does_not(
    arch: Arch,
) -> None:
    rate = arch.dma_engines * arch.dma_bytes_per_ns
    large, small = _load(8192), _load(1)
    assert large.moved_bytes() / large.transfer_nanoseconds(arch) == pytest.approx(rate, rel=0.02)
    assert small.moved_bytes() / small.transfer_nanoseconds(arch) < rate / 8
    assert large.descriptors() == small.descriptors() == 128


def _load(columns: int) -> DmaCopy:
    loaded = chip("o", 128, columns)
    gaps = replace(chip("x", 128, 2 * columns), dims=((1, 128), (1, columns)))
    return DmaCopy(dst=loaded, src=gaps, queue="q")


def test_the_tables_of_operators_and_functions_have_sources() -> None:
    for entry in (*ALU_OPS.values(), *ACTIVATIONS.values()):
        assert entry.source


def test_every_instruction_is_on_the_page() -> None:
    index = pages()["instructions.md"]
    for name in INSTRUCTIONS:
        assert f"[{name}](instructions/{name}.md)" in index
        assert f"## Example\n\n```text\n{name}(" in pages()[f"instructions/{name}.md"]
