"""Compiler flags outside of a command line: NEURON_CC_FLAGS, and flags that have no effect.

What a call gives explicitly precedes NEURON_CC_FLAGS, which precedes the defaults; of repeated
flags the last applies.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any

from glia.arch.instances import LOGICAL_CORES_VARIABLE, TARGETS, default_target
from glia.base.errors import CompileError
from glia.base.suggestions import nearest
from glia.options import BadOption, CompileOptions, check_option_names

VARIABLE = "NEURON_CC_FLAGS"
ARGUMENTS = "compiler_args"

_INTERNAL = ("--internal-", "--no-internal-")

_NO_VALUE = {
    "--enable-internal-neff-wrapper",
    "--enable-output-completion-notifications",
    "--internal-bir-enable-sb-allocation",
    "--internal-disable-fma-on-ios",
    "--internal-dma-order-constraints",
    "--internal-enable-separate-load-and-compute",
    "--internal-hoist-allgather",
    "--no-internal-hlo-remat",
}
_ONE_VALUE = {
    "--execute-repetition",
    "--hbm-scratchpad-page-size",
    "--internal-compiler-debug-mode",
    "--internal-num-neuroncores-per-sengine",
    "--internal-tensorizer-opt-level",
}
_QUOTED_OPTIONS = {  # the value is itself a list of options, so it may begin with "--"
    "--internal-backend-options",
    "--internal-hlo2tensorizer-options",
    "--tensorizer-options",
}
_WORDS = {
    "--pipeline": {"compile", "tensorize", "SaveTemps"},
    "--internal-enable-dge-levels": {"vector_dynamic_offsets", "scalar_dynamic_offset"},
}
_IGNORED = {*_NO_VALUE, *_ONE_VALUE, *_QUOTED_OPTIONS, *_WORDS}

# Flags of frameworks' wrappers around the compiler, which take them from NEURON_CC_FLAGS
_WRAPPER_SWITCHES = {"--no_cache", "--retry_failed_compilation", "--dynamic-batch-size"}
_WRAPPER_VALUES = {"--cache_dir", "--log_level", "--workdir", "--extract-weights"}

# Other spellings of options, as the flag that is the option's name
_SPELLINGS = {
    "--distribution_strategy": "--distribution-strategy",
    "-lnc": "--logical-nc-config",
    "--lnc": "--logical-nc-config",
    "-O": "--optlevel",
}


class UnknownCompilerFlag(CompileError):
    """NEURON_CC_FLAGS holds something that is no flag of the compiler.

    Cause: A flag is misspelt, lacks its value, or a word is not a flag.
    Fix: Correct the flag that the message names; `neuronx-cc compile --help` lists all flags.
    Example: NEURON_CC_FLAGS="--auto-cats all" and a call of glia.compile
    """

    code = "GLIA122"
    message = "{variable} holds {flag!r}, {problem}{nearest}"
    help = "run `neuronx-cc compile --help` for every flag and its values"


@dataclass(frozen=True)
class IgnoredFlag:
    """A flag without effect, and its value."""

    flag: str
    value: str

    def __str__(self) -> str:
        return f"{self.flag}={self.value}" if self.value else self.flag


@dataclass
class EnvironmentFlags:
    """What NEURON_CC_FLAGS says: options by name, flags of wrappers, flags without effect."""

    options: dict[str, object] = field(default_factory=dict)
    wrapper: dict[str, str] = field(default_factory=dict)
    ignored: list[IgnoredFlag] = field(default_factory=list)


def environment_words() -> list[str]:
    """The words of NEURON_CC_FLAGS; raises UnknownCompilerFlag for quotes that do not close."""
    return _words(os.environ.get(VARIABLE, ""))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        problem = f"which is not a list of words: {error}"
        raise UnknownCompilerFlag(
            variable=VARIABLE, flag=text, problem=problem, nearest=""
        ) from error


def split_wrapper_flags(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words without the flags of frameworks' wrappers, and those flags with their values."""
    rest: list[str] = []
    wrapper: dict[str, str] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        flag, joined, value = word.partition("=")
        if flag in _WRAPPER_SWITCHES:
            wrapper[flag] = value
        elif flag in _WRAPPER_VALUES:
            wrapper[flag] = value if joined or not waiting else waiting.pop(0)
        else:
            rest.append(word)
    return rest, wrapper


