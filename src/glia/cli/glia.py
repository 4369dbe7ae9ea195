"""The `glia` command: run, profile, check, inspect and explain compiled models and kernels."""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from glia import __version__
from glia.base.output_files import writing
from glia.base.suggestions import nearest
from glia.cc_flags import compile_target, resolve_options
from glia.cli.cache import cache
from glia.cli.conformance import conformance
from glia.cli.errors import (
    BadCommandLine,
    CheckFailed,
    KernelFailed,
    UnknownCode,
    UnknownPass,
)
from glia.cli.guard import GuardedGroup
from glia.cli.neuronx_cc import TARGETS
from glia.cli.partition import partition
from glia.cli.plan_command import plan
from glia.cli.triage import bisect, reduce
from glia.cli.values import INPUT_SEED, INPUTS, SEED, TOLERANCE, naming_option
from glia.frontend.errors import FrameworkMissing

if TYPE_CHECKING:
    from glia.runtime.model import Model
    from glia.runtime.shardings import Sharding
    from glia.sim.notifications import Notifications
    from glia.sim.ranks.world import World

EXAMPLES = """\b
Examples:
  glia run model.neff --input input0=x.npy --check expected.npz
  glia check kernel.py::softmax --arg x=f32[128,512]
  glia show model.hlo.pb --after canonicalize
  glia explain nc_matmul
"""

MAX_WARNINGS = 5  # of a run's notifications, by source line
KERNEL_SEPARATOR = "::"  # of KERNEL.py::NAME
KERNEL_ARGUMENTS = click.option(
    "--arg",
    "arguments",
    multiple=True,
    metavar="NAME=DTYPE[N,N]|NAME=FILE.npy|NAME=VALUE",
    help="A kernel argument; repeat the option for each.",
)
KERNEL_GRID = click.option(
    "--grid", default="", metavar="N|N,N", help="Launch grid of the kernel, as in kernel[N](...)."
)
KERNEL_TARGET = click.option(
    "--target",
    type=click.Choice(TARGETS),
    default=compile_target,
    show_default="that of NEURON_CC_FLAGS, else NEURON_PLATFORM_TARGET_OVERRIDE, else trn2",
    help="Target the kernel is compiled for.",
)


