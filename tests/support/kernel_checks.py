"""What every kernel is held to: NumPy's result in both ways to run, and its own roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import glia
from glia.arch import get_target
from glia.neff.package import Neff
from glia.nki.run.trace import trace
from glia.timing.simulate import simulate_timing

RANDOM = np.random.default_rng(11)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Random numbers around 0."""
    return RANDOM.standard_normal(shape).astype(dtype)


def run_both(
    kernel: Any, *arrays: np.ndarray, target: str = "trn2", **constants: Any
) -> list[np.ndarray]:
    """The results of simulating, which are those of the compiled program to the last bit."""
    simulated = glia.simulate(kernel, target=target, device="reference")(*arrays, **constants)
    results = [*simulated] if isinstance(simulated, tuple | list) else [simulated]
    program = trace(kernel.function, *arrays, target=target, **constants)
    model = glia.load(Neff((program,)), device="reference")
    for eager, compiled in zip(results, model(*arrays), strict=False):
        np.testing.assert_array_equal(_wide(eager), _wide(compiled))
    return results


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """The same shape, and errors below `tolerance` times the greatest expected magnitude."""
    assert actual.shape == expected.shape
    greatest = max(float(np.abs(_wide(expected)).max()), 1e-30)
    assert float(np.abs(_wide(actual) - _wide(expected)).max()) <= tolerance * greatest


def assert_generations_agree(
    kernel: Any, arguments: Sequence[np.ndarray], constants: dict[str, Any], tolerance: float
) -> None:
    """Every generation gives what Trn2 gives, up to `tolerance` of the greatest magnitude."""
    of_trn2 = run_both(kernel, *arguments, target="trn2", **constants)
    for target in ("trn1", "trn3"):
        found = run_both(kernel, *arguments, target=target, **constants)
        for one, other in zip(found, of_trn2, strict=True):
            assert_close(one, other.astype(np.float64), tolerance)


def span_ns(kernel: Any, *arrays: np.ndarray, target: str = "trn2", **constants: Any) -> float:
    """Nanoseconds from the first instruction to the last byte, without pre- and postamble."""
    program = trace(kernel.function, *arrays, target=target, **constants)
    arch = get_target(target).arch
    timing = simulate_timing(program, arch, trace=False)
    return timing.latency_ns - timing.begin_ns - arch.postamble_ns


def transfer_ns(count: float, target: str = "trn2") -> float:
    """The least time in which all DMA engines move so many bytes."""
    arch = get_target(target).arch
    return count / (arch.dma_engines * arch.dma_bytes_per_ns)


def engine_ns(engine: str, cycles: float, target: str = "trn2") -> float:
    """The time of so many cycles of an engine."""
    return cycles / get_target(target).arch.clocks_ghz[engine]


def assert_reaches(share: float, span: float, bounds: Sequence[float]) -> None:
    """`span` is at most 1 / share of the greatest lower bound, and no bound is above it."""
    bound = max(bounds)
    assert bound <= span, f"{bound:.0f} ns is no lower bound of {span:.0f} ns"
    assert bound >= share * span, f"{bound / span:.0%} of the roofline: {span:.0f} ns"


def _wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64)
