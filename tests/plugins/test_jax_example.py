"""The example with JAX runs, and learns what it is to learn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import glia
from house.source import REPOSITORY
from plugins.neuron_programs import neuron_environment


@pytest.mark.nightly
def test_a_bert_in_jax_learns_on_the_platform_and_is_served_from_its_neff(tmp_path: Path) -> None:
    output = tmp_path / "bert.neff"
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples/finetune_bert_jax.py"), "--steps", "15",
         "--output", str(output)],
        capture_output=True, text=True, check=True, env=neuron_environment(tmp_path / "installed"),
    )  # fmt: skip
    first, last = map(float, re.findall(r"loss (\S+) -> (\S+)", done.stdout)[0])
    assert last < first / 2
    assert "on NeuronCore 0" in done.stdout
    assert int(re.findall(r"(\d+) of 20", done.stdout)[0]) >= 18
    assert glia.load(output).neff.target == "trn2"
