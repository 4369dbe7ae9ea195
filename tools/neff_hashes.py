"""Hash the NEFFs of the corpus, the whole models and the kernel library, to show that a change of
the source changes no program.

    python tools/neff_hashes.py --output before.json [--only corpus|models|kernels]
    python tools/neff_hashes.py --against before.json

Every program is compiled for every target at -O1, -O2 and -O3; kernels, which have no such levels,
once a target. Source locations are left out of what is hashed: they move with the lines of the
files. The exit status is 1 when a hash differs from `--against`.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / name) for name in ("src", "tests")]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

import glia
from glia.base.errors import CompileError
from glia.base.loc import UNKNOWN
from glia.machine.ir import Branch, Loop, Program, Statement, While
from glia.neff.package import Neff
from glia.nki.run.trace import trace

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
OPTLEVELS = (1, 2, 3)
MODELS = ("bert", "resnet50", "digits_train", "digits")
PROCESSES = 2

Job = tuple[str, str, str]  # what: corpus, models or kernels; its name; the target


def digest(neff: Neff) -> str:
    """SHA-256 of the NEFF's bytes with every source location unknown."""
    programs = tuple(_without_locations(program) for program in neff.programs)
    bare = dataclasses.replace(neff, programs=programs, is_compressed=False)
    return hashlib.sha256(bare.to_bytes()).hexdigest()


def _without_locations(program: Program) -> Program:
    return dataclasses.replace(program, body=_bare(program.body))


def _bare(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return tuple(map(_bare_statement, body))


def _bare_statement(statement: Statement) -> Statement:
    match statement:
        case Loop():
            return dataclasses.replace(statement, body=_bare(statement.body))
        case While():
            return dataclasses.replace(
                statement, condition=_bare(statement.condition), body=_bare(statement.body)
            )
        case Branch():
            return dataclasses.replace(statement, arms=tuple(map(_bare, statement.arms)))
    return dataclasses.replace(statement, loc=UNKNOWN)


def _try(compile_it: Any) -> str:
    try:
        return digest(compile_it())
    except CompileError as error:
        return f"{type(error).__name__} {error.code}"


def hash_job(job: Job) -> dict[str, str]:
    """By what was compiled, at which level: the hash, or the class and code of the error."""
    what, name, target = job
    if what == "kernels":
        return {f"{what} {name} {target}": _try(lambda: _kernel(int(name.split()[0]), target))}
    source = _models_hlo(name) if what == "models" else _corpus_hlo(name)
    return {
        f"{what} {name} {target} O{level}": _try(
            lambda level=level: glia.compile(source, target=target, optlevel=level)
        )
        for level in OPTLEVELS
    }


def _corpus_hlo(name: str) -> bytes:
    from support.corpus import BY_NAME, hlo_bytes

    return hlo_bytes(BY_NAME[name])


def _models_hlo(name: str) -> bytes:
    if name in ("digits", "digits_train"):
        from glia.cli.demo import digits

        is_forward = name == "digits"
        return (
            digits.forward_hlo(digits.initial_state().parameters)
            if is_forward
            else digits.train_step_hlo()
        )
    models = _benchmark("models")
    return models.hlo_bytes(*{"bert": models.bert, "resnet50": models.resnet50}[name]())


@cache
def _benchmark(name: str) -> Any:
    """A file of benchmarks/, which has names that tests/ has too."""
    path = REPOSITORY / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def _kernel_cases() -> list[tuple[str, Any, tuple[np.ndarray, ...], dict[str, Any]]]:
    from kernels.test_generations import CASES

    small = [(k.__name__, k, arguments, constants) for k, arguments, constants in CASES]
    large = [
        (c.kernel.__name__, c.kernel, c.arguments, dict(c.constants))
        for c in _benchmark("kernel_table").cases()
    ]
    return [*small, *large]


def _kernel(index: int, target: str) -> Neff:
    _, kernel, arguments, constants = _kernel_cases()[index]
    return Neff((trace(kernel.function, *arguments, target=target, **constants),))


def jobs(only: str) -> Iterator[Job]:
    """Every program and target; models first, for they take longest."""
    for target in TARGETS:
        if only in ("", "models"):
            yield from (("models", name, target) for name in MODELS)
    for target in TARGETS:
        if only in ("", "kernels"):
            for index, (name, *_) in enumerate(_kernel_cases()):
                yield "kernels", f"{index} {name}", target
        if only in ("", "corpus"):
            from support.corpus import BY_NAME

            yield from (("corpus", name, target) for name in BY_NAME)


def main() -> int:
    """Hash, write, compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=("corpus", "models", "kernels"), default="")
    parser.add_argument("--output", type=Path, help="where to write the hashes, as JSON")
    parser.add_argument("--against", type=Path, help="hashes to compare with")
    arguments = parser.parse_args()
    found: dict[str, str] = {}
    with ProcessPoolExecutor(PROCESSES) as pool:
        for hashes in pool.map(hash_job, list(jobs(arguments.only))):
            found |= hashes
            if sys.stderr.isatty():
                print(f"\r{len(found)} hashed", end="", file=sys.stderr, flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if not arguments.against:
        return 0
    expected = json.loads(arguments.against.read_text())
    differing = [key for key in found if expected.get(key) != found[key]]
    for key in differing:
        print(f"differs: {key}: {expected.get(key)} -> {found[key]}")
    print(f"{len(found) - len(differing)} of {len(found)} hashes are equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
