"""The fabric of every instance type, by its name.

Rates are one way; pages give those of a chip, all of its links and both ways together.
"""

from __future__ import annotations

from dataclasses import replace

from glia.arch.constant import Constant
from glia.arch.fabric import Fabric, Row

_TRN1 = "Trn1 architecture page"
_INF2 = "Inf2 architecture page"
_EC2_INF2 = "EC2 page of Inf2"
_TRN2 = "Trn2 architecture page"
_TRN3 = "Trn3 architecture page"
_HOP = "about collectives: 15 us from HBM to HBM, Trn2"


def _rate(value: float, source: str, confidence: str = "medium") -> Constant:
    return Constant(value, "bytes/ns", source, confidence)


TRN1 = Fabric(
    "trn1.32xlarge", ranks=2,
    rows=(Row(4, _rate(48, f"{_TRN1}: 384 GB/s, 4 links")),) * 2,
    network_rate=_rate(6.25, f"{_TRN1}: EFA, 800 Gbps over 16 chips", "high"),
    network_hop=Constant(15000, "ns", _HOP, "low"),
    has_flat_ring=True,
)  # fmt: skip
TRN1N = replace(
    TRN1,
    instance="trn1n.32xlarge",
    rows=(Row(4, _rate(96, f"{_TRN1}: 768 GB/s, 4 links")),) * 2,
    network_rate=_rate(12.5, f"{_TRN1}: EFA, 1600 Gbps over 16 chips", "high"),
)
INF2 = Fabric(
    "inf2.48xlarge", ranks=2,
    rows=(Row(12, _rate(51.5, f"{_INF2}: 96 GiB/s a link, in a ring")),),
    network_rate=_rate(1.04, f"{_EC2_INF2}: 100 Gbps over 12 chips", "low"),
    network_hop=Constant(15000, "ns", _HOP, "assumed"),
)  # fmt: skip
TRN2 = Fabric(
    "trn2.48xlarge", ranks=8,
    rows=(Row(4, _rate(128, f"{_TRN2}: 1024 GB/s, 4 links")),) * 2,
    network_rate=_rate(25, "about collectives: EFA, 200 Gbps a chip", "high"),
    network_hop=Constant(15000, "ns", _HOP, "high"),
)  # fmt: skip
TRN2_ULTRASERVER = replace(
    TRN2,
    instance="trn2-ultraserver",
    rows=(Row(4, _rate(64, f"{_TRN2}: 256 GB/s, 2 links, a ring of instances")), *TRN2.rows),
)
TRN3_GEN2 = Fabric(
    "trn3-gen2-ultraserver", ranks=8,
    rows=(
        Row(2, _rate(128, f"{_TRN3}: 2 links of PCIe 6 x8 between racks")),
        Row(18, _rate(320, f"{_TRN3}: 5 links of PCIe 6 x8 to a rack's switch"), is_switched=True),
        Row(4, _rate(256, f"{_TRN3}: 4 links of PCIe 6 x8 to a server's switch"), is_switched=True),
    ),
    network_rate=_rate(25, f"{_TRN3}: EFA, 28,800 Gbps over 144 chips", "high"),
    network_hop=Constant(15000, "ns", _HOP, "assumed"),
)  # fmt: skip
TRN3_GEN1 = replace(
    TRN3_GEN2,
    instance="trn3-gen1-ultraserver",
    rows=(
        Row(2, _rate(128, f"{_TRN3}: direct links, as between racks of Gen2", "assumed")),
        Row(32, _rate(576, f"{_TRN3}: a switch, as Gen2's two", "assumed"), is_switched=True),
    ),
)
INF1 = Fabric(
    "inf1.24xlarge", ranks=4,
    rows=(Row(16, _rate(17.2, "Inf1 architecture page: 16 GiB/s a link")),),
    network_rate=_rate(0.78, "Inf1 architecture page: 100 Gbps over 16 chips", "high"),
    network_hop=Constant(15000, "ns", _HOP, "assumed"),
)  # fmt: skip


def of_chips(fabric: Fabric, instance: str, chips: int, network_rate: Constant) -> Fabric:
    """A smaller instance: chips in one row like the fabric's last, or one chip."""
    rows = (replace(fabric.rows[-1], chips=chips),) if chips > 1 else ()
    return replace(fabric, instance=instance, rows=rows, network_rate=network_rate)


TRN1_CHIP = of_chips(TRN1, "trn1.2xlarge", 1, _rate(3.1, f"{_TRN1}: up to 25 Gbps", "high"))
INF2_SMALL = of_chips(INF2, "inf2.xlarge", 1, _rate(1.9, f"{_EC2_INF2}: up to 15 Gbps", "low"))
INF2_CHIP = of_chips(INF2, "inf2.8xlarge", 1, _rate(3.1, f"{_EC2_INF2}: up to 25 Gbps", "low"))
INF2_HALF = of_chips(
    INF2, "inf2.24xlarge", 6, _rate(1.04, f"{_EC2_INF2}: 50 Gbps over 6 chips", "low")
)
