"""Tests of several ranks, which the simulation mode of the suite lacks: programs run together.

Each rank is a logical core with HBM of its own. Its program is compiled for its own inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glia.nki.names.targets import platform_target
from glia.nki.run.kernel import as_kernel
from glia.nki.run.launch import bind
from glia.sim.order.concurrent import run_cores

ALIASED = ".must_alias_input"  # how the suite ends the names of arguments that a kernel writes


def with_ranks(harness: Any) -> Callable[[Any, Any], str | None]:
    """What runs a test in simulation mode, for tests of several ranks too."""
    simulate_one = harness.Orchestrator._run_simulator_inference

    def run(self: Any, test: Any) -> str | None:
        count = test.inference_args.collective_ranks
        if count == 1:
            return simulate_one(self, test)  # type: ignore[no-any-return]
        try:
            place = Path(self.fs_config.artifacts_output_directory_path)
            return _store(harness, test, _run_ranks(test, count), place)
        except Exception as problem:
            raise harness.InferenceException(str(problem)) from problem

    return run


def _run_ranks(test: Any, count: int) -> list[list[np.ndarray]]:
    """The results of each rank, in order."""
    given = test.kernel_input
    by_rank = [given.for_rank(n) if hasattr(given, "for_rank") else given for n in range(count)]
    inputs = [{name.removesuffix(ALIASED): v for name, v in each.items()} for each in by_rank]
    options = test.compiler_input
    target = options.platform_target.get_compile_target()
    return run_ranks(test.kernel_func, inputs, target, options.logical_nc_config)


def run_ranks(
    kernel: Any, inputs: Sequence[Mapping[str, Any]], target: str, cores: int, *, seed: int = 0
) -> list[list[np.ndarray]]:
    """The results of a kernel on each of several ranks of so many cores, which run together.

    The seed chooses the order of engines, queues and cores.
    """
    known = as_kernel(kernel)
    launched = known[cores]
    launches = [bind(known.function, (), dict(each)) for each in inputs]
    traced = [launched.traced_launch(each, platform_target(target)) for each in launches]
    programs = [program for each in traced for program in each.programs]
    arrays = [each.arrays for each, t in zip(launches, traced, strict=True) for _ in t.programs]
    found = run_cores(programs, arrays, lnc=len(traced[0].programs), seed=seed)
    results = []
    for number, each in enumerate(traced):
        first = number * len(each.programs)
        outputs: dict[str, np.ndarray] = {}
        for core in reversed(found[first : first + len(each.programs)]):
            outputs.update(core)
        results.append([outputs[name] for name in each.results])
    return results


def _store(harness: Any, test: Any, results: list[list[np.ndarray]], place: Path) -> str:
    """Write results where the suite reads those of ranks on a device; their folder."""
    folder = place / harness.INF_ARTIFACT_DIR_NAME
    for rank, arrays in enumerate(results):
        expected = harness.normalize_golden_output(test.validation_args.golden_output, rank)
        of_rank = folder / f"output_worker_{rank}"
        of_rank.mkdir(parents=True, exist_ok=True)
        for (name, like), array in zip(expected.items(), arrays, strict=True):
            (of_rank / name).write_bytes(np.asarray(array, dtype=like.dtype).tobytes())
    return str(folder)
