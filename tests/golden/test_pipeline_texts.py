"""What small programs look like at every boundary of the pipeline; `--bless` accepts a change.

A change of code generation shows as a diff of tests/golden/pipeline/*.txt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import PassResult, run_pipeline, text_of
from glia.pipeline import PIPELINE
from support.corpus import BY_NAME, hlo_bytes
from support.golden_text import without_lines

Golden = Callable[[str, str], None]

BOUNDARIES = (
    "import", "simplify", "build", "schedule_nests", "emit", "schedule", "place",
    "insert_semaphores",
)  # fmt: skip

ON_TRN2 = (
    "reverse", "reshape", "transpose_4d", "outer", "one_hot", "stack", "pad", "concatenate",
    "bitcast", "empty", "iota", "broadcast", "is_finite", "batched", "odd_dot_general",
    "matmul", "matmul_bf16", "matmul_f16_f32", "mlp", "cnn", "conv_nhwc_strided",
    "conv_depthwise", "conv_3d", "max_pool", "average_pool", "dilated_window", "sums",
    "reduce_logic", "softmax", "rms_norm", "gather_clamped", "scatter_add", "dynamic_slice",
    "dynamic_update_slice", "cond", "fori_loop", "complex", "cumulative", "gelu",
)  # fmt: skip

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {"target": "trn2"}) for name in ON_TRN2},
    "matmul_on_trn1": ("matmul", {"target": "trn1"}),
    "transpose_on_trn1": ("transpose", {"target": "trn1"}),
    "matmul_i32_on_trn1": ("matmul_i32", {"target": "trn1"}),
    "softmax_on_trn3": ("softmax", {"target": "trn3"}),
    "mlp_cast_to_bf16": ("mlp", {"target": "trn2", "auto_cast": "matmult"}),
    "matmul_at_O1": ("matmul", {"target": "trn2", "optlevel": 1}),
    "matmul_at_O3": ("matmul", {"target": "trn2", "optlevel": 3}),
}


def boundary_texts(name: str, options: dict[str, Any]) -> str:
    """The text of a corpus program after each of BOUNDARIES, under a heading each."""
    sections: list[str] = []

    def observe(step: PassResult) -> None:
        if step.name in BOUNDARIES:
            sections.append(f"==== {step.name} ({step.level})\n{text_of(step.level, step.ir)}\n")

    run_pipeline(
        read_module(hlo_bytes(BY_NAME[name])),
        CompileOptions(**{"auto_cast": "none", **options}),
        observe,
    )
    return "\n".join(sections)


@pytest.mark.parametrize("case", CASES)
def test_every_boundary_has_the_expected_text(case: str, golden: Golden) -> None:
    name, options = CASES[case]
    golden(f"pipeline/{case}", without_lines(boundary_texts(name, options)))


def test_boundaries_are_passes_that_run_once() -> None:
    names = [each.name for each in PIPELINE]
    assert [names.count(each) for each in BOUNDARIES[1:]] == [1] * (len(BOUNDARIES) - 1)
