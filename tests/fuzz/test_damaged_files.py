"""Whatever a file holds, using it ends in success or in an error with a code, soon and in 2 GiB.

A trial takes a damaged file as far as it goes: read, checked, compiled, run, timed; see `kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fuzz.kinds import KINDS
from fuzz.trials import run_trials

# Trials of every run of the suite; `make nightly` makes NIGHTLY of each kind
EACH_TIME = {
    "hlo": 20,
    "stablehlo": 10,
    "bytecode": 10,
    "neff-bytes": 30,
    "neff-integers": 30,
    "graph-text": 10,
    "tile-text": 15,
    "machine-text": 15,
    "host-programs": 50,
    "mxnet-symbols": 20,
    "mxnet-parameters": 20,
    "arrays": 75,
    "traces": 75,
    "cache-entries": 10,
    "custom-calls": 10,
}
NIGHTLY = 10_000


def test_damaged_files_end_in_success_or_a_code() -> None:
    assert _findings({name: range(count) for name, count in EACH_TIME.items()}) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(KINDS))
def test_ten_thousand_damaged_files_end_in_success_or_a_code(name: str) -> None:
    assert _findings({name: range(EACH_TIME[name], NIGHTLY)}) == []


def test_the_times_are_those_of_every_kind() -> None:
    assert EACH_TIME.keys() == KINDS.keys()


def _findings(runs: Mapping[str, range]) -> list[str]:
    return [
        f"{each.kind} {each.seed}: {each.status} {each.text}\n{each.where}"
        for each in run_trials(runs)
        if each.is_finding
    ]
