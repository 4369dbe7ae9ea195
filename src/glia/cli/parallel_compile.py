"""The `neuron_parallel_compile` command: a program's graphs are collected, then compiled."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import click

from glia import __version__
from glia.base.errors import CompileError
from glia.cache.collecting import VARIABLE
from glia.cache.errors import NoCacheToCollectIn
from glia.cache.store import (
    DEFAULT_DIRECTORY,
    HLO,
    CompileCache,
    cache_of,
    describe_entry,
    is_collected,
    read_collected,
)
from glia.cache.store import VARIABLE as CACHE_VARIABLE
from glia.cc_flags import resolve_options
from glia.cli.errors import BadCommandLine, CollectingFailed, ProgramsFailed
from glia.cli.guard import USER_ERROR, GuardedCommand
from glia.frontend.hlo import IMPORTERS, import_hlo
from glia.frontend.hlo_import.hlo_proto import parse_module
from glia.frontend.registry import read_module_file
from glia.pass_runner import run_pipeline
from glia.pipeline import BEFORE_CORES

RETRIES = "NEURON_PARALLEL_COMPILE_MAX_RETRIES"
NAME = "neuron_parallel_compile"
_STANDARD_ERROR = 2
PROCESS = ("-m", "glia.cli.collected_program")
EXAMPLES = """\b
Examples:
  neuron_parallel_compile python train.py --steps 10
  neuron_parallel_compile --command collect python train.py --steps 10
  neuron_parallel_compile --command analyze --json
  neuron_parallel_compile --command compile --num_parallel 4
