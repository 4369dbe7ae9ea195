"""The examples with PyTorch run, and learn what they are to learn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from house.source import REPOSITORY


def test_a_bert_learns_on_the_device_and_is_served_from_its_trace(tmp_path: Path) -> None:
    paths = os.pathsep.join(str(REPOSITORY / each) for each in ("src", "dropin/src"))
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples/finetune_bert.py"), "--output", "bert.pt"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    first, last = map(float, re.findall(r"loss (\S+) -> (\S+)", done.stdout)[0])
    assert last < first / 2
    assert int(re.findall(r"(\d+) of 20", done.stdout)[0]) >= 18
    assert (tmp_path / "bert.pt").stat().st_size > 0
