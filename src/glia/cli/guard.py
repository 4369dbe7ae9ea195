"""From failures to exit statuses: one screen, a code, never a traceback.

0 success, 1 an error the user can cure, 70 an error of glia's own, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from glia.base.errors import CompileError, Unspecified
from glia.base.suggestions import nearest
from glia.cli.errors import BadCommandLine, UnknownFlag, UnwritableOutput
from glia.cli.start import INTERRUPTED

SUCCESS = 0
USER_ERROR = 1
INTERNAL_ERROR = 70


class GuardedGroup(click.Group):
    """A click group whose every failure ends in a message and an exit status."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        options["standalone_mode"] = False
        sys.exit(guarded(lambda: super(GuardedGroup, self).main(args, *rest, **options)))


def guarded(work: Callable[[], object]) -> int:
    """Run `work`, say on stderr what failed, and return the exit status."""
    try:
        status = work()
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return INTERRUPTED
    except CompileError as error:
        _say(str(error))
        return USER_ERROR
    except click.exceptions.NoArgsIsHelpError as error:
        _say(error.format_message())
        return USER_ERROR
    except click.UsageError as error:
        _say(str(usage_error(error)))
        return USER_ERROR
    except BrokenPipeError:  # the reader of our output has gone; nothing is left to say
        _discard_output()
        return USER_ERROR
    except Unspecified as error:
        _say(f"[unspecified] {error}\n  help: the public documentation does not say; rephrase it")
        return USER_ERROR
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            place = error.filename or "standard output"
            _say(str(UnwritableOutput(path=place, reason=error.strerror)))
            _discard_output()
            return USER_ERROR
        _say(internal_error(error))
        return INTERNAL_ERROR
    return status if isinstance(status, int) else SUCCESS


def _discard_output() -> None:
    """Drop what stdout still holds, so that Python does not fail to write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def usage_error(error: click.UsageError) -> CompileError:
    """The error of ours for what click found wrong with the command line."""
    context = error.ctx
    command = context.command_path if context else "the command"
    if isinstance(error, click.NoSuchOption):
        known = [name for p in context.command.params for name in p.opts] if context else []
        return UnknownFlag(
            flag=error.option_name, nearest=nearest(error.option_name, known), command=command
        )
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return BadCommandLine(problem=f"{_shown(error.param)} is required", command=command)
    problem = " ".join(error.format_message().split()).rstrip(".")
    return BadCommandLine(problem=problem[:1].lower() + problem[1:], command=command)


def _shown(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(click.Context(click.Command("")))
    return parameter.opts[0]


def internal_error(error: Exception) -> str:
    """One screen about an error of glia's own: what, where, and how to report it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = "unknown place"
    if frames:
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}"
    note = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    return (
        f"[internal error] {type(error).__name__}: {error!s:.500}{note}\n  at: {where}\n"
        "  help: an error in glia, not in your program; please report it with the model file"
    )


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn a failure to write `path` into UnwritableOutput."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise UnwritableOutput(path=path, reason=problem.strerror or problem) from problem


def check_writable(path: str | Path) -> None:
    """Raise UnwritableOutput when a file at `path` cannot be made; leaves nothing behind."""
    place = Path(path)
    with writing(place):
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if place.exists() and not place.is_file():
            return
        descriptor, probe = tempfile.mkstemp(dir=place.parent)
        os.close(descriptor)
        os.unlink(probe)


def _say(text: str) -> None:
    click.echo(text, err=True)
