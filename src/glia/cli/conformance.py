"""`glia conformance`: what runs of the public kernels and test programs in a clone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from glia.cli.console import Progress
from glia.cli.errors import NotConforming
from glia.cli.neuronx_cc import TARGETS

if TYPE_CHECKING:
    from glia.conformance.stablehlo.outcome import CaseOutcome
    from glia.conformance.suite_outcomes import SuiteOutcome

OutcomeT = TypeVar("OutcomeT", bound="CaseOutcome | SuiteOutcome")

REPO = click.option(
    "--repo", required=True, metavar="PATH", type=click.Path(exists=True), help="The clone."
)
ONLY = click.option(
    "--only", default="", metavar="TEXT", help="Only files whose path contains TEXT."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(short_help="Run the kernels or test programs of a public repository.")
def conformance() -> None:
    """Run the kernels or test programs of a clone of a public repository."""


@conformance.command(short_help="Kernels, tests and scripts that use NKI.")
@REPO
@ONLY
@click.option("--seconds", default=900.0, help="Time limit of one kernel, test or script.")
@AS_JSON
def nki(repo: str, only: str, seconds: float, as_json: bool) -> None:
    """Run every kernel, test and script under PATH, of both NKI generations; print their outcomes.

    Kernels in code blocks of .rst pages are included. The clone's code runs in this Python
    environment, one process per file. One that exceeds --seconds is reported as not run. A known
    defect of the clone's own files is reported as explained; any other failure makes the exit
    status 1.

    \b
    Examples:
      glia conformance nki --repo nki-samples
      glia conformance nki --repo nki-samples --only matmul --json
    """
    from glia.conformance.run import run_all, text_of_outcome

    outcomes = []
    for outcome in run_all(Path(repo), only, seconds):
        outcomes.append(outcome)
        if not as_json:
            click.echo(text_of_outcome(outcome))
    counts = Counter(outcome.status for outcome in outcomes)
    if as_json:
        click.echo(
            json.dumps({"counts": counts, "kernels": [asdict(outcome) for outcome in outcomes]})
        )
    else:
        click.echo(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    failed = [outcome for outcome in outcomes if outcome.status == "fail"]
    if failed:
        first = f"{failed[0].file} {failed[0].kernel}: {failed[0].reason}"
        raise NotConforming(count=len(failed), total=len(outcomes), first=first)


@conformance.command(short_help="The test programs of openxla/stablehlo.")
@REPO
@ONLY
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("trn2",),
    type=click.Choice([*TARGETS, "all"]),
    help="Target that the programs are compiled for; repeat it for several.",
)
@click.option("--optlevel", "-O", type=click.IntRange(1, 3), default=2, help="Optimization level.")
@click.option("--jobs", default=1, type=click.IntRange(1, 256), help="Processes at a time.")
@click.option("--seconds", default=120.0, help="Time limit of one program on one target.")
@AS_JSON
def stablehlo(
    repo: str,
    only: str,
    targets: tuple[str, ...],
    optlevel: int,
    jobs: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Compile and simulate the programs of a clone of openxla/stablehlo that check their results.

    Each result is compared as the program's own checks say. Prints every program that does not
    pass, and a table by operation and dtype. A refusal is an error with a code. Programs with f64,
    complex128, dynamic or quantised types, host transfers or several processes are not run. The
    exit status is 1 when a result is wrong, or a program fails without a code, crashes or hangs.

    \b
    Examples:
      glia conformance stablehlo --repo stablehlo
      glia conformance stablehlo --repo stablehlo --target all --jobs 4
      glia conformance stablehlo --repo stablehlo --only testdata/sort --json
    """
    from glia.conformance.stablehlo.outcome import FAULTS, STATUSES, reasons, table
    from glia.conformance.stablehlo.run_cases import Settings, run_all

    chosen = tuple(dict.fromkeys(TARGETS if "all" in targets else targets))
    settings = Settings(Path(repo).resolve(), chosen, optlevel, seconds)
    outcomes = []
    for outcome in with_progress(run_all(settings, only, jobs)):
        outcomes.append(outcome)
        if not as_json and outcome.status in STATUSES[1:-1]:
            click.echo(_line(outcome))
    if as_json:
        counts = Counter(outcome.status for outcome in outcomes)
        click.echo(json.dumps({"counts": counts, "cases": [asdict(each) for each in outcomes]}))
    else:
        click.echo("\n".join([*table(outcomes), *reasons(outcomes)]))
    faults = [outcome for outcome in outcomes if outcome.status in FAULTS]
    if faults:
        raise NotConforming(count=len(faults), total=len(outcomes), first=_line(faults[0]))