def cache_flags(wrapper: Mapping[str, str]) -> list[str]:
    """The flags of wrappers that say where compilations are cached, as the command's arguments."""
    given = ["--cache_dir", wrapper["--cache_dir"]] if "--cache_dir" in wrapper else []
    return [*given, *(["--no_cache"] if "--no_cache" in wrapper else [])]


def split_ignored_flags(arguments: Sequence[str]) -> tuple[list[str], list[IgnoredFlag]]:
    """The arguments without the flags that are accepted but have no effect, and those flags."""
    rest: list[str] = []
    ignored: list[IgnoredFlag] = []
    position = 0
    while position < len(arguments):
        flag, joined, value = arguments[position].partition("=")
        position += 1
        if flag not in _IGNORED and not flag.startswith(_INTERNAL):
            rest.append(arguments[position - 1])
            continue
        if not joined:
            count = _value_count(flag, arguments[position:])
            value = " ".join(arguments[position : position + count])
            position += count
        ignored.append(IgnoredFlag(flag, value))
    return rest, ignored


def _value_count(flag: str, following: Sequence[str]) -> int:
    """How many of the following arguments are values of `flag`."""
    if flag in _WORDS:
        others = (i for i, word in enumerate(following) if word not in _WORDS[flag])
        return next(others, len(following))
    if flag in _NO_VALUE or not following:
        return 0
    if flag in _QUOTED_OPTIONS:
        return 1
    if following[0].startswith("-"):
        return 0
    return 1 if flag in _ONE_VALUE else int(not os.path.exists(following[0]))


def environment_flags() -> EnvironmentFlags:
    """NEURON_CC_FLAGS, parsed; raises UnknownCompilerFlag."""
    return _parsed(environment_words())


def compile_target() -> str:
    """The target of models and kernels that are given none.

    That of NEURON_CC_FLAGS, else that of NEURON_PLATFORM_TARGET_OVERRIDE, else trn2. Raises
    UnknownCompilerFlag.
    """
    return str(environment_flags().options.get("target") or default_target())


_MODEL: ContextVar[str | None] = ContextVar("target of the model", default=None)


@contextmanager
def tracing_for(target: str) -> Iterator[None]:
    """Compile kernels for `target`, that of the enclosing model, while the block runs."""
    token = _MODEL.set(target)
    try:
        yield
    finally:
        _MODEL.reset(token)


def traced_target() -> str | None:
    """The target of the model that is being traced, if one is."""
    return _MODEL.get()


def kernel_options(target: str) -> CompileOptions:
    """The options of a kernel that is compiled by itself: the target, and where it is cached.

    Raises UnknownCompilerFlag for NEURON_CC_FLAGS.
    """
    given = environment_flags().options
    where = {name: given[name] for name in ("cache_dir", "no_cache") if name in given}
    return CompileOptions(target=target, **where)  # type: ignore[arg-type]


def options_of_flags(flags: str | Sequence[str]) -> dict[str, object]:
    """The options that flags of the compiler's command line give, as one text or several words.

    Raises UnknownCompilerFlag.
    """
    try:
        return _parsed(_words(flags) if isinstance(flags, str) else list(flags)).options
    except UnknownCompilerFlag as problem:
        facts: dict[str, Any] = {**problem.facts, "variable": ARGUMENTS}
        raise UnknownCompilerFlag(**facts) from problem


