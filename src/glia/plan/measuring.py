"""Compiling parts in processes of their own, several at a time, each part once."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from glia.plan.parts import Measured, ModelPart

PROCESS = ("-m", "glia.plan.part_process")  # what Python runs to compile parts
Progress = Callable[[int, int, ModelPart, Measured], None]


class Workers:
    """Up to `jobs` processes that compile; ended where the context is left."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._idle: queue.SimpleQueue[subprocess.Popen[str] | None] = queue.SimpleQueue()
        self._started: list[subprocess.Popen[str]] = []
        for _ in range(jobs):
            self._idle.put(None)  # to be started when it is needed

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.communicate()

    def measure_all(
        self, parts: Iterable[ModelPart], target: str, optlevel: int, progress: Progress
    ) -> dict[ModelPart, Measured]:
        """What the compiler makes of each part; `progress` is called when one is done."""
        wanted = list(dict.fromkeys(parts))
        found: dict[ModelPart, Measured] = {}
        with ThreadPoolExecutor(self._jobs) as pool:
            answers = pool.map(lambda part: self._measure(part, target, optlevel), wanted)
            for number, (part, answer) in enumerate(zip(wanted, answers, strict=True), 1):
                found[part] = answer
                progress(number, len(wanted), part, answer)
        return found

    def _measure(self, part: ModelPart, target: str, optlevel: int) -> Measured:
        process = self._idle.get() or self._start()
        asked = json.dumps({"part": asdict(part), "target": target, "optlevel": optlevel})
        line = _answer(process, asked)
        self._idle.put(process if line else None)
        if line:
            return Measured(**json.loads(line))
        problem = f"the process that compiled it ended with status {process.wait()}"
        return Measured(problem=problem)

    def _start(self) -> subprocess.Popen[str]:
        path = os.pathsep.join(place for place in sys.path if place)
        process = subprocess.Popen(
            [sys.executable, *PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
            text=True,
        )
        self._started.append(process)
        return process


def _answer(process: subprocess.Popen[str], line: str) -> str:
    """The line with which a process answers one; "" where it has ended."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline()
