"""What a call costs beside the model itself, from PyTorch: microseconds, best of several rounds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch

import glia
import torch_neuronx

ROUNDS, CALLS = 9, 2000


def microseconds(call: Callable[[], object]) -> float:
    """The time of a call in the fastest round."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - started)
    return best / CALLS * 1e6


def main() -> None:
    """Print a row for each way in."""
    warnings.simplefilter("ignore")
    model, x = torch.nn.Linear(16, 16).eval(), torch.randn(4, 16)
    bound = glia.load(glia.compile(torch.export.export(model, (x,)))).bind()
    array = x.numpy()
    compiled, trace = torch.compile(model, backend="neuron"), torch_neuronx.trace(model, x)
    with torch.no_grad():
        plain = microseconds(lambda: bound(array))
        print(f"bound model            {plain:6.1f} us")
        for name, call in (("torch_neuronx.trace", trace), ("torch.compile", compiled)):
            call(x)
            found = microseconds(lambda call=call: call(x))
            print(f"{name:22} {found:6.1f} us, {found - plain:6.1f} us over the model")


if __name__ == "__main__":
    main()