@click.group(
    cls=GuardedGroup,
    epilog=EXAMPLES,
    context_settings={"max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, prog_name="glia")
def main() -> None:
    """Run, profile, check, inspect and explain compiled models and NKI kernels."""


main.add_command(bisect)
main.add_command(cache)
main.add_command(conformance)
main.add_command(partition)
main.add_command(plan)
main.add_command(reduce)


@main.command(short_help="Run a NEFF on the simulated device.")
@click.argument("neff", metavar="F.neff")
@INPUTS
@INPUT_SEED
@click.option(
    "--check", default="", metavar="REF.npz", help="Compare the outputs with these arrays."
)
@click.option("--rtol", type=TOLERANCE, default=1e-3, help="Relative tolerance of --check.")
@click.option("--atol", type=TOLERANCE, default=1e-5, help="Absolute tolerance of --check.")
@click.option(
    "--save", "save_path", default="", metavar="OUT.npz", help="Write the outputs to this file."
)
@click.option(
    "--device",
    default=None,
    help="Execution backend, e.g. adversarial.  [default: the fastest available]",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    default=None,
    help="Ranks that run the model together.  [default: as many as it is compiled for]",
)
@click.option(
    "--mesh", "mesh_text", default="", metavar="AXIS=N,...", help="How the ranks are numbered."
)
@click.option(
    "--shard",
    "shardings",
    multiple=True,
    metavar="NAME=AXIS,-",
    help="A tensor given, or saved, as one array that ranks have parts of; repeat it for each.",
)
@click.option(
    "--processes/--threads",
    default=None,
    help="What runs the ranks.  [default: processes where they hold more than 4 GiB together]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run(
    neff: str,
    inputs: tuple[str, ...],
    seed: int,
    check: str,
    rtol: float,
    atol: float,
    save_path: str,
    device: str | None,
    ranks: int | None,
    mesh_text: str,
    shardings: tuple[str, ...],
    processes: bool | None,
    as_json: bool,
) -> None:
    """Run F.neff on the simulated device and print dtype, shape and first values of each output.

    Inputs without --input get random values. With --check the exit status is 1 when an output is
    outside the tolerance. An index outside of its table is warned of on stderr and does not stop
    the run; --json has them under "notifications". Tensors of a model for several ranks are those
    of all ranks, NAME, or of one, NAME@RANK. Under mpirun each process has an equal share of the
    ranks, and the first one prints. With --mesh, tensors that --shard names are one array: an axis
    of the mesh for each dimension, or several (data+model), or - for none.

    \b
    Examples:
      glia run model.neff --input input0=x.npy --save outputs.npz
      glia run sharded.neff --ranks 8 --input w=w.npy --input x@0=x0.npy
      glia run sharded.neff --mesh data=2,model=4 --input x=x.npy --shard x=data,- --shard y=data
      mpirun -n 8 glia run sharded.neff --save outputs.npz
      glia run model.neff --input input0=x.npy --check expected.npz --rtol 0.01
      glia run model.neff --device adversarial
    """
    from glia.runtime.arrays import compare, read_references, save_arrays
    from glia.runtime.model import OutOfBoundAccess, load
    from glia.runtime.shardings import divide_inputs, join_outputs, whole_outputs

    model = load(neff, device=device, ranks=ranks, rank_processes=processes)
    world = _launched_world()
    share = world.share(model.ranks) if world else range(model.ranks)
    divided = _shardings(model, mesh_text, shardings)
    arrays = divide_inputs(_read_inputs(inputs), divided)
    given, seeded = _given_by_rank(model, arrays, seed, share)
    with naming_option("--check"):
        references = read_references(check, whole_outputs(model, divided)) if check else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfBoundAccess)
        found = model.run_share_by_name(world, given) if world else model.run_ranks_by_name(given)
    if world and world.position:
        return
    results = join_outputs(found, divided)
    if save_path:
        with writing(save_path):
            save_arrays(save_path, results)
    differences = compare(results, references, rtol, atol)
    report = {
        "seeded_inputs": seeded,
        "outputs": [_output_summary(name, array) for name, array in results.items()],
        "differences": [str(difference) for difference in differences],
        "checked": bool(check),
        "notifications": [each.to_dict() for each in model.notifications],
        "notification_count": model.notifications.total,
    }
    for line in _notification_lines(model.notifications):
        click.echo(line, err=True)
    click.echo(json.dumps(report) if as_json else _run_text(report))
    if differences:
        raise CheckFailed(
            count=len(differences), total=len(results), path=check, first=differences[0]
        )


def _shardings(model: Model, mesh_text: str, given: tuple[str, ...]) -> dict[str, Sharding]:
    """The shardings of tensors by name."""
    from glia.runtime.shardings import mesh_of, sharding_of

    mesh = mesh_of(mesh_text, model.ranks) if mesh_text else {}
    known = {binding.name for binding in (*model.inputs, *model.outputs)}
    found = {}
    for text in given:
        name, equals, axes = text.partition("=")
        problem = ""
        if not mesh:
            problem = "--shard needs --mesh"
        elif not (name and equals and axes):
            problem = f"--shard {text!r} is not of the form NAME=AXIS,-"
        elif name not in known:
            problem = f"--shard {name}: there is no input or output {name!r}"
        if problem:
            raise BadCommandLine(problem=problem, command="glia run")
        found[name] = sharding_of(axes, mesh)
    return found


def _launched_world() -> World | None:
    """The processes that mpirun has started, this one among them; None without it."""
    from glia.sim.ranks.world import World, launched_processes

    return World() if launched_processes() > 1 else None


def _given_by_rank(
    model: Model, arrays: dict[str, Any], seed: int, share: range
) -> tuple[list[dict[str, Any]], list[str]]:
    """The inputs of some ranks, and the names of those that are filled from the seed."""
    import numpy as np

    from glia.runtime.arrays import random_array
    from glia.runtime.rank_names import by_rank

    seeded = {}
    by_all = by_rank(arrays, model.inputs, model.ranks)
    given = [by_all[rank] for rank in share]
    for rank, each in zip(share, given, strict=True):
        generator = np.random.default_rng([seed, rank] if rank else seed)
        for binding in model.inputs:
            if binding.name not in each:
                each[binding.name] = random_array(binding.dtype, binding.shape, generator)
                seeded[binding.name] = True
    return given, list(seeded)


def _notification_lines(notifications: Notifications) -> Iterator[str]:
    """A warning for each source line, the first MAX_WARNINGS, and how many there were in all."""
    listed = notifications.by_source()
    for first, count in listed[:MAX_WARNINGS]:
        yield f"WARNING: {first}"
        if count > 1:
            yield f"  and {count - 1} more from this line"
    if notifications.total > 1:
        yield f"{notifications.total} notifications in all"


def _read_inputs(inputs: tuple[str, ...]) -> dict[str, Any]:
    from glia.runtime.arrays import read_array

    arrays = {}
    for text in inputs:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            problem = f"--input {text!r} is not of the form NAME=FILE.npy"
            raise BadCommandLine(problem=problem, command="glia run")
        if name in arrays:
            problem = f"--input {name} is given twice"
            raise BadCommandLine(problem=problem, command="glia run")
        with naming_option(f"--input {name}"):
            arrays[name] = read_array(path)
    return arrays


def _output_summary(name: str, array: Any) -> dict[str, Any]:
    flat = array.reshape(-1)
    first = [str(value) for value in flat[:4]]
    return {"name": name, "dtype": str(array.dtype), "shape": list(array.shape), "first": first}


def _run_text(report: dict[str, Any]) -> str:
    lines = []
    if report["seeded_inputs"]:
        lines.append(f"filled from the seed: {', '.join(report['seeded_inputs'])}")
    for output in report["outputs"]:
        more = " ..." if len(output["first"]) == 4 else ""
        values = " ".join(output["first"])
        lines.append(f"{output['name']}: {output['dtype']}{output['shape']} {values}{more}")
    if report["checked"] and not report["differences"]:
        lines.append("all outputs are within the tolerance of the reference")
    return "\n".join([*lines, *report["differences"]])


@main.command(short_help="Print the simulated latency of a NEFF or a kernel.")
@click.argument("program", metavar="F.neff|KERNEL.py::NAME")
@KERNEL_ARGUMENTS
@KERNEL_GRID
@KERNEL_TARGET
@click.option("--perfetto", default="", metavar="FILE", help="Write a trace for ui.perfetto.dev.")
@click.option("--html", default="", metavar="FILE", help="Write an HTML report.")
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="Time so many ranks of the model together, each with a time line.  [default: one for all]",
)
@click.option("--as-written", is_flag=True, help="Keep the kernel's own tiles and order.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(
    program: str,
    arguments: tuple[str, ...],
    grid: str,
    target: str,
    perfetto: str,
    html: str,
    ranks: int | None,
    as_written: bool,
    as_json: bool,
) -> None:
    """Print simulated latency, traffic and utilization of one execution of a NEFF or a kernel.

    The critical path and the most time-consuming operators follow, by source line. A kernel needs
    its arguments, and its Python file is executed. Notes say what the back end has changed in it,
    and how long it takes as written.

    \b
    Examples:
      glia profile model.neff --html profile.html --perfetto trace.json
      glia profile step.neff --ranks 8 --perfetto trace.json
      glia profile kernel.py::softmax --arg x=f32[128,512] --target trn2
    """
    from glia.cli.profile_text import profile_text
    from glia.runtime.model import load

    is_kernel = KERNEL_SEPARATOR in program or program.endswith(".py")
    if (arguments or grid or as_written) and not is_kernel:
        problem = "--arg, --grid and --as-written need a KERNEL.py::NAME"
        raise BadCommandLine(problem=problem, command="glia profile")
    source = click.get_current_context().get_parameter_source("target")
    if source is ParameterSource.COMMANDLINE and not is_kernel:
        problem = "--target is for a KERNEL.py::NAME; a NEFF is compiled for one already"
        raise BadCommandLine(problem=problem, command="glia profile")
    if ranks is not None and is_kernel:
        raise BadCommandLine(problem="--ranks needs a F.neff", command="glia profile")
    written_us = None
    if is_kernel:
        from glia.cli.kernel import profile_kernel_file

        report, written_us = profile_kernel_file(
            program, arguments, target, grid, as_written=as_written
        )
    else:
        report = load(program).profile(ranks=ranks)
    for path, save in ((perfetto, report.save_perfetto), (html, report.save_html)):
        if path:
            with writing(path):
                save(path)
    if as_json:
        click.echo(json.dumps(report.to_dict() | {"as_written_us": written_us}))
    else:
        click.echo(profile_text(report, written_us))


