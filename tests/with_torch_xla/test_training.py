"""Models train on the devices of torch_xla as they train on the CPU."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn
from torch.nn import functional
from torch_xla import runtime
from torch_xla.debug import metrics

STEPS = 5
Optimizer = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 1e-2)


class Sentences(nn.Module):
    """One layer of a transformer, that says the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Logits, classes before words."""
        return self.head(self.layer(self.words(words))).transpose(1, 2)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )  # fmt: skip


class Task(NamedTuple):
    """A model, what it is given and shall return, and how far it is from that."""

    model: Callable[[], nn.Module]
    given: torch.Tensor
    wanted: torch.Tensor
    loss: Callable[[Any, Any], torch.Tensor]


RANDOM = torch.Generator().manual_seed(0)
WORDS = torch.randint(0, 50, (2, 12), generator=RANDOM)
TASKS = {
    "perceptron": Task(
        perceptron, torch.randn(16, 8, generator=RANDOM), torch.randn(16, 1, generator=RANDOM),
        functional.mse_loss,
    ),
    "images": Task(
        images, torch.randn(4, 3, 8, 8, generator=RANDOM), torch.tensor([1, 2, 3, 9]),
        functional.cross_entropy,
    ),
    "sentences": Task(Sentences, WORDS, WORDS.roll(-1, 1), functional.cross_entropy),
}  # fmt: skip
PERCEPTRON = TASKS["perceptron"]


def made(task: Task) -> nn.Module:
    """The model of a task, always with the same weights."""
    torch.manual_seed(0)
    return task.model()


def losses(model: nn.Module, task: Task, optimizer: Optimizer, device: Any) -> list[float]:
    """The loss before each step of a training."""
    steps = optimizer(model.parameters())
    given, wanted = task.given.to(device), task.wanted.to(device)
    found = []
    for _ in range(STEPS):
        steps.zero_grad()
        loss = task.loss(model(given), wanted)
        loss.backward()
        steps.step()
        if device != "cpu":
            xm.mark_step()
        found.append(loss.item())
    return found


def compilations() -> int:
    return (metrics.metric_data("CompileTime") or [0])[0]


def fallbacks() -> list[str]:
    """The operators that torch_xla left to the host since the metrics were cleared."""
    named = {name for name in metrics.counter_names() if name.startswith("aten::")}
    return sorted(named - {"aten::_local_scalar_dense"})  # item() reads a number


def test_the_device_is_a_neuroncore() -> None:
    assert runtime.device_type() == "NEURON"
    device = xm.xla_device()
    assert device.type == "xla" and xm.xla_device_hw(device) == "NEURON"
    assert runtime.global_runtime_device_count() == 4  # logical cores of a chip of trn2
    assert xm.get_memory_info(device)["bytes_limit"] == 24 << 30


@pytest.mark.parametrize("optimizer", [sgd, adamw])
@pytest.mark.parametrize("name", TASKS)
def test_training_has_the_losses_of_the_cpu(name: str, optimizer: Optimizer) -> None:
    task, device = TASKS[name], torch_xla.device()
    model = made(task)
    expected = losses(copy.deepcopy(model), task, optimizer, "cpu")
    metrics.clear_all()
    assert losses(model.to(device), task, optimizer, device) == pytest.approx(expected, abs=2e-5)
    assert expected[-1] < expected[0]
    assert compilations() <= 2  # the first step has no state of the optimizer
    assert fallbacks() == []


def test_gradients_are_those_of_the_cpu() -> None:
    task, device = TASKS["sentences"], torch_xla.device()
    model = made(task)
    on_device = copy.deepcopy(model).to(device)
    task.loss(model(task.given), task.wanted).backward()
    task.loss(on_device(task.given.to(device)), task.wanted.to(device)).backward()
    torch_xla.sync()
    for ours, theirs in zip(on_device.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, atol=1e-5, rtol=1e-4)


def test_the_optimizer_steps_through_torch_xla() -> None:
    model, device = made(PERCEPTRON).to(torch_xla.device()), torch_xla.device()
    steps = sgd(model.parameters())
    before = [each.detach().cpu() for each in model.parameters()]
    model(PERCEPTRON.given.to(device)).square().mean().backward()
    xm.optimizer_step(steps, barrier=True)
    pairs = zip(before, model.parameters(), strict=True)
    assert any((old != new.cpu()).any() for old, new in pairs)


def test_autocast_computes_in_bfloat16() -> None:
    device = torch_xla.device()
    model, given = made(PERCEPTRON), PERCEPTRON.given
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(given)
    expected.float().square().mean().backward()
    slopes = [each.grad for each in model.parameters()]
    model.zero_grad(set_to_none=True)
    model.to(device)
    with torch.autocast("xla", dtype=torch.bfloat16):
        result = model(given.to(device))
    result.float().square().mean().backward()
    assert result.dtype is torch.bfloat16
    torch.testing.assert_close(result.cpu(), expected, atol=2e-2, rtol=2e-2)
    for ours, slope in zip(model.parameters(), slopes, strict=True):
        torch.testing.assert_close(ours.grad.cpu(), slope, atol=2e-2, rtol=5e-2)


def test_a_model_in_bfloat16_returns_bfloat16() -> None:
    device, given = torch_xla.device(), PERCEPTRON.given.bfloat16()
    model = made(PERCEPTRON).bfloat16()
    expected = model(given)
    result = model.to(device)(given.to(device)).cpu()
    torch.testing.assert_close(result, expected, atol=1e-2, rtol=2e-2)


def test_weights_are_saved_and_loaded() -> None:
    device, given = torch_xla.device(), PERCEPTRON.given
    model = made(PERCEPTRON).to(device)
    stream = io.BytesIO()
    xm.save(model.state_dict(), stream)
    stream.seek(0)
    saved = torch.load(stream)
    assert {each.device.type for each in saved.values()} == {"cpu"}
    for where in ("cpu", device):
        again = PERCEPTRON.model()
        again.load_state_dict(saved)
        result = again.to(where)(given.to(where)).cpu()
        torch.testing.assert_close(result, model(given.to(device)).cpu(), atol=1e-6, rtol=1e-5)


def test_dropout_follows_the_seed() -> None:
    ones = torch.ones(64, 64, device=torch_xla.device())
    found = []
    for seed in (1, 1, 2):
        xm.set_rng_state(seed)
        found.append(functional.dropout(ones, 0.25).cpu())
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()
    assert found[0].unique().tolist() == pytest.approx([0, 4 / 3])
    assert (found[0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.05)


def test_torch_compile_runs_whole_graphs() -> None:
    device, given = torch_xla.device(), PERCEPTRON.given
    model = made(PERCEPTRON).eval()
    expected = model(given)
    compiled = torch.compile(model.to(device), backend="openxla")
    with torch.no_grad():
        for _ in range(3):
            result = compiled(given.to(device))
    torch.testing.assert_close(result.cpu(), expected, atol=1e-6, rtol=1e-5)


def test_another_core_is_named() -> None:
    last = torch.ones(3).to("xla:3")
    assert (last + 1).device == torch.device("xla:3")
    assert (last + 1).cpu().tolist() == [2, 2, 2]


def test_a_saved_tensor_of_64_bits_comes_back() -> None:
    whole = torch.tensor([3_000_000_000, -7]).to(torch_xla.device())
    assert (whole * 2).cpu().tolist() == [6_000_000_000, -14]
