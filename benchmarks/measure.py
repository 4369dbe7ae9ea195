"""One measurement in a process of its own; prints one JSON object as the last line.

    measure.py prepare MODEL FOLDER                     write model.hlo.pb and input.npy
    measure.py compile FOLDER TARGET OPTLEVEL CAST      write TARGET-OPTLEVEL-CAST.neff, time it
    measure.py execute MODEL FOLDER TARGET OPTLEVEL CAST    run it, and XLA:CPU, and compare
    measure.py table MODULE                             what the benchmark MODULE.py found

Only `prepare` and `execute` import jax, so that the memory of `compile` is the compiler's own.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from glia.base.errors import CompileError
from glia.cli.guard import internal_error

CASTS = {"none": {"auto_cast": "none"}, "bf16": {"auto_cast": "matmult", "auto_cast_type": "bf16"}}
LONG_SECONDS = 20  # a run that takes longer is not repeated
REPETITIONS = 3


def model(name: str) -> tuple[Callable[[Any], Any], np.ndarray]:
    """The forward function and an input of a benchmark model: digits, bert or resnet50."""
    if name != "digits":
        import networks

        return {"bert": networks.bert, "resnet50": networks.resnet50}[name]()
    from glia.cli.demo import digits

    data = digits.load()
    parameters = digits.train(data, lambda done: None)
    return lambda images: digits.scores(parameters, images), data.test_images[: digits.EVALUATED]


def prepare(name: str, folder: str) -> dict[str, Any]:
    """Write the model's serialized HLO and its input."""
    from glia.cli.demo.digits import hlo

    forward, array = model(name)
    data = hlo(forward, array)
    (Path(folder) / "model.hlo.pb").write_bytes(data)
    np.save(Path(folder) / "input.npy", array)
    return {"hlo_bytes": len(data)}


def compile(folder: str, target: str, optlevel: str, cast: str) -> dict[str, Any]:
    """Compile and time every pass; then the simulated cost of a run of the result."""
    from glia.compiler import compile_graph
    from glia.frontend.registry import read_module
    from glia.options import CompileOptions

    options = CompileOptions(target, optlevel=int(optlevel), logical_nc_config=1, **CASTS[cast])
    passes: list[tuple[str, float]] = []
    started = time.perf_counter()
    graph = read_module(Path(folder) / "model.hlo.pb")
    passes.append(("read", time.perf_counter() - started))
    neff = compile_graph(graph, options, lambda step: passes.append((step.name, step.seconds)))
    path = neff_path(folder, target, optlevel, cast)
    saving = time.perf_counter()
    neff.save(path)
    passes.append(("save", time.perf_counter() - saving))
    return {
        "seconds": time.perf_counter() - started,
        "passes": dict(passes),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
        "neff_bytes": path.stat().st_size,
        "static_instructions": sum(1 for _ in neff.program.instructions()),
        **simulated_cost(neff.program, target),
    }


def simulated_cost(program: Any, target: str) -> dict[str, Any]:
    """Latency of one run, and how near it comes to the roofline of one core.

    The roofline is the longer of two times: multiplying at the peak rate of the operands' types,
    and moving inputs, constants and outputs once through HBM.
    """
    from glia.arch import get_target
    from glia.timing.simulate import simulate_timing

    arch = get_target(target).arch
    started = time.perf_counter()
    timing = simulate_timing(program, arch, trace=False)
    seconds = time.perf_counter() - started
    flops = timing.flops_by_dtype
    compute_ns = sum(n / arch.peak_flops[dtype] * 1e9 for dtype, n in flops.items())
    bindings = (*program.inputs, *program.outputs)
    needed = sum(binding.tile.bytes for binding in bindings)
    needed += sum(np.asarray(array).nbytes for array in program.constants.values())
    return {
        "latency_us": timing.latency_ns / 1000,
        "roofline": max(compute_ns, needed / arch.hbm_bytes_per_ns) / timing.latency_ns,
        "dynamic_instructions": sum(timing.instructions.values()),
        "hbm_bytes": timing.hbm_read_bytes + timing.hbm_written_bytes,
        "timing_seconds": seconds,
    }


def execute(name: str, folder: str, target: str, optlevel: str, cast: str) -> dict[str, Any]:
    """Run the compiled model and XLA:CPU on the same input, in this process."""
    import jax

    from glia.runtime.model import load

    forward, array = model(name)
    reference = jax.jit(forward)
    expected = np.asarray(reference(array), np.float64)
    loaded = load(neff_path(folder, target, optlevel, cast))
    (result,) = loaded(array)
    difference = np.linalg.norm(np.asarray(result, np.float64) - expected)
    return {
        "executor_seconds": shortest(lambda: loaded(array)),
        "xla_seconds": shortest(lambda: np.asarray(reference(array))),
        "relative_l2": float(difference / np.linalg.norm(expected)),
    }


def table(module: str) -> dict[str, Any]:
    """The table of another benchmark of this folder."""
    return importlib.import_module(module).results()


def neff_path(folder: str, target: str, optlevel: str, cast: str) -> Path:
    """Where `compile` leaves the NEFF for `execute`."""
    return Path(folder) / f"{target}-{optlevel}-{cast}.neff"


def shortest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs; of the first when it takes long."""
    best = float("inf")
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
        if best > LONG_SECONDS:
            break
    return best


if __name__ == "__main__":
    known = {"prepare": prepare, "compile": compile, "execute": execute, "table": table}
    measurement = known[sys.argv[1]]
    try:
        found = measurement(*sys.argv[2:])
    except CompileError as error:
        found = {"error": str(error).partition("\n")[0]}
    except Exception as error:
        found = {"error": internal_error(error).partition("\n")[0]}
    print(json.dumps(found))
