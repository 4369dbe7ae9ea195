"""What `--model-type` changes: how nests of a family of models are tiled, staged and unrolled.

A family's settings are tried beside those of generic models, and the faster program is kept
(`glia.alternatives`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelFamily:
    """Settings of the passes for a family of models."""

    smallest_tile: int = 512  # elements per partition below which fixed costs show
    hoist_bytes: int = 24 * 1024  # per partition: of a load that is read once instead of often
    unrolls_more: bool = False  # loops are unrolled at -O2 as far as at -O3


FAMILIES: Mapping[str, ModelFamily] = {
    "generic": ModelFamily(),
    # Nests of a layer are short and depend on each other: more iterations side by side fill engines
    "transformer": ModelFamily(unrolls_more=True),
    # Besides, what a nest without a contraction reads again is large: it is loaded once and kept
    "unet-inference": ModelFamily(hoist_bytes=64 * 1024, unrolls_more=True),
}
