"""The scanner that every level's text form is parsed with."""

from __future__ import annotations

import re
from typing import NoReturn

from glia.base.affine import Affine

_TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*\s*)*
    (?P<token>
        "(?:[^"\\]|\\.)*"                                   # string
      | [%@$][A-Za-z0-9_.$:-]+                              # value, symbol or register
      | -?(?:0x[0-9a-f]+|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf\b|nan\b)
      | [A-Za-z_][A-Za-z0-9_.]*
      | -> | <= | [-+*=(){}\[\],:;<>|!?/&^~]
    )""",
    re.VERBOSE,
)


class TextError(ValueError):
    """A text form that does not parse; says the line, what was expected and what was found."""


class Scanner:
    """Reads one text form token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._peeked: tuple[str, int] | None = None

    def peek(self) -> str:
        """The next token without taking it; '' at the end."""
        if self._peeked is None:
            self._peeked = self._scan()
        return self._peeked[0]

    def take(self) -> str:
        """Take the next token."""
        token = self.peek()
        assert self._peeked is not None
        self._position = self._peeked[1]
        self._peeked = None
        return token

    def accept(self, token: str) -> bool:
        """Take the next token if it is `token`."""
        if self.peek() != token:
            return False
        self.take()
        return True

    def expect(self, token: str) -> None:
        """Take `token` or fail."""
        if not self.accept(token):
            self.fail(f"expected {token!r}")

    def fail(self, message: str) -> NoReturn:
        """Raise TextError at the current line."""
        line = self._text.count("\n", 0, self._position) + 1
        raise TextError(f"line {line}: {message}, found {self.peek()!r}")

    def integer(self) -> int:
        """Take an integer."""
        try:
            value = int(self.peek(), 0)
        except ValueError:
            self.fail("expected an integer")
        self.take()
        return value

    def affine(self) -> Affine:
        """Take an affine expression: terms `v`, `c*v`, `c` joined by + or -."""
        result = self._affine_term()
        while self.peek() in ("+", "-") or (self.peek().startswith("-") and self.peek() != "->"):
            sign = 1
            if self.peek() in ("+", "-"):
                sign = -1 if self.take() == "-" else 1
            result = result + self._affine_term() * sign
        return result

    def _affine_term(self) -> Affine:
        if not self.peek().lstrip("-")[:1].isdigit():
            return Affine.of(self.take())
        value = self.integer()
        if self.accept("*"):
            return Affine.of(self.take()) * value
        return Affine((), value)

    def _scan(self) -> tuple[str, int]:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            rest = self._text[self._position :]
            if rest.strip() and not re.fullmatch(r"\s*(?:#[^\n]*\s*)*", rest):
                raise TextError(f"cannot read {rest.strip()[:20]!r}")
            return "", len(self._text)
        return match["token"], match.end()
