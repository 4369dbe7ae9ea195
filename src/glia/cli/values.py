"""Values of options: how they are checked, and which option an error is about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from glia.runtime.errors import BadArrayFile


class Tolerance(click.FloatRange):
    """A number of at least 0; NaN is none."""

    name = "tolerance"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The number; click.BadParameter for anything else."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


SEED = click.IntRange(min=0)
TOLERANCE = Tolerance(min=0)

# Options of every command that runs a model.
INPUTS = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=FILE.npy",
    help="An input; repeat it for each.",
)
INPUT_SEED = click.option(
    "--seed", type=SEED, default=0, help="Seed of the random values for inputs without --input."
)


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """Say in a BadArrayFile which option named the file."""
    try:
        yield
    except BadArrayFile as problem:
        path, reason = problem.facts["path"], problem.facts["reason"]
        raise BadArrayFile(path=f"{path} ({option})", reason=reason) from problem
