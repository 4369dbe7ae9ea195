"""Tensors on the device `neuron`: they compute, train and are saved as those of the CPU."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import torch_neuronx
from glia.plugins.torch.device import eager
from glia.plugins.torch.errors import MixedDevices, NoSuchCore, SparseOnDevice
from house.source import REPOSITORY
from pytorch.test_models import GROUPED, IDS, TEXT, config

X = torch.linspace(-2, 2, 24).reshape(4, 6)


def close(found: torch.Tensor, expected: torch.Tensor, share: float = 1e-5) -> None:
    assert found.device.type == "neuron"
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=share, atol=share)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.float8_e4m3fn]
)
def test_a_tensor_comes_back_as_it_went(dtype: torch.dtype) -> None:
    x = (X > 0).to(dtype).t()
    moved = x.to("neuron:1")
    assert (moved.device, moved.dtype) == (torch.device("neuron", 1), dtype)
    assert moved.stride() == x.stride() and torch.equal(moved.cpu().float(), x.float())


def test_views_share_memory_and_see_what_is_written() -> None:
    def written(base: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        view = base.t()[1:3].unsqueeze(0)
        view.mul_(2)
        base[0] = 7
        base[:, 5].zero_()
        return base, view

    for found, expected in zip(written(X.to("neuron")), written(X.clone()), strict=True):
        close(found, expected)


def test_a_tensor_grows_and_keeps_its_elements() -> None:
    x = torch.arange(4.0).to("neuron")
    assert x.resize_(2, 3).shape == (2, 3)
    assert x.flatten()[:4].cpu().tolist() == [0, 1, 2, 3]


def test_storages_are_made_on_the_device() -> None:
    assert torch.UntypedStorage(8, device="neuron:1").device == torch.device("neuron", 1)
    made = torch.UntypedStorage([1, 2], device="neuron")
    close(
        torch.empty(0, dtype=torch.uint8, device="neuron").set_(made), torch.tensor([1, 2]).byte()
    )
    assert torch.UntypedStorage(8).nbytes() == torch.UntypedStorage(8, device="cpu").nbytes() == 8


def test_pytorch_answers_what_it_asks_of_accelerators() -> None:
    assert torch.accelerator.memory_allocated() == 0
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free < total


def test_sparse_tensors_are_refused() -> None:
    words = torch.nn.Embedding(5, 3, sparse=True, device="neuron")
    with pytest.raises(SparseOnDevice, match="_sparse_coo_tensor"):
        words(torch.tensor([1], device="neuron")).sum().backward()
    with pytest.raises(SparseOnDevice, match=r"torch\.sparse_coo"):
        X.to("neuron").to_sparse()


def test_a_core_that_does_not_exist_is_refused() -> None:
    with pytest.raises(NoSuchCore, match="neuron:99"):
        torch.ones(2, device="neuron:99")


@pytest.mark.parametrize("join", [torch.add, lambda x, y: torch.cat([x, y])])
def test_tensors_of_two_devices_are_refused(join: Callable[..., Any]) -> None:
    with pytest.raises(MixedDevices, match="cpu and neuron"):
        join(X.to("neuron"), X)


def test_models_are_copied_and_saved_with_their_device(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2).to("neuron:1")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt")["weight"]
    on_host = torch.load(tmp_path / "model.pt", map_location="cpu")["weight"]
    for each in (loaded, copy.deepcopy(model).weight):
        assert each.device == torch.device("neuron", 1)
        close(each, model.weight.cpu())
    assert on_host.device.type == "cpu" and torch.equal(on_host, model.weight.detach().cpu())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_pins_memory_gives_batches_of_the_host(workers: int) -> None:
    batches = torch.utils.data.DataLoader(X, 2, pin_memory=True, num_workers=workers)
    found = torch.cat(list(batches))
    assert found.device.type == "cpu" and torch.equal(found, X)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_data_parallel_calls_a_module_where_it_is(device: str) -> None:
    model = torch.nn.Linear(6, 2)
    expected = model(X)
    found = torch.nn.DataParallel(model.to(device))(X.to(device))
    assert found.device.type == device
    torch.testing.assert_close(found.cpu(), expected)


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "conjugates": lambda z: z.conj(),
    "negatives": torch._neg_view,
    "both": lambda z: torch._neg_view(z.conj()),
    "real parts": torch.real,
    "imaginary parts": lambda z: z.conj().imag,
}

USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "as it is": lambda v: v,
    "copied": lambda v: v.clone(),
    "copied to memory": lambda v: torch.empty_like(v).copy_(v),
    "joined": lambda v: torch.cat([v, v]),
    "multiplied": lambda v: v * 2,
    "a product": lambda v: v @ v.mH,
    "a sum": lambda v: v.sum(),
    "a number": lambda v: torch.tensor(v[0, 1].item(), device=v.device),
    "compiled": torch.compile(lambda v: v + 1, backend="neuron"),
    "written": lambda v: v.mul_(3)._base,
    "set": lambda v: v.fill_(7)._base,
    "grown": lambda v: v[0, :1].resize_(8)[:1],
    "replaced": lambda v: v.conj_physical_()._base,
    "accumulated": lambda v: v.addmm_(v, v)._base,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("view", VIEWS)
def test_views_of_conjugates_and_negatives_are_seen(view: str, use: str) -> None:
    z = torch.complex(X[:2, :2], X[2:, :2] + 1)
    found, expected = (USES[use](VIEWS[view](z.to(where))) for where in ("neuron", "cpu:0"))
    close(found, expected)


def test_products_with_conjugates_have_their_gradients() -> None:
    def gradient(z: torch.Tensor) -> torch.Tensor:
        leaf = z.detach().requires_grad_()
        ((leaf @ leaf.mH).abs() * leaf.conj().imag).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    z = torch.complex(X[:2, :2], X[2:, :2] + 1)
    close(gradient(z.to("neuron")), gradient(z))


def test_a_tensor_is_printed_without_a_program() -> None:
    before = len(eager._RUNS)
    assert "device='neuron:0'" in repr(X.to("neuron"))
    assert len(eager._RUNS) == before


# --- operators ------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a number": lambda x: 2 * x + 1.5,
    "in place": lambda x: x.clone().mul_(2).add_(x, alpha=0.5),
    "out": lambda x: torch.mul(x, x, out=torch.empty(0, device=x.device)),
    "a product": lambda x: x @ x.t(),
    "several results": lambda x: torch.max(x.sort(1).values, 0),
    "an index": lambda x: x[torch.tensor([2, 0])],
    "what is gathered": lambda x: x.gather(1, x.argsort(1)),
    "a norm": lambda x: torch.nn.functional.layer_norm(x, [6]),
    "a window": lambda x: torch.nn.functional.max_pool2d(x[None, None], 2),
    "a comparison": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "a range": lambda x: torch.arange(6, device=x.device) * x,
    "no tensor": lambda x: torch.tensor(x.sum().item() + x.equal(x), device=x.device),
    "a loss": lambda x: torch.nn.functional.cross_entropy(x, torch.arange(4, device=x.device)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_computes_what_it_does_on_the_cpu(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", eager.HostFallback)
        found, expected = CALLS[name](X.to("neuron")), CALLS[name](X)
    several = isinstance(expected, tuple)
    pairs = zip(found, expected, strict=True) if several else [(found, expected)]
    for ours, theirs in pairs:
        close(ours, theirs)


def test_whole_numbers_are_counted_in_parts_of_a_range() -> None:
    x = torch.arange(-1, 9).repeat(2)
    expected = torch.histc(x.float(), 4, 0, 7).int()
    close(torch.histc(x.int().to("neuron"), 4, 0, 7), expected)
    compiled = torch.compile(lambda x: torch.histc(x, 4, 0, 7), backend="neuron")
    close(compiled(x.int().to("neuron")), expected)


def test_what_the_device_lacks_runs_on_the_host_and_is_named_once() -> None:
    eager._REPORTED.clear()
    with pytest.warns(eager.HostFallback, match=r"aten\._linalg_svd") as raised:
        close(torch.linalg.svdvals(X.to("neuron")), torch.linalg.svdvals(X))
    assert raised[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.linalg.svdvals(X.to("neuron"))


def test_a_call_that_pytorch_refuses_is_no_reason_to_warn() -> None:
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match=r"shape|size"):
        warnings.simplefilter("error")
        X.to("neuron") @ X.to("neuron")


def test_random_numbers_are_those_of_the_cpu() -> None:
    for make in (
        lambda device: torch.randn(3, device=device),
        lambda device: torch.empty(3, device=device).uniform_(2, 3),
        lambda device: torch.randperm(5, device=device),
    ):
        drawn = [torch.manual_seed(3) and make(device) for device in ("neuron", "cpu")]
        close(drawn[0], drawn[1], 0)


def test_autocast_narrows_products_and_not_sums_of_exponentials() -> None:
    x = X.to("neuron")
    with torch.autocast("neuron", dtype=torch.bfloat16):
        product = x @ x.t()
        assert (product.dtype, product.softmax(-1).dtype) == (torch.bfloat16, torch.float32)
    assert (x @ x.t()).dtype is torch.float32


# --- training -------------------------------------------------------------------------------------


RECURRENT: dict[str, Callable[[], torch.nn.Module]] = {
    "LSTM": lambda: torch.nn.LSTM(6, 3, 2, bidirectional=True),
    "a projected LSTM": lambda: torch.nn.LSTM(6, 3, proj_size=2),
    "GRU": lambda: torch.nn.GRU(6, 3),
    "LSTMCell": lambda: torch.nn.LSTMCell(6, 3, bias=False),
    "GRUCell": lambda: torch.nn.GRUCell(6, 3, bias=False),
}


def with_gradients(layer: torch.nn.Module, run: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """A layer's first result, and the gradients of its parameters."""
    found = run(x)
    first = found[0] if isinstance(found, tuple) else found
    first.square().sum().backward()
    return [first, *(each.grad for each in layer.parameters() if each.grad is not None)]


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_have_their_gradients(name: str) -> None:
    torch.manual_seed(0)
    layer = RECURRENT[name]()
    on_device = copy.deepcopy(layer).to("neuron")
    found = with_gradients(on_device, on_device, X.to("neuron"))
    for ours, theirs in zip(found, with_gradients(layer, layer, X), strict=True):
        close(ours, theirs, 1e-4)


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell"])
def test_recurrent_cells_on_the_device_are_compiled(name: str) -> None:
    torch._dynamo.reset()
    cell = getattr(torch.nn, name)(6, 3)
    on_device = copy.deepcopy(cell).to("neuron")
    run = torch.compile(on_device, backend="neuron", fullgraph=True)
    found = with_gradients(on_device, run, X.to("neuron"))
    for ours, theirs in zip(found, with_gradients(cell, cell, X), strict=True):
        close(ours, theirs, 1e-4)


