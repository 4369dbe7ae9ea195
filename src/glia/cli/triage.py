"""`glia bisect` and `glia reduce`: where a compilation goes wrong, and a small module for it."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glia.base.files import write_atomically
from glia.cc_flags import resolve_options
from glia.cli.errors import BadCommandLine
from glia.cli.neuronx_cc import TARGETS
from glia.cli.values import INPUT_SEED, INPUTS

if TYPE_CHECKING:
    from glia.graph.ir import Graph
    from glia.triage.bisect import Bisection, PassValues

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command(short_help="Find the pass, nest and instruction that change a model's values.")
@click.argument("model", metavar="MODEL")
@INPUTS
@INPUT_SEED
@click.option("--target", type=click.Choice(TARGETS), default=None, help="Target device family.")
@click.option(
    "--auto-cast", type=click.Choice(["matmult", "all", "none"]), default=None,
    help="fp32 operations to cast.  [default: none]",
)  # fmt: skip
@click.option("--optlevel", "-O", type=click.Choice(["1", "2", "3"]), default=None)
@click.option(
    "--ulps", type=click.FloatRange(min=0), default=None, metavar="N",
    help="Units in the last place that are no departure.  [default: 1024 of f32, 4 of narrower "
    "floats, 0 of integers]",
)  # fmt: skip
@AS_JSON
def bisect(
    model: str,
    inputs: tuple[str, ...],
    seed: int,
    target: str | None,
    auto_cast: str | None,
    optlevel: str | None,
    ulps: float | None,
    as_json: bool,
) -> None:
    """Run MODEL, an HLO or StableHLO module, after every pass; print where its values first depart.

    Graph passes are followed by the graph's evaluator, tile passes by that of nests, machine passes
    by the simulator, and what the last one made runs in several orders of engines and queues.
    Distances are in units in the last place, of an element or of the root mean square of its
    tensor, whichever is larger. The exit status is 1 where values depart.

    \b
    Examples:
      glia bisect model.hlo.pb
      glia bisect model.hlo.pb --input input0=x.npy --target trn1 --ulps 64 --json
    """
    from glia.cli.console import Progress
    from glia.frontend.registry import read_module
    from glia.options import check_options
    from glia.triage.bisect import bisect as find

    explicit = {
        "target": target,
        "auto_cast": auto_cast,
        "optlevel": int(optlevel) if optlevel else None,
    }
    options, _ = resolve_options("glia bisect", explicit, {"auto_cast": "none"})
    check_options(options)
    graph = read_module(Path(model))
    arrays = _arrays(graph, inputs, seed)
    with Progress(f"bisecting {Path(model).name}") as progress:
        found = find(graph, arrays, options, ulps, progress)
    click.echo(json.dumps(_as_json(found)) if as_json else _as_text(found))
    if found.first:
        sys.exit(1)


def _arrays(graph: Graph, inputs: tuple[str, ...], seed: int) -> list[Any]:
    """The named inputs from files, the others random; BadCommandLine for what does not fit."""
    from glia.graph.evaluate import random_inputs
    from glia.runtime.arrays import read_array

    arrays = random_inputs(graph, seed)
    names = [parameter.name for parameter in graph.parameters]
    for text in inputs:
        name, _, path = text.partition("=")
        if name not in names or not path:
            known = ", ".join(names)
            problem = f"--input {text!r} is not NAME=FILE.npy with a NAME of {known}"
            raise BadCommandLine(problem=problem, command="glia bisect")
        place = names.index(name)
        given, wanted = read_array(path), arrays[place]
        if given.dtype.kind == "V" and given.dtype.itemsize == wanted.dtype.itemsize:
            given = given.view(wanted.dtype)
        if (given.shape, given.dtype) != (wanted.shape, wanted.dtype):
            problem = f"{path} is {given.dtype}{list(given.shape)}, {name} is "
            problem += f"{wanted.dtype}{list(wanted.shape)}"
            raise BadCommandLine(problem=problem, command="glia bisect")
        arrays[place] = given
    return arrays


def _as_json(found: Bisection) -> dict[str, Any]:
    passes = [dataclasses.asdict(each) for each in found.passes]
    for each in passes:
        if each["departure"] and each["departure"]["ulps"] == float("inf"):
            each["departure"]["ulps"] = "inf"
    return {
        "departs_after": found.first.name if found.first else None,
        "tolerances": list(found.tolerances),
        "place": dataclasses.asdict(found.place) if found.place else None,
        "passes": passes,
    }


def _as_text(found: Bisection) -> str:
    tolerances = ", ".join(f"{each:g}" for each in found.tolerances)
    lines = [f"units in the last place after each pass; tolerance of the outputs: {tolerances}"]
    lines += [_pass_line(each) for each in found.passes]
    if found.first is None:
        return "\n".join([*lines, "values never depart"])
    lines.append(f"values depart after {found.first.name} ({found.first.level})")
    departure, place = found.first.departure, found.place
    if departure and not departure.error:
        lines.append(
            f"  output {departure.output}: {departure.elements} elements, farthest element "
            f"{departure.element}: {departure.found} instead of {departure.wanted}"
        )
    if place:
        facts = {
            "in": place.nest, "instruction": place.instruction, "at": place.variables,
            "it read": place.read, "source": place.source,
        }  # fmt: skip
        lines += [f"  {name}: {text}" for name, text in facts.items() if text]
        if place.passed_on:
            lines.append(f"  {place.passed_on} later instructions passed the value on")
    return "\n".join(lines)


def _pass_line(each: PassValues) -> str:
    if each.departure is None:
        text = "not evaluated: what several cores compute together is not followed"
    else:
        text = each.departure.error or f"{each.departure.ulps:g}"
    return f"  {each.level:8} {each.name:32} {text}"


@click.command(short_help="Shrink a module while a command says that it still fails.")
@click.argument("model", metavar="MODEL")
@click.option(
    "--keep", "command", required=True, metavar="COMMAND",
    help="Shell command that exits with 0 while a module shows the failure; {} is its file.",
)  # fmt: skip
@click.option(
    "--output", default="", metavar="FILE", help="The small module.  [default: MODEL.reduced.pb]"
)
@click.option("--seconds", default=120.0, help="Time limit of one run of the command.")
@AS_JSON
def reduce(model: str, command: str, output: str, seconds: float, as_json: bool) -> None:
    """Shrink MODEL, an HLO or StableHLO module, while COMMAND exits with 0 for the smaller module.

    COMMAND is run by the shell with the file of a candidate in place of {}, or after its last word.
    Exit status 0 says that the candidate still shows what is looked for; every other status, and a
    run of more than --seconds, that it does not. Candidates have fewer outputs and instructions,
    parameters in place of constants and of other instructions, and smaller extents; one that the
    importer refuses is not tried. The smallest module is written whenever one is found.

    \b
    Examples:
      glia reduce model.hlo.pb --keep '! glia bisect {}'
      glia reduce model.hlo.pb --keep 'glia show {} --after emit 2>&1 | grep -q GLIA301'
    """
    from glia.base.output_files import writing
    from glia.frontend.registry import read_module_file
    from glia.triage.shrink import Shrinking, reduce_module

    target = output or f"{model}.reduced.pb"

    def save(found: Shrinking) -> None:
        with writing(target):
            write_atomically(Path(target), [found.module])
        if not as_json:
            size = f"{found.instructions} instructions, {len(found.module)} bytes"
            click.echo(f"{size} after {found.tried} candidates", err=True)

    with tempfile.TemporaryDirectory() as directory:
        candidate = Path(directory) / "candidate.hlo.pb"

        def is_kept(data: bytes) -> bool:
            candidate.write_bytes(data)
            return _holds(command, candidate, seconds)

        found = reduce_module(read_module_file(model), is_kept, save)
    save(found)
    facts = {
        "output": target, "instructions": found.instructions, "bytes": len(found.module),
        "candidates": found.tried, "kept": found.kept,
    }  # fmt: skip
    text = f"wrote {target}: {found.instructions} instructions, {len(found.module)} bytes"
    click.echo(json.dumps(facts) if as_json else text)


def _holds(command: str, candidate: Path, seconds: float) -> bool:
    """Whether a shell command exits with 0 in time; all its processes end with it."""
    path = shlex.quote(str(candidate))
    text = command.replace("{}", path) if "{}" in command else f"{command} {path}"
    with subprocess.Popen(
        text, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            return process.wait(seconds) == 0
        except BaseException as problem:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(problem, subprocess.TimeoutExpired):
                return False
            raise
