"""Parts of a model as one rank has them: each is compiled once, for all layers and ways alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass

MOST_TOKENS = 512  # of the programs that are compiled: the time of more is in proportion
OPTIMIZER_ELEMENTS = 1 << 20
CACHE_ROWS = 8  # heads of keys and values, of all sequences, in the attention to a cache


@dataclass(frozen=True)
class ModelPart:
    """A part's kind and its sizes on one rank; 0 for those that it has not."""

    kind: str  # one of KINDS
    tokens: int = 0
    width: int = 0
    inner: int = 0  # of a feed-forward network, or columns of the vocabulary
    heads: int = 0
    groups: int = 0
    head: int = 0
    keys: int = 0  # in the sequence, or in the cache
    experts: int = 0  # on this rank
    chosen: int = 0

    def __str__(self) -> str:
        sizes = {name: size for name, size in asdict(self).items() if name != "kind" and size}
        return f"{self.kind} ({', '.join(f'{name} {size}' for name, size in sizes.items())})"


KINDS = {
    "layer": "all of a layer but its attention, forward",
    "layer gradient": "the same again, and its gradients",
    "attention": "by the kernel library, of one head of keys and values",
    "attention gradient": "by the kernel library",
    "cache attention": "of one new token to the keys and values of those before",
    "head": "the last norm and product",
    "head gradient": "the same with the loss and its gradients",
    "optimizer": "AdamW's update of a part of the parameters",
}


@dataclass(frozen=True)
class Measured:
    """What the compiler made of a part: its time, instructions, and the seconds that it took.

    `scratch_bytes` are what it holds in HBM beside its inputs and outputs. With `problem`, none.
    """

    us: float = 0.0
    instructions: int = 0
    seconds: float = 0.0
    scratch_bytes: int = 0
    problem: str = ""
