"""What a process of torch_xla says of what is wrong, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch_xla
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call

TRAIN = """
import torch, torch_xla
device = torch_xla.device()
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(2, 4, device=device)).sum().backward()
    optimizer.step()
    torch_xla.sync()
print("trained", model.weight.sum().item())
"""
DIVIDE = """
import numpy, torch, torch_xla
from torch_xla import runtime
from torch_xla.distributed import spmd
runtime.use_spmd()
device, count = torch_xla.device(), runtime.global_runtime_device_count()
mesh = spmd.Mesh(numpy.arange(count), (count,), ("cores",))
x = torch.arange(32.0).reshape(8, 4).to(device)
spmd.mark_sharding(x, mesh, ("cores", None))
print((x @ torch.ones(4, 2).to(device)).sum(0).cpu().tolist())
"""
OLDER = """
import sys, types
version = sys.modules["torch_xla.version"] = types.ModuleType("torch_xla.version")
version.__version__ = "2.8.1"
import torch_xla
"""
WITHOUT_GLIA = """
import sys, torch_xla
sys.modules["glia"] = None
torch_xla.device()
"""
DEVICE = "import torch_xla; print(torch_xla.device())"


def run(script: str, **changed: str | None) -> subprocess.CompletedProcess[str]:
    """A process of its own that runs a script, with changed variables of the environment."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, **changed}
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={name: value for name, value in environment.items() if value is not None},
        timeout=300,
        check=False,
    )


def test_a_process_ends_well_while_tensors_are_alive() -> None:
    found = run(TRAIN)
    assert "trained" in found.stdout
    assert found.returncode == 0, found.stderr


def test_the_device_is_found_where_nothing_names_it() -> None:
    found = run(DEVICE, PJRT_DEVICE=None)
    assert found.stdout == "xla:0\n" and "Setting PJRT_DEVICE=NEURON" in found.stderr


def test_the_host_stays_the_host() -> None:
    script = "import torch_xla, torch_xla.runtime as r; print(torch_xla.device(), r.device_type())"
    assert run(script, PJRT_DEVICE="CPU").stdout == "xla:0 CPU\n"


def test_a_program_is_divided_among_devices() -> None:
    found = run(DIVIDE)
    assert found.stdout == "[496.0, 496.0]\n", found.stderr


@pytest.mark.parametrize(
    "script, environment, said",
    [
        (DEVICE, {"NEURON_RT_NUM_CORES": "abc"}, "RuntimeError: [GLIA701] NEURON_RT_NUM_CORES=abc"),
        (DEVICE, {"NEURON_RT_VISIBLE_CORES": "0,7"}, "RuntimeError: [GLIA701]"),
        (DEVICE, {"NEURON_PJRT_WORLD_SIZE": "2"}, "RuntimeError: [GLIA702]"),
        (OLDER, {}, "UnknownTorchXla: [GLIA714] torch_xla 2.8.1"),
        (WITHOUT_GLIA, {}, "[GLIA712] the Python that loaded libneuronpjrt.so"),
        (DEVICE, {"XDG_CACHE_HOME": "/proc/none"}, "UnwritableOutput: [GLIA204]"),
    ],
    ids=["cores", "ranges", "processes", "release", "glia", "cache"],
)
def test_what_is_wrong_has_a_code(script: str, environment: dict[str, str], said: str) -> None:
    found = run(script, **environment)
    assert found.returncode == 1
    assert said in found.stderr


def test_what_the_compiler_refuses_is_an_error_and_leaves_the_device_usable() -> None:
    x = torch.ones(3).to(torch_xla.device())
    result = stablehlo_custom_call((x,), "unheard", [[3]], [torch.float32])
    with pytest.raises(RuntimeError, match="NCC_EVRF015"):
        result.cpu()
    assert (x * 2).cpu().tolist() == [2, 2, 2]
