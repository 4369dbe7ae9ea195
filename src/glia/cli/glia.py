"""The `glia` command: run, profile, inspect and explain what the compiler makes."""

from __future__ import annotations

import inspect
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glia import __version__
from glia.base.suggestions import nearest
from glia.cli.errors import (
    BadCommandLine,
    CheckFailed,
    KernelFailed,
    NotConforming,
    UnknownCode,
    UnknownPass,
)
from glia.cli.guard import GuardedGroup, writing
from glia.cli.neuronx_cc import TARGETS
from glia.frontend.errors import FrameworkMissing

if TYPE_CHECKING:
    from glia.profile.report import Profile

EXAMPLES = """\b
Examples:
  glia run model.neff --input input0=x.npy --check expected.npz
  glia check kernel.py::softmax --arg x=f32[128,512]
  glia show model.hlo.pb --after canonicalize
  glia explain nc_matmul
"""


KERNEL_ARGUMENTS = click.option(
    "--arg",
    "arguments",
    multiple=True,
    metavar="NAME=DTYPE[N,N]|NAME=FILE.npy|NAME=VALUE",
    help="An argument of a kernel; repeat for more.",
)
KERNEL_GRID = click.option(
    "--grid", default="", metavar="N|N,N", help="Launch the kernel on this grid, as kernel[N]."
)
KERNEL_TARGET = click.option(
    "--target", type=click.Choice(TARGETS), default="trn2", help="Device family of a kernel."
)


