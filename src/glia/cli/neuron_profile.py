"""The `neuron-profile` command: capture an execution of a NEFF, and show its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glia import __version__
from glia.base.files import read_file
from glia.base.output_files import writing
from glia.cli.errors import BadCommandLine
from glia.cli.guard import GuardedGroup, check_writable

if TYPE_CHECKING:
    from glia.ntff.tables import CapturedProfile

EXAMPLES = """\b
Examples:
  neuron-profile capture -n model.neff -s profile.ntff x x.npy --save-output
  neuron-profile view -n model.neff -s profile.ntff --output-format summary-json
  neuron-profile show-session -s profile.ntff --show-errors -j
"""
FORMATS = ("parquet", "summary-text", "summary-json", "json", "perfetto")
MOST_EXECUTIONS = 1_000_000
MOST_ROWS = 250_000  # of each core in a table
ONE_WORKER = "one worker is simulated; NEFFs that span ranks are not"
NO_SERVER = "there is no server of pages; `glia profile --html` writes a page"
# Options that the product documents and this command has no meaning for
REFUSED = {
    "capture": {
        "--single-io": "it makes outputs wrong to save memory of a device",
        "--io-from": "give the inputs as NAME FILE",
    },
    "view": {
        "--session-dir": "give one trace with --session-file",
        "--port": NO_SERVER,
        "--db-endpoint": "profiles go to files, not to a database",
        "--db-bucket": "profiles go to files, not to a database",
        "--db-org": "profiles go to files, not to a database",
        "--enable-memory-tracker": "`glia profile` shows what memories hold over time",
        "--terminology": "`glia explain` and the profile schema reference have the terms",
    },
}
SHORT = {"-d": "--session-dir"}
MOST_INPUT_NAMES = 1 << 20  # bytes of a file that names the inputs of each worker


class ProfilerCommand(click.Command):
    """A command that refuses documented options which it has no meaning for, with the reason."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refused = REFUSED.get(str(ctx.info_name), {})
        for argument in args:
            option = argument.partition("=")[0]
            name = SHORT.get(option, option)
            if name in refused:
                problem = f"{option} is not available: {refused[name]}"
                raise BadCommandLine(problem=problem, command=ctx.command_path)
        return super().parse_args(ctx, args)