def _parsed(words: list[str]) -> EnvironmentFlags:
    words, wrapper = split_wrapper_flags(words)
    words, ignored = split_ignored_flags(words)
    found = EnvironmentFlags({}, wrapper, ignored)
    if "--cache_dir" in wrapper:
        found.options["cache_dir"] = wrapper["--cache_dir"]
    if "--no_cache" in wrapper:
        found.options["no_cache"] = True
    while words:
        _take_flag(words, found.options)
    return found


def _take_flag(words: list[str], options: dict[str, object]) -> None:
    """Move one flag, and its value, from the words to the options."""
    flag, joined, value = words.pop(0).partition("=")
    if flag.startswith("-O") and flag[2:].isdigit():
        flag, joined, value = "-O", "=", flag[2:]
    if flag == "--enable-experimental-O1":
        options.setdefault("optlevel", 1)
        return
    switches = _switches()
    if flag in switches:
        name, state = switches[flag]
        options[name] = state
        return
    flag = _SPELLINGS.get(flag, flag)
    name = flag.removeprefix("--").replace("-", "_")
    kinds = {each.name: each.type for each in fields(CompileOptions)}
    if not flag.startswith("--") or name not in kinds or kinds[name] == "bool":
        known = [*switches, *_SPELLINGS, *(f"--{each.replace('_', '-')}" for each in kinds)]
        raise _refused(flag, "which is no flag of the compiler", nearest(flag, known))
    if not joined and not words:
        raise _refused(flag, "which lacks its value", "")
    options[name] = _value(flag, value if joined else words.pop(0), str(kinds[name]))


def _switches() -> Mapping[str, tuple[str, bool]]:
    """Every flag that switches an option on or off: the option and the state."""
    found: dict[str, tuple[str, bool]] = {}
    for each in fields(CompileOptions):
        if each.type == "bool":
            dashed = each.name.replace("_", "-")
            found |= {f"--{dashed}": (each.name, True), f"--enable-{dashed}": (each.name, True)}
            found[f"--disable-{dashed}"] = each.name, False
    return found


def _value(flag: str, text: str, kind: str) -> object:
    if kind == "int":
        if not text.isascii() or not text.isdigit():
            raise _refused(flag, f"whose value {text!r} is not a whole number", "")
        return int(text)
    if kind.startswith("tuple"):
        words = tuple(text.replace(",", " ").split())
        return CompileOptions().implicit_integer_downcast if words == ("default",) else words
    return text


def _refused(flag: str, problem: str, hint: str) -> UnknownCompilerFlag:
    return UnknownCompilerFlag(variable=VARIABLE, flag=flag, problem=problem, nearest=hint)


def resolve_options(
    function: str, explicit: Mapping[str, object], defaults: Mapping[str, object] | None = None
) -> tuple[CompileOptions, frozenset[str]]:
    """The options of a call of `function`, and which of them the user has given.

    `explicit` are its keyword arguments; None stands for one that was left out. Raises
    UnknownOption for a name and UnknownCompilerFlag for NEURON_CC_FLAGS.
    """
    check_option_names(function, explicit)
    given = environment_flags().options
    given |= {name: value for name, value in explicit.items() if value is not None}
    values = {"target": default_target(), **(defaults or {}), **given}
    values.setdefault("logical_nc_config", _logical_cores(values["target"]))
    return CompileOptions(**values), frozenset(given)  # type: ignore[arg-type]


def _logical_cores(target: object) -> int:
    """The physical cores of a logical one that the environment names, else 0 for the default.

    A target whose logical cores are all alike has no choice. Raises BadOption.
    """
    text = os.environ.get(LOGICAL_CORES_VARIABLE, "").strip()
    known = TARGETS[target].lncs if isinstance(target, str) and target in TARGETS else ()
    if not text or len(known) < 2:
        return 0
    if text not in map(str, known):
        cores = " or ".join(map(str, sorted(known)))
        raise BadOption(option=LOGICAL_CORES_VARIABLE, value=text, known=cores)
    return int(text)
