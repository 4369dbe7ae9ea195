"""The shapes of a decoder, read from the file that users have of it: a config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glia.base.files import read_file
from glia.plan.errors import BadShapes

MOST_BYTES = 1 << 20
MOST = 1 << 24  # of any number in it
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts")


@dataclass(frozen=True)
class Decoder:
    """A decoder of equal layers, of Llama's kind; with experts of Mixtral's.

    `experts` is 0 for one feed-forward network of `inner` elements in each layer; else it is how
    many there are of them, of which each token goes through `chosen`.
    """

    name: str
    width: int  # of the residual stream
    inner: int
    layers: int
    heads: int
    groups: int  # heads of keys and values
    head: int  # elements of a head
    vocabulary: int
    is_tied: bool = False  # the embedding is the last product's matrix too
    experts: int = 0
    chosen: int = 0

    @property
    def attention_parameters(self) -> int:
        """Of one layer, and its two norms."""
        projected = self.head * (2 * self.heads + 2 * self.groups)
        return self.width * projected + 2 * self.width

    @property
    def network_parameters(self) -> int:
        """Of the feed-forward networks of one layer, all experts and what chooses them."""
        return max(1, self.experts) * 3 * self.width * self.inner + self.experts * self.width

    @property
    def vocabulary_parameters(self) -> int:
        """Of the embedding and the last product, and the last norm."""
        return (1 if self.is_tied else 2) * self.vocabulary * self.width + self.width

    @property
    def parameters(self) -> int:
        """All of them."""
        layer = self.attention_parameters + self.network_parameters
        return self.layers * layer + self.vocabulary_parameters


def read_decoder(path: Path) -> Decoder:
    """The decoder of a config.json as Hugging Face writes it. Raises BadShapes."""

    def refusal(reason: str) -> BadShapes:
        return BadShapes(path=path, reason=reason)

    try:
        given = json.loads(read_file(path, MOST_BYTES))
    except OSError as problem:
        raise refusal((problem.strerror or str(problem)).lower()) from problem
    except (ValueError, RecursionError) as problem:
        raise refusal(f"it is not JSON ({problem!s:.80})") from problem
    if not isinstance(given, dict):
        raise refusal("it is not a JSON object")
    if isinstance(given.get("text_config"), dict):
        given = given["text_config"]

    def number(*names: str, default: int | None = None) -> int:
        name = next((each for each in names if given.get(each) is not None), names[0])
        value = given.get(name, default)
        if value is None:
            raise refusal(f"it lacks {name}")
        if type(value) is not int or not 0 <= value <= MOST:
            raise refusal(f"{name} is {value!r:.40}, not a number of elements")
        return value

    decoder = _decoder(path, given, number)
    if reason := _misfit(decoder):
        raise refusal(reason)
    return decoder


def _decoder(path: Path, given: dict[str, Any], number: Any) -> Decoder:
    width, heads = number("hidden_size"), number("num_attention_heads")
    experts = number(*_EXPERTS, default=0)
    inner = number("intermediate_size")
    return Decoder(
        name=path.parent.name if path.name == "config.json" else path.stem,
        width=width,
        inner=number("moe_intermediate_size", default=inner) if experts else inner,
        layers=number("num_hidden_layers"),
        heads=heads,
        groups=number("num_key_value_heads", default=heads),
        head=number("head_dim", default=width // max(1, heads)),
        vocabulary=number("vocab_size"),
        is_tied=given.get("tie_word_embeddings") is True,
        experts=experts,
        chosen=number("num_experts_per_tok", default=0),
    )


def _misfit(decoder: Decoder) -> str:
    """What does not fit together; "" where all does."""
    sizes = (decoder.width, decoder.inner, decoder.layers, decoder.heads, decoder.groups)
    if min(*sizes, decoder.head, decoder.vocabulary) < 1:
        return "a size is 0"
    if decoder.heads % decoder.groups:
        return f"num_key_value_heads {decoder.groups} does not divide {decoder.heads} heads"
    if decoder.head % 2:
        return f"head_dim {decoder.head} is odd"
    if decoder.head > 128:
        return f"head_dim {decoder.head} is more than the 128 of the attention kernel"
    if decoder.experts and not 1 <= decoder.chosen <= decoder.experts:
        return f"num_experts_per_tok is {decoder.chosen} of {decoder.experts} experts"
    return ""
