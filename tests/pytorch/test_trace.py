"""torch_neuronx.trace makes modules that PyTorch saves, loads and nests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_neuronx
from glia.frontend.errors import UnsupportedOperator
from glia.graph.passes.errors import UnsupportedDtype
from glia.neff.package import Neff
from glia.plugins.torch.errors import (
    BadTraceArgument,
    DataDependentValue,
    MixedDevices,
    PlacedOnMissingCore,
    UntraceableStructure,
    UnusableTrace,
    WrongTraceInputs,
)
from house.source import REPOSITORY
from support.compilations import watched_compilations

X = torch.randn(2, 8)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    ).eval()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def traced() -> Any:
    return torch_neuronx.trace(model(), X)


def test_a_trace_computes_what_the_model_does(traced: Any) -> None:
    close(traced(X), model()(X))


def test_a_saved_trace_runs_in_another_process(traced: Any, tmp_path: Path) -> None:
    torch.jit.save(traced, tmp_path / "model.pt")
    torch.save(X, tmp_path / "x.pt")
    code = (
        "import torch, torch_neuronx; "
        "print(torch.jit.load('model.pt')(torch.load('x.pt')).sum().item())"
    )
    paths = os.pathsep.join(str(REPOSITORY / each) for each in ("src", "dropin/src"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": paths}, check=True,
    )  # fmt: skip
    assert float(done.stdout) == pytest.approx(model()(X).sum().item(), abs=1e-4)


def test_a_trace_nests_in_other_traces(traced: Any) -> None:
    outer = torch.jit.trace(torch.nn.Sequential(torch.nn.Tanh(), traced), X)
    close(outer(X), model()(X.tanh()))


@pytest.mark.parametrize(
    ("held", "given"), [("neuron", "neuron"), ("neuron", "cpu"), ("cpu", "neuron")]
)
@pytest.mark.parametrize("inline", [True, False])
def test_a_model_on_the_device_is_traced(held: str, given: str, inline: bool) -> None:
    made = torch_neuronx.trace(model().to(held), X.to(given), inline_weights_to_neff=inline)
    close(made(X), model()(X))
    assert made(X.to("neuron")).device.type == "neuron"


def test_a_function_with_a_model_on_another_device_is_refused() -> None:
    elsewhere = model().to("neuron")
    with pytest.raises(MixedDevices, match="cpu and neuron:0"):
        torch_neuronx.trace(lambda x: elsewhere(x), X)


class Nested(torch.nn.Module):
    """A function of nested arguments."""

    def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> Any:
        total = x + more["a"]
        return {"total": total, "less": total - 1}, [x, more["a"]], (total, 3)


def test_arguments_and_results_keep_their_form() -> None:
    arguments = (torch.ones(2), {"a": torch.ones(2)})
    found = torch_neuronx.trace(Nested(), arguments)(*arguments)
    expected = Nested()(*arguments)
    torch.testing.assert_close(found, expected)
    assert found[2][1] == 3


def test_a_dict_of_tensors_and_tuples_is_refused() -> None:
    with pytest.raises(UntraceableStructure):
        torch_neuronx.trace(lambda x: {"a": x + 1, "b": (x, x)}, X)


def test_the_working_directory_has_the_module_and_the_neff(tmp_path: Path) -> None:
    torch_neuronx.trace(model(), X, compiler_workdir=tmp_path, compiler_args="--target trn1")
    assert Neff.load(tmp_path / "model.neff").target == "trn1"
    assert (tmp_path / "model.hlo.pb").stat().st_size > 0


def test_weights_outside_of_the_neff_are_replaced() -> None:
    trace = torch_neuronx.trace(model(), X, inline_weights_to_neff=False)
    other = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    torch_neuronx.replace_weights(trace, other)
    close(trace(X), other(X))
    with pytest.raises(BadTraceArgument):
        torch_neuronx.replace_weights(trace, {"0.weight": torch.zeros(2)})
    with pytest.raises(BadTraceArgument):
        torch_neuronx.replace_weights(trace, {"unknown": torch.zeros(2)})
    for weights in (None, [1], {"0.weight": 3}):
        with pytest.raises(BadTraceArgument):
            torch_neuronx.replace_weights(trace, weights)


def test_a_trace_without_separate_weights_says_so(traced: Any) -> None:
    with pytest.warns(UserWarning, match="inline_weights_to_neff"):
        torch_neuronx.replace_weights(traced, {})


class Cache(torch.nn.Module):
    """A state that grows by its input."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        grown = self.cache + x
        return grown * 2, grown


