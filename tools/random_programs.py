"""Compile and run random programs of a range of seeds, and make what fails small.

    python tools/random_programs.py --first 0 --count 20000 [--jobs 2]
    python tools/random_programs.py --shrink 4711

Every seed is a program with its inputs, target, optimisation level and casts. What the graph
evaluator, the evaluator of nests and the machine compute must agree within what random rounding
errors explain. The exit status is 1 when a seed fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from multiprocessing import Pool
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / name) for name in ("src", "tests")]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from glia.graph.text import print_graph
from support.random_graphs.cases import random_case
from support.random_graphs.check import Failure, check
from support.random_graphs.shrink import shrink


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=200, help="how many seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shrink", type=int, help="make the program of this seed small; print it")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.shrink is not None:
        return _print_small(arguments.shrink)
    return _run(range(arguments.first, arguments.first + arguments.count), arguments.jobs)


def _check_seed(seed: int) -> tuple[int, Failure | None, float]:
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failure = check(random_case(seed))
    return seed, failure, time.perf_counter() - started


def _run(seeds: range, jobs: int) -> int:
    kinds: Counter[str] = Counter()
    slowest, reported = (0.0, 0), time.monotonic()
    with Pool(jobs) as pool:
        for number, (seed, failure, seconds) in enumerate(
            pool.imap_unordered(_check_seed, seeds, chunksize=4), start=1
        ):
            slowest = max(slowest, (seconds, seed))
            if failure:
                kinds[failure.kind] += 1
                options = " ".join(f"{k}={v}" for k, v in random_case(seed).options.items())
                detail = " ".join(failure.detail.split())[:400]
                print(f"seed {seed} ({options}): {failure.kind}: {detail}", flush=True)
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                print(f"{number} of {len(seeds)} seeds", file=sys.stderr, flush=True)
    print(f"{len(seeds)} programs, {kinds.total()} failed, slowest {slowest[0]:.1f} s "
          f"(seed {slowest[1]})")  # fmt: skip
    for kind, count in kinds.most_common():
        print(f"  {count:5} {kind}")
    return int(bool(kinds))


def _print_small(seed: int) -> int:
    case = random_case(seed)
    failure = check(case)
    if failure is None:
        print(f"seed {seed} passes")
        return 0

    def fails(smaller: object) -> bool:
        found = check(smaller)  # type: ignore[arg-type]
        return found is not None and found.kind == failure.kind

    small = shrink(case, fails)
    print(small.options)
    print(check(small))
    print(print_graph(small.graph))
    for array in small.arrays:
        print(array.dtype, array.shape, array.reshape(-1)[:8])
    return 1


if __name__ == "__main__":
    sys.exit(main())
