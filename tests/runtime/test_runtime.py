"""A loaded model computes what its program says and explains inputs that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import glia
from glia.base.dtype import BF16
from glia.base.errors import CompileError
from glia.isa.operand import Memory, Tile
from glia.machine.ir import Binding
from glia.neff.errors import NotANeff
from glia.neff.package import Neff
from glia.runtime.errors import NotEnoughCores, UnknownDevice, WrongDType, WrongInputs, WrongShape
from glia.runtime.model import convert_input
from glia.runtime.status import Status
from support.neff_programs import SHAPE, WEIGHTS, example_neff, scale_and_add

X = np.linspace(-1, 1, SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)
Y = 2 * X + np.tile(WEIGHTS, (3, 1))


def test_a_model_runs_by_position_and_by_name(tmp_path: Path) -> None:
    example_neff().save(tmp_path / "m.neff")
    model = glia.load(tmp_path / "m.neff")
    (by_position,) = model(X)
    by_name = model.run({"x": X})
    np.testing.assert_allclose(by_position, Y, rtol=1e-6)
    np.testing.assert_array_equal(by_name["y"], by_position)


def test_running_writes_to_no_input_and_repeats_exactly() -> None:
    model = glia.load(example_neff())
    x = X.copy()
    first, second = model(x)[0], model(x)[0]
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(first, second)
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize(
    ("arrays", "error", "named"),
    [
        ((), WrongInputs, "0 arrays were given"),
        ((X, X), WrongInputs, "the model takes x: f32[384,8]"),
        ((X.T,), WrongShape, "[8, 384], the model takes [384, 8]"),
        ((X.astype(np.float64),), WrongDType, "float64, the model takes f32"),
    ],
)
def test_wrong_inputs_are_explained(
    arrays: tuple[np.ndarray, ...], error: type[CompileError], named: str
) -> None:
    with pytest.raises(error) as caught:
        glia.load(example_neff())(*arrays)
    assert named in str(caught.value)
    assert error.status is Status.NRT_INVALID  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("names", "named"), [(("z",), "'x' is missing"), (("x", "z"), "no input 'z'")]
)
def test_wrong_names_are_explained(names: tuple[str, ...], named: str) -> None:
    with pytest.raises(WrongInputs, match=named):
        glia.load(example_neff()).run(dict.fromkeys(names, X))


def test_raw_bytes_of_a_numpy_file_are_taken_as_the_models_dtype() -> None:
    binding = Binding("h", Tile("h", Memory.HBM, BF16, 1, 4), (4,), BF16)
    values = np.arange(4).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(convert_input(binding, values.view("V2")), values)


def test_lists_and_numbers_are_converted() -> None:
    binding = Binding("h", Tile("h", Memory.HBM, BF16, 1, 2), (2,), BF16)
    assert convert_input(binding, [1, 2]).dtype == ml_dtypes.bfloat16


def test_unknown_devices_and_too_many_cores_are_refused() -> None:
    with pytest.raises(UnknownDevice, match="reference"):
        glia.load(example_neff(), device="tpu")
    programs = tuple(replace(scale_and_add(), target="trn1") for _ in range(3))
    with pytest.raises(NotEnoughCores, match="needs 3 cores, trn1 has 2"):
        glia.load(Neff(programs))


def test_status_codes_are_those_of_the_public_header() -> None:
    numbers = [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14, 15, 101, *range(1002, 1007), 1100]
    assert [status.value for status in Status] == [*numbers, *range(1200, 1207)]


def test_what_is_no_neff_is_named() -> None:
    with pytest.raises(NotANeff, match=r"glia\.load takes its path.* not a value of int"):
        glia.load(3)  # type: ignore[arg-type]
