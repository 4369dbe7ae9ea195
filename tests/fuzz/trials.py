"""Trials of damaged files in processes of bounded memory, with a time limit for each.

`python tests/fuzz/trials.py KIND COUNT [FIRST]` prints what is neither success nor a coded error.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from random import Random

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.kinds import KINDS, Kind
from glia.base.errors import CompileError

SECONDS = 20  # of processor time: a trial that takes longer hangs
PATIENCE = 600  # seconds without a word from a process, however many run beside it
MEMORY = 2 << 30  # bytes a process may take beyond what it has when it begins


@dataclass(frozen=True)
class Outcome:
    """What came of the file of a seed; `where` is the innermost place of an uncoded error."""

    kind: str
    seed: int
    status: str  # "coded", "used", "uncoded", "hung", "died"
    text: str  # the error's code, how far the file was used, or the error
    where: str = ""
    seconds: float = 0.0

    @property
    def is_finding(self) -> bool:
        return self.status in ("uncoded", "hung", "died")


class _Hung(BaseException):
    """The time of a trial is over."""


@dataclass(frozen=True)
class Trial:
    """The file of a kind that a seed makes."""

    kind: str
    seed: int


def use(kind: Kind, samples: Mapping[str, bytes], seed: int) -> Outcome:
    """Use the file of a seed, and judge what comes of it."""
    started = time.monotonic()

    def outcome(status: str, text: str, where: str = "") -> Outcome:
        return Outcome(kind.name, seed, status, text, where, time.monotonic() - started)

    try:
        data = kind.damaged(samples, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return outcome("used", kind.use(data, Random(seed)))
    except CompileError as error:
        return outcome("coded", error.code)
    except _Hung as error:
        return outcome("hung", _place(error), _trace(error))
    except Exception as error:
        return outcome("uncoded", f"{type(error).__name__}: {error!s:.200}", _trace(error))


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-8:])


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-2]
    return f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"


def run_trials(runs: Mapping[str, range]) -> Iterator[Outcome]:
    """The outcomes of the files of these seeds of each kind, one kind after the other.

    They are used in processes that a bad one cannot harm.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in runs:
            Path(folder, name).mkdir()
            for sample, content in KINDS[name].make_samples().items():
                Path(folder, name, sample).write_bytes(content)
        left = [Trial(name, seed) for name, seeds in runs.items() for seed in seeds]
        while left:
            for outcome in _one_process(left, folder):
                yield outcome
                left.pop(0)


def _one_process(trials: Sequence[Trial], folder: str) -> Iterator[Outcome]:
    """Outcomes from a process of its own, until the trials or the process end."""
    spans = [
        [kind, each.seed] for kind, group in _by_kind(trials) for each in (group[0], group[-1])
    ]
    command = [sys.executable, __file__, "--work", json.dumps(spans), folder]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"NEURON_RT_EXEC_TIMEOUT": "5"}  # of each thread
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, bufsize=0)
    assert process.stdout is not None
    with process.stdout as results:
        for each in tuple(trials):
            ready, _, _ = select.select([results], [], [], PATIENCE)
            if not ready:
                process.kill()
                yield Outcome(each.kind, each.seed, "hung", "in native code")
                break
            if not (line := results.readline()):
                text = f"the process ended with {process.wait()}"
                yield Outcome(each.kind, each.seed, "died", text)
                break
            yield Outcome(**json.loads(line))
    process.wait()


def _by_kind(trials: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    return [(kind, list(group)) for kind, group in groupby(trials, lambda each: each.kind)]


def work(spans: Sequence[tuple[str, int]], folder: Path) -> None:
    """Write the outcome of each trial as a line of JSON; spans have a first and a last seed."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def expire(signum: int, frame: object) -> None:
        raise _Hung

    signal.signal(signal.SIGPROF, expire)
    logging.disable()
    for (name, first), (_, last) in zip(spans[::2], spans[1::2], strict=True):
        samples = {path.name: path.read_bytes() for path in (folder / name).iterdir()}
        for seed in range(first, last + 1):
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            outcome = use(KINDS[name], samples, seed)
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(asdict(outcome)), file=results, flush=True)


def main() -> int:
    """Print the findings of a campaign, or be the process of one."""
    if sys.argv[1] == "--work":
        work(json.loads(sys.argv[2]), Path(sys.argv[3]))
        return 0
    return campaign()


def campaign() -> int:
    """Run trials, print each finding once as it comes, and a summary."""
    kind, count = KINDS[sys.argv[1]], int(sys.argv[2])
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    statuses: Counter[str] = Counter()
    found: dict[str, list[Outcome]] = {}
    started = time.monotonic()
    for outcome in run_trials({kind.name: range(first, first + count)}):
        statuses[outcome.status + (" " + outcome.text if not outcome.is_finding else "")] += 1
        if outcome.is_finding:
            key = outcome.status + outcome.where if outcome.where else outcome.text
            if key not in found:
                print(
                    f"{outcome.seed}: {outcome.status} {outcome.text}\n{outcome.where}", flush=True
                )
            found.setdefault(key, []).append(outcome)
    for outcomes in sorted(found.values(), key=len, reverse=True):
        print(
            f"{len(outcomes):6} {outcomes[0].status} {outcomes[0].text:.150} "
            f"seeds {[o.seed for o in outcomes[:4]]}"
        )
    print(dict(statuses.most_common()))
    print(
        f"{count} of {kind.name} in {time.monotonic() - started:.0f} s: "
        f"{sum(map(len, found.values()))} findings"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