def test_a_state_stays_with_the_trace_and_is_not_returned(tmp_path: Path) -> None:
    module = Cache()
    trace = torch_neuronx.trace(module, torch.ones(3), input_output_aliases={module.cache: 1})
    close(trace(torch.ones(3)), torch.full((3,), 2.0))
    torch.jit.save(trace, tmp_path / "cache.pt")
    close(trace(torch.ones(3)), torch.full((3,), 4.0))
    close(torch.jit.load(tmp_path / "cache.pt")(torch.ones(3)), torch.full((3,), 4.0))


@pytest.mark.parametrize(
    ("aliases", "problem"),
    [
        (lambda m: {m.cache: 2}, "{cache: 2}: the function returns 2 tensors"),
        (lambda m: {m.cache: -1}, "{cache: -1}: the function returns 2 tensors"),
        (lambda m: {m.other: 0}, r"{other: 0}: the state is torch.int64\[2\], the result"),
        (lambda m: {m.cache: 1, m.copy: 1}, "{copy: 1}: the result is the new value of another"),
        (lambda m: {"cache": 1}, "{'cache': 1}: the key is no parameter"),
        (lambda m: [m.cache], "list: it is no dict"),
    ],
)
def test_states_that_are_no_results_are_refused_by_name(aliases: Any, problem: str) -> None:
    module = Cache()
    module.register_buffer("other", torch.zeros(2, dtype=torch.int64))
    module.register_buffer("copy", torch.zeros(3))
    with pytest.raises(BadTraceArgument, match=problem):
        torch_neuronx.trace(module, torch.ones(3), input_output_aliases=aliases(module))


def test_a_function_that_writes_its_argument_is_refused() -> None:
    with pytest.raises(BadTraceArgument, match="args_0: it writes this argument"):
        torch_neuronx.trace(lambda x: x.add_(1), torch.ones(3))


def test_a_batch_of_any_size_is_taken_in_parts() -> None:
    trace = torch_neuronx.dynamic_batch(torch_neuronx.trace(model(), X))
    for extent in (1, 2, 5):
        x = torch.randn(extent, 8)
        close(trace(x), model()(x))


def test_another_shape_is_refused_with_the_one_that_is_taken(traced: Any) -> None:
    with pytest.raises(RuntimeError, match=WrongTraceInputs.code):
        traced(torch.ones(3, 8))
    with pytest.raises(RuntimeError, match=r"float32\[2, 8\]"):
        traced(torch.ones(2, 8, dtype=torch.int64))


def test_a_damaged_neff_is_refused(tmp_path: Path) -> None:
    trace = torch_neuronx.trace(model(), X)
    trace.neff[200:400] = 0
    torch.jit.save(trace, tmp_path / "damaged.pt")
    with pytest.raises(RuntimeError, match="GLIA"):
        torch.jit.load(tmp_path / "damaged.pt")(X)


def test_functions_for_traces_refuse_other_modules() -> None:
    with pytest.raises(UnusableTrace):
        torch_neuronx.dynamic_batch(torch.jit.script(model()))


def test_data_parallel_splits_inputs_over_cores(traced: Any) -> None:
    parallel = torch_neuronx.DataParallel(torch_neuronx.trace(model(), X), [0, "nc:1"])
    x = torch.randn(7, 8)
    close(parallel(x), model()(x))


def test_inputs_that_data_parallel_cannot_split_are_refused() -> None:
    parallel = torch_neuronx.DataParallel(torch_neuronx.trace(torch.add, (X, X)), dim=7)
    with pytest.raises(BadTraceArgument, match="dim=7: the inputs have 2 dimensions"):
        parallel(X, X)
    parallel.dim = 0
    with pytest.raises(BadTraceArgument, match=r"extents \[2, 3\]"):
        parallel(X, torch.ones(3, 8))
    with pytest.raises(BadTraceArgument, match=r"a list such as \['nc:0'\]"):
        torch_neuronx.DataParallel(parallel.model, "nc:0")


@pytest.mark.parametrize("device", [-1, 1000, "nc:1000", "cuda"])
def test_a_core_that_does_not_exist_is_refused(traced: Any, device: Any) -> None:
    with pytest.raises(BadTraceArgument):
        torch_neuronx.DataParallel(traced, [device])
    with pytest.raises(BadTraceArgument):
        torch_neuronx.move_trace_to_device(traced, device)


