"""`glia plan`: how a model may be divided over an instance, and what each way takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glia.base.suggestions import nearest

if TYPE_CHECKING:
    from glia.arch.machines import Machine
    from glia.plan.parts import Measured, ModelPart
    from glia.plan.planning import ModelPlan, ModulePlan, Option

_PHASES = ("training", "prefill", "decode")


@click.command(short_help="Find the best way to divide a model over an instance.")
@click.argument("model", metavar="CONFIG.json|MODULE")
@click.option(
    "--target", "machine_name", default="trn2.48xlarge", metavar="INSTANCE",
    help="The instance, or a target for one chip of it.",
)  # fmt: skip
@click.option("--phase", type=click.Choice(_PHASES), default="training", help="What it is for.")
@click.option(
    "--sequence", type=click.IntRange(1, 1 << 17), default=4096, help="Tokens of a sequence."
)
@click.option(
    "--batch", type=click.IntRange(1, 1 << 20), default=None,
    help="Sequences of a step.  [default: 256 in training, else as many as fit]",
)  # fmt: skip
@click.option(
    "--optlevel", "-O", type=click.IntRange(1, 3), default=2, help="Level of the compilation."
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=None,
    help="Parts that are compiled at a time.  [default: one for each core of the host]",
)  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=8, help="Ways to print.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all ways.")
def plan(
    model: str, machine_name: str, phase: str, sequence: int, batch: int | None, optlevel: int,
    jobs: int | None, top: int, as_json: bool,
) -> None:  # fmt: skip
    """Print the ways to divide a model over all cores of an instance, the fastest first.

    CONFIG.json holds the shapes of a decoder, as Hugging Face has them; weights are not needed. One
    layer of each kind is compiled for each number of tensor ranks, and timed; exchanges are timed
    by themselves. Of a MODULE, HLO or StableHLO, which is divided already, one rank is compiled,
    and copies of it fill the instance. Progress goes to stderr.

    \b
    Examples:
      glia plan llama-3-8b/config.json --target trn2.48xlarge
      glia plan llama-3-70b/config.json --target trn1.32xlarge --phase decode --json
      glia plan step.mlir --target trn2.48xlarge
    """
    from glia.frontend.registry import read_module
    from glia.plan.decoder_shapes import read_decoder
    from glia.plan.planning import Request, make_plan, plan_module

    machine = _machine(machine_name)
    if not model.endswith(".json"):
        found = plan_module(read_module(Path(model)), machine, optlevel)
        click.echo(json.dumps(found.to_dict()) if as_json else _module_text(found))
        return
    request = Request(phase, sequence, batch or 0, optlevel, jobs or os.cpu_count() or 1)
    made = make_plan(read_decoder(Path(model)), machine, request, _print_progress)
    click.echo(json.dumps(made.to_dict()) if as_json else "\n".join(_lines(made, top)))


def _machine(name: str) -> Machine:
    from glia.arch.machines import MACHINES, machine_of
    from glia.plan.errors import UnknownMachine

    if found := machine_of(name):
        return found
    raise UnknownMachine(name=name, known=", ".join(MACHINES), nearest=nearest(name, MACHINES))


def _print_progress(number: int, total: int, part: ModelPart, found: Measured) -> None:
    what = found.problem or f"{found.us:,.0f} us, compiled in {found.seconds:.1f} s"
    click.echo(f"{number} of {total}: {part}: {what}", err=True)


def _lines(plan: ModelPlan, top: int) -> list[str]:
    from glia.plan.planning import GIB, NOT_MODELLED

    best, machine, decoder = plan.options[0], plan.machine, plan.decoder
    size = f"{decoder.parameters / 1e9:.2f} billion parameters"
    has = f"{machine.cores} cores of {machine.target.hbm_bytes / GIB:.0f} GiB"
    held = {name: count / GIB for name, count in best.bytes_by_kind.items()}
    taken = {name: us / 1e3 for name, us in best.times.by_part.items()}
    head = (
        f"{'tensor':>6} {'data':>5} {'pipeline':>8} {'expert':>6} {'batch':>6} {'micro':>5}"
        f" {'GiB':>6} {'step, ms':>10} {'tokens/s':>10} {'exchange':>8} {'bubble':>6}"
        f" {'instructions':>12} {'compile, s':>10}"
    )
    return [
        f"{decoder.name}, {size}, {plan.phase}, sequences of {plan.sequence}",
        f"{machine.name}, {has}",
        f"{len(plan.options)} of {plan.considered} ways fit; {plan.compiled_parts} parts compiled",
        "",
        head,
        *map(_row, plan.options[:top]),
        "",
        f"best: {best.work.split}, {best.work.steps} x {best.work.micro} sequences a copy",
        "  GiB of a core: " + _shares(held, 2),
        "  ms of a step: " + _shares(taken, 1),
        *(f"not modelled: {each}" for each in NOT_MODELLED),
    ]


def _row(option: Option) -> str:
    from glia.plan.planning import GIB

    split, times = option.work.split, option.times
    return (
        f"{split.tensor:>6} {split.data:>5} {split.pipeline:>8} {split.expert:>6}"
        f" {option.work.batch:>6} {option.work.micro:>5} {option.bytes / GIB:>6.1f}"
        f" {times.us / 1e3:>10,.1f} {option.tokens_per_second:>10,.0f}"
        f" {times.exchange_us / times.us:>8.0%} {times.bubble_us / times.us:>6.0%}"
        f" {option.instructions:>12,} {option.compile_seconds:>10,.0f}"
    )


def _shares(found: dict[str, Any], digits: int) -> str:
    return ", ".join(f"{name} {value:,.{digits}f}" for name, value in found.items() if value)


def _module_text(plan: ModulePlan) -> str:
    from glia.plan.planning import GIB

    return (
        f"{plan.name} on {plan.machine.name}: {plan.ranks} ranks, {plan.copies} copies fill it\n"
        f"{plan.core_bytes / GIB:.3f} GiB a core, step {plan.step_us:,.1f} us of which"
        f" {plan.exchange_us:,.1f} exposed exchanges\n"
        f"{plan.instructions:,} instructions, compiled in {plan.compile_seconds:.1f} s"
    )
