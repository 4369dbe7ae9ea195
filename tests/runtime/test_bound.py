"""Bound models and arrays of other libraries: memory is read and written where it lies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import glia
from glia.base.errors import CompileError
from glia.base.machine_code.native import address_of
from glia.neff.package import Neff
from glia.runtime.borrowed import borrowed, from_dlpack, is_array
from glia.runtime.errors import UnknownDevice, UnusableInput, WrongDType, WrongInputs, WrongShape
from glia.runtime.model import DEVICES, Model
from support import machine_programs
from support.neff_programs import SHAPE, example_neff

X = np.linspace(-1, 1, SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)


class OnlyDlpack:
    """What exports its memory by DLPack and in no other way."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self) -> object:
        return self.array.__dlpack__()


def stepped(device: str | None = None) -> Model:
    """A model with a state, s + x and their product; the state may be donated."""

    def step(state: Any, x: Any) -> Any:
        return state + x, state * x

    given = np.zeros((4, 5), np.float32)
    lowered = jax.jit(step, donate_argnums=0).lower(given, given)
    return glia.load(glia.compile(lowered), device=device)


def several(model: Model) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.standard_normal(b.shape, np.float32) for b in model.inputs]


def test_the_default_device_is_the_host_unless_the_environment_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert glia.load(example_neff()).device == "host"
    monkeypatch.setenv("GLIA_DEVICE", "reference")
    assert glia.load(example_neff()).device == "reference"
    assert glia.load(example_neff(), device="host").device == "host"
    monkeypatch.setenv("GLIA_DEVICE", "cuda")
    with pytest.raises(UnknownDevice, match="'cuda'"):
        glia.load(example_neff())


@pytest.mark.parametrize("device", DEVICES)
def test_a_bound_model_gives_what_the_model_gives(device: str) -> None:
    model = stepped(device)
    arrays, bound = several(model), model.bind()
    for _ in range(2):
        for found, wanted in zip(bound(*arrays), model(*arrays), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_at_addresses_fills_them(device: str) -> None:
    model = stepped(device)
    arrays = several(model)
    results = [np.empty(b.shape, np.float32) for b in model.outputs]
    model.bind().run_at([*map(address_of, arrays)], [*map(address_of, results)])
    np.testing.assert_array_equal(results, model(*arrays))


def test_several_cores_are_bound_too() -> None:
    program = machine_programs.matmul(8, 8, 8)
    model = glia.load(Neff((program, program)))
    arrays = several(model)
    np.testing.assert_array_equal(model.bind()(*arrays)[0], model(*arrays)[0])


def test_outputs_are_new_arrays_unless_they_are_to_be_used_again() -> None:
    model = glia.load(example_neff())
    bound, reusing = model.bind(), model.bind(reuses_outputs=True)
    assert not np.shares_memory(bound(X)[0], bound(X)[0])
    (first,) = reusing(X)
    wanted = first.copy()
    (second,) = reusing(2 * X)
    assert second is first
    assert not np.array_equal(wanted, second)


def test_a_donated_input_is_updated_in_place_and_no_other_is() -> None:
    model = stepped()
    assert model.aliases == {model.inputs[0].name: model.outputs[0].name}
    state, x = several(model)
    before = state.copy()
    model.bind()(state, x)
    np.testing.assert_array_equal(state, before)
    total, product = model.bind(donated=[model.inputs[0].name])(state, x)
    assert total is state
    np.testing.assert_array_equal(total, before + x)
    np.testing.assert_array_equal(product, before * x)


def test_what_cannot_be_donated_is_refused() -> None:
    model = stepped()
    state, x = several(model)
    with pytest.raises(WrongInputs, match="no output is in its place"):
        model.bind(donated=[model.inputs[1].name])
    bound = model.bind(donated=[model.inputs[0].name])
    with pytest.raises(UnusableInput, match="not row-major"):
        bound(np.asfortranarray(state), x)
    state.flags.writeable = False
    with pytest.raises(UnusableInput, match="cannot be written to"):
        bound(state, x)


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ((), WrongInputs),
        ((X.T,), WrongShape),
        ((X.astype(np.float64),), WrongDType),
        ((jnp.zeros(SHAPE, jnp.int32),), WrongDType),
        ((OnlyDlpack(X, device=2),), UnusableInput),
    ],
)
def test_a_bound_model_explains_wrong_inputs(
    arrays: tuple[Any, ...], error: type[CompileError]
) -> None:
    with pytest.raises(error):
        glia.load(example_neff()).bind()(*arrays)


@pytest.mark.parametrize("given", [X.T.copy().T, X[::-1], [list(row) for row in X]])
def test_arrays_in_another_order_are_copied(given: Any) -> None:
    model = glia.load(example_neff())
    wanted = model(np.ascontiguousarray(given, np.float32))[0]
    np.testing.assert_array_equal(model.bind()(given)[0], wanted)


DTYPES = (
    np.float32, np.float16, np.int8, np.uint16, np.int64, np.bool_, ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_of_other_libraries_is_read_where_it_lies(dtype: Any) -> None:
    """In every exporter's way, read-only arrays included."""
    with jax.enable_x64(True):
        array = jnp.asarray(np.arange(6).reshape(2, 3).astype(dtype))
    same = np.asarray(array)
    for given in (array, OnlyDlpack(array)):
        found = borrowed(given)
        assert found.dtype == same.dtype
        assert found.shape == same.shape
        assert address_of(found) == address_of(same)
        np.testing.assert_array_equal(found, same)


def test_steps_and_emptiness_are_kept_in_dlpack() -> None:
    whole = np.arange(24, dtype=np.int32).reshape(4, 6)
    for part in (whole[::2, 1:4], whole.T, whole[1], whole[2:2], whole[0, 0:1].reshape(())):
        found = from_dlpack(OnlyDlpack(part))
        np.testing.assert_array_equal(found, part)
        assert found.size == 0 or address_of(found) == address_of(part)


def test_memory_lives_as_long_as_the_array_over_it() -> None:
    found = [from_dlpack(OnlyDlpack(np.full(1000, k, np.int64))) for k in range(50)]
    assert [int(each.sum()) for each in found] == [1000 * k for k in range(50)]


def test_buffers_are_arrays_and_text_and_numbers_are_not() -> None:
    assert is_array(memoryview(b"abcd"))
    assert is_array(bytearray(4))
    assert not any(map(is_array, (b"abcd", "abcd", 1.0, np.float32(1), [1.0], None)))


def test_torch_tensors_are_read_and_updated_where_they_lie() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        tensor = torch.arange(6).reshape(2, 3).to(dtype)
        assert address_of(borrowed(tensor)) == tensor.data_ptr()
    model = stepped()
    state, x = torch.ones(4, 5), torch.full((4, 5), 2.0)
    model.bind(donated=[model.inputs[0].name])(state, x)
    assert bool((state == 3).all())
    with pytest.raises(UnusableInput, match="detach"):
        model(torch.ones(4, 5, requires_grad=True), x)
