"""What a call costs beside the model itself, from PyTorch: microseconds of the calling thread.

The fastest of many short rounds: what else the machine does falls into few of them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch

import glia
import torch_neuronx

ROUNDS, CALLS = 300, 30


def microseconds(call: Callable[[], object]) -> float:
    """The time of a call in the fastest round."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.thread_time()
        for _ in range(CALLS):
            call()
        best = min(best, time.thread_time() - started)
    return best / CALLS * 1e6


class Sum(torch.nn.Module):  # type: ignore[misc]  # no types of torch
    """What a call of one operator computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice x."""
        return x + x


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
        y = x.to("neuron")
        adding = glia.load(glia.compile(torch.export.export(Sum(), (x,)))).bind()
        found, plain = microseconds(lambda: y + y), microseconds(lambda: adding(array))
        print(f"a sum on the device    {found:6.1f} us, {found - plain:6.1f} us over the model")


if __name__ == "__main__":
    main()