def test_operators_outside_of_graphs_are_not_compiled_by_dynamo() -> None:
    torch._dynamo.reset()
    layer, graphs = torch.nn.LSTM(6, 3).to("neuron"), []

    def noted(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def step(x: torch.Tensor) -> torch.Tensor:
        return layer(x / 3)[0] / 3  # Dynamo takes no function with an LSTM

    found = torch.compile(step, backend=noted)(X.to("neuron"))
    close(found, step(X.to("neuron")).cpu())
    assert not graphs


def test_recurrent_layers_are_narrow_under_autocast() -> None:
    layer = torch.nn.LSTM(6, 3).to("neuron")
    with torch.autocast("neuron", dtype=torch.float16):
        assert layer(X.to("neuron"))[0].dtype is torch.float16


def classifier() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1, bias=False), torch.nn.BatchNorm2d(4), torch.nn.GELU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.LayerNorm(24), torch.nn.Linear(24, 3),
    )  # fmt: skip


def steps(model: Any, device: str, *, run: Any = None) -> list[float]:
    """The losses of some steps, without a program that changes from step to step."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    x = torch.linspace(-1, 1, 72).reshape(3, 1, 4, 6).sin().to(device)
    y = torch.arange(3).to(device)
    losses, programs = [], []
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy((run or model)(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        programs.append(len(eager._RUNS))
    assert programs[-2:] == [programs[-1]] * 2
    return losses


@pytest.mark.parametrize("device", ["neuron", "neuron:1"])
def test_training_takes_the_steps_that_it_takes_on_the_cpu(device: str) -> None:
    ours, theirs = classifier().to(device), classifier()
    torch.testing.assert_close(steps(ours, device), steps(theirs, "cpu"), rtol=1e-4, atol=1e-5)
    for name, buffer in theirs.named_buffers():
        close(ours.get_buffer(name), buffer)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda x: torch.optim.Adam(x, 0.1, amsgrad=True, weight_decay=0.1, fused=True),
    "AdamW": lambda x: torch.optim.AdamW(x, 0.1, maximize=True, fused=True),
    "SGD": lambda x: torch.optim.SGD(x, 0.1, weight_decay=0.1, fused=True),
    "SGD with momentum": lambda x: torch.optim.SGD(x, 0.1, 0.9, nesterov=True, fused=True),
    "Adagrad": lambda x: torch.optim.Adagrad(x, 0.1, lr_decay=0.1, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_optimizers_take_their_steps_on_the_device(name: str) -> None:
    def stepped(device: str) -> list[torch.Tensor]:
        shapes: tuple[tuple[int, ...], ...] = ((2, 3), (), (2, 3))
        weights = [torch.ones(shape, device=device, requires_grad=True) for shape in shapes]
        optimizer = OPTIMIZERS[name](weights)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(3):
            for each in weights:
                each.grad = torch.full_like(each, 0.5 + step).detach()
            optimizer.step()
            schedule.step()
        return weights

    before = len(eager._RUNS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", eager.HostFallback)
        found = stepped("neuron")
    programs = [run for run in list(eager._RUNS)[before:] if "_fused_" in str(run[0])]
    assert len(programs) <= 4  # the first step of SGD has its own
    for ours, theirs in zip(found, stepped("cpu"), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("is_fused", [False, True])
def test_scaled_gradients_train_in_half_precision(is_fused: bool) -> None:
    def trained(device: str) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 2).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=is_fused)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**16, growth_interval=2)
        losses, scales = [], []
        for _ in range(5):
            with torch.autocast(device, dtype=torch.float16):
                loss = model(X.to(device)).square().sum()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
        return losses, scales

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"aten\.reciprocal", eager.HostFallback)  # of float64
        (losses, scales), expected = trained("neuron"), trained("cpu")
    assert scales == expected[1] and min(scales) < 2**16 and sorted(scales) != scales[::-1]
    torch.testing.assert_close(losses, expected[0], rtol=1e-2, atol=1e-3)


def test_a_compiled_model_on_the_device_trains() -> None:
    torch._dynamo.reset()
    ours, theirs = classifier().to("neuron"), classifier()
    found = steps(ours, "neuron", run=torch.compile(ours, backend="neuron"))
    torch.testing.assert_close(found, steps(theirs, "cpu"), rtol=1e-4, atol=1e-5)


def test_a_model_generates_the_words_that_it_does_on_the_cpu() -> None:
    torch.manual_seed(0)
    chosen = config("Llama", **{**TEXT, **GROUPED, "num_hidden_layers": 1})
    model = transformers.AutoModelForCausalLM.from_config(chosen).eval()
    settings = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(IDS, **settings)
    found = copy.deepcopy(model).to("neuron").generate(IDS.to("neuron"), **settings)
    close(found, expected, 0)


def test_a_trace_takes_tensors_of_the_device() -> None:
    model = torch.nn.Linear(6, 2).eval()
    trace = torch_neuronx.trace(model, X)
    close(trace(X.to("neuron")), model(X))
    buffer = io.BytesIO()
    torch.jit.save(trace, buffer)
    buffer.seek(0)
    close(torch.jit.load(buffer).to("neuron")(X.to("neuron")), model(X))


PROCESS = """
import sys, torch, torch.distributed as dist
import torch_neuronx
rank = int(sys.argv[1])
dist.init_process_group("neuron", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1).to("neuron"))
model(torch.full((1, 2), float(rank + 1), device="neuron")).sum().backward()
assert model.module.weight.grad.cpu().tolist() == [[1.5, 1.5]]
total = torch.ones(3, device="neuron") * (rank + 1)
dist.all_reduce(total)
assert total.cpu().tolist() == [3, 3, 3]
dist.destroy_process_group()
"""


def test_processes_share_their_gradients(tmp_path: Path) -> None:
    paths = os.pathsep.join(str(REPOSITORY / each) for each in ("src", "dropin/src"))
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROCESS, str(rank), str(tmp_path / "store")],
            env={**os.environ, "PYTHONPATH": paths},
        )
        for rank in range(2)
    ]
    assert [each.wait(timeout=300) for each in started] == [0, 0]