"""


@click.command(
    cls=GuardedCommand,
    epilog=EXAMPLES,
    context_settings={"allow_interspersed_args": False, "max_content_width": 100},
)
@click.option(
    "--command",
    "action",
    type=click.Choice(["collect", "compile", "clean", "clear-locks", "analyze"]),
    help="Do only this part.  [default: collect, then compile]",
)
@click.option(
    "--num_parallel",
    "--num-parallel",
    "processes",
    type=click.IntRange(min=1),
    default=lambda: os.cpu_count() or 1,
    help="Programs to compile at once.  [default: the cores of this machine]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table of analyze as JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.version_option(__version__, prog_name=f"{NAME} (glia)")
def main(action: str | None, processes: int, as_json: bool, command: tuple[str, ...]) -> None:
    """Run COMMAND once to collect the graphs that it compiles, then compile them in parallel.

    A later run of COMMAND finds every program in the compile cache. While graphs are collected
    nothing is compiled: executions give zeros, so let COMMAND take few steps. The cache is that of
    NEURON_COMPILE_CACHE_URL, else /var/tmp/neuron-compile-cache.

    \b
    collect      run COMMAND, and collect only
    compile      compile what is collected and not yet compiled; status 1 if one fails
    analyze      print a table of all programs, of COMMAND or in the cache, and what is refused
    clean        remove what is collected and not yet compiled
    clear-locks  remove the files of locks that no process holds

    NEURON_PARALLEL_COMPILE_MAX_RETRIES says how often a program is tried again whose process ended
    without an error of the compiler, for want of memory for example.
    """
    takes_command = action in (None, "collect", "analyze")
    if command and not takes_command:
        raise BadCommandLine(problem=f"--command {action} takes no command to run", command=NAME)
    if not command and action in (None, "collect"):
        raise BadCommandLine(problem="there is no command to run", command=NAME)
    cache = _cache()
    if command:
        _collect(command, cache, is_quiet=as_json)
    if action in (None, "compile"):
        _compile(cache, processes)
    elif action == "analyze":
        _analyze(cache, as_json)
    elif action == "clean":
        removed = cache.clean(lambda entry: entry.is_collected)
        click.echo(f"removed {len(removed)} collected programs from {cache.directory}")
    elif action == "clear-locks":
        click.echo(f"removed {cache.clear_locks()} files of locks from {cache.directory}")


def _cache() -> CompileCache:
    """The cache of flags and environment, else that at the usual place, which is then named."""
    options, _ = resolve_options(NAME, {})
    if options.no_cache:
        raise NoCacheToCollectIn(variable=NAME)
    found = cache_of(options)
    if found is None:
        text = (
            f"note: programs are kept in {DEFAULT_DIRECTORY}; {CACHE_VARIABLE} is to say so later"
        )
        click.echo(text, err=True)
        found = CompileCache(Path(DEFAULT_DIRECTORY))
    return found


# --- collect -------------------------------------------------------------------------------------


def _collect(command: Sequence[str], cache: CompileCache, *, is_quiet: bool) -> None:
    """Run a command that only collects its programs; CollectingFailed if it fails."""
    where = {CACHE_VARIABLE: str(cache.directory.absolute()), VARIABLE: "1"}
    output = _STANDARD_ERROR if is_quiet else None
    try:
        status = subprocess.run(command, env={**os.environ, **where}, stdout=output).returncode
    except OSError as problem:
        reason = f"{command[0]} cannot be run: {problem.strerror}"
        raise BadCommandLine(problem=reason, command=NAME) from problem
    count = len(cache.collected())
    if status:
        raise CollectingFailed(
            command=shlex.join(command), status=status, count=count, directory=cache.directory
        )
    click.echo(f"{count} programs to compile are collected in {cache.directory}", err=is_quiet)


# --- compile -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attempt:
    """How a process that compiled an entry has ended, and what it printed."""

    place: Path
    status: int
    text: str
    seconds: float


def _compile(cache: CompileCache, processes: int) -> None:
    """Compile what is collected, with a line for each program; ProgramsFailed if one fails."""
    places, retries = cache.collected(), _retries()
    failed = 0
    with ThreadPoolExecutor(processes) as pool:
        waiting = [pool.submit(_compiled, place, retries) for place in places]
        for number, each in enumerate(as_completed(waiting), 1):
            attempt = each.result()
            head = f"[{number}/{len(places)}] {attempt.place.name}"
            if attempt.status == 0:
                click.echo(f"{head} compiled in {attempt.seconds:.1f} s")
                continue
            failed += 1
            ended = attempt.text.strip() or f"its process ended with status {attempt.status}"
            click.echo(f"{head} failed\n{ended}", err=True)
    click.echo(f"{len(places) - failed} programs compiled, {failed} failed, in {cache.directory}")
    if failed:
        raise ProgramsFailed(failed=failed, total=len(places))


def _compiled(place: Path, retries: int) -> _Attempt:
    """Compile an entry in a process, again where it ends without an error of the user's."""
    path = os.pathsep.join(each for each in sys.path if each)
    started = time.monotonic()
    for _ in range(1 + retries):
        done = subprocess.run(
            [sys.executable, *PROCESS, str(place)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        if done.returncode in (0, USER_ERROR):
            break
    return _Attempt(place, done.returncode, done.stderr, time.monotonic() - started)


def _retries() -> int:
    text = os.environ.get(RETRIES) or "0"
    if not text.isascii() or not text.isdigit():
        problem = f"{RETRIES}={text} is not a whole number"
        raise BadCommandLine(problem=problem, command=NAME)
    return int(text)


# --- analyze -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """A program of the cache: `refused` are operators, `error` is what compiling it would raise."""

    entry: str
    module: str
    operations: int
    compiled: bool
    refused: list[str]
    error: str


def _analyze(cache: CompileCache, as_json: bool) -> None:
    rows = list(_rows(cache))
    if as_json:
        facts = {"directory": str(cache.directory), "programs": [vars(row) for row in rows]}
        click.echo(json.dumps(facts))
        return
    width = max([6, *(len(row.module) for row in rows)])
    click.echo(f"{'entry':36}  {'module':{width}}  operations  state")
    for row in rows:
        refused = f"refused: {' '.join(row.refused)} {row.error}" if row.error else "collected"
        state = "compiled" if row.compiled else refused
        click.echo(f"{row.entry:36}  {row.module:{width}}  {row.operations:10}  {state}")
    compiled = sum(row.compiled for row in rows)
    refusals = sum(bool(row.error) for row in rows)
    click.echo(f"{len(rows)} programs, {compiled} compiled, {refusals} refused")


def _rows(cache: CompileCache) -> Iterator[_Row]:
    """A row for each program of this version of the compiler."""
    for place in cache.current():
        waits = is_collected(place)
        if not waits and describe_entry(place).problem:
            continue
        module = parse_module(read_module_file(place / HLO))
        computed = [each for one in module.computations for each in one.instructions]
        opcodes = {each.opcode for each in computed} - {"parameter"}
        refused = sorted(opcodes - IMPORTERS.keys()) if waits else []
        error = _refusal(place) if waits else ""
        yield _Row(place.name, module.name, len(computed), not waits, refused, error)


def _refusal(place: Path) -> str:
    """The first line of the error with which a collected program is refused, or nothing.

    What becomes known only when instructions are made is not among it.
    """
    hlo, options = read_collected(place)
    try:
        run_pipeline(import_hlo(hlo), options, stop_after=BEFORE_CORES)
    except CompileError as error:
        return str(error).partition("\n")[0]
    return ""


if __name__ == "__main__":
    main()
