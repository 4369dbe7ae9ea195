"""A model has one NEFF for all hash seeds, numbers of jobs and versions of Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import glia
from support.corpus import BY_NAME, hlo_bytes

REPOSITORY = Path(__file__).parents[2]
MODELS = ("attention", "cond", "conv_nchw", "scatter_add")
PRINT_DIGESTS = """
import hashlib, sys
from pathlib import Path
import numpy as np
import glia, glia.alternatives
from glia.kernels.softmax import softmax
from glia.neff.package import Neff
from glia.nki.run.trace import trace

glia.alternatives.SMALLEST_PARALLEL = 0
folder, jobs = Path(sys.argv[1]), int(sys.argv[2])
for path in sorted(folder.glob("*.pb")):
    data = glia.compile(path, auto_cast="all", num_parallel_jobs=jobs).to_bytes()
    print(path.name, hashlib.sha256(data).hexdigest())
program = trace(softmax, np.zeros((128, 64), np.float32))
print("softmax", hashlib.sha256(Neff((program,)).to_bytes()).hexdigest())
"""


def _digests(folder: Path, python: str, hash_seed: str, jobs: int) -> str:
    path = os.pathsep.join(str(REPOSITORY / each) for each in ("src", "dropin/src"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "NEURON_CC_FLAGS": ""}
    ended = subprocess.run(
        [python, "-c", PRINT_DIGESTS, str(folder), str(jobs)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        (folder / f"{name}.pb").write_bytes(hlo_bytes(BY_NAME[name]))
    (folder / "two_cores.pb").write_bytes(_divided())
    return folder


def _divided() -> bytes:
    """A model that two cores share: rows that are normalised between products."""

    def forward(x, up, down):  # type: ignore[no-untyped-def]
        y = jnp.tanh(x @ up) @ down
        y = y / (1 + jnp.abs(y).max(-1, keepdims=True))
        return x + jnp.tanh(y @ up) @ down

    shapes = ((128, 1024), (1024, 2816), (2816, 1024))
    lowered = jax.jit(forward).lower(*(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes))
    data: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    assert len(glia.compile(data).programs) == 2
    return data


@pytest.fixture(scope="module")
def wanted(models: Path) -> str:
    return _digests(models, sys.executable, "0", 1)


@pytest.mark.parametrize("hash_seed, jobs", [("1", 1), ("4294967295", 8)])
def test_hash_seeds_and_jobs_change_no_byte(
    hash_seed: str, jobs: int, models: Path, wanted: str
) -> None:
    assert _digests(models, sys.executable, hash_seed, jobs) == wanted
    assert len(set(wanted.splitlines())) == len(MODELS) + 2


@cache
def other_pythons() -> tuple[str, ...]:
    """Interpreters of other versions on the path that have what glia needs."""
    found = (shutil.which(f"python3.{minor}") for minor in (11, 12, 13))
    return tuple(python for python in found if python and _has_dependencies(python))


def _has_dependencies(python: str) -> bool:
    program = "import numpy, ml_dtypes, google.protobuf, threadpoolctl, llvmlite, click"
    ended = subprocess.run([python, "-c", program], capture_output=True, check=False)
    return ended.returncode == 0


@pytest.mark.nightly
def test_versions_of_python_change_no_byte(models: Path, wanted: str) -> None:
    if not other_pythons():
        pytest.skip("no other Python here has the packages that glia needs")
    for python in other_pythons():
        assert _digests(models, python, "0", 1) == wanted, python