@click.group(
    cls=GuardedGroup,
    epilog=EXAMPLES,
    context_settings={"max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, prog_name="glia")
def main() -> None:
    """Run, profile, inspect and explain compiled models."""


@main.command(short_help="Run a NEFF on the simulated device.")
@click.argument("neff", metavar="F.neff")
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="An input; repeat for more."
)
@click.option("--seed", default=0, help="For inputs that are not given.")
@click.option("--check", default="", metavar="REF.npz", help="Compare the outputs with these.")
@click.option("--rtol", default=1e-3, help="Relative tolerance of --check.")
@click.option("--atol", default=1e-5, help="Absolute tolerance of --check.")
@click.option("--save", "saved", default="", metavar="OUT.npz", help="Write the outputs here.")
@click.option("--device", default=None, help="How to execute; the default is the fastest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run(
    neff: str,
    inputs: tuple[str, ...],
    seed: int,
    check: str,
    rtol: float,
    atol: float,
    saved: str,
    device: str | None,
    as_json: bool,
) -> None:
    """Run F.neff and print what comes out; inputs that are not given are filled from the seed."""
    import numpy as np

    from glia.cli.arrays import compare, random_array, read_references, save_arrays
    from glia.runtime.model import load

    model = load(neff, device=device)
    arrays = _given_arrays(inputs)
    generator = np.random.default_rng(seed)
    made = [binding for binding in model.inputs if binding.name not in arrays]
    arrays |= {b.name: random_array(b.dtype, b.shape, generator) for b in made}
    references = read_references(check, model.outputs) if check else {}
    results = model.run(arrays)
    if saved:
        with writing(saved):
            save_arrays(saved, results)
    differences = compare(results, references, rtol, atol)
    report = {
        "seeded_inputs": [binding.name for binding in made],
        "outputs": [_summary(name, array) for name, array in results.items()],
        "differences": [str(difference) for difference in differences],
        "checked": bool(check),
    }
    click.echo(json.dumps(report) if as_json else _run_text(report))
    if differences:
        raise CheckFailed(
            count=len(differences), total=len(results), path=check, first=differences[0]
        )


def _given_arrays(inputs: tuple[str, ...]) -> dict[str, Any]:
    from glia.cli.arrays import read_array

    arrays = {}
    for text in inputs:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            problem = f"--input {text!r} is not of the form NAME=FILE.npy"
            raise BadCommandLine(problem=problem, command="glia run")
        arrays[name] = read_array(path)
    return arrays


def _summary(name: str, array: Any) -> dict[str, Any]:
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


@main.command(short_help="Simulate how long a NEFF or a kernel takes, and where.")
@click.argument("place", metavar="F.neff|KERNEL.py::NAME")
@KERNEL_ARGUMENTS
@KERNEL_GRID
@KERNEL_TARGET
@click.option("--perfetto", default="", metavar="FILE", help="Write a trace for ui.perfetto.dev.")
@click.option("--html", default="", metavar="FILE", help="Write a page to read in a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(
    place: str,
    arguments: tuple[str, ...],
    grid: str,
    target: str,
    perfetto: str,
    html: str,
    as_json: bool,
) -> None:
    """Print the simulated time of one execution of F.neff.

    Of a kernel, whose file is run, also which source lines the time goes to; it needs its
    arguments: glia profile kernel.py::softmax --arg x=f32[128,512]
    """
    from glia.cli.kernel import SEPARATOR, path_text, profile_kernel_file
    from glia.profile.critical_path import critical_path
    from glia.runtime.model import load

    is_kernel = SEPARATOR in place or place.endswith(".py")
    if (arguments or grid) and not is_kernel:
        problem = "--arg and --grid need a KERNEL.py::NAME"
        raise BadCommandLine(problem=problem, command="glia profile")
    if is_kernel:
        found = profile_kernel_file(place, arguments, target, grid)
    else:
        found = load(place).profile()
    for path, save in ((perfetto, found.save_perfetto), (html, found.save_html)):
        if path:
            with writing(path):
                save(path)
    if as_json:
        path = [
            vars(row) | {"loc": str(row.loc)} for row in critical_path(found.timing) if is_kernel
        ]
        click.echo(json.dumps(found.to_dict() | ({"critical_path": path} if is_kernel else {})))
        return
    click.echo(_profile_text(found) + (f"\n{path_text(found)}" if is_kernel else ""))


def _profile_text(found: Profile) -> str:
    cores = f"{len(found.cores)} cores" if found.cores else "one core"
    lines = [
        f"latency          {found.latency_us:.2f} us (simulated, {cores} of {found.target.name})",
        f"matrix peak used {found.mfu:.2%} (MFU, {found.flops} flops)",
        f"HBM traffic      {found.hbm_bytes} bytes, {found.hbm_gbps:.1f} GB/s",
        f"DMA traffic      {found.dma_bytes} bytes",
        f"instructions     {found.instructions}",
    ]
    for number, core in enumerate(found.cores):
        waits = "".join(f", waited {us:.2f} us for core {n}" for n, us in core.waiting_us.items())
        lines.append(f"core {number:<11} {core.latency_us:.2f} us{waits}")
    busy = [("engine " + name, each) for name, each in found.engines.items()]
    busy += [("queue " + name, each) for name, each in found.queues.items()]
    for name, each in busy:
        lines.append(
            f"{name:16} busy {each.busy_us:.2f} us ({each.utilization:.1%}), "
            f"{each.instructions} instructions"
        )
    return "\n".join([*lines, "not modelled:", *(f"  {text}" for text in found.not_modelled)])


@main.command(short_help="Look for what is wrong with an NKI kernel.")
@click.argument("place", metavar="KERNEL.py::NAME")
@KERNEL_ARGUMENTS
@KERNEL_GRID
@KERNEL_TARGET
@click.option("--seed", default=0, help="For tensors given by dtype and shape only.")
@click.option(
    "--orders",
    type=click.IntRange(min=1),
    default=None,
    help="Orders of engines and queues to try.  [default: as many as find every race]",
)
@click.option("--expect", default="", metavar="REF.npz", help="Compare the outputs with these.")
@click.option("--rtol", default=1e-3, help="Relative tolerance of --expect.")
@click.option("--atol", default=1e-5, help="Absolute tolerance of --expect.")
@click.option("--all-targets", is_flag=True, help="Also say which other targets take the kernel.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    place: str,
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
    """Run a kernel of either generation in every way that shows a fault.

    Step by step; compiled, which must give the same; then with engines and queues held back against
    it and memory that nothing wrote out of bounds: races, deadlocks and uninitialised reads end
    with the source line and a cure. The file is run to get the kernel. Ends with exit code 1 when
    a check fails.

    \b
    Examples:
      glia check kernel.py::softmax --arg x=f32[128,512]
      glia check kernel.py::scale --arg x=x.npy --arg factor=2.0 --expect y.npz --all-targets
    """
    from glia.cli.arrays import read_arrays
    from glia.cli.kernel import check_kernel_file

    report = check_kernel_file(
        place,
        arguments,
        seed,
        grid,
        target=target,
        orders=orders,
        expected=read_arrays(expect) if expect else None,
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


@main.command("inspect", short_help="Print what a NEFF holds.")
@click.argument("neff", metavar="F.neff")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect_command(neff: str, as_json: bool) -> None:
    """Print F.neff's header, tensors, members with their sizes, and instruction counts."""
    from glia.neff.inspect import describe_neff
    from glia.neff.package import neff_bytes

    described = describe_neff(neff_bytes(Path(neff)))
    click.echo(json.dumps(described) if as_json else _inspect_text(described))


def _inspect_text(described: dict[str, Any]) -> str:
    lines = [f"{key:20} {value}" for key, value in described["header"].items()]
    if "target" not in described:
        lines.append("the program is in another compiler's encoding")
    else:
        lines.append(f"{'target':20} {described['target']}")
    for key in ("options", "statistics"):
        lines += [f"{key}.{name} = {value}" for name, value in described.get(key, {}).items()]
    for usage in ("inputs", "outputs"):
        for tensor in described.get(usage, []):
            shape = ",".join(map(str, tensor["shape"]))
            lines.append(f"{usage[:-1]:20} {tensor['name']}: {tensor['dtype']}[{shape}]")
    for core, facts in enumerate(described.get("cores", [])):
        for kind in ("instructions", "opcodes"):
            counts = Counter(facts[kind]).most_common()
            lines.append(f"core {core} {kind}: " + ", ".join(f"{n} {c}" for n, c in counts))
        lines.append(f"core {core} HBM bytes: {facts['hbm_bytes']}")
        lines += [f"core {core} note: {note}" for note in facts["notes"]]
    lines += [f"{size:12} {name}" for name, size in described["members"].items()]
    return "\n".join(lines)


@main.command(short_help="Explain an error code or an instruction.")
@click.argument("subject", metavar="[CODE|INSTRUCTION|timing]", required=False)
def explain(subject: str | None) -> None:
    """Print the cause and the cure of an error CODE, or all codes when none is given.

    `glia explain nc_matmul` prints what an instruction, or a function of nki.isa, does, its rules
    and its cost. `glia explain timing` lists the constants of the timing model with their sources,
    those that no public source gives first.
    """
    from glia.cli.catalogue import every_error, instruction_text, timing_constants
    from glia.isa import INSTRUCTIONS

    if subject == "timing":
        click.echo("\n".join(timing_constants()))
        return
    errors = every_error()
    if subject is None:
        for name, error in errors.items():
            first = (error.__doc__ or "").partition("\n")[0]
            click.echo(f"{name:14} {first}")
        return
    wanted = subject.upper().strip("[]")
    found = errors.get(wanted) or errors.get(f"NCC_{wanted}")
    text = instruction_text(subject) if found is None else ""
    if found is not None:
        text = f"{found.code}: {inspect.cleandoc(found.__doc__ or '')}"
    if not text:
        hint = nearest(wanted, errors) or nearest(subject, INSTRUCTIONS)
        raise UnknownCode(name=subject, nearest=hint)
    click.echo(text)


@main.command(short_help="Run the kernels of a clone of the public NKI repositories.")
@click.argument("suite", type=click.Choice(["nki"]))
@click.option(
    "--repo", required=True, metavar="PATH", type=click.Path(exists=True), help="A clone."
)
@click.option("--only", default="", metavar="TEXT", help="Only files whose path holds this.")
@click.option("--seconds", default=900.0, help="How long one kernel, test or script may take.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def conformance(suite: str, repo: str, only: str, seconds: float, as_json: bool) -> None:
    """Run every kernel, test and script found under PATH, both generations; print what comes of it.

    Kernels in the code blocks of .rst pages count too. The code of the clone runs in this
    environment, a process for each file; what takes longer than --seconds is listed as not run,
    and the rest of its file goes on. Failures that lie in the clone's own files are explained; any
    other one ends with exit code 1.
    """
    from glia.conformance.run import run_all, text_of_outcome

    outcomes = []
    for outcome in run_all(Path(repo), only, seconds):
        outcomes.append(outcome)
        if not as_json:
            click.echo(text_of_outcome(outcome))
    counts = Counter(each.status for each in outcomes)
    if as_json:
        click.echo(json.dumps({"counts": counts, "kernels": [asdict(each) for each in outcomes]}))
    else:
        click.echo(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    wrong = [each for each in outcomes if each.status == "fail"]
    if wrong:
        first = f"{wrong[0].file} {wrong[0].kernel}: {wrong[0].reason}"
        raise NotConforming(count=len(wrong), total=len(outcomes), first=first)


@main.command(short_help="Print a model as text after a pass.")
@click.argument("model", metavar="FILE")
@click.option("--after", default="", metavar="PASS", help="A pass; without it, list the passes.")
@click.option("--target", default="trn2", help="Device family.")
@click.option("--auto-cast", default="none", help="none, matmult or all.")
@click.option("--optlevel", "-O", type=click.IntRange(1, 3), default=2)
def show(model: str, after: str, target: str, auto_cast: str, optlevel: int) -> None:
    """Print FILE, a serialized HLO module, as the text it has after a pass of the compiler."""
    from glia.compiler import IMPORT, run_pipeline, text_of
    from glia.frontend.registry import read_module
    from glia.options import CompileOptions
    from glia.pipeline import PIPELINE

    levels = {IMPORT: "graph"} | {each.name: each.makes for each in PIPELINE}
    if not after:
        for name, level in levels.items():
            click.echo(f"{level:8} {name}")
        return
    if after not in levels:
        raise UnknownPass(name=after, known=" ".join(levels))
    options = CompileOptions(target=target, auto_cast=auto_cast, optlevel=optlevel)
    ir = run_pipeline(read_module(Path(model)), options, stop_after=after)
    click.echo(text_of(levels[after], ir))


@main.command(short_help="Train a small model, compile it, run it and explain it.")
@click.option("--output", default="demo-out", metavar="DIR", help="Where the files go.")
@click.option("--target", type=click.Choice(TARGETS), default="trn2", help="Device family.")
def demo(output: str, target: str) -> int:
    """Train a digits classifier in JAX, compile it, run it on the device and compare the two.

    The exit status is 1 when something the demo promises does not hold.
    """
    try:
        from glia.cli.demo.story import tell
    except ModuleNotFoundError as problem:
        package = str(problem.name).partition(".")[0]
        if package == "glia":
            raise
        raise FrameworkMissing(what="the demo", package=package, extra="demo") from problem
    with writing(output):
        return tell(Path(output), target)


if __name__ == "__main__":
    sys.exit(main())