@conformance.command("nki-library", short_help="The tests of aws-neuron/nki-library.")
@REPO
@ONLY
@click.option(
    "--target",
    default="trn2",
    type=click.Choice(["trn1", "trn2", "trn3"]),
    help="Platform that the tests run for.",
)
@click.option("--marks", default="fast", help="Only tests with these marks; '' for all.")
@click.option("--large", is_flag=True, help="Also tests that the suite skips for their size.")
@click.option("--limit", default=0, type=click.IntRange(0), help="Only so many tests of a file.")
@click.option("--compiled", is_flag=True, help="Run kernels as compiled programs.")
@click.option("--seconds", default=300.0, help="Time limit of one test.")
@AS_JSON
def nki_library(
    repo: str,
    only: str,
    target: str,
    marks: str,
    large: bool,
    limit: int,
    compiled: bool,
    seconds: float,
    as_json: bool,
) -> None:
    """Run the tests of a clone of aws-neuron/nki-library on simulated NeuronCores.

    The suite's own harness runs, in its simulation mode: it compares what a kernel computes with
    the PyTorch reference of the test, on as many cores of a logical one as the test says. Kernels
    run instruction by instruction, or with --compiled as programs on the simulated device, which
    also finds races and deadlocks. Prints every test that does not pass, and a table by test file.
    A refusal is an error with a code. A test is explained where the suite's own file is at fault.
    The exit status is 1 when a result differs, a kernel is refused or a test fails otherwise.

    \b
    Examples:
      glia conformance nki-library --repo nki-library
      glia conformance nki-library --repo nki-library --only core/attention --target trn3
      glia conformance nki-library --repo nki-library --only cumsum --marks '' --json
    """
    from glia.conformance import suite_outcomes as tests
    from glia.conformance.nki_library.run_tests import run_all
    from glia.conformance.nki_library.settings import SuiteSettings

    settings = SuiteSettings(Path(repo).resolve(), target, marks, seconds, large, limit, compiled)
    outcomes = _print_tests(run_all(settings, only), as_json=as_json)
    faults = [outcome for outcome in outcomes if outcome.status in tests.FAULTS]
    if faults:
        raise NotConforming(count=len(faults), total=len(outcomes), first=_line(faults[0]))


@conformance.command("jax", short_help="JAX's own tests on the platform neuron.")
@REPO
@ONLY
@click.option("--cases", default=1, type=click.IntRange(1), help="Cases of a generated test.")
@click.option("--devices", default=8, type=click.IntRange(1), help="Simulated NeuronCores.")
@click.option("--limit", default=0, type=click.IntRange(0), help="Only so many tests of a file.")
@click.option("--seconds", default=300.0, help="Time limit of one test.")
@AS_JSON
def jax_tests(
    repo: str, only: str, cases: int, devices: int, limit: int, seconds: float, as_json: bool
) -> None:
    """Run tests of a clone of jax-ml/jax through the plugin, with the installed JAX.

    The clone should be of the installed version. The files are those of lax, jax.numpy, jax.nn,
    random numbers, pmap and shard_map. Prints every test that does not pass, and a table by file.
    A refusal is an error with a code, or an operation that JAX has no rule for on the platform. The
    exit status is 1 when a result differs or a test fails otherwise.

    \b
    Examples:
      glia conformance jax --repo jax
      glia conformance jax --repo jax --only lax_numpy --cases 10 --json
    """
    from glia.conformance import suite_outcomes as tests
    from glia.conformance.jax_tests.run_jax_tests import JaxSettings, run_all

    settings = JaxSettings(Path(repo).resolve(), cases, devices, seconds, limit)
    outcomes = _print_tests(run_all(settings, only), as_json=as_json)
    faults = [each for each in outcomes if each.status in (tests.MISMATCH, tests.ERROR)]
    if faults:
        raise NotConforming(count=len(faults), total=len(outcomes), first=_line(faults[0]))


def _line(outcome: CaseOutcome | SuiteOutcome) -> str:
    return f"{outcome.status:9} {outcome.target:6} {outcome.case}: {outcome.reason}"


def _print_tests(found: Iterable[SuiteOutcome], *, as_json: bool) -> list[SuiteOutcome]:
    """The outcomes of tests, printed: faults as they come and tables in the end, or one object."""
    from glia.conformance import suite_outcomes as tests

    outcomes = []
    for outcome in with_progress(found):
        outcomes.append(outcome)
        if not as_json and outcome.status in (*tests.FAULTS, tests.SLOW):
            click.echo(_line(outcome))
    if as_json:
        counts = Counter(outcome.status for outcome in outcomes)
        click.echo(json.dumps({"counts": counts, "tests": [asdict(each) for each in outcomes]}))
    else:
        click.echo("\n".join([*tests.table(outcomes), *tests.reasons(outcomes)]))
    return outcomes


def with_progress(outcomes: Iterable[OutcomeT]) -> Iterator[OutcomeT]:
    """The outcomes, while how many there are so far is said on stderr."""
    counts: Counter[str] = Counter()
    with Progress("running") as progress:
        for outcome in outcomes:
            counts[outcome.status] += 1
            progress.hide()
            yield outcome
            so_far = ", ".join(f"{count} {status}" for status, count in counts.most_common())
            progress.begin(f"{so_far}; last {outcome.case}")
