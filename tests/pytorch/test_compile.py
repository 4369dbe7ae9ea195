"""torch.compile(model, backend="neuron") computes and trains what PyTorch does on the CPU."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torch_neuronx
from glia import nki
from glia.nki import language as nl
from glia.plugins.torch import dynamo
from glia.plugins.torch.errors import TooManyShapes
from torch_neuronx import nki_op
from torch_neuronx.experimental import profiler


@pytest.fixture(autouse=True)
def backend() -> Iterator[None]:
    """Dynamo as in a new process."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="neuron", **options)


class Convolutions(torch.nn.Module):
    """A classifier of images with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.image = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        )  # fmt: skip
        self.head = torch.nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.image(x))


def attention() -> torch.nn.Module:
    return torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)


MODELS = {
    "convolutions": (Convolutions, (4, 3, 8, 8)),
    "attention": (attention, (2, 6, 16)),
    "recurrence": (lambda: torch.nn.GRU(8, 8, batch_first=True), (2, 5, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_takes_the_steps_that_it_takes_on_the_cpu(name: str) -> None:
    make, shape = MODELS[name]
    model = make()
    reference = copy.deepcopy(model)
    losses: list[list[float]] = []
    data = [torch.randn(shape) for _ in range(3)]
    for trained in (compiled(model), reference):
        optimizer = torch.optim.AdamW(trained.parameters(), 1e-3)
        found = []
        for x in data:
            result = trained(x)
            loss = (result[0] if isinstance(result, tuple) else result).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        losses.append(found)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)


def test_gradients_and_buffers_are_those_of_the_cpu() -> None:
    model = Convolutions()
    reference = copy.deepcopy(model)
    x = torch.randn(4, 3, 8, 8)
    compiled(model)(x).logsumexp(1).sum().backward()
    reference(x).logsumexp(1).sum().backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(model.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_an_input_that_is_written_is_written() -> None:
    def counted(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    ours, theirs = torch.zeros(3), torch.zeros(3)
    torch.testing.assert_close(compiled(counted)(ours), counted(theirs))
    torch.testing.assert_close(ours, theirs)


def test_a_tensor_that_a_function_makes_of_a_number_is_a_constant() -> None:
    x = torch.ones(3, requires_grad=True)
    found = compiled(lambda x: x / torch.sqrt(torch.tensor(4.0)))(x)
    torch.testing.assert_close(found, torch.full((3,), 0.5))


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda x: torch.optim.Adam(x, 0.1),
    "Adagrad": lambda x: torch.optim.Adagrad(x, 0.1),
    "RMSprop": lambda x: torch.optim.RMSprop(x, 0.1),
}


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_optimizers_are_compiled(name: str, device: str) -> None:
    def stepped(device: str, is_compiled: bool) -> torch.Tensor:
        weight = torch.linspace(-1, 1, 6).to(device).requires_grad_()
        optimizer = OPTIMIZERS[name]([weight])
        step = compiled(optimizer.step) if is_compiled else optimizer.step
        for number in range(2):
            weight.grad = (weight.detach() + number).sin()
            step()
        return weight.detach().cpu()

    torch.testing.assert_close(stepped(device, True), stepped("cpu", False))


def test_tensors_of_means_and_deviations_give_normal_numbers() -> None:
    found = compiled(torch.normal)(torch.full((4000,), 3.0), torch.full((4000,), 0.5))
    assert abs(found.mean() - 3) < 0.05 and abs(found.std() - 0.5) < 0.05


def test_operators_on_lists_are_those_on_their_tensors() -> None:
    def step(x: torch.Tensor) -> Any:
        moved, copied, emptied = x.clone(), x.clone(), x.clone()
        torch._foreach_add_([moved, copied], [x, x[0]], alpha=2)
        torch._foreach_copy_([copied], [x[1].half()])
        torch._foreach_zero_([emptied])
        divided = torch._foreach_addcdiv([x, x[0]], [x, x[1]], [x + 3, x[2] - 3], [2.0, -1.0])
        return *divided, *torch._foreach_norm([x, x[0]]), moved, copied, emptied

    x = torch.linspace(0, 1, 9).reshape(3, 3)
    torch.testing.assert_close(compiled(step)(x), step(x))


def test_checkpoints_are_computed_again_and_give_the_same_gradients() -> None:
    block = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    x = torch.randn(3, 8, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False).square().sum()

    (expected,) = torch.autograd.grad(loss(x), x)
    (found,) = torch.autograd.grad(compiled(loss)(x), x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_checkpoints_drop_the_same_elements_again() -> None:
    dropout = torch.nn.Dropout(0.5)
    x = torch.ones(64, requires_grad=True)

    def dropped(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: dropout(y * 2).sin(), x, use_reentrant=False)

    found = compiled(dropped)(x)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(gradient != 0, found != 0)
    assert 0 < (found != 0).sum() < 64


def test_autocast_computes_in_bfloat16() -> None:
    linear, x = torch.nn.Linear(16, 16), torch.randn(4, 16)

    def cast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(x)

    found = compiled(cast)(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, cast(x), rtol=2e-2, atol=2e-2)


def test_each_new_shape_is_compiled_once() -> None:
    calls = compiled(lambda x: x.sin() * x.shape[0])
    for extent in (3, 4, 5, 4):
        x = torch.randn(extent, 2)
        torch.testing.assert_close(calls(x), x.sin() * extent, rtol=1e-4, atol=1e-5)


def test_shapes_without_end_are_refused() -> None:
    calls = compiled(lambda x: x.sin(), dynamic=True)
    with (
        torch._dynamo.config.patch(recompile_limit=2),
        pytest.raises(TooManyShapes, match="dynamic=False"),
    ):
        for extent in range(3, 9):
            calls(torch.randn(extent))


def test_a_graph_break_is_reported() -> None:
    @compiled
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    with pytest.warns(dynamo.GraphBreak, match="on the host") as warned:
        torch.testing.assert_close(broken(torch.ones(3)), torch.ones(3).sin().cos())
    assert_named(warned, "torch._dynamo.graph_break()")


def assert_named(warned: pytest.WarningsRecorder, source: str) -> None:
    """Raise AssertionError unless one graph break is reported, at a line with this source."""
    (found,) = [each for each in warned if each.category is dynamo.GraphBreak]
    assert found.filename == __file__
    assert source in Path(__file__).read_text().splitlines()[found.lineno - 1]


def test_a_branch_on_the_values_of_a_tensor_is_reported_at_its_line() -> None:
    branching = compiled(lambda x: x * 2 if x.sum() > 0 else x * 3)
    with pytest.warns(dynamo.GraphBreak, match="a branch depends on the values") as warned:
        torch.testing.assert_close(branching(torch.ones(3)), torch.full((3,), 2.0))
    assert_named(warned, "if x.sum() > 0")


def test_messages_name_the_graph_that_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--verbose=info")
    compiled(lambda x: x.sin() + 2)(torch.ones(3))
    torch_neuronx.trace(torch.nn.Tanh(), torch.ones(3))
    shown = capfd.readouterr().out
    assert "compiling the inference graph of test_compile.py:" in shown
    assert "compiling Tanh for trn2" in shown


def test_options_are_those_of_the_compiler() -> None:
    found = compiled(torch.nn.Linear(4, 4), options={"target": "trn1"})(torch.randn(2, 4))
    assert found.shape == (2, 4)
    with pytest.raises(Exception, match="target"):
        compiled(torch.nn.Linear(4, 4), options={"target": "trn9"})(torch.randn(2, 4))


@nki.jit
def doubled(x: Any) -> Any:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(x), 2))
    return out


@nki_op("glia_tests::doubled_with_gradient", mutates_args=())
def doubled_operator(x: torch.Tensor) -> torch.Tensor:
    return doubled(x)


doubled_operator.register_autograd(lambda context, gradient: doubled_operator(gradient))


def test_a_kernel_is_an_operator_with_a_gradient() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compiled(lambda x: doubled_operator(x + 1).square().sum())(x)
    (gradient,) = torch.autograd.grad(found, x)
    torch.testing.assert_close(gradient, 8 * (x + 1).detach(), rtol=1e-4, atol=1e-4)


def test_graphs_that_run_in_a_profile_leave_traces(tmp_path: Path) -> None:
    doubled = compiled(lambda x: x * 2)
    doubled(torch.ones(4))
    with profiler.profile(neuron_tensorboard_plugin_dir=tmp_path) as found:
        doubled(torch.ones(4))
        doubled(torch.ones(4))
    (trace,) = found.files
    assert json.loads(trace.read_text())["traceEvents"]
    (program,) = json.loads((tmp_path / "executions.json").read_text())["programs"]
    assert program["executions"] == 2