@main.command(short_help="Check a kernel for races, deadlocks, uninitialized reads.")
@click.argument("kernel", metavar="KERNEL.py::NAME")
@KERNEL_ARGUMENTS
@KERNEL_GRID
@KERNEL_TARGET
@click.option(
    "--seed", type=SEED, default=0, help="Seed of the values of tensors given by dtype and shape."
)
@click.option(
    "--orders",
    type=click.IntRange(min=1),
    default=None,
    help="Execution orders to try.  [default: as many as find every race]",
)
@click.option(
    "--expect", default="", metavar="REF.npz", help="Compare the outputs with these arrays."
)
@click.option("--rtol", type=TOLERANCE, default=1e-3, help="Relative tolerance of --expect.")
@click.option("--atol", type=TOLERANCE, default=1e-5, help="Absolute tolerance of --expect.")
@click.option("--all-targets", is_flag=True, help="Also compile the kernel for every other target.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    kernel: str,
    arguments: tuple[str, ...],
    grid: str,
    target: str,
    seed: int,
    orders: int | None,
    expect: str,
    rtol: float,
    atol: float,
    all_targets: bool,
    as_json: bool,
) -> None:
    """Run an NKI kernel interpreted and compiled, and check that it is correct in every order.

    The interpreted and the compiled kernel must give the same outputs. The compiled kernel then
    runs in adversarial orders of engines and DMA queues, with uninitialized memory tracked: races,
    deadlocks, uninitialized reads and lost matrix products are reported with source line and fix.
    What the kernel loads, computes or keeps for nothing is remarked with what its cure gains. The
    Python file is executed; either NKI generation is accepted. The exit status is 1 when a check
    fails.

    \b
    Examples:
      glia check kernel.py::softmax --arg x=f32[128,512]
      glia check kernel.py::scale --arg x=x.npy --arg factor=2.0 --expect y.npz --all-targets
    """
    from glia.cli.kernel import check_kernel_file
    from glia.runtime.arrays import read_arrays

    with naming_option("--expect"):
        expected = read_arrays(expect) if expect else None
    report = check_kernel_file(
        kernel,
        arguments,
        seed,
        grid,
        target=target,
        orders=orders,
        expected=expected,
        rtol=rtol,
        atol=atol,
        other_targets=all_targets,
        on_check=None if as_json else click.echo,
    )
    if as_json:
        checks = [vars(check) | {"loc": str(check.loc)} for check in report.checks]
        facts = {"kernel": report.kernel, "passed": report.passed, "checks": checks}
        click.echo(json.dumps(facts))
    if not report.passed:
        failed = len(report.failures)
        raise KernelFailed(kernel=report.kernel, failed=failed, total=len(report.checks))


