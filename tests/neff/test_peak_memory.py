"""What a model takes of the host's memory while it is loaded and runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glia.machine.builder.program_builder import ProgramBuilder
from glia.neff.package import Neff

MIB = 1 << 20
WEIGHTS_MIB = 256
REPORTED = """
import sys, numpy as np, glia
import glia.sim.host.host_program

def most():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024

before = most()
model = glia.load(sys.argv[1], device="host")
(y,) = model(np.zeros((128, 64), np.float32))
assert y[3, 5] == 3 * 64 + 5
print(most() - before)
"""


@pytest.mark.parametrize("is_compressed", [True, False])
def test_a_model_takes_its_tensors_and_little_more(is_compressed: bool, tmp_path: Path) -> None:
    b = ProgramBuilder("weights")
    x, y = b.input("x", (128, 64), "f32"), b.output("y", (128, 64), "f32")
    table = np.arange(WEIGHTS_MIB * MIB // 4, dtype=np.int32).astype(np.float32).reshape(-1, 64)
    w = b.constant(table, "w")
    t, s = b.sbuf((128, 64), name="t"), b.sbuf((128, 64), name="s")
    b.dma_copy(t, w[:128])
    b.dma_copy(s, x)
    b.tensor_tensor(t, t, s, "add")
    b.dma_copy(y, t)
    path = tmp_path / "model.neff"
    Neff((b.finish(),), is_compressed=is_compressed).save(path)
    command = [sys.executable, "-c", REPORTED, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    taken = int(done.stdout)
    assert taken < 1.25 * WEIGHTS_MIB, f"{taken} MiB for {WEIGHTS_MIB} MiB of weights"
    assert is_compressed <= (taken > WEIGHTS_MIB / 2)  # the number is of this process
