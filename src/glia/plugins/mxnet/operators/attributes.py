"""Attributes of an operator, which MXNet keeps as text; what is not read is refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from glia.base.dtype import BF16, F16, F32, F64, PRED, S8, S32, S64, U8, DType
from glia.base.loc import Loc
from glia.plugins.mxnet.errors import BadAttribute

DTYPES: Mapping[str, DType] = {
    "float32": F32, "float64": F64, "float16": F16, "bfloat16": BF16, "uint8": U8, "int8": S8,
    "int32": S32, "int64": S64, "bool": PRED,
}  # fmt: skip

# Say how MXNet computes on its own devices, or count what the inputs show
_WITHOUT_MEANING = frozenset({
    "workspace", "cudnn_tune", "cudnn_off", "cudnn_algo_verbose", "cudnn_algo_fwd",
    "cudnn_algo_bwd_data", "cudnn_algo_bwd_filter", "cudnn_algo_fwd_prec",
    "cudnn_algo_bwd_prec_data", "cudnn_algo_bwd_prec_filter", "num_args", "ctx", "momentum",
    "sparse_grad", "grad_scale", "normalization", "use_ignore", "ignore_label", "out_grad",
    "smooth_alpha", "valid_thresh", "lr_mult", "wd_mult",
})  # fmt: skip

_WORD = re.compile(r"[A-Za-z_]\w*")
MOST_EXTENTS = 64


class Attributes:
    """The attributes of one node, by what they are read as. Raises BadAttribute."""

    def __init__(self, operator: str, name: str, texts: Mapping[str, str]) -> None:
        self.operator = operator
        self.name = name
        self.texts = texts
        self._read: set[str] = set()

    def _text(self, attribute: str) -> str | None:
        """The text of an attribute; None where it is absent or None."""
        self._read.add(attribute)
        text = self.texts.get(attribute, "None").strip()
        return None if text == "None" else text

    def refusal(self, attribute: str, problem: str) -> BadAttribute:
        """The error for an attribute's value."""
        value = self.texts.get(attribute, "None")[:80]
        return BadAttribute(
            operator=self.operator, name=self.name, attribute=attribute, value=value,
            problem=problem, loc=Loc(name=self.name),
        )  # fmt: skip

    def integer(self, attribute: str, default: int | None = None) -> int:
        """A whole number."""
        found = self.optional_integer(attribute, default)
        if found is None:
            raise self.refusal(attribute, "is missing")
        return found

    def optional_integer(self, attribute: str, default: int | None = None) -> int | None:
        """A whole number, or None."""
        text = self._text(attribute)
        return default if text is None else self._integer(attribute, text)

    def _integer(self, attribute: str, text: str) -> int:
        try:
            found = int(text[:40])
        except ValueError:
            raise self.refusal(attribute, "is not a whole number") from None
        if abs(found) >= 1 << 62:
            raise self.refusal(attribute, "is beyond any size")
        return found

    def number(self, attribute: str, default: float | None = None) -> float:
        """A number."""
        text = self._text(attribute)
        if text is None and default is not None:
            return default
        try:
            return float(text or "")
        except ValueError:
            raise self.refusal(attribute, "is not a number") from None

    def flag(self, attribute: str, default: bool = False) -> bool:
        """True or False."""
        text = self._text(attribute)
        if text is None:
            return default
        if text not in ("True", "False", "true", "false", "1", "0"):
            raise self.refusal(attribute, "is neither True nor False")
        return text in ("True", "true", "1")

    def choice(self, attribute: str, known: Collection[str], default: str = "") -> str:
        """One of several words."""
        found = self._text(attribute) or default
        if found not in known:
            raise self.refusal(attribute, f"is none of {', '.join(known)}")
        return found

    def dtype(self, attribute: str, default: DType) -> DType:
        """A dtype by its name."""
        found = self._text(attribute)
        if found is None:
            return default
        return DTYPES[self.choice(attribute, DTYPES)]

    def extents(self, attribute: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Whole numbers in parentheses, or one alone."""
        found = self.optional_extents(attribute)
        if any(each is None for each in found or ()):
            raise self.refusal(attribute, "is not a tuple of whole numbers")
        if found is None:
            if default is None:
                raise self.refusal(attribute, "is missing")
            return default
        return tuple(each for each in found if each is not None)

    def optional_extents(self, attribute: str) -> tuple[int | None, ...] | None:
        """Whole numbers or None in parentheses; None where the attribute is absent."""
        text = self._text(attribute)
        if text is None:
            return None
        inner = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
        parts = [part.strip() for part in inner.split(",")]
        parts = [part for part in parts if part]
        if len(parts) > MOST_EXTENTS:
            raise self.refusal(attribute, f"has {len(parts)} numbers")
        return tuple(
            None if part == "None" else self._integer(attribute, part.rstrip("L")) for part in parts
        )

    def fixed(self, attribute: str, value: str, problem: str = "is not supported") -> None:
        """Take an attribute that only has a meaning here with one value."""
        found = self._text(attribute)
        if found not in (None, value):
            raise self.refusal(attribute, problem)

    def finish(self) -> None:
        """Raise BadAttribute for an attribute that was not read and could have a meaning."""
        for attribute in self.texts:
            is_private = attribute.startswith("__") or not _WORD.fullmatch(attribute)
            if attribute not in self._read | _WITHOUT_MEANING and not is_private:
                raise self.refusal(attribute, "is not supported")
