"""Fine-tune a small BERT on the device `neuron`, trace it, and serve the saved trace.

    python examples/finetune_bert.py [--steps 30] [--output bert.pt]

Twenty lines of text say what is liked and what is not. Needs PyTorch and transformers, and
glia-dropin for torch_neuronx.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
import transformers

import torch_neuronx

LINES = """
+ the soup was warm and good
+ a lovely evening by the sea
+ i liked the music very much
+ friendly people and good bread
+ the book was a joy to read
+ we will gladly come again
+ bright rooms and a warm bed
+ the best coffee in the town
+ a good film with lovely music
+ i gladly read the book again
- the soup was cold and bad
- a dull evening in the rain
- i hated the noise very much
- rude people and stale bread
- the book was a pain to read
- we will never come again
- dark rooms and a cold bed
- the worst coffee in the town
- a bad film with dull noise
- i never read the book again
"""
LENGTH = 8  # words of a line, and what marks its beginning; shorter ones are filled with zeros


def data() -> tuple[torch.Tensor, torch.Tensor, dict[str, int]]:
    """The numbers of the lines' words, the lines' classes, and the number of each word."""
    pairs = [line.split(" ", 1) for line in LINES.strip().splitlines()]
    words = sorted({word for _, text in pairs for word in text.split()})
    numbers = {word: place for place, word in enumerate(words, 2)}
    return (
        torch.stack([encoded(text, numbers) for _, text in pairs]),
        torch.tensor([int(sign == "+") for sign, _ in pairs]),
        numbers,
    )


def encoded(text: str, numbers: dict[str, int]) -> torch.Tensor:
    """The numbers of a line's words; those that are not known are left out."""
    found = [1, *(numbers[word] for word in text.split() if word in numbers)][:LENGTH]
    return torch.tensor(found + [0] * (LENGTH - len(found)))


class Classifier(torch.nn.Module):
    """A BERT of one layer: from the numbers of words to the scores of the two classes."""

    def __init__(self, words: int) -> None:
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=words, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
            intermediate_size=64, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.bert = transformers.BertForSequenceClassification(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The scores."""
        return self.bert(input_ids=ids, attention_mask=(ids != 0).long()).logits


def train(model: Classifier, ids: torch.Tensor, classes: torch.Tensor, steps: int) -> list[float]:
    """The losses of steps on the device."""
    model.to("neuron").train()
    ids, classes = ids.to("neuron"), classes.to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(ids), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train, trace, save, load and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path("bert.pt"))
    chosen = parser.parse_args()
    torch.manual_seed(0)
    ids, classes, numbers = data()
    model = Classifier(len(numbers) + 2)
    losses = train(model, ids, classes, chosen.steps)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {chosen.steps} steps")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        trace = torch_neuronx.trace(model.to("cpu").eval(), ids[:1])
        torch.jit.save(trace, chosen.output)
        served = torch_neuronx.dynamic_batch(torch.jit.load(chosen.output))
    right = (served(ids).argmax(1) == classes).sum().item()
    print(f"{right} of {len(ids)} lines are classified as they are marked")
    for text in ("good bread and friendly people", "never a cold soup again"):
        liked = served(encoded(text, numbers)[None]).softmax(1)[0, 1].item()
        print(f"{liked:.0%} liked: {text}")


if __name__ == "__main__":
    main()
