"""Kernels in the compile cache: found by what was recorded, and by all that the back end reads."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import glia
from glia import nki
from glia.base.errors import CompileError
from glia.cache.kernel_module import RECORDED_KERNEL
from glia.cache.store import HLO
from glia.cli.glia import main
from glia.nki import beta1
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.beta1 import language as beta1_nl
from glia.nki.run import trace as tracing
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import normal, stored

Cores = Sequence[Any]
X = np.abs(normal(8, 16)) + 1


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NEURON_CC_FLAGS", raising=False)
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Cores]:
    """The recordings that were really compiled."""
    seen: list[Cores] = []
    real = tracing._compile

    def counted(cores: Cores, *rest: Any, **how: Any) -> Any:
        seen.append(cores)
        return real(cores, *rest, **how)

    monkeypatch.setattr(tracing, "_compile", counted)
    return seen


def _entries(cache: Path) -> list[str]:
    return sorted(place.name for place in cache.glob("neuronxcc-*/MODULE_*"))


def _two_engines(t: NkiTensor, scale: float = 2.0) -> NkiTensor:
    x = nl.load(t)
    a, b = (nl.ndarray(t.shape, t.dtype) for _ in range(2))
    nisa.reciprocal(dst=a, data=x, name="recip")
    nisa.activation(dst=b, op=nl.exp, data=x, name="power", scale=scale)
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add, name="sum")
    return stored(a)


def _strict(t: NkiTensor) -> NkiTensor:
    x = nl.load(t)
    a, b = (nl.ndarray(t.shape, t.dtype) for _ in range(2))
    with nl.no_reorder():
        nisa.reciprocal(dst=a, data=x)
        nisa.activation(dst=b, op=nl.exp, data=x)
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
    return stored(a)


def _looping(t: NkiTensor) -> NkiTensor:
    out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)

    def body(i: Any) -> None:
        part = nl.load(t[:, nl.ds(i, 4)])
        nisa.tensor_scalar(part, part, nl.add, 1.0, engine=nisa.engine.gpsimd)
        nisa.dma_copy(out[:, nl.ds(i, 4)], part)

    nl.fori_loop(0, 16, body, step=4)
    return out


def _on_cores(t: NkiTensor) -> NkiTensor:
    rank = nl.program_id(0)
    out = nl.ndarray((2, *t.shape), t.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out[rank], nl.add(nl.load(t), 10.0 * rank))
    nl.device_print("first", nl.load(t)[:, :2])
    return out


def _of_beta1(t: Any) -> Any:
    out = beta1_nl.ndarray(t.shape, dtype=t.dtype, buffer=beta1_nl.shared_hbm)
    beta1_nl.store(out, beta1_nl.exp(beta1_nl.load(t)))
    return out


KERNELS: dict[str, Callable[[], Any]] = {
    "two engines": lambda: nki.jit(_two_engines),
    "edges": lambda: nki.jit(_two_engines).with_schedule([("power", "recip")]),
    "strict": lambda: nki.jit(_strict),
    "looping": lambda: nki.jit(_looping),
    "cores": lambda: nki.jit(_on_cores)[2],
    "beta 1": lambda: beta1.benchmark(_of_beta1),
}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (name, target)
        for name, target in itertools.product(KERNELS, ("trn1", "trn2", "trn3"))
        if name != "beta 1" and (name, target) != ("cores", "trn1")  # which has no logical cores
    ],
)
def test_the_second_compilation_is_the_first_ones_bytes(
    name: str, target: str, cache: Path, compiled: list[Cores], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    first, second = (KERNELS[name]().compile(X) for _ in range(2))
    assert len(compiled) == len(_entries(cache)) == 1
    monkeypatch.delenv("NEURON_COMPILE_CACHE_URL")
    plain = KERNELS[name]().compile(X)
    assert len(compiled) == 2
    assert first.to_bytes() == second.to_bytes() == plain.to_bytes()


def test_calls_have_the_same_results_and_effects(
    cache: Path, compiled: list[Cores], capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for _ in range(2):
        results.append(KERNELS["cores"]()(X))
        printed = capsys.readouterr().out
        assert printed.count("first ") == 2
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0][1], X + 10)

    @nki.jit
    def doubled(t: NkiTensor) -> None:
        nisa.dma_copy(t, nl.multiply(nl.load(t), 2.0))

    before = len(compiled)
    for _ in range(2):
        doubled._cache = type(doubled._cache)()
        x = X.copy()
        doubled(x)
        np.testing.assert_array_equal(x, 2 * X)
    assert len(compiled) == before + 1


def test_a_kernel_of_beta_1_is_read_with_its_notes(cache: Path, compiled: list[Cores]) -> None:
    first, second = (beta1.benchmark(_of_beta1).compile_and_profile((X,), {})[0] for _ in range(2))
    assert first.to_bytes() == second.to_bytes()
    assert first.notes == second.notes
    assert len(compiled) == len(_entries(cache)) == 1


def test_flags_of_the_environment_say_whether(
    cache: Path, compiled: list[Cores], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--no_cache")
    for _ in range(2):
        KERNELS["strict"]().compile(X)
    assert len(compiled) == 2 and not _entries(cache)
    elsewhere = cache.with_name("elsewhere")
    monkeypatch.setenv("NEURON_CC_FLAGS", f"--cache_dir={elsewhere} -O1")
    for _ in range(2):
        KERNELS["strict"]().compile(X)
    assert len(compiled) == 3 and len(_entries(elsewhere)) == 1


def _with_constant(value: float) -> Any:
    def kernel(t: NkiTensor) -> NkiTensor:
        table = nl.load(nl.shared_constant(np.full((8, 16), value, np.float32)))
        return stored(nl.add(nl.load(t), table))

    return nki.jit(kernel)


def _on_engine(engine: Any) -> Any:
    def kernel(t: NkiTensor) -> NkiTensor:
        x = nl.load(t)
        nisa.memset(x[:, 0:2], 0.0, engine=engine)
        return stored(x)

    return nki.jit(kernel)


def _with_slope(slope: float) -> Any:
    def kernel(t: NkiTensor) -> NkiTensor:
        x = nl.load(t)
        nisa.activate2(x, nl.prelu, x, 1.0, 0.0, nl.multiply, nl.add, slope)
        return stored(x)

    return nki.jit(kernel)


VARIANTS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "edges": (KERNELS["two engines"], KERNELS["edges"]),
    "other edges": (
        KERNELS["edges"], lambda: nki.jit(_two_engines).with_schedule([("recip", "power")]),
    ),
    "contents of a constant": (lambda: _with_constant(1.0), lambda: _with_constant(2.0)),
    "engine": (lambda: _on_engine(nisa.engine.vector), lambda: _on_engine(nisa.engine.gpsimd)),
    "sign of a zero": (lambda: _with_slope(0.0), lambda: _with_slope(-0.0)),
    "cores": (lambda: nki.jit(_two_engines), lambda: nki.jit(_two_engines)[2]),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_what_differs_has_an_entry_of_its_own(
    name: str, cache: Path, compiled: list[Cores], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    for number, make in enumerate(VARIANTS[name], 1):
        make().compile(X)
        assert len(compiled) == len(_entries(cache)) == number


def test_every_argument_of_a_compilation_is_part_of_its_key(
    cache: Path, compiled: list[Cores], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = KERNELS["two engines"]()
    kernel.compile(X)
    kernel.compile(X, as_written=True)
    kernel.compile(X, scale=3.0)
    kernel.compile(X[:4])
    kernel.compile(X.astype(np.float16))
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    kernel.compile(X)
    assert len(compiled) == len(_entries(cache)) == 6


class _Watched:
    """A recorder that notes what is read of it."""

    def __init__(self, session: Any, seen: set[str]) -> None:
        self._session, self._seen = session, seen

    def __getattr__(self, name: str) -> Any:
        self._seen.add(name)
        return getattr(self._session, name)


IN_TEXT = {
    "engines_chosen", "has_strict_blocks", "in_order", "keeps_order", "orders", "ranks", "shared",
    "target",
}  # fmt: skip


def test_the_back_end_reads_nothing_of_a_recorder_that_the_text_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it read besides would let two kernels share an entry whose programs differ."""
    seen: set[str] = set()
    real = tracing._compile

    def watched(cores: Cores, *rest: Any, **how: Any) -> Any:
        wrapped = [tracing._Core(_Watched(each.session, seen), each.traced) for each in cores]
        return real(wrapped, *rest, **how)

    monkeypatch.setattr(tracing, "_compile", watched)
    for name, make in KERNELS.items():
        if name == "beta 1":
            beta1.benchmark(_of_beta1)(X)
        else:
            make().compile(X)
    of_text: set[str] = set()
    real_text = tracing.recorded_text

    def text(cores: Sequence[tuple[Any, Any]], options: Any) -> str:
        return real_text([(_Watched(s, of_text), program) for s, program in cores], options)

    monkeypatch.setattr(tracing, "recorded_text", text)
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", "/nonexistent/cache")
    KERNELS["edges"]().compile(X)
    assert of_text == IN_TEXT
    assert seen - {"fixes_order"} <= of_text  # fixes_order is made of three of them
    assert {"in_order", "keeps_order", "engines_chosen", "shared"} <= seen


def test_explain_names_the_instruction_that_differs(cache: Path) -> None:
    kernel = KERNELS["two engines"]()
    kernel.compile(X)
    (first,) = _entries(cache)
    kernel.compile(X, scale=3.0)
    (second,) = {*_entries(cache)} - {first}
    arguments = ["cache", "explain", first, second, "--cache_dir", str(cache)]
    text = CliRunner().invoke(main, arguments).stdout
    assert "- " in text and "scale=2.0" in text and "scale=3.0" in text
    assert "flags:" not in text and "reciprocal" not in text
    rows = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)["module"]
    assert len(rows) == 2


def test_an_entry_without_the_kernels_code_is_no_model(cache: Path) -> None:
    KERNELS["strict"]().compile(X)
    (place,) = cache.glob("neuronxcc-*/MODULE_*")
    with pytest.raises(CompileError, match=RECORDED_KERNEL):
        glia.compile(place / HLO)
