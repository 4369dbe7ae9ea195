"""Flags that framework wrappers and launch scripts pass: accepted with a warning, no effect."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class IgnoredFlag:
    """A flag without effect, and its value."""

    flag: str
    value: str

    def __str__(self) -> str:
        return f"{self.flag}={self.value}" if self.value else self.flag


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
