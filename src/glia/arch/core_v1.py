"""NeuronCore-v1, in Inferentia1: little is public; the rest is modelled as NeuronCore-v2."""

from __future__ import annotations

from glia.arch import core_v2, fabrics
from glia.arch.constant import Constant
from glia.arch.kit import Capability, build_arch, build_target

_PAGE = "Inferentia and NeuronCore-v1 hardware pages"
_SCHEMA = "Neuron profiler schema reference"
_CLOCK = "not published; the base clock"


def _assumed(constant: Constant) -> Constant:
    return Constant(
        constant.value, constant.unit, "not published; the value of NeuronCore-v2", "assumed"
    )


CONSTANTS = {name: _assumed(constant) for name, constant in core_v2.CONSTANTS.items()} | {
    "clocks_ghz.tensor": Constant(1.0, "GHz", _CLOCK, "assumed"),
    "clocks_ghz.vector": Constant(1.0, "GHz", _CLOCK, "assumed"),
    "clocks_ghz.scalar": Constant(1.0, "GHz", _CLOCK, "assumed"),
    "clocks_ghz.gpsimd": Constant(1.0, "GHz", _CLOCK, "assumed"),
    "clocks_ghz.sync": Constant(1.0, "GHz", _CLOCK, "assumed"),
    "clocks_ghz.base": Constant(1.0, "GHz", _SCHEMA, "high"),
    "tensor_passes.bf16": Constant(
        2.0, "passes", "16 TFLOPS at 1 GHz on 128 x 128 elements", "low"
    ),
    "tensor_passes.f16": Constant(2.0, "passes", "16 TFLOPS at 1 GHz on 128 x 128 elements", "low"),
    "hbm_bytes_per_ns": Constant(13.4, "bytes/ns", f"{_PAGE}: 50 GiB/s over 4 cores", "medium"),
    "peak_flops.bf16": Constant(16e12, "flop/s", _PAGE, "high"),
    "peak_flops.f16": Constant(16e12, "flop/s", _PAGE, "high"),
}

CAPABILITIES = {
    name: Capability(each.is_present, "not published; as NeuronCore-v2")
    for name, each in core_v2.CAPABILITIES.items()
} | {
    "is_documented": Capability(False, f"{_PAGE} alone"),
    "has_nki": Capability(False, "NKI nki.isa.nc_version: from NeuronCore-v2 on"),
}

CORE_V1 = build_arch("core_v1", 1, CONSTANTS, CAPABILITIES, fabrics.INF1)

TARGETS = (
    build_target(
        "inf1", CORE_V1, chip_hbm_gib=8, lncs=(1,),
        source="Inferentia hardware page", is_compiled=False,
    ),
)  # fmt: skip
