"""Programs of PyTorch that are collected first, compiled later, and then found in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_neuronx
from glia.cache.store import CompileCache
from glia.compiler import compile_collected
from support.compilations import watched_compilations

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCache]:
    """A cache, in which programs are collected until `_compile_all`."""
    torch._dynamo.reset()
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tmp_path / "cache"))
    monkeypatch.setenv("NEURON_EXTRACT_GRAPHS_ONLY", "1")
    yield CompileCache(tmp_path / "cache")
    torch._dynamo.reset()


def _compile_all(cache: CompileCache, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[Any]]:
    """How many programs were collected, and those that are compiled after they all are."""
    places = cache.collected()
    for place in places:
        compile_collected(place)
    monkeypatch.delenv("NEURON_EXTRACT_GRAPHS_ONLY")
    torch._dynamo.reset()
    return len(places), watched_compilations(monkeypatch)


def test_graphs_and_gradients_are_found_compiled(
    cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.ones(3, 2, requires_grad=True)

    def step() -> tuple[torch.Tensor, Any]:
        weights.grad = None
        compiled = torch.compile(lambda x: (x @ weights).tanh(), backend="neuron")
        result = compiled(X)
        result.sum().backward()
        return result.detach(), weights.grad

    result, gradient = step()
    assert not result.any() and result.shape == (2, 2) and not gradient.any()
    count, compilations = _compile_all(cache, monkeypatch)
    result, gradient = step()
    torch.testing.assert_close(result, (X @ weights).tanh().detach())
    assert gradient.any() and count == 2 and not compilations


def test_a_trace_is_found_compiled(
    cache: CompileCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sum(1), x.argmax(1)

    trace = torch_neuronx.trace(rows, X, compiler_workdir=tmp_path / "work")
    total, place = trace(X)
    assert total.tolist() == [0, 0] and place.tolist() == [0, 0] and place.dtype is torch.int64
    assert [each.name for each in (tmp_path / "work").iterdir()] == ["model.hlo.pb"]
    with pytest.raises(RuntimeError, match="GLIA724"):
        trace(X[:1])
    torch.jit.save(torch_neuronx.dynamic_batch(trace), tmp_path / "trace.pt")
    assert torch.jit.load(tmp_path / "trace.pt")(torch.ones(5, 3))[0].shape == (5,)
    _, compilations = _compile_all(cache, monkeypatch)
    assert torch_neuronx.trace(rows, X)(X)[0].tolist() == [3, 12] and not compilations
    with pytest.raises(RuntimeError, match=r"GLIA723.*NEURON_EXTRACT_GRAPHS_ONLY"):
        torch.jit.load(tmp_path / "trace.pt")(X)


def test_operators_on_the_device_are_found_compiled(
    cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = X[:, :2].to("neuron")
    assert not (x * 7.25 - 3).cpu().any()
    count = len(cache.collected())
    assert count == 2
