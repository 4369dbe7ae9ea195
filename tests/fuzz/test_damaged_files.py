"""Whatever a file holds, using it ends in success or in an error with a code, soon and in 2 GiB.

A trial takes a damaged file as far as it goes: read, checked, compiled, run, timed; see `kinds`.
"""

from __future__ import annotations

import pytest

from fuzz.kinds import KINDS
from fuzz.trials import run_trials

# Trials of every run of the suite; `make nightly` makes NIGHTLY of each kind
EACH_TIME = {
    "hlo": 40,
    "stablehlo": 20,
    "bytecode": 20,
    "neff-bytes": 60,
    "neff-integers": 60,
    "graph-text": 20,
    "tile-text": 30,
    "machine-text": 30,
    "arrays": 150,
}
NIGHTLY = 10_000


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_damaged_file_ends_in_success_or_a_code(name: str) -> None:
    assert _findings(name, range(EACH_TIME[name])) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(KINDS))
def test_ten_thousand_damaged_files_end_in_success_or_a_code(name: str) -> None:
    assert _findings(name, range(EACH_TIME[name], NIGHTLY)) == []


def _findings(name: str, seeds: range) -> list[str]:
    return [
        f"{each.seed}: {each.status} {each.text}\n{each.where}"
        for each in run_trials(KINDS[name], seeds)
        if each.is_finding
    ]
