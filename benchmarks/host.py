"""How fast the host executor runs models, beside XLA:CPU and PyTorch, and where its time goes.

    python benchmarks/host.py [ROW ...] [--all] [--profile] [--cores N] [--target T] [--reference]
        [--compiled]

Without names, the rows that take seconds; `--all` adds the others. Everything of a row runs in this
process, interleaved, on the same cores, and the medians are compared: a ratio of 2 is twice as fast
as the other. GFLOP/s count products and convolutions; beside them stands what part that is of what
NumPy's matrix product reaches here. GB/s count arguments and results, each once. Compiled models
are kept where NEURON_COMPILE_CACHE_URL says.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

RUNS, SECONDS = 15, 20.0  # of each candidate: so many, or until they took so long together
FLOAT32_BYTES = 4
PAUSE_SECONDS = 0.01  # before a run: threads of the candidate before look for work for a while
HEADINGS = (
    "row", "host ms", "XLA:CPU ms", "PyTorch ms", "torch.compile ms", "of the best", "GFLOP/s",
    "of peak", "GB/s",
)  # fmt: skip
OTHERS = ("xla", "torch", "torch.compile")
MOST_APART = 1e-3  # relative distance of PyTorch's results from XLA's: it computes the same
MOST_APART_NARROW = 1e-2  # of results in bfloat16
Array = Any


@dataclass(frozen=True)
class Row:
    """A function, what gives its arguments, and how PyTorch says it.

    `in_torch` takes PyTorch and the arguments, and gives a function without any.
    """

    make: Callable[[], tuple[Callable[..., Any], tuple[Array, ...]]]
    in_torch: Callable[..., Callable[[], Any]] | None = None
    is_short: bool = False
    kernel: Callable[..., Any] | None = None  # the program of a kernel that does the same
    options: tuple[tuple[str, str], ...] = ()


def _random(*shape: int, seed: int = 0) -> Array:
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _drawn(tree: Any) -> Any:
    """Arrays for shapes, scaled as trained weights are; tokens for integers."""
    import jax
    import numpy as np

    random = np.random.default_rng(0)

    def draw(shaped: Any) -> Array:
        if shaped.dtype == np.int32:
            return random.integers(0, 1000, shaped.shape, np.int32)
        fan_in = np.prod(shaped.shape[:-1]) if len(shaped.shape) > 1 else 1
        return random.standard_normal(shaped.shape, np.float32) * np.float32(fan_in**-0.5)

    return jax.tree.map(draw, tree)


def _matmul(extent: int, *, is_narrow: bool = False) -> Any:
    import ml_dtypes

    arrays = _random(extent, extent), _random(extent, extent, seed=1)
    if is_narrow:
        arrays = tuple(each.astype(ml_dtypes.bfloat16) for each in arrays)
    return (lambda a, b: a @ b), arrays


def _network(name: str, **sizes: int) -> Any:
    import networks

    forward, x = getattr(networks, name)(**sizes)
    return forward, (x,)


def _function(name: str, extent: int = 4096) -> Any:
    import jax

    def layer_norm(x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred / jax.numpy.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)

    functions = {
        "softmax": jax.nn.softmax,
        "layernorm": layer_norm,
        "gelu": partial(jax.nn.gelu, approximate=False),
    }
    return functions[name], (_random(extent, extent),)


def _digits() -> Any:
    from glia.cli.demo import digits

    data, state = digits.load(), digits.initial_state()
    images, labels = next(digits.batches(data))
    return digits.train_step, (state, images, labels)


def _vit(batch: int) -> Any:
    import workload_models

    weights = _drawn(workload_models.vit_weights())
    return partial(_swapped, workload_models.vit, weights), (_random(batch, 3, 224, 224),)


def _swapped(function: Callable[..., Any], weights: Any, x: Array) -> Any:
    return function(x, weights)


def _gpt2_step(width: int, layers: int, batch: int, tokens: int) -> Any:
    import numpy as np
    import workload_models

    weights = _drawn(workload_models.gpt2_weights(width, tokens, layers))
    words = np.random.default_rng(1).integers(0, 50000, (batch, tokens), np.int32)
    return workload_models.gpt2_step, (weights, weights, weights, words)


def _gpt2_decode(tokens: int = 512, layers: int = 12) -> Any:
    """One token after half of the cache is filled."""
    import numpy as np
    import workload_models

    weights = _drawn(workload_models.gpt2_weights(768, tokens, layers))
    caches = [_random(layers, 12, tokens, 64, seed=seed) for seed in (1, 2)]
    numbers = (np.array([each], np.int32) for each in (1234, tokens // 2))
    return workload_models.gpt2_decode, (weights, *caches, *numbers)


def _attention(tokens: int, features: int) -> Any:
    import jax

    def attend(q: Array, k: Array, v: Array) -> Array:
        scores = q[0, 0].T @ k[0, 0] * features**-0.5
        return (jax.nn.softmax(scores) @ v[0, 0])[None, None]

    q, k = _random(1, 1, features, tokens), _random(1, 1, features, tokens, seed=1)
    return attend, (q, k, _random(1, 1, tokens, features, seed=2))


def _attention_kernel(*arrays: Array, target: str) -> Any:
    from glia.kernels.flash_attention import flash_attention
    from glia.nki.run.trace import trace

    return trace(flash_attention.function, *arrays, target=target, causal=False)


def _torch_attention(torch: Any, *arrays: Array) -> Callable[[], Any]:
    q, k, v = map(torch.from_numpy, arrays)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q.transpose(-1, -2), k.transpose(-1, -2), v)


def _torch_matmul(torch: Any, a: Array, b: Array) -> Callable[[], Any]:
    left, right = (
        torch.from_numpy(each)
        if each.itemsize == FLOAT32_BYTES
        else torch.from_numpy(each.view("int16")).view(torch.bfloat16)
        for each in (a, b)
    )
    return lambda: left @ right


def _torch_function(name: str, torch: Any, array: Array) -> Callable[[], Any]:
    functional, x = torch.nn.functional, torch.from_numpy(array)
    if name == "layernorm":
        return lambda: functional.layer_norm(x, x.shape[-1:])
    return lambda: functional.softmax(x, -1) if name == "softmax" else functional.gelu(x)


def _torch_model(name: str, torch: Any, x: Array) -> Callable[[], Any]:
    import host_torch

    return getattr(host_torch, name)(torch, x)


def _torch_vit(torch: Any, x: Array) -> Callable[[], Any]:
    import host_torch
    import workload_models

    return host_torch.vit(torch, x, _drawn(workload_models.vit_weights()))


BERT, RESNET = (partial(_torch_model, name) for name in ("bert", "resnet50"))
BF16 = (("auto_cast", "matmult"), ("auto_cast_type", "bf16"))
ROWS: dict[str, Row] = {
    **{
        f"matmul {n}": Row(partial(_matmul, n), _torch_matmul, is_short=n == 1024)
        for n in (1024, 2048)
    },
    **{
        f"matmul {n} bf16": Row(partial(_matmul, n, is_narrow=True), _torch_matmul)
        for n in (1024, 2048)
    },
    "BERT-base 1x128": Row(partial(_network, "bert"), BERT, is_short=True),
    "BERT-base 1x128 bf16": Row(partial(_network, "bert"), BERT, options=BF16),
    "BERT-base 8x128": Row(partial(_network, "bert", batch=8), BERT),
    "BERT-base 8x128 bf16": Row(partial(_network, "bert", batch=8), BERT, options=BF16),
    "ResNet-50 1": Row(partial(_network, "resnet50"), RESNET, is_short=True),
    "ResNet-50 8": Row(partial(_network, "resnet50", batch=8), RESNET),
    "ViT-base 1": Row(partial(_vit, 1), _torch_vit),
    "ViT-base 8": Row(partial(_vit, 8), _torch_vit),
    "GPT-2 decode step": Row(_gpt2_decode),
    "GPT-2 train step 4x512": Row(partial(_gpt2_step, 768, 12, 4, 512)),
    **{
        f"{name} 4096": Row(
            partial(_function, name), partial(_torch_function, name), is_short=name == "softmax"
        )
        for name in ("softmax", "layernorm", "gelu")
    },
    "digits train step": Row(_digits, is_short=True),
    "narrow BERT 64 wide": Row(
        partial(_network, "bert", layers=4, width=64, heads=4, tokens=32), is_short=True
    ),
    "narrow GPT-2 train step": Row(partial(_gpt2_step, 96, 2, 1, 64)),
    "flash attention 4096": Row(
        partial(_attention, 4096, 128), _torch_attention, is_short=True, kernel=_attention_kernel
    ),
}  # fmt: skip


def measure(
    name: str,
    target: str,
    peak: float,
    *,
    is_profiled: bool,
    has_reference: bool,
    has_compiled: bool,
) -> Iterator[str]:
    """The row of a table, then where its time goes."""
    import jax
    import numpy as np
    from workload import contraction_flops

    import glia

    row = ROWS[name]
    function, arguments = row.make()
    leaves = [np.asarray(each) for each in jax.tree.leaves(arguments)]
    started = time.perf_counter()
    if row.kernel is not None:
        neff: Any = row.kernel(*arguments, target=target)
    else:
        lowered = jax.jit(function).lower(*arguments)
        options: dict[str, Any] = dict(row.options)
        neff = glia.compile(lowered, target=target, **options)
    compiled = time.perf_counter()
    model, xla = glia.load(neff, device="host"), jax.jit(function)
    placed = jax.device_put(arguments)
    found = model(*leaves)
    first = time.perf_counter()
    wanted = [np.asarray(each) for each in jax.tree.leaves(xla(*placed))]
    candidates: dict[str, Callable[[], object]] = {
        "host": lambda: model(*leaves),
        "xla": lambda: jax.block_until_ready(xla(*placed)),
    }
    if row.in_torch is not None and (torch := _torch()) is not None:
        candidates["torch"] = _without_gradients(torch, row.in_torch(torch, *leaves))
        apart = _distance(candidates["torch"]().float().numpy(), wanted[0])  # type: ignore[attr-defined]
        most = MOST_APART if wanted[0].itemsize >= FLOAT32_BYTES else MOST_APART_NARROW
        assert apart < most, f"PyTorch computes something else: {apart:.1e}"
        if has_compiled:
            compiled_call = torch.compile(row.in_torch(torch, *leaves))
            candidates["torch.compile"] = _without_gradients(torch, compiled_call)
    if has_reference:
        candidates["reference"] = partial(glia.load(neff, device="reference"), *leaves)
    times = medians(candidates)
    flops = sum(contraction_flops(jax.make_jaxpr(function)(*arguments).jaxpr).values())
    host, best = times["host"], min(times[each] for each in OTHERS if each in times)
    rate, traffic = flops / host / 1e9, sum(each.nbytes for each in (*leaves, *wanted)) / host / 1e9
    cells = [f"{1e3 * times[each]:.2f}" if each in times else "" for each in OTHERS]
    yield " | ".join(
        [f"| {name}", f"{1e3 * host:.2f}", *cells, f"{best / host:.3f}", f"{rate:.1f}",
         f"{rate / peak:.2f}", f"{traffic:.1f} |"]
    )  # fmt: skip
    error = max(_distance(a, b) for a, b in zip(found, wanted, strict=True))
    others = f", reference {1e3 * times['reference']:.1f} ms" if has_reference else ""
    yield (
        f"    compile {compiled - started:.1f} s, first run {first - compiled:.2f} s, relative "
        f"distance from XLA:CPU {error:.1e}{others}"
    )
    if is_profiled:
        yield from profile(model, leaves)


def _distance(found: Array, wanted: Array) -> float:
    import numpy as np

    wide, other = (np.asarray(each, np.float64) for each in (found, wanted))
    return float(np.linalg.norm(wide - other) / max(np.linalg.norm(other), 1e-30))


def medians(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each, all taking turns, in another order each time."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    started = time.perf_counter()
    while len(taken["host"]) < RUNS and time.perf_counter() - started < SECONDS:
        for name in random.sample([*candidates], len(candidates)):
            time.sleep(PAUSE_SECONDS)
            begun = time.perf_counter()
            candidates[name]()
            taken[name].append(time.perf_counter() - begun)
    return {name: statistics.median(each) for name, each in taken.items()}


def profile(model: Any, leaves: list[Array]) -> Iterator[str]:
    """Milliseconds and calls by instruction, from a run whose loop is in Python."""
    from glia.sim.host import steps
    from glia.sim.host.host_program import host_program

    host = host_program(model.neff.programs[0])
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    native = steps.invoke
    by_words = {}
    code = host._record["code"]
    for at, _ in host.table.call_words:
        by_words[int(code[at])] = host.instruction(int(code[at + 1])).mnemonic()
    for at, word in host.table.call_words:
        if word in host.table.waves:
            by_words[int(code[at])] = "several at once"

    def timed(function: int, words: int) -> int:
        begun = time.perf_counter()
        result = native(int(function), int(words))
        name = by_words[int(words)]
        spent[name] += time.perf_counter() - begun
        calls[name] += 1
        return result

    def run_in_python(_: str) -> int:
        record = {name: host._record[name] for name in steps.ARRAYS}  # which machine code reads
        return steps.run(SimpleNamespace(**record))  # type: ignore[arg-type]

    with (
        mock.patch.object(steps, "invoke", timed),
        mock.patch.object(host, "_call", run_in_python),
        mock.patch("glia.sim.host.host_program.BUDGET", 1 << 60),
    ):
        for _ in range(2):
            spent.clear()
            calls.clear()
            model(*leaves)
    for name, seconds in spent.most_common():
        yield f"    {1e3 * seconds:9.2f} ms {calls[name]:7d} calls  {name}"
    for (name, why), count in host.table.reasons.items():
        yield f"    by NumPy: {count} {name} ({why})"


def _without_gradients(torch: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with torch.inference_mode():
            return call()

    return run


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return torch


def peak_rate(extent: int = 1024) -> float:
    """GFLOP/s of NumPy's float32 matrix product."""
    a, b = _random(extent, extent), _random(extent, extent, seed=1)
    times = medians({"host": lambda: a @ b})
    return 2 * extent**3 / times["host"] / 1e9


def main() -> int:
    """Print the table, a row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="*", help="by a part of their names")
    parser.add_argument("--all", action="store_true", help="every row")
    parser.add_argument("--profile", action="store_true", help="time by instruction, too")
    parser.add_argument("--reference", action="store_true", help="time the reference executor, too")
    parser.add_argument("--compiled", action="store_true", help="time torch.compile, too")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--target", default="trn2")
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    peak = peak_rate()
    print(f"{given.cores} cores; NumPy's matrix product: {peak:.0f} GFLOP/s\n")
    print(f"| {' | '.join(HEADINGS)} |\n|{' --- |' * len(HEADINGS)}")
    for name, row in ROWS.items():
        is_named = any(part in name for part in given.rows)
        if is_named or (not given.rows and (given.all or row.is_short)):
            lines = measure(
                name, given.target, peak,
                is_profiled=given.profile, has_reference=given.reference,
                has_compiled=given.compiled,
            )  # fmt: skip
            for line in lines:
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
