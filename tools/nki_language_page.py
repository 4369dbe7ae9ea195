"""The page about the language of kernels, docs/nki-language.md, made from the rules."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from glia.base.errors import CompileError
from glia.nki.names.errors import NotAnOutput, NotInNki, UnknownWhenTraced
from glia.nki.names.language_errors import Beta1InKernel, ExpiredTensor
from glia.nki.source.subset_rules import (
    ARGUMENTS,
    EXPRESSIONS,
    NAMES,
    SIGNATURES,
    STATEMENTS,
    SubsetRule,
)

HEAD = """\
# The language of kernels

Made from the rules of `src/glia/nki/source/subset_rules.py` by
`make pages`.

Since NKI 0.7 a kernel is *traced*: Python runs it, its calls of `nl` and `nisa` make the program,
and all of Python may be used. NKI 0.2 to 0.6 *parsed* it: the compiler read the source of the
kernel, and of every function and class that it names, and took a part of Python. NKI 0.7 does so
too where the environment says `NKI_COMPILER_FRONTEND=custom`, and so does glia (`parser` is another
word for it). Then a kernel that breaks a rule below is refused with GLIA620, a SyntaxError, in
`nki.simulate` as when it is compiled, before anything runs. Advice is a warning, a `KernelAdvice`.
What the public sources do not speak of is allowed. `glia check --all-targets` remarks what the
parser refuses of a kernel, whatever the environment says.

Kernels of NKI Beta 1 are always traced; what their run refuses has the codes
GLIA650 to GLIA699, which begin with the words of the vendor's page nki.errors.
"""
WIDTH = 100  # columns of a line of prose
PARTS = {
    "Statements": STATEMENTS,
    "Expressions": EXPRESSIONS,
    "Functions and classes": SIGNATURES,
    "Arguments": ARGUMENTS,
    "Names": NAMES,
}
RUNNING: tuple[type[CompileError], ...] = (
    NotAnOutput, NotInNki, UnknownWhenTraced, ExpiredTensor, Beta1InKernel,
)  # fmt: skip
WARNED = (
    "`nl.dynamic_range` and `while register:`, which NKI 0.7 has no more; write `nl.fori_loop`",
    "a simulated kernel returns a tensor in private HBM or a part of one; compiled it is refused",
    "a simulated kernel branches on a tensor's contents; compiled it is refused",
)


def page() -> str:
    """The text of the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    yield "## What only a run shows"
    yield ""
    yield "These hold with either front end, in a simulated kernel and in a compiled one."
    yield ""
    for error in RUNNING:
        first = (error.__doc__ or "").partition("\n")[0]
        yield f"* {error.code}: {first}"
    yield from ("", "A `KernelAdvice` warns of", "")
    for text in WARNED:
        yield from wrap(f"* {text}.", WIDTH, subsequent_indent="  ")
    for title, rules in PARTS.items():
        yield from ("", f"## {title}")
        for rule in rules:
            yield from _rule(rule)


def _rule(rule: SubsetRule) -> Iterator[str]:
    sentence = f"{rule.sentence}."
    yield from ("", f"### {rule.name}", "")
    yield from wrap(sentence[0].upper() + sentence[1:], WIDTH)
    yield from ("", f"* Instead: {rule.rewrite}.", f"* Source: {rule.source}.")
    yield from ("", "```py", f"# {'advised against' if rule.is_advice else 'refused'}")
    yield from (rule.refused, "```", "", "```py", "# legal", rule.legal, "```")
