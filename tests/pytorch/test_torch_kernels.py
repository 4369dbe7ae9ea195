"""Kernels of both generations on tensors of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import glia
import torch_neuronx
from glia import nki
from glia.nki import beta1
from glia.nki import language as nl
from glia.nki.beta1 import language as nl1
from glia.nki.names.errors import BadLaunch, NoDerivative, NotAnOutput, NotInNki
from glia.plugins.torch.errors import MixedDevices
from torch_neuronx import nki_hop, nki_jit, nki_op
from torch_neuronx.utils import get_platform_target
from torch_neuronx.xla_impl import ops

BOTH = ("doubled", "doubled1", "simulated")
DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int32, torch.int16, torch.int8, torch.uint32, torch.uint16, torch.uint8,
)  # fmt: skip


@nki.jit
def doubled(x: Any) -> Any:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(x), 2))
    return out


@beta1.jit
def doubled1(x: Any) -> Any:
    out = nl1.ndarray(x.shape, dtype=x.dtype, buffer=nl1.shared_hbm)
    nl1.store(out, nl1.load(x) * 2)
    return out


@nki.jit
def sin_into(x: Any, out: Any) -> None:
    """A kernel that writes its result to an argument, as the overview of native PyTorch has it."""
    nl.store(out[0:4], nl.sin(nl.load(x[0:4])))


@nki.jit
def cos_into(x: Any, out: Any) -> None:
    nl.store(out[0:4], nl.cos(nl.load(x[0:4])))


@nki_jit
def add_into(a: Any, b: Any, c: Any) -> None:
    i, j = nl1.program_id(0) * 2 + nl1.arange(2)[:, None], nl1.arange(4)[None, :]
    nl1.store(c[i, j], value=nl1.load(a[i, j]) + nl1.load(b[i, j]))


@pytest.fixture(params=BOTH)
def double(request: pytest.FixtureRequest) -> Callable[..., Any]:
    ways = {"doubled": doubled, "doubled1": doubled1, "simulated": nki.simulate(doubled)}
    return ways[request.param]


# --- tensors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_keep_their_dtype(double: Callable[..., Any], dtype: torch.dtype) -> None:
    x = torch.arange(8).reshape(2, 4).to(dtype)
    found = double(x)
    assert found.dtype is dtype
    assert torch.equal(found.to(torch.float32), 2 * x.to(torch.float32))


def test_tensors_need_not_be_contiguous(double: Callable[..., Any]) -> None:
    x = torch.arange(16.0).reshape(4, 4).t()[1:3, ::2]
    assert torch.equal(double(x), 2 * x)
    assert torch.equal(double(x.bfloat16()).float(), 2 * x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_arguments_that_a_kernel_writes_change_in_place(dtype: torch.dtype) -> None:
    a = torch.ones(4, 4, dtype=dtype)
    whole = torch.zeros(8, 8, dtype=dtype)
    part = whole[::2, 1::2]
    assert add_into[2](a, a, part) is None
    assert torch.equal(part, a + a) and whole.sum() == 32
    sin_into(a, part)
    torch.testing.assert_close(part, torch.sin(a))
    ops.nki_jit()(add_into.function)[2](a, a, part)
    assert torch.equal(part, a + a)


@pytest.mark.parametrize("kernel", [doubled, doubled1], ids=["current", "beta1"])
@pytest.mark.parametrize("core", [0, 1])
def test_tensors_on_a_core_give_results_on_it(kernel: Callable[..., Any], core: int) -> None:
    x = torch.arange(8.0).reshape(2, 4).bfloat16()
    found = kernel(x.to(f"neuron:{core}"))
    assert (found.device, found.dtype) == (torch.device("neuron", core), torch.bfloat16)
    assert torch.equal(found.cpu(), 2 * x)


def test_a_kernel_writes_the_memory_of_tensors_on_the_device() -> None:
    a = torch.ones(4, 4, device="neuron")
    whole = torch.zeros(8, 8, device="neuron")
    assert add_into[2](a, a, whole[::2, 1::2]) is None
    assert torch.equal(whole.cpu()[::2, 1::2], torch.full((4, 4), 2.0)) and whole.sum() == 32


def test_a_simulation_of_tensors_on_the_device_gives_tensors_of_the_host() -> None:
    found = nki.simulate(doubled)(torch.ones(2, 4, device="neuron"))
    assert torch.equal(found, torch.full((2, 4), 2.0))


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(MixedDevices, match="sin_into is called with tensors on cpu and neuron:0"):
        sin_into(torch.ones(4, 4, device="neuron"), torch.ones(4, 4))


def test_a_wrapped_kernel_is_called_by_name_and_on_a_grid() -> None:
    a = torch.ones(4, 4)
    wrapped = nki_hop.wrap_nki(doubled)
    assert torch.equal(wrapped(x=a), 2 * a)
    assert torch.equal(wrapped[1](x=a), 2 * a)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float8_e4m3fnuz])
def test_dtypes_that_kernels_have_not_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(NotInNki, match=r"torch\.int32"):
        doubled(torch.ones(2, 2).to(dtype))


def test_a_result_of_a_dtype_that_pytorch_has_not_is_refused() -> None:
    @nki.jit
    def narrow(x: Any) -> Any:
        out = nl.ndarray(x.shape, nl.float8_e4m3, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    with pytest.raises(NotInNki, match="PyTorch does not have"):
        narrow(torch.ones(2, 2))


def test_a_kernel_that_neither_returns_nor_writes_is_refused() -> None:
    @nki.jit
    def idle(x: Any) -> None:
        nl.load(x)

    with pytest.raises(NotAnOutput):
        idle(torch.ones(2, 2))


def test_tensors_without_contents_give_such_results(double: Callable[..., Any]) -> None:
    if double not in (doubled, doubled1):
        double = nki_hop.wrap_nki(doubled)
    found = double(torch.empty(3, 5, dtype=torch.bfloat16, device="meta"))
    assert (found.shape, found.dtype, found.device.type) == ((3, 5), torch.bfloat16, "meta")


# --- gradients -----------------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    """As the documentation has it: a kernel in each direction."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return doubled(x)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return doubled1(gradient)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_kernels_in_an_autograd_function(is_compiled: bool) -> None:
    x = torch.ones(2, 2, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (Doubled.apply(x * 3) ** 2).sum()

    function = torch.compile(loss, backend="aot_eager") if is_compiled else loss
    function(x).backward()
    assert torch.equal(x.grad, torch.full((2, 2), 72.0))


@pytest.mark.parametrize("kernel", [doubled, doubled1])
def test_a_kernel_has_no_gradient_of_its_own(kernel: Callable[..., Any]) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    found = kernel(x)
    assert torch.equal(found, 2 * x) and found.requires_grad
    with pytest.raises(NoDerivative, match=r"torch\.autograd\.Function"):
        found.sum().backward()
    with torch.no_grad():
        assert not kernel(x).requires_grad


# --- torch.compile -------------------------------------------------------------------------------


@nki_op("glia_tests::cos", mutates_args=())
def cos(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    cos_into(x, out)
    return out


@nki_op("glia_tests::sin", mutates_args={})
def sin(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    sin_into(x, out)
    return out


@nki_op("glia_tests::doubled", mutates_args=())
def doubled_op(x: torch.Tensor) -> torch.Tensor:
    return doubled(x)


def _keep(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


sin.register_autograd(
    lambda ctx, gradient: gradient * cos(ctx.saved_tensors[0]), setup_context=_keep
)


def test_a_compiled_function_calls_kernels_in_python(double: Callable[..., Any]) -> None:
    x = torch.ones(2, 4)
    function = torch.compile(lambda x: double(x + 1) * 3, backend="eager")
    assert torch.equal(function(x), 6 * (x + 1))


def test_an_operation_is_checked_compiled_whole_and_differentiated() -> None:
    x = torch.linspace(0, 1, 16).reshape(4, 4).requires_grad_()
    torch.library.opcheck(sin, (x,))
    function = torch.compile(lambda x: sin(x * 2) + 1, backend="aot_eager", fullgraph=True)
    found = function(x)
    torch.testing.assert_close(found, torch.sin(x * 2) + 1)
    found.sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(x * 2).detach())


def test_an_operation_is_compiled_for_shapes_that_change() -> None:
    function = torch.compile(
        lambda x: doubled_op(x) + 1, backend="aot_eager", fullgraph=True, dynamic=True
    )
    for rows in (4, 3, 2):
        x = torch.ones(rows, 4)
        assert torch.equal(function(x), 2 * x + 1)


def test_an_operation_is_exported() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return doubled_op(x) + 1

    x = torch.ones(2, 4)
    exported = torch.export.export(Model(), (x,))
    assert "glia_tests.doubled" in str(exported.graph)
    assert torch.equal(exported.module()(x), 2 * x + 1)


def test_what_maps_a_function_over_tensors_needs_an_operation() -> None:
    with pytest.raises(NotInNki, match="nki_op"):
        torch.vmap(doubled)(torch.ones(3, 2, 4))


def test_the_target_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gen2")
    assert get_platform_target() == "trn1"


def test_a_grid_that_is_none_is_refused() -> None:
    with pytest.raises(BadLaunch):
        doubled[3](torch.ones(2, 2))


@nki_op("glia_tests::doubled_for_a_target", mutates_args=())
def doubled_for_a_target(x: torch.Tensor) -> torch.Tensor:
    return doubled(x)


class OfAKernel(torch.nn.Module):
    """An operation of a kernel in a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled_for_a_target(x) + 1


@pytest.mark.parametrize("function", [OfAKernel(), lambda x: doubled(x) + 1])
def test_kernels_of_a_trace_are_compiled_for_its_target(function: Any) -> None:
    x = torch.ones(4, 6)
    trace = torch_neuronx.trace(function, x, compiler_args="--target trn1")
    torch.testing.assert_close(trace(x), torch.full((4, 6), 3.0))


def test_kernels_of_an_exported_program_are_compiled_for_its_target() -> None:
    program = torch.export.export(OfAKernel(), (torch.ones(4, 6),))
    assert glia.compile(program, target="trn1").target == "trn1"
