"""Exit statuses of failures: each prints one screen with a code, never a traceback.

0 success, 1 an error of the user's input, 70 an internal error of glia, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from glia.base.errors import CompileError, Unspecified
from glia.base.output_files import UnwritableOutput, writing
from glia.base.suggestions import nearest
from glia.cli.errors import BadCommandLine, UnknownFlag
from glia.cli.start import INTERRUPTED

SUCCESS = 0
USER_ERROR = 1
INTERNAL_ERROR = 70


class GuardedCommand(click.Command):
    """A click command whose every failure ends in a message and an exit status."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        options["standalone_mode"] = False
        sys.exit(guarded(lambda: super(GuardedCommand, self).main(args, *rest, **options)))


class GuardedGroup(GuardedCommand, click.Group):
    """A click group whose every failure ends in a message and an exit status."""


def guarded(work: Callable[[], object]) -> int:
    """Run `work`, print a failure to stderr, and return the exit status."""
    try:
        status = work()
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        _print_error("interrupted")
        return INTERRUPTED
    except CompileError as error:
        _print_error(str(error))
        return USER_ERROR
    except click.exceptions.NoArgsIsHelpError as error:
        _print_error(error.format_message())
        return USER_ERROR
    except click.UsageError as error:
        _print_error(str(usage_error(error)))
        return USER_ERROR
    except BrokenPipeError:  # the reader of stdout has exited
        _discard_output()
        return USER_ERROR
    except Unspecified as error:
        _print_error(
            f"[unspecified] {error}\n  help: undocumented behaviour; rewrite the operation"
        )
        return USER_ERROR
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            place = error.filename or "standard output"
            _print_error(str(UnwritableOutput(path=place, reason=error.strerror)))
            _discard_output()
            return USER_ERROR
        _print_error(internal_error(error))
        return INTERNAL_ERROR
    return status if isinstance(status, int) else SUCCESS


def _discard_output() -> None:
    """Drop buffered output, so that Python does not fail to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def usage_error(error: click.UsageError) -> CompileError:
    """click's usage error as an error with a code."""
    context = error.ctx
    command = context.command_path if context else "the command"
    if isinstance(error, click.NoSuchOption):
        known = [name for p in context.command.params for name in p.opts] if context else []
        return UnknownFlag(
            flag=error.option_name, nearest=nearest(error.option_name, known), command=command
        )
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return BadCommandLine(
            problem=f"{_parameter_name(error.param)} is required", command=command
        )
    problem = " ".join(error.format_message().split()).rstrip(".")
    return BadCommandLine(problem=problem[:1].lower() + problem[1:], command=command)


def _parameter_name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(click.Context(click.Command("")))
    return parameter.opts[0]


def internal_error(error: Exception) -> str:
    """The text of an internal error: type, message, source line, and how to report it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = "unknown place"
    if frames:
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}"
    note = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    return (
        f"[internal error] {type(error).__name__}: {error!s:.500}{note}\n  at: {where}\n"
        "  help: this is a bug in glia, not in your program; please report it with the model file"
    )


def check_writable(path: str | Path) -> None:
    """Raise UnwritableOutput when a file at `path` cannot be created; creates none itself."""
    place = Path(path)
    with writing(place):
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if place.exists() and not place.is_file():
            return
        descriptor, probe = tempfile.mkstemp(dir=place.parent)
        os.close(descriptor)
        os.unlink(probe)


def _print_error(text: str) -> None:
    click.echo(text, err=True)
