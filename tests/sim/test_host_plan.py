"""A plan that was kept is the plan that would be made, and is taken for its program only."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import glia
from glia.arch.instances import COMPILED_TARGETS
from glia.base.machine_code.object_cache import ObjectCache
from glia.machine.binary.errors import DamagedNeff
from glia.machine.ir import While
from glia.neff import read
from glia.neff.package import Neff
from glia.runtime.model import Model
from glia.sim.host import host_plan
from glia.sim.host.host_program import HostProgram
from glia.sim.host.library import CodeLibrary
from glia.sim.host.table import Table
from glia.sim.host.table_file import TableFile, read_table_file, table_file
from glia.sim.host.threads.pool import host_pool
from glia.sim.watchdog import condition_loc

MODULES = ("host_plan", "host_program", "instruction_classes", "support", "table")
UNKEPT = ("instructions",)  # fields of a table that a file leaves out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the object code and plans of a process of its own are kept."""
    host_pool()  # its code must stay
    made = CodeLibrary(ObjectCache(tmp_path / "kept"))
    for module in MODULES:
        path = f"glia.sim.host.{module}.host_library"
        monkeypatch.setattr(path, lambda: made, raising=False)
    return tmp_path / "kept"


def layer(x: Any, w: Any) -> Any:
    scores = jax.nn.softmax(x @ w, axis=-1)
    return jnp.tanh(scores @ w.T) + x


def rounded(x: Any, w: Any) -> Any:
    return (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32).sum(0)


def looked_up(x: Any, w: Any) -> Any:
    return w[jnp.abs(x[:, 0] * 20).astype(jnp.int32) % 64] + jnp.log1p(jnp.abs(x))


def doubled_often(x: Any, w: Any) -> Any:
    return jax.lax.while_loop(lambda v: jnp.abs(v).max() < 1e6, lambda v: 2 * v @ w, x)


MODELS = {
    "layer": layer,
    "rounded": rounded,
    "sorted": lambda x, w: jnp.sort(x @ w, axis=1),
    "looked up": looked_up,
    "doubled often": doubled_often,
}
X = np.random.default_rng(0).standard_normal((160, 64), np.float32)
W = np.random.default_rng(1).standard_normal((64, 64), np.float32)


def compiled(name: str, target: str = "trn2", weights: Any = None) -> bytes:
    """A NEFF; with weights these are constants of it."""
    function = MODELS[name]
    if weights is None:
        return glia.compile(jax.jit(function).lower(X, W), target=target).to_bytes()
    lowered = jax.jit(lambda x: function(x, weights)).lower(X)
    return glia.compile(lowered, target=target).to_bytes()


def inputs(host: HostProgram) -> dict[str, Any]:
    return dict(zip((b.name for b in host.program.inputs), (X, W), strict=False))


def made(data: bytes) -> HostProgram:
    return HostProgram(Neff.from_bytes(data).program)


@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_a_kept_plan_is_the_one_that_would_be_made(name: str, target: str, folder: Path) -> None:
    data = compiled(name, target)
    first, second = made(data), made(data)
    assert first.plan.builder is not None
    assert second.plan.builder is None
    assert len([*folder.glob("plan_*")]) == 1
    for each in fields(Table):
        if each.name not in UNKEPT:
            found, wanted = getattr(second.table, each.name), getattr(first.table, each.name)
            assert _plain(found) == _plain(wanted), each.name
    assert second.plan.written == first.plan.written
    assert second.left_out == first.left_out
    executed = {id(each) for each in (*first.table.in_python, *first.table.guarded)}
    named = {n: each for n, each in first.table.instructions.items() if id(each) in executed}
    assert second.table.instructions == named
    found = {n: second.instruction(n) for n in first.table.instructions}
    assert found == first.table.instructions
    results = [host.run(inputs(host)) for host in (first, second)]
    for output, wanted in results[0].items():
        assert results[1][output].tobytes() == wanted.tobytes()


def _plain(value: Any) -> Any:
    """What is equal for equal arrays, and for loops of which copies were left out."""
    if isinstance(value, list) and value and isinstance(value[0], While):
        return [(each.register, condition_loc(each)) for each in value]
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return [(each.dtype, each.shape, each.tobytes()) for each in value]
    return value


def test_most_models_keep_a_plan(folder: Path) -> None:
    """Else the others would say nothing."""
    made(compiled("layer"))
    assert made(compiled("layer")).plan.builder is None
    assert len([*folder.glob("plan_*")]) == 1