def test_placement_is_kept_with_the_trace(tmp_path: Path) -> None:
    with torch_neuronx.neuron_cores_context(1, 2):
        trace = torch_neuronx.trace(model(), X)
    torch_neuronx.lazy_load(trace)
    torch.jit.save(trace, tmp_path / "placed.pt")
    meta = torch.jit.load(tmp_path / "placed.pt").meta
    assert '"start_core": 1' in meta and '"is_lazy": true' in meta
    with pytest.raises(BadTraceArgument):
        torch_neuronx.set_neuron_cores(trace, 1, 1000)


@pytest.mark.parametrize(("first", "count", "cores"), [(3, 1, "core 3"), (1, 2, "cores 1 to 2")])
def test_a_core_that_is_missing_where_a_trace_is_loaded_is_named(
    first: int, count: int, cores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = torch_neuronx.trace(torch.nn.Tanh(), X)
    torch_neuronx.set_neuron_cores(trace, first, count)
    torch.jit.save(trace, tmp_path / "placed.pt")
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "2")
    loaded = torch.jit.load(tmp_path / "placed.pt")
    with pytest.raises(RuntimeError, match=f"{PlacedOnMissingCore.code}.*{cores}: .* sees 2 "):
        loaded(X)
    torch_neuronx.move_trace_to_device(loaded, 1)
    close(loaded(X), X.tanh())


def test_a_trace_that_is_loaded_on_a_thread_waits_for_it() -> None:
    trace = torch_neuronx.async_load(torch_neuronx.trace(model(), X))
    close(trace(X), model()(X))


class Mixed(torch.nn.Module):
    """A function with an operator that no device has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.linear(x).relu()
        return {"values": torch.linalg.svdvals(y) + 1, "twice": y * 2}


def test_what_the_device_lacks_runs_on_the_host(tmp_path: Path) -> None:
    module, x = Mixed(), torch.randn(4, 4)
    with pytest.raises(UnsupportedOperator):
        torch_neuronx.trace(module, x)
    trace = torch_neuronx.trace(module, x, partitioner_config=torch_neuronx.PartitionerConfig())
    torch.jit.save(trace, tmp_path / "mixed.pt")
    found = torch.jit.load(tmp_path / "mixed.pt")(x)
    for name, expected in module(x).items():
        close(found[name], expected)
    for limits in ({"model_support_percentage_threshold": 0.99}, {"max_subgraph_count": 0}):
        with pytest.raises(BadTraceArgument):
            config = torch_neuronx.PartitionerConfig(**limits)
            torch_neuronx.trace(module, x, partitioner_config=config)


class MixedCache(torch.nn.Module):
    """States, of which one is written in place, beside an operator that no device has."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.nn.Parameter(torch.zeros(3, 3))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        grown = self.cache + x
        self.count.add_(1)
        return self.cache, torch.linalg.svdvals(grown).sum() + self.count, grown


IN_PARTS = torch_neuronx.PartitionerConfig(model_support_percentage_threshold=0.0)


def test_a_state_advances_where_a_part_runs_on_the_host(tmp_path: Path) -> None:
    module, x = MixedCache(), torch.ones(3, 3)
    trace = torch_neuronx.trace(
        module, x, input_output_aliases={module.cache: 2}, partitioner_config=IN_PARTS
    )
    assert not module.cache.any() and not module.count
    for _ in range(2):
        trace(x)
    torch.jit.save(trace, tmp_path / "mixed.pt")
    for each in (trace, torch.jit.load(tmp_path / "mixed.pt")):
        before, total = each(x)
        close(before, 2 * x)
        close(total, torch.tensor(12.0))


def test_a_trace_in_parts_is_placed_and_takes_other_weights(tmp_path: Path) -> None:
    with torch_neuronx.neuron_cores_context(1, 2):
        trace = torch_neuronx.trace(
            Mixed(), torch.ones(4, 4), compiler_workdir=tmp_path, partitioner_config=IN_PARTS
        )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["part_0", "part_1"]
    with torch_neuronx.neuron_cores_context(1, 2):
        of_host = torch_neuronx.trace(torch.linalg.svdvals, X, partitioner_config=IN_PARTS)
    close(of_host(X), torch.linalg.svdvals(X))
    placed = [each.meta for each in trace.modules() if hasattr(each, "neff")]
    assert placed and all('"start_core": 1' in meta for meta in placed)
    other, x = Mixed(), torch.randn(4, 4)
    torch_neuronx.replace_weights(torch_neuronx.async_load(trace), other)
    close(trace(x)["twice"], other(x)["twice"])
    with pytest.raises(UnusableTrace, match="fixed shapes"):
        torch_neuronx.dynamic_batch(trace)


