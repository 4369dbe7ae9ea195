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
from liked_lines import LENGTH, UNSEEN, data, encoded

import torch_neuronx


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
    lines, marks, numbers = data()
    ids, classes = torch.tensor(lines), torch.tensor(marks)
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
    for text in UNSEEN:
        liked = served(torch.tensor([encoded(text, numbers)])).softmax(1)[0, 1].item()
        print(f"{liked:.0%} liked: {text}")


if __name__ == "__main__":
    main()