def _only(*values: str, reason: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """Let an option have these values; others are refused with the reason."""

    def check(context: click.Context, parameter: click.Parameter, value: str) -> str:
        if value is not None and value not in values:
            problem = f"{parameter.opts[-1]} {value} is not available: {reason}"
            raise BadCommandLine(problem=problem, command=context.command_path)
        return value

    return check


@click.group(
    cls=GuardedGroup,
    epilog=EXAMPLES,
    context_settings={"max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, prog_name="neuron-profile (glia)")
def main() -> None:
    """Capture simulated executions of a NEFF and show them under the public profiler's names."""


@main.command(cls=ProfilerCommand, short_help="Execute a NEFF and write traces (NTFF).")
@click.option("-n", "--neff", default="file.neff", help="The compiled model.")
@click.option("-s", "--session-file", default="profile.ntff", help="The trace to write.")
@click.option(
    "--num-exec",
    type=click.IntRange(1, MOST_EXECUTIONS),
    default=None,
    help="Executions.  [default: 1, or as many as --profile-nth-exec needs]",
)
@click.option(
    "--profile-nth-exec",
    type=click.IntRange(min=0),
    default=1,
    help="Write a trace of every Nth execution; 0: of none.",
)
@click.option("--disable-profile", is_flag=True, help="Write no trace.")
@click.option("--ignore-exec-errors", is_flag=True, help="Go on after an error of an execution.")
@click.option(
    "--enable-dge-notifs",
    is_flag=True,
    help="Trace transfers whose descriptors are made at run time, as is always done.",
)
@click.option("--save-output", is_flag=True, help="Write each output's bytes to a file.")
@click.option("--save-output-npy", is_flag=True, help="Write each output to a .npy file.")
@click.option(
    "--save-nth-output",
    type=click.IntRange(min=1),
    default=1,
    help="Write the outputs of every Nth execution only.",
)
@click.option(
    "--write-tensors-per-exec",
    type=click.Choice(["alias"]),
    default=None,
    help="Write inputs that outputs overwrite before each execution.",
)
@click.option(
    "--check-output-determinism", is_flag=True, help="Fail when executions give other outputs."
)
@click.option(
    "-t",
    "--capture-type",
    default="profile",
    callback=_only("profile", reason="only device profiles are captured, not the runtime's calls"),
    help="What is captured: profile.",
)
@click.option(
    "--exec-mode",
    default="sync",
    callback=_only("sync", reason="executions are simulated one after another"),
    help="How executions follow each other: sync.",
)
@click.option(
    "-r",
    "--collectives-workers-per-node",
    callback=_only("1", reason=ONE_WORKER),
    help="Workers: 1. With it, _rank_0 is in the names of traces.",
)
@click.option(
    "--collectives-worker-count",
    callback=_only("1", reason=ONE_WORKER),
    help="Workers of all nodes: 1. With it, _rank_0 is in the names of traces.",
)
@click.option(
    "--collectives-worker-start-id",
    default="0",
    callback=_only("0", reason=ONE_WORKER),
    help="The first worker's number: 0.",
)
@click.option(
    "-i",
    "--collectives-profile-id",
    default="all",
    callback=_only("all", "0", reason=ONE_WORKER),
    help="The worker that is profiled: 0, or all.",
)
@click.option(
    "-m", "--multi-input", default="", help="A file whose one line has the NAME FILE of all inputs."
)
@click.argument("inputs", nargs=-1, metavar="[NAME FILE]...")
def capture(
    neff: str,
    session_file: str,
    num_exec: int | None,
    profile_nth_exec: int,
    disable_profile: bool,
    save_nth_output: int,
    multi_input: str,
    inputs: tuple[str, ...],
    **flags: Any,
) -> None:
    """Execute a NEFF on the simulated device and write traces of it.

    The trace of the first execution has the name of --session-file; of execution N, that name with
    _exec_N before the extension. Inputs are .npy files or raw bytes; without them they are zeros.

    \b
    Examples:
      neuron-profile capture -n model.neff -s profile.ntff x x.npy --save-output
    """
    from glia.ntff.capture import Capture, Saved

    nth = 0 if disable_profile else profile_nth_exec
    if nth:
        check_writable(session_file)
    session = Path(session_file)
    if flags["collectives_workers_per_node"] or flags["collectives_worker_count"]:
        session = session.with_name(f"{session.stem}_rank_0{session.suffix}")
    if multi_input:
        inputs = _inputs_of_worker(multi_input, inputs)
    task = Capture(
        neff=Path(neff),
        session=session,
        inputs=_named_inputs(inputs),
        executions=num_exec or max(1, profile_nth_exec),
        nth=nth,
        saved=Saved(flags["save_output"], flags["save_output_npy"], save_nth_output),
        writes_states=flags["write_tensors_per_exec"] == "alias",
        compares=flags["check_output_determinism"],
        ignores_errors=flags["ignore_exec_errors"],
    )
    with writing(session):
        task.run(click.echo)


def _inputs_of_worker(path: str, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """The words of the one line of a file; BadCommandLine for a file of other form."""
    problem = ""
    lines: list[str] = []
    try:
        text = read_file(Path(path), MOST_INPUT_NAMES).decode()
        lines = [line for line in text.splitlines() if line.strip()]
    except OSError as cause:
        problem = f"cannot read {path}: {cause.strerror}"
    except UnicodeDecodeError:
        problem = f"{path} is not a text of UTF-8"
    if inputs:
        problem = "inputs are given by --multi-input or as NAME FILE, not both"
    elif not problem and len(lines) != 1:
        problem = f"{path} has inputs for {len(lines)} workers: {ONE_WORKER}"
    if problem:
        raise BadCommandLine(problem=problem, command="neuron-profile capture")
    return tuple(lines[0].split())


def _named_inputs(words: tuple[str, ...]) -> dict[str, str]:
    """NAME FILE pairs as a mapping; BadCommandLine for an odd word or a name given twice."""
    if len(words) % 2:
        problem = f"inputs are pairs of NAME FILE; {words[-1]!r} has no file"
        raise BadCommandLine(problem=problem, command="neuron-profile capture")
    found = dict(zip(words[::2], words[1::2], strict=True))
    if 2 * len(found) < len(words):
        raise BadCommandLine(problem="an input is given twice", command="neuron-profile capture")
    return found


@main.command(cls=ProfilerCommand, short_help="Show the profile of a trace.")
@click.option("-n", "--neff-path", "--neff", default="file.neff", help="The NEFF it is of.")
@click.option("-s", "--session-file", default="profile.ntff", help="The trace.")
@click.option(
    "--output-format", type=click.Choice(FORMATS), default="parquet", help="Form of the profile."
)
@click.option(
    "--output-file",
    default="",
    help="File to write; a folder for parquet.  [default: the standard output for summaries,"
    " ntff.json, ntff.perfetto.json, a folder below --data-path]",
)
@click.option("--data-path", default=".", help="Folder that Parquet profiles are collected in.")
@click.option("--display-name", default="", help="Name of the profile.  [default: from the hash]")
@click.option("--ingest-only", is_flag=True, help="Write the profile and end, as is always done.")
@click.option(
    "--ignore-nc-buf-usage",
    is_flag=True,
    help="Leave out how full on-chip memories are, as is always done.",
)
def view(
    neff_path: str,
    session_file: str,
    output_format: str,
    output_file: str,
    data_path: str,
    display_name: str,
    ingest_only: bool,
    ignore_nc_buf_usage: bool,
) -> None:
    """Show the profile of a trace: metrics, instructions, transfers.

    \b
    Examples:
      neuron-profile view -n model.neff -s profile.ntff --output-format summary-json
      neuron-profile view -n model.neff -s profile.ntff --output-format json --output-file p.json
    """
    captured = _captured_profile(
        neff_path, session_file, has_rows=output_format in ("json", "parquet")
    )
    if output_format == "parquet":
        folder = Path(output_file) if output_file else _collected(data_path, display_name, captured)
        _save_tables(captured, folder)
    elif output_format.startswith("summary"):
        _print_summary(captured, output_format, output_file)
    else:
        _save_events(captured, output_format, output_file)


def _captured_profile(neff_path: str, session_file: str, has_rows: bool) -> CapturedProfile:
    from glia.ntff.tables import CapturedProfile
    from glia.ntff.trace_file import TraceFile, load_with_hash
    from glia.runtime.model import load

    neff, neff_hash = load_with_hash(neff_path)
    trace = TraceFile.load(session_file)
    trace.require_neff(session_file, neff_hash)
    profile = load(neff).profile(events=MOST_ROWS if has_rows else None)
    return CapturedProfile(neff, neff_hash, trace, profile)


def _collected(data_path: str, display_name: str, captured: CapturedProfile) -> Path:
    """The folder of a profile among those that the profiler keeps."""
    name = display_name or captured.name
    if Path(name).name != name:
        problem = f"--display-name {name!r} is no file name"
        raise BadCommandLine(problem=problem, command="neuron-profile view")
    return Path(data_path) / "profiles" / "global" / f"{name}@latest"


def _save_tables(captured: CapturedProfile, folder: Path) -> None:
    from glia.ntff.formats import save_parquet

    with writing(folder):
        save_parquet(captured.tables(), folder)
    click.echo(f'Profile "{folder.name.removesuffix("@latest")}" is ready to view in {folder}')


def _print_summary(captured: CapturedProfile, output_format: str, output_file: str) -> None:
    from glia.ntff.formats import summary_json, summary_text

    text = summary_json(captured) if output_format == "summary-json" else summary_text(captured)
    if not output_file:
        click.echo(text)
        return
    with writing(output_file):
        Path(output_file).write_text(f"{text}\n")


def _save_events(captured: CapturedProfile, output_format: str, output_file: str) -> None:
    from glia.ntff.formats import save_json

    is_json = output_format == "json"
    path = Path(output_file or ("ntff.json" if is_json else "ntff.perfetto.json"))
    with writing(path):
        if is_json:
            save_json(captured, path)
        else:
            captured.profile.save_perfetto(path)
    click.echo(f"wrote {path}")


@main.command("show-session", short_help="Print what a trace says of its execution.")
@click.option("-s", "--session-file", default="profile.ntff", help="The trace.")
@click.option("--show-errors", is_flag=True, help="Also what was reported at run time.")
@click.option("-j", "as_json", is_flag=True, help="Print one JSON object.")
def show_session(session_file: str, show_errors: bool, as_json: bool) -> None:
    """Print the cores, cycles and errors of a captured execution.

    \b
    Examples:
      neuron-profile show-session -s profile.ntff --show-errors -j
    """
    from glia.ntff.trace_file import TraceFile

    trace = TraceFile.load(session_file)
    graphs = [{"NC": core.nc, "CycleCount": core.cycles} for core in trace.cores]
    node = {"Name": trace.network, "NodeInfo": {"Graphs": graphs}}
    session: dict[str, Any] = {
        "Neff": trace.neff_hash,
        "Target": trace.target,
        "Execution": trace.execution,
        "IsSimulation": True,
        "NeffNodes": [node],
    }
    if show_errors:
        session["Errors"] = [
            {"NC": report.core, "Description": report.text} for report in trace.reports
        ]
    click.echo(json.dumps(session) if as_json else "\n".join(_session_lines(session)))


def _session_lines(session: dict[str, Any]) -> Iterator[str]:
    yield f"NEFF {session['Neff']}, execution {session['Execution']}, target {session['Target']}"
    for node in session["NeffNodes"]:
        for graph in node["NodeInfo"]["Graphs"]:
            yield f"{node['Name']}  NC {graph['NC']}  CycleCount {graph['CycleCount']}"
    for error in session.get("Errors", ()):
        yield f"NC {error['NC']}: {error['Description']}"
