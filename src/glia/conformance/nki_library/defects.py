"""Failures of the suite that are its own, or those of an earlier release, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glia.conformance.suite_outcomes import EXPLAINED, FAULTS, SuiteOutcome


@dataclass(frozen=True)
class SuiteDefect:
    """A failure that the suite's own files cause; `text` is a part of its reason."""

    file: str  # how the path of the test file begins; "" for any
    text: str
    reason: str


DEFECTS = (
    SuiteDefect(
        "", "IndentationError: unexpected indent", "mlp.py of the repository does not parse"
    ),
    SuiteDefect(
        "core/qkv/test_qkv_tkg.py",
        "name 'Platforms' is not defined",
        "the test file uses a name that it does not import",
    ),
    SuiteDefect(
        "core/attention/test_gen_mask_tkg.py",
        "KeyError: 'mask_out_hbm'",
        "the test looks up an argument by another name than it gave it",
    ),
    SuiteDefect(
        "core/max/test_cascaded_max_utils.py",
        "(folded_load_store_dst_kernel), without",
        "its kernel clears all rows on both cores, and does not wait before each writes its own",
    ),
    SuiteDefect(
        "core/utils/test_quantize_to_mx.py",
        "Validation failed for ['out_data_hbm'",
        "the reference has the scales of earlier releases: since NKI 0.5 they are twice as large "
        "(release notes of Neuron 2.31)",
    ),
    SuiteDefect(
        "experimental/subkernels/",
        "No module named 'nkilib_src.",
        "the kernel is not in the repository",
    ),
)


def explain(outcome: SuiteOutcome) -> SuiteOutcome:
    """The outcome, explained where a defect of the suite is its cause."""
    if outcome.status not in FAULTS:
        return outcome
    for known in DEFECTS:
        if outcome.file.startswith(known.file) and known.text in outcome.reason:
            return replace(outcome, status=EXPLAINED, reason=known.reason)
    return outcome
