"""The `neuronx-cc` command: compile an HLO module into a NEFF."""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from glia import __version__
from glia.base.output_files import UnwritableOutput, writing
from glia.cc_flags import (
    IgnoredFlag,
    cache_flags,
    environment_flags,
    environment_words,
    split_ignored_flags,
    split_wrapper_flags,
)
from glia.cli.console import Progress
from glia.cli.errors import NotOneFile
from glia.cli.guard import GuardedGroup, check_writable
from glia.compile_messages import LEVELS, Console, severity
from glia.compiler import compile_module, write_dump
from glia.options import CHOICES, DOWNCASTS, CompileOptions, check_options
from glia.pass_runner import PassResult

TARGETS = tuple(map(str, CHOICES["target"]))
EXAMPLES = """\b
Examples:
  neuronx-cc compile model.hlo.pb --framework XLA --target trn2
  neuronx-cc compile model.hlo.pb --framework XLA --target trn1 --auto-cast none -O1 \\
      --output model.neff --verbose info
  neuronx-cc list-operators --framework XLA
"""


@click.group(
    cls=GuardedGroup,
    epilog=EXAMPLES,
    context_settings={"max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, prog_name="neuronx-cc (glia)")
def main() -> None:
    """Compile machine-learning models for AWS Neuron devices."""


class CompileCommand(click.Command):
    """`compile`, whose ignored flags are removed before the rest is parsed.

    Flags of NEURON_CC_FLAGS come before those of the command line, so that the latter apply.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        environment_flags()  # names the variable in its errors
        inherited, wrapper = split_wrapper_flags(environment_words())
        inherited += cache_flags(wrapper)
        rest, ctx.obj = split_ignored_flags([*inherited, *args])
        return super().parse_args(ctx, [_normalize_optlevel(argument) for argument in rest])


def _normalize_optlevel(argument: str) -> str:
    """-O=1 as -O1; other arguments unchanged."""
    return f"-O{argument[3:]}" if argument.startswith("-O=") else argument


def _verbosity(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value not in LEVELS and not (value.isascii() and value.isdigit()):
        raise click.BadParameter(f"{value!r} is not one of {', '.join(LEVELS)}, or a number")
    return value


def _downcasts(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    if value == "default":
        return CompileOptions().implicit_integer_downcast
    names = tuple(value.replace(",", " ").split())
    if names in (("all",), ("none",)):
        return names
    for name in names:
        if name not in DOWNCASTS:
            raise click.BadParameter(
                f"{name!r} is not one of default, all, none, {', '.join(DOWNCASTS)}"
            )
    return names


def _target(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value == "inf1":
        raise click.BadParameter("inf1 has NeuronCore-v1; compile for it with neuron-cc")
    if value not in TARGETS:
        raise click.BadParameter(f"{value!r} is not one of {', '.join(TARGETS)}")
    return value


def _choice(option: str) -> click.Choice[str]:
    return click.Choice([str(value) for value in CHOICES[option] if value != ""])


@main.command(
    cls=CompileCommand,
    epilog=EXAMPLES,
    short_help="Compile an HLO module into a NEFF.",
)
@click.argument("model_files", nargs=-1, metavar="FILE")
@click.option("--framework", type=_choice("framework"), required=True, help="Format of the model.")
@click.option(
    "--target",
    callback=_target,
    required=True,
    metavar="|".join(TARGETS),
    help="Target device family.",
)
@click.option(
    "--model-type",
    type=_choice("model_type"),
    default="generic",
    help="Model family to optimise for.",
)
@click.option(
    "--auto-cast",
    type=_choice("auto_cast"),
    default="matmult",
    help="fp32 operations to cast.",
)
@click.option(
    "--auto-cast-type",
    type=_choice("auto_cast_type"),
    default="bf16",
    help="Data type of --auto-cast.",
)
@click.option(
    "--enable-mixed-precision-accumulation/--disable-mixed-precision-accumulation",
    "mixed_precision_accumulation",
    default=True,
    help="Accumulate low-precision operations in fp32 (on by default).",
)
@click.option(
    "--enable-saturate-infinity",
    "saturate_infinity",
    is_flag=True,
    help="Replace infinities by the largest finite value where they would become NaN.",
)
@click.option(
    "--native-int64",
    type=_choice("native_int64"),
    default="default",
    help="Compute int64 exactly (the default); disabled: in 32 bits, with a warning.",
)
@click.option(
    "--implicit-integer-downcast",
    callback=_downcasts,
    default="default",
    metavar="default|all|none|LIST",
    help="Integer operations to compute in fp32, or pow in 32 bits, with a warning (by default"
    f" none): a list of {', '.join(DOWNCASTS)}.",
)
@click.option(
    "--f64",
    type=_choice("f64"),
    default="refuse",
    help="What to do with 64-bit floats: refuse them, or compute in fp32.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=0),
    default=0,
    help="Devices that run copies of the model, 0 for as many as it says.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=0),
    default=0,
    help="Devices that share each copy, 0 for as many as the model says.",
)
@click.option(
    "--distribution-strategy",
    "--distribution_strategy",
    "distribution_strategy",
    type=_choice("distribution_strategy"),
    default=None,
    help="Order of exchanges between ranks: early and together; gathers late with fsdp.",
)
@click.option(
    "--logical-nc-config",
    "-lnc",
    "--lnc",
    "logical_nc_config",
    type=int,
    default=0,
    metavar="1|2",
    help="Physical cores that a model is divided among, where they are faster (2: trn2, trn3).",
)
@click.option("--optlevel", "-O", type=_choice("optlevel"), default="2", help="Optimization level.")
@click.option("--enable-experimental-O1", "experimental_o1", is_flag=True, hidden=True)
@click.option(
    "--num-parallel-jobs",
    type=click.IntRange(min=1),
    default=8,
    help="Worker processes; does not change the result.",
)
@click.option(
    "--enable-fast-context-switch",
    "fast_context_switch",
    is_flag=True,
    help="Defer loading some weights to the start of execution.",
)
@click.option(
    "--enable-fast-loading-neuron-binaries",
    "fast_loading_neuron_binaries",
    is_flag=True,
    help="Leave the NEFF's archive uncompressed.",
)
@click.option("--logfile", default="log-neuron-cc.txt", metavar="FILE", help="Log file.")
@click.option("--output", default="file.neff", metavar="FILE", help="Output NEFF.")
@click.option(
    "--verbose",
    callback=_verbosity,
    default="warning",
    metavar="|".join(LEVELS) + "|NUMBER",
    help="Minimum severity of messages.",
)
@click.option("--dump", default="", metavar="DIR", help="Write the IR as text after each pass.")
@click.option(
    "--product-limits",
    is_flag=True,
    help="Apply the limits of AWS's compiler, with its error codes.",
)
@click.option(
    "--cache_dir",
    "--cache-dir",
    "cache_dir",
    default="",
    metavar="DIR",
    help="Directory of the compile cache.  [default: NEURON_COMPILE_CACHE_URL, else no cache]",
)
@click.option(
    "--no_cache", "--no-cache", "no_cache", is_flag=True, help="Compile even what the cache has."
)
@click.option("--verify", is_flag=True, help="Verify the IR after each pass.")
@click.pass_context
def compile(context: click.Context, /, model_files: Sequence[str], **values: Any) -> None:
    """Compile FILE, one serialized HLO module (HloModuleProto or HloProto, plain or gzip).

    FILE may be StableHLO too, as text or bytecode, which jaxlib converts.

    Options may be written `--option value` or `--option=value`; the last of repeated options
    applies. Those in the environment variable NEURON_CC_FLAGS come first.
    """
    if len(model_files) != 1:
        listed = f"{len(model_files)}: {', '.join(model_files[:4])}" if model_files else "none"
        raise NotOneFile(given=listed)
    warnings = [f"{flag} is accepted and has no effect" for flag in _last_of_each(context.obj)]
    options = _options(context, values, warnings)
    _check_outputs(Path(model_files[0]), options)
    with _console(context, options, warnings) as console:
        for text in warnings:
            console.warning(text)
        _compile(model_files[0], options, console)


def _last_of_each(flags: list[IgnoredFlag]) -> list[IgnoredFlag]:
    return list({flag.flag: flag for flag in flags}.values())


def _options(context: click.Context, values: dict[str, Any], warnings: list[str]) -> CompileOptions:
    """The compiler's options; warnings about them are appended to `warnings`."""

    def is_explicit(name: str) -> bool:
        return context.get_parameter_source(name) is not ParameterSource.DEFAULT

    values = dict(values)
    if values.pop("experimental_o1"):
        warnings.append("--enable-experimental-O1 is deprecated, use --optlevel 1 (-O1)")
        values["optlevel"] = values["optlevel"] if is_explicit("optlevel") else "1"
    if values["distribution_strategy"] == "nemo":
        warnings.append("--distribution-strategy nemo is deprecated, use llm-training")
        values["distribution_strategy"] = "llm-training"
    values["distribution_strategy"] = values["distribution_strategy"] or ""
    values["optlevel"] = int(values["optlevel"])
    options = CompileOptions(**values)
    check_options(options)
    return options


def _check_outputs(model: Path, options: CompileOptions) -> None:
    """Check before compilation that the outputs can be written."""
    output = Path(options.output)
    check_writable(output)
    if output.exists() and model.exists() and output.samefile(model):
        raise UnwritableOutput(path=output, reason="it is the model file")
    if options.dump:
        with writing(options.dump):
            Path(options.dump).mkdir(parents=True, exist_ok=True)


def _console(context: click.Context, options: CompileOptions, warnings: list[str]) -> Console:
    """The console; without a log file, and a warning, where the default one cannot be written."""
    try:
        return Console(options.verbose, options.logfile)
    except UnwritableOutput:
        if context.get_parameter_source("logfile") is not ParameterSource.DEFAULT:
            raise
        warnings.insert(0, f"no log file: {options.logfile} cannot be written here")
        return Console(options.verbose, None)


def _compile(model: str, options: CompileOptions, console: Console) -> None:
    started = time.perf_counter()
    is_silent = severity(options.verbose) > logging.WARNING

    def observe(step: PassResult) -> None:
        console.debug(f"{step.name}: {step.seconds:.3f} s")
        if options.dump:
            write_dump(options.dump, step)

    console.info(f"compiling {model} for {options.target}")
    console.debug(f"options: {dataclasses.asdict(options)}")
    try:
        with Progress(f"compiling {Path(model).name}", is_silent=is_silent) as progress:
            neff = compile_module(Path(model), options, observe, progress)
    except Exception as error:
        console.debug(f"failed: {error}")
        raise
    for note in neff.notes:
        console.warning(note)
    with writing(options.output):
        neff.save(options.output)
    seconds = time.perf_counter() - started
    console.info(f"wrote {options.output} in {seconds:.2f} s")


@main.command("list-operators", short_help="List the supported operators.")
@click.option("--framework", type=_choice("framework"), required=True, help="Format of the model.")
def list_operators(framework: str) -> None:
    """Print the names of the supported operators, one per line, sorted."""
    from glia.frontend.hlo import operators

    for name in operators():
        click.echo(name)


if __name__ == "__main__":
    sys.exit(main())
