"""Ways to divide a decoder over ranks, and the ranks that exchange in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glia.plan.decoder_shapes import Decoder

MOST_TENSOR = 64


@dataclass(frozen=True)
class RankDivision:
    """Tensor x data x pipeline ranks; experts are divided over `expert` of the data ranks.

    Tensor ranks are neighbours, then come data ranks, and stages of the pipeline last.
    """

    tensor: int
    data: int
    pipeline: int
    expert: int = 1

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.tensor * self.data * self.pipeline

    @property
    def tensor_group(self) -> tuple[int, ...]:
        """The ranks that share a layer."""
        return tuple(range(self.tensor))

    @property
    def data_group(self) -> tuple[int, ...]:
        """The ranks that have the same part of each layer, and other sequences."""
        return tuple(range(0, self.tensor * self.data, self.tensor))

    @property
    def expert_group(self) -> tuple[int, ...]:
        """The ranks that share the experts of a layer."""
        return self.data_group[: self.expert]

    @property
    def same_expert_group(self) -> tuple[int, ...]:
        """The ranks that have the same experts."""
        return self.data_group[:: self.expert]

    @property
    def stage_group(self) -> tuple[int, ...]:
        """The ranks through which a token goes."""
        return tuple(range(0, self.ranks, self.tensor * self.data))

    def __str__(self) -> str:
        expert = f" expert {self.expert}" if self.expert > 1 else ""
        return f"tensor {self.tensor} data {self.data} pipeline {self.pipeline}{expert}"


def splits_of(decoder: Decoder, ranks: int, *, is_staged: bool = True) -> Iterator[RankDivision]:
    """The ways to use all ranks; with one stage unless `is_staged`.

    Heads and feed-forward networks divide by the tensor ranks, layers by the stages, and experts by
    the ranks that share them.
    """
    for tensor in _divisors(ranks):
        divides = decoder.heads % tensor == 0 and decoder.inner % tensor == 0
        groups = decoder.groups % tensor == 0 or tensor % decoder.groups == 0
        if tensor > MOST_TENSOR or not (divides and groups):
            continue
        for pipeline in _divisors(ranks // tensor):
            if decoder.layers % pipeline or (pipeline > 1 and not is_staged):
                continue
            data = ranks // tensor // pipeline
            for expert in _divisors(data):
                if expert == 1 or (decoder.experts and decoder.experts % expert == 0):
                    yield RankDivision(tensor, data, pipeline, expert)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
