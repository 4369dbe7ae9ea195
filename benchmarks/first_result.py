"""The time from a call to its first result, and the memory that takes: BERT-base, by framework.

    python benchmarks/first_result.py [--tokens 128] [--json FILE]

Each way in runs in two processes of its own: the first with empty caches, the second with what the
first left in them. Counted are the wall seconds from the first call to its result (what loading the
framework and making the weights take is not), the processor's seconds, and how much the process's
largest memory grew. Ways whose framework is not installed are left out, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTH, HEADS, INNER, LAYERS = 768, 12, 3072, 12
HEADINGS = ("way", "first s", "CPU s", "MiB", "again s", "CPU s", "MiB")


def _encoder(tokens: int) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, dropout=0, activation="gelu", batch_first=True
    )
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    return model, torch.randn(1, tokens, WIDTH)


def _by_torch_compile(backend: str) -> Callable[[int], Callable[[], Any]]:
    def prepared(tokens: int) -> Callable[[], Any]:
        import torch

        import torch_neuronx  # noqa: F401  # a user's line, which enters the backend

        model, x = _encoder(tokens)

        def call() -> Any:
            with torch.no_grad():
                return torch.compile(model, backend=backend)(x).sum().item()

        return call

    return prepared


def _by_trace(tokens: int) -> Callable[[], Any]:
    import torch_neuronx

    model, x = _encoder(tokens)
    return lambda: torch_neuronx.trace(model, x)(x).sum().item()


def _by_jax(platform: str) -> Callable[[int], Callable[[], Any]]:
    def prepared(tokens: int) -> Callable[[], Any]:
        os.environ["JAX_PLATFORMS"] = f"{platform},cpu" if platform != "cpu" else "cpu"
        import jax
        import networks
        import numpy as np

        stack = networks.bert_stack(LAYERS, WIDTH)
        x = np.random.default_rng(0).standard_normal((1, tokens, WIDTH)).astype(np.float32)
        jax.devices()
        return lambda: np.asarray(
            jax.jit(lambda x, w: networks.encode(x, w, HEADS))(x, stack)
        ).sum()

    return prepared


WAYS: dict[str, Callable[[int], Callable[[], Any]]] = {
    "torch.compile, neuron": _by_torch_compile("neuron"),
    "torch_neuronx.trace": _by_trace,
    "torch.compile, inductor": _by_torch_compile("inductor"),
    "jax.jit, neuron": _by_jax("neuron"),
    "jax.jit, cpu": _by_jax("cpu"),
}


def measured(way: str, tokens: int) -> dict[str, float]:
    """Seconds, seconds of processors, and MiB of a first result in this process."""
    call = WAYS[way](tokens)
    before, used = _peak(), os.times()
    started = time.perf_counter()
    call()
    seconds = time.perf_counter() - started
    now = os.times()
    cpu = sum(now[:4]) - sum(used[:4])
    return {"seconds": seconds, "cpu": cpu, "MiB": _peak() - before}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_process(way: str, tokens: int, caches: str) -> dict[str, float] | str:
    """What `measured` says in a new process, or why it has nothing to say."""
    places = {
        "NEURON_COMPILE_CACHE_URL": f"{caches}/neuron",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torch",
        "JAX_COMPILATION_CACHE_DIR": f"{caches}/jax",
    }
    command = [sys.executable, __file__, "--way", way, "--tokens", str(tokens)]
    run = subprocess.run(
        command, env=os.environ | places, capture_output=True, text=True, check=False
    )
    if run.returncode:
        return (run.stderr.strip() or f"ended with {run.returncode}").splitlines()[-1]
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(measured(given.way, given.tokens)))
        return 0
    print(f"| {' | '.join(HEADINGS)} |\n|---|" + "---|" * (len(HEADINGS) - 1))
    rows: dict[str, Any] = {}
    for way in WAYS:
        with tempfile.TemporaryDirectory() as caches:
            rows[way] = [in_a_process(way, given.tokens, caches) for _ in range(2)]
        missing = [each for each in rows[way] if isinstance(each, str)]
        cells = [
            f"{v:.1f}" for each in rows[way] if not isinstance(each, str) for v in each.values()
        ]
        print(f"| {way} | {' | '.join(missing or cells)} |", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