def selected(x: torch.Tensor) -> torch.Tensor:
    return (x * 2)[x > 0].relu().sum() + x


def widened(x: torch.Tensor) -> torch.Tensor:
    return (x.double() * 2).float() + 1


@pytest.mark.parametrize("function", [selected, widened])
def test_shapes_and_floats_that_the_device_lacks_are_on_the_host(function: Any) -> None:
    found = torch_neuronx.analyze(function, X)
    assert found["support_percentage"] != "100.00%" and found["unsupported_operators"]
    trace = torch_neuronx.trace(function, X, partitioner_config=IN_PARTS)
    assert any(hasattr(each, "neff") for each in trace.modules())
    for x in (X, X - 1):
        close(trace(x), function(x))


@pytest.mark.parametrize(
    "function", [lambda x: x * x.sum().item(), lambda x: x[x > 0].view(-1, 1).shape[0] * x]
)
def test_numbers_in_parts_on_the_host_are_refused(function: Any) -> None:
    with pytest.raises(DataDependentValue):
        torch_neuronx.trace(function, X, partitioner_config=IN_PARTS)


@pytest.mark.parametrize(
    "options",
    [
        {"ops_to_partition": ["aten::geluu"]},
        {"trace_kwargs": {"input_output_aliases": {}}},
        {"trace_kwargs": {"cpu_backend": True}},
    ],
)
def test_options_of_parts_that_do_not_exist_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadTraceArgument):
        config = torch_neuronx.PartitionerConfig(**options)
        torch_neuronx.trace(Mixed(), torch.ones(4, 4), partitioner_config=config)


def test_operators_of_parts_that_are_not_called_are_warned_of() -> None:
    config = torch_neuronx.PartitionerConfig(ops_to_partition=["aten::gelu"])
    with pytest.warns(UserWarning, match="aten::gelu") as warned:
        torch_neuronx.trace(Mixed(), torch.ones(4, 4), partitioner_config=config)
    assert any(each.filename == __file__ for each in warned)