@main.command("inspect", short_help="Print the contents of a NEFF.")
@click.argument("neff", metavar="F.neff")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect_command(neff: str, as_json: bool) -> None:
    """Print the header, tensors, archive members with sizes, and instruction counts of F.neff.

    \b
    Examples:
      glia inspect model.neff
      glia inspect model.neff --json
    """
    from glia.neff.inspect import describe_neff
    from glia.neff.package import neff_bytes

    description = describe_neff(neff_bytes(Path(neff)))
    click.echo(json.dumps(description) if as_json else _inspect_text(description))


def _inspect_text(description: dict[str, Any]) -> str:
    lines = [f"{key:20} {value}" for key, value in description["header"].items()]
    if "target" not in description:
        lines.append("the program is in another compiler's encoding")
    else:
        lines.append(f"{'target':20} {description['target']}")
    for key in ("options", "statistics"):
        lines += [f"{key}.{name} = {value}" for name, value in description.get(key, {}).items()]
    for usage in ("inputs", "outputs"):
        for tensor in description.get(usage, []):
            shape = ",".join(map(str, tensor["shape"]))
            lines.append(f"{usage[:-1]:20} {tensor['name']}: {tensor['dtype']}[{shape}]")
    for core, facts in enumerate(description.get("cores", [])):
        for kind in ("instructions", "opcodes"):
            counts = Counter(facts[kind]).most_common()
            lines.append(f"core {core} {kind}: " + ", ".join(f"{n} {c}" for n, c in counts))
        of_temporaries = f"{facts['scratchpad_bytes']} of temporaries"
        lines.append(f"core {core} HBM bytes: {facts['hbm_bytes']}, {of_temporaries}")
        lines += [f"core {core} note: {note}" for note in facts["notes"]]
    lines += [f"{size:12} {name}" for name, size in description["members"].items()]
    return "\n".join(lines)


@main.command("explain-code", short_help="Explain what the compiler decided for a NEFF.")
@click.argument("neff", metavar="F.neff")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain_code_command(neff: str, as_json: bool) -> None:
    """Print what was cast in F.neff and why, and the engine, tiles and instructions of each nest.

    The compiler records this in the NEFF. Where --auto-cast allows several precisions, the
    simulated time of each is printed.

    \b
    Examples:
      glia explain-code model.neff
      glia explain-code model.neff --json
    """
    from glia.cli.explain_code import explain_code, explain_code_text
    from glia.neff.package import Neff

    facts = explain_code(Neff.load(neff))
    click.echo(json.dumps(facts) if as_json else explain_code_text(facts))