def test_other_weights_have_the_same_plan_and_their_own_results(folder: Path) -> None:
    weights = W, W + 1
    hosts = [made(compiled("layer", weights=each)) for each in weights]
    assert [host.plan.builder is None for host in hosts] == [False, True]
    for host, each in zip(hosts, weights, strict=True):
        (found,) = host.run(inputs(host)).values()
        np.testing.assert_allclose(found, layer(X, each), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", ["program", "threads", "text", "numbers"])
def test_another_program_host_or_text_has_another_plan(
    change: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(compiled("layer"))
    if change == "threads":
        monkeypatch.setattr(host_plan, "lanes", lambda: 7)
    elif change == "text":
        monkeypatch.setattr(host_plan, "_text_digest", lambda: "other")
    elif change == "numbers":
        monkeypatch.setattr(np, "__version__", "0")
    data = compiled("rounded" if change == "program" else "layer")
    assert made(data).plan.builder is not None
    assert len([*folder.glob("plan_*")]) == 2


def test_a_damaged_plan_is_made_again(folder: Path) -> None:
    data = compiled("layer")
    wanted = made(data)
    (path,) = folder.glob("plan_*")
    whole = path.read_bytes()
    for damage in (whole[:-1], b"", bytes([whole[0] ^ 1]) + whole[1:], whole[:40] + b"x"):
        path.write_bytes(damage)
        host = made(data)
        assert host.plan.builder is not None
        assert path.read_bytes() == whole
        assert host.table.words == wanted.table.words


def test_a_plan_whose_code_is_gone_is_made_again(folder: Path, monkeypatch: Any) -> None:
    data = compiled("layer")
    made(data)
    for path in folder.glob("nest_*"):
        path.unlink()
    fresh = CodeLibrary(ObjectCache(folder))
    for module in MODULES:
        monkeypatch.setattr(f"glia.sim.host.{module}.host_library", lambda: fresh, raising=False)
    host = made(data)
    assert host.plan.builder is not None
    host.run(inputs(host))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b"x\x9c", b'{"tiles": [["none", ""]]}', b'{"tiles": 1}']
)
def test_what_is_no_table_is_none(data: bytes) -> None:
    program = Neff.from_bytes(compiled("layer")).program
    host = HostProgram(program)
    for each in (data, zlib.compress(data)):
        assert read_table_file(each, program, host.executor.memories) is None


@pytest.mark.usefixtures("folder")
def test_arrays_of_every_dtype_are_kept() -> None:
    program = Neff.from_bytes(compiled("layer")).program
    host = HostProgram(program)
    arrays = [np.ones(2, ml_dtypes.bfloat16), np.arange(6).reshape(2, 3), np.zeros((), bool)]
    table = replace(host.table, numbers=arrays)
    assert host.plan.builder is not None
    bases = {name: tile.name for name, tile in host.plan.builder.bases.items()}
    data = table_file(TableFile(table, bases, {}, [], []), program)
    assert data is not None
    found = read_table_file(data, program, host.executor.memories)
    assert found is not None
    assert _plain(found.table.numbers) == _plain(arrays)


def test_the_next_process_takes_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "model.neff"
    path.write_bytes(compiled("layer"))
    text = (
        "import sys, glia\n"
        "from glia.sim.host.host_program import host_program\n"
        "model = glia.load(sys.argv[1])\n"
        "print(host_program(model.neff.program).plan.builder is None)\n"
    )
    environment = os.environ | {"GLIA_HOST_CACHE": str(tmp_path / "cache")}
    said = [
        subprocess.run(
            [sys.executable, "-c", text, str(path)],
            env=environment, check=True, capture_output=True, text=True,
        ).stdout.strip()
        for _ in range(2)
    ]  # fmt: skip
    assert said == ["False", "True"]


def test_only_the_newest_plans_stay(tmp_path: Path) -> None:
    kept = ObjectCache(tmp_path)
    kept.store("nest_0", b"code")
    for number in range(5):
        kept.store(f"plan_{number}", b"table", most=2)
        os.utime(tmp_path / f"plan_{number}.o", (number, number))
    assert {path.name for path in tmp_path.iterdir()} == {"nest_0.o", "plan_3.o", "plan_4.o"}


def is_prepared(model: Model) -> bool:
    """Whether the program of a model is ready for the host."""
    return model.neff.program.cache.get(HostProgram) is not None


def test_a_large_file_is_made_ready_while_its_hash_is_computed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.neff"
    path.write_bytes(compiled("layer"))
    monkeypatch.setattr(read, "LARGE_BYTES", 0)
    assert not is_prepared(glia.load(path, device="host"))  # nothing is planned yet
    expected = glia.load(path, device="host")(X, W)
    model = glia.load(path, device="host")
    assert is_prepared(model)
    assert model(X, W)[0].tobytes() == expected[0].tobytes()
    assert not is_prepared(glia.load(path, device="reference"))
    assert not is_prepared(glia.load(path, device="host", check=True))
    monkeypatch.undo()
    small = glia.load(path, device="host")
    assert not is_prepared(small)


def test_a_damaged_file_is_refused_whatever_was_made_ready(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.neff"
    lowered = jax.jit(lambda x: layer(x, W)).lower(X)
    data = bytearray(glia.compile(lowered, fast_loading_neuron_binaries=True).to_bytes())
    path.write_bytes(data)
    glia.load(path, device="host")(X)
    prepared: list[int] = []
    monkeypatch.setattr(read, "LARGE_BYTES", 0)
    monkeypatch.setattr("glia.runtime.model._prepare_on_host", lambda *_: prepared.append(1))
    glia.load(path, device="host")
    place = data.find(W.tobytes()[:64])
    assert place > 0
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedNeff, match="hash"):
        glia.load(path, device="host")
    assert prepared == [1, 1]
