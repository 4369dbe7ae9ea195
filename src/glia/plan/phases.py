"""What one rank holds and does in training, in prefill and in decoding, for a way to divide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from glia.arch.machines import Machine
from glia.plan.decoder_shapes import Decoder
from glia.plan.exchange_times import exchange_us
from glia.plan.parts import CACHE_ROWS, MOST_TOKENS, OPTIMIZER_ELEMENTS, Measured, ModelPart
from glia.plan.splits import RankDivision

PHASES = ("training", "prefill", "decode")
WEIGHT, GRADIENT, STATES = 2, 2, 12  # bytes: bfloat16 twice; float32 weight and two moments
_ROW = 128  # of the attention kernel: keys come in whole rows
_COLUMNS = 1024  # of the optimizer's program


@dataclass(frozen=True)
class StepWork:
    """A way to divide a decoder and its batch: `micro` sequences at a time, `steps` times."""

    decoder: Decoder
    phase: str
    sequence: int
    split: RankDivision
    micro: int
    steps: int

    @property
    def batch(self) -> int:
        """Sequences of all ranks in one step."""
        return self.micro * self.steps * self.split.data

    @property
    def tokens(self) -> int:
        """That go through a layer at a time."""
        return self.micro * (1 if self.phase == "decode" else self.sequence)

    @property
    def layers(self) -> int:
        """Of one rank."""
        return self.decoder.layers // self.split.pipeline

    @property
    def heads(self) -> int:
        """Of one rank."""
        return self.decoder.heads // self.split.tensor

    @property
    def groups(self) -> int:
        """Heads of keys and values of one rank; what does not divide is on several."""
        return max(1, self.decoder.groups // self.split.tensor)

    @property
    def columns(self) -> int:
        """Of the vocabulary, on one rank."""
        return math.ceil(self.decoder.vocabulary / self.split.tensor)

    @property
    def experts(self) -> int:
        """Of one rank."""
        return self.decoder.experts // self.split.expert

    @property
    def _heads_parameters(self) -> int:
        """Of the attention of the rank's layers, and its vocabulary; norms on every rank."""
        decoder, tensor = self.decoder, self.split.tensor
        columns = decoder.head * (2 * self.heads + 2 * self.groups)
        layer = decoder.width * (columns + 2 + decoder.experts)
        shared = 1 if decoder.is_tied and self.split.pipeline == 1 else 2
        words = decoder.width * self.columns * (shared if self.split.pipeline == 1 else 1)
        if not decoder.experts:
            layer += 3 * decoder.width * decoder.inner // tensor
        return self.layers * layer + words

    @property
    def _expert_parameters(self) -> int:
        """Of the rank's experts."""
        each = 3 * self.decoder.width * self.decoder.inner // self.split.tensor
        return self.layers * self.experts * each

    @property
    def parameters(self) -> int:
        """That one rank holds: of the first or the last stage, which have the vocabulary."""
        return self._heads_parameters + self._expert_parameters

    def known_bytes(self) -> dict[str, int]:
        """What one core holds, as far as it is known before anything is compiled."""
        decoder, row = self.decoder, self.decoder.width * WEIGHT
        found = {"weights": WEIGHT * self.parameters}
        if self.phase == "training":
            copies = self.split.data // self.split.expert
            found["gradients"] = GRADIENT * self.parameters
            found["optimizer"] = STATES * (
                self._heads_parameters // self.split.data + self._expert_parameters // copies
            )
            in_flight = min(self.steps, self.split.pipeline)
            saved = (self.layers + 1) * in_flight * self.tokens * row
            found["activations"] = saved // self.split.tensor  # each keeps a part of the sequence
            found["scores"] = self.tokens * self.columns * (4 + WEIGHT)
        else:
            entry = 2 * self.groups * decoder.head * WEIGHT
            rows = self.micro * self.sequence * (self.split.pipeline if self.steps > 1 else 1)
            found["cache"] = self.layers * rows * entry
            found["activations"] = 4 * self.tokens * row
        return found

    def parts(self) -> dict[str, ModelPart]:
        """The programs that tell how long this takes, by what they stand for."""
        decoder, tensor = self.decoder, self.split.tensor
        tokens = min(self.tokens, MOST_TOKENS)
        inner = math.ceil(decoder.inner / tensor)
        layer = ModelPart(
            "layer", tokens, decoder.width, inner, self.heads, self.groups, decoder.head,
            experts=self.experts, chosen=decoder.chosen if self.experts else 0,
        )  # fmt: skip
        head = ModelPart("head", tokens, decoder.width, self.columns)
        shared = self.heads // self.groups
        keys = -(-self.sequence // _ROW) * _ROW
        attention = ModelPart("attention", heads=shared, head=decoder.head, keys=keys)
        if self.phase == "decode":
            cached = ModelPart("cache attention", heads=shared * CACHE_ROWS, groups=CACHE_ROWS,
                          head=decoder.head, keys=keys)  # fmt: skip
            return {"layer": layer, "head": head, "attention": cached}
        found = {"layer": layer, "head": head, "attention": attention}
        if self.phase == "training":
            found["layer gradient"] = _as(layer, "layer gradient")
            found["attention gradient"] = _as(attention, "attention gradient")
            found["head"] = _as(head, "head gradient")
            rows = OPTIMIZER_ELEMENTS // _COLUMNS
            found["optimizer"] = ModelPart("optimizer", rows, _COLUMNS)
        return found


def _as(part: ModelPart, kind: str) -> ModelPart:
    return ModelPart(**{**vars(part), "kind": kind})


@dataclass(frozen=True)
class Times:
    """The microseconds of a step: `us` in all, `exchange_us` of them in exchanges, none hidden."""

    us: float
    exchange_us: float
    bubble_us: float
    by_part: Mapping[str, float]


def times_of(work: StepWork, found: Mapping[str, Measured], machine: Machine) -> Times:
    """How long a step takes: its parts one after the other, and exchanges between them."""
    scale = work.tokens / min(work.tokens, MOST_TOKENS)
    layer = dict(_layer_us(work, found, scale))
    between = _layer_exchange_us(work, machine)
    head = found["head"].us * scale
    if work.phase == "prefill":
        head = found["head"].us * work.micro / min(work.tokens, MOST_TOKENS)
    turns = work.steps + work.split.pipeline - 1
    hop = _hop_us(work, machine)
    stage = work.layers * (sum(layer.values()) + between) + head + hop
    by_part = {name: turns * work.layers * us for name, us in layer.items()}
    by_part["head"] = turns * head
    by_part["exchanges in layers"] = turns * work.layers * between
    by_part["exchanges between stages"] = turns * hop
    us = turns * stage
    if work.phase == "training":
        once = dict(_once_us(work, found, machine))
        by_part |= once
        us += sum(once.values())
    exchanged = sum(us for name, us in by_part.items() if name.startswith("exchange"))
    return Times(us, exchanged, (turns - work.steps) * stage, by_part)


def _layer_us(
    work: StepWork, found: Mapping[str, Measured], scale: float
) -> Iterator[tuple[str, float]]:
    """The parts of one layer, for the sequences of one turn."""
    layer, attention = found["layer"].us * scale, found["attention"].us
    if work.phase == "decode":
        yield "layer", layer
        yield "attention", attention * work.groups * work.micro / CACHE_ROWS
        return
    attention *= work.groups * work.micro
    yield "layer", layer
    yield "attention", attention
    if work.phase == "training":
        yield "layer gradient", found["layer gradient"].us * scale
        again = found["attention gradient"].us * work.groups * work.micro
        yield "attention gradient", attention + again


def _layer_exchange_us(work: StepWork, machine: Machine) -> float:
    """The exchanges of one layer in one turn: sums over tensor ranks, tokens to experts and back.

    In training the layer is computed twice, and its gradients have as many exchanges.
    """
    row = work.tokens * work.decoder.width * WEIGHT
    passes = 3 if work.phase == "training" else 1
    found = 2 * passes * exchange_us("all_reduce", work.split.tensor_group, row, machine)
    if work.split.expert > 1:
        sent = row * work.decoder.chosen
        group = work.split.expert_group
        found += 2 * passes * exchange_us("all_to_all", group, sent, machine)
    return found


def _hop_us(work: StepWork, machine: Machine) -> float:
    """From a stage to the next, and back with the gradient."""
    row = work.tokens * work.decoder.width * WEIGHT
    passes = 2 if work.phase == "training" else 1
    return passes * exchange_us("collective_permute", work.split.stage_group, row, machine)


def _once_us(
    work: StepWork, found: Mapping[str, Measured], machine: Machine
) -> Iterator[tuple[str, float]]:
    """What a training step does once: gradients to their owners, update, weights to all."""
    split, share = work.split, work._heads_parameters
    ways = [(split.data_group, share), (split.same_expert_group, work._expert_parameters)]
    us, owned = 0.0, 0
    for group, count in ways:
        us += exchange_us("reduce_scatter", group, GRADIENT * count, machine)
        us += exchange_us("all_gather", group, WEIGHT * count, machine)
        owned += count // len(group)
    yield "exchange of gradients and weights", us
    yield "optimizer", found["optimizer"].us * owned / OPTIMIZER_ELEMENTS