def doubled_and_more(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return torch.linalg.svdvals(y)  # the device lacks it


class Stateful:
    """A function with a state of its own."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x)  # the device lacks it


@pytest.mark.parametrize("function", [doubled_and_more, Stateful().run])
def test_lines_of_plain_functions_and_methods_are_named(function: Any) -> None:
    with pytest.raises(UnsupportedOperator) as raised:
        torch_neuronx.trace(function, X)
    line = Path(__file__).read_text().splitlines()[raised.value.loc.line - 1]
    assert "the device lacks it" in line and raised.value.loc.file == __file__


def branching(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:  # HERE
        return x
    return -x


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()  # HERE


def summed(x: torch.Tensor) -> float:  # HERE
    return x.sum().item()


@pytest.mark.parametrize("function", [branching, scaled, summed])
def test_what_depends_on_the_values_of_a_tensor_is_refused_with_its_line(function: Any) -> None:
    with pytest.raises(DataDependentValue) as raised:
        torch_neuronx.trace(function, X)
    assert raised.value.loc.file == __file__
    assert "# HERE" in Path(__file__).read_text().splitlines()[raised.value.loc.line - 1]


def test_a_float64_parameter_is_refused_with_the_line_that_takes_it() -> None:
    with pytest.raises(UnsupportedDtype, match=r"test_trace.py.*\n.*\.float\(\)"):
        torch_neuronx.trace(lambda x: x + 1, X.double())


def test_operators_are_analyzed_by_their_names() -> None:
    found = torch_neuronx.analyze(Mixed(), torch.randn(4, 4))
    (lacking,) = found["unsupported_operators"]
    assert lacking["kind"] == "aten::_linalg_svd" and "test_trace.py" in lacking["call"]
    assert found["supported_operators"]["aten"]["aten::relu"] == 1
    ignored = torch_neuronx.analyze(
        Mixed(), torch.randn(4, 4), additional_ignored_ops={"aten::_linalg_svd"}
    )
    assert ignored["support_percentage"] == "100.00%"


def pick(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    length = tensors[0].shape[1]
    number = 0 if length <= 4 else 1
    padding = (4 if number == 0 else 8) - length
    return [torch.nn.functional.pad(tensors[0], [0, padding])], torch.tensor([number])


def test_a_kernel_picks_the_bucket_for_its_inputs(tmp_path: Path) -> None:
    config = torch_neuronx.BucketModelConfig(lambda: torch.jit.script(pick))
    examples = [torch.ones(2, 4), torch.ones(2, 8)]
    buckets = torch_neuronx.bucket_model_trace(lambda: (lambda x: x.sum(1), {}), examples, config)
    torch.jit.save(buckets, tmp_path / "buckets.pt")
    for module in (buckets, torch.jit.load(tmp_path / "buckets.pt")):
        for length in (3, 7):
            close(module(torch.ones(2, length)), torch.full((2,), float(length)))


class Growing(torch.nn.Module):
    """A state that grows by its input, and its sums over rows."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, length))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        grown = self.state + x
        return grown.sum(1), grown


def growing(length: int) -> tuple[torch.nn.Module, dict[torch.Tensor, int]]:
    module = Growing(length)
    return module, {module.state: 1}


def first_columns(
    shapes: list[list[list[int]]], states: list[torch.Tensor], number: torch.Tensor
) -> list[torch.Tensor]:
    """The first columns of each state, as many as the trace of this number has."""
    wanted = shapes[torch.ops.aten.Int(number)]
    found: list[torch.Tensor] = []
    for place in range(len(wanted)):
        found.append(torch.ops.aten.slice(states[place], 1, 0, wanted[place][1]))
    return found


@pytest.mark.parametrize("shared", [[torch.zeros(2, 8)], None])
def test_buckets_share_the_states_that_a_preprocessor_slices(shared: Any, tmp_path: Path) -> None:
    config = torch_neuronx.BucketModelConfig(
        lambda: torch.jit.script(pick), shared_state_buffer=shared,
        shared_state_buffer_preprocessor=lambda: torch.jit.script(first_columns),
        func_kwargs=[{"length": 4}, {"length": 8}],
    )  # fmt: skip
    examples = [torch.ones(2, 4), torch.ones(2, 8)]
    buckets = torch_neuronx.bucket_model_trace(growing, examples, config, tmp_path / "work")
    assert sorted(each.name for each in (tmp_path / "work").iterdir()) == ["bucket_0", "bucket_1"]
    torch.jit.save(buckets, tmp_path / "buckets.pt")
    for module in (buckets, torch.jit.load(tmp_path / "buckets.pt")):
        for length, total in ((4, 4.0), (8, 12.0), (4, 12.0)):
            close(module(torch.ones(2, length)), torch.full((2,), total))


def test_states_that_no_buffer_fits_are_refused() -> None:
    config = torch_neuronx.BucketModelConfig(
        lambda: torch.jit.script(pick), shared_state_buffer=[torch.zeros(2, 8)],
        func_kwargs=[{"length": 4}],
    )  # fmt: skip
    with pytest.raises(BadTraceArgument, match="bucket 0"):
        torch_neuronx.bucket_model_trace(growing, [torch.ones(2, 4)], config)


def test_a_transposed_state_keeps_the_order_of_its_elements() -> None:
    module = Growing(4)
    module.state = torch.zeros(4, 2).t()
    x = torch.arange(8.0).reshape(2, 4)
    trace = torch_neuronx.trace(module, x, input_output_aliases={module.state: 1})
    for times in (1, 2, 3):
        close(trace(x), times * x.sum(1))


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(Exception, match=r"compiler_args holds '--tarket'"):
        torch_neuronx.trace(model(), X, compiler_args="--tarket trn1")
    with pytest.raises(BadTraceArgument):
        torch_neuronx.trace(model(), X, cpu_backend=True)


def test_what_was_compiled_before_is_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = watched_compilations(monkeypatch)
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tmp_path))
    module, x = torch.nn.Linear(200, 100), torch.ones(2, 200)  # weights of more than 64 KiB
    for _ in range(2):
        close(torch_neuronx.trace(module, x)(x), module(x).detach())
    assert len(compiled) == len(list(tmp_path.glob("neuronxcc-*/MODULE_*"))) == 1
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad():
            close(torch.compile(module, backend="neuron")(x), module(x))
    assert len(compiled) == len(list(tmp_path.glob("neuronxcc-*/MODULE_*"))) == 2