@main.command(short_help="Explain an error code or an instruction.")
@click.argument("subject", metavar="[CODE|INSTRUCTION|timing]", required=False)
def explain(subject: str | None) -> None:
    """Print cause and fix of an error CODE; without an argument, list all error codes.

    For an instruction or a function of nki.isa, print its semantics, rules and cost. For `timing`,
    list the constants of the timing model with their sources, assumed values first.

    \b
    Examples:
      glia explain GLIA502
      glia explain nc_matmul
      glia explain timing
    """
    from glia.base.error_catalogue import declared_errors, explain_code, product_codes
    from glia.base.unraised_codes import UNRAISED
    from glia.isa import INSTRUCTIONS
    from glia.nki.api.reference import instruction_reference
    from glia.timing.constant_table import timing_constants

    if subject == "timing":
        click.echo("\n".join(timing_constants()))
        return
    if subject is None:
        for name, error in declared_errors().items():
            first = (error.__doc__ or "").partition("\n")[0]
            also = "".join(f" (also {code})" for code in error.also)
            click.echo(f"{name:14} {first}{also}")
        for name, unraised in UNRAISED.items():
            click.echo(f"{name:14} {unraised.meaning} (not raised here)")
        return
    code = subject.upper().strip("[]")
    text = explain_code(code) or instruction_reference(subject)
    if not text:
        known = [*declared_errors(), *product_codes()]
        hint = nearest(code, known) or nearest(subject, INSTRUCTIONS)
        raise UnknownCode(name=subject, nearest=hint)
    click.echo(text)


@main.command(short_help="Print the IR of a model after a compiler pass.")
@click.argument("model", metavar="FILE")
@click.option(
    "--after", default="", metavar="PASS", help="Name of a pass; without it, list the passes."
)
@click.option(
    "--target",
    default=None,
    show_default="NEURON_PLATFORM_TARGET_OVERRIDE, else trn2",
    help="Target device family.",
)
@click.option(
    "--auto-cast",
    default=None,
    show_default="none",
    help="fp32 operations to cast: none, matmult or all.",
)
@click.option(
    "--optlevel",
    "-O",
    type=click.IntRange(1, 3),
    default=None,
    show_default="2",
    help="Optimization level.",
)
def show(
    model: str, after: str, target: str | None, auto_cast: str | None, optlevel: int | None
) -> None:
    """Print the IR of FILE, an HLO or StableHLO module, after a compiler pass.

    \b
    Examples:
      glia show model.hlo.pb
      glia show model.hlo.pb --after canonicalize
    """
    from glia.frontend.registry import read_module
    from glia.options import check_options
    from glia.pass_runner import IMPORT, run_pipeline, text_of
    from glia.pipeline import PIPELINE

    levels = {IMPORT: "graph"} | {step.name: step.makes for step in PIPELINE}
    graph = read_module(Path(model))
    if not after:
        for name, level in levels.items():
            click.echo(f"{level:8} {name}")
        return
    if after not in levels:
        raise UnknownPass(name=after, known=" ".join(levels))
    explicit = {"target": target, "auto_cast": auto_cast, "optlevel": optlevel}
    options, _ = resolve_options("glia show", explicit, {"auto_cast": "none"})
    check_options(options)
    ir = run_pipeline(graph, options, stop_after=after)
    click.echo(text_of(levels[after], ir))


@main.command(short_help="Train, compile, run and profile a small model.")
@click.option("--output", default="demo-out", metavar="DIR", help="Output directory.")
@click.option("--target", type=click.Choice(TARGETS), default="trn2", help="Target.")
def demo(output: str, target: str) -> int:
    """Train a digits classifier in JAX, compile it, run it simulated and compare with JAX.

    The exit status is 1 when an accuracy or loss is outside the bounds that the demo prints.

    \b
    Example:
      glia demo --output demo-out --target trn2
    """
    try:
        from glia.cli.demo.story import run_demo
    except ModuleNotFoundError as problem:
        package = str(problem.name).partition(".")[0]
        if package == "glia":
            raise
        raise FrameworkMissing(what="the demo", package=package, extra="demo") from problem
    with writing(output):
        return run_demo(Path(output), target)


if __name__ == "__main__":
    sys.exit(main())
