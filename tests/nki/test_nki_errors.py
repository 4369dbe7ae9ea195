"""What kernels cannot do is refused alike while they are simulated and while they are compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.machine.passes.on_chip_space import OnChipMemoryFull
from glia.nki import collectives
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.errors import (
    BadLaunch,
    BrokenRule,
    CoresDisagree,
    CoresRace,
    ImpossibleTensor,
    IndexNotInTable,
    IndexOutsideTensor,
    MaskNotSupported,
    NkiValidationError,
    NoOperator,
    NoSuchName,
    NotATensor,
    NotInNki,
    ParticipantsMissing,
    UnknownWhenTraced,
    WrongArguments,
)
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.nki.tensors.refused_operators import COMPARISONS, FUNCTIONS, UNARY
from glia.runtime.errors import ProgramFault

Kernel = Callable[..., Any]


def array(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def stored(tile: NkiTensor) -> NkiTensor:
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def both_raise(kernel: Kernel, error: type[Exception], *arrays: np.ndarray) -> list[Exception]:
    """The failures of the simulated and of the compiled kernel."""
    found = []
    for way in (nki.simulate(kernel), nki.jit(kernel)):
        with pytest.raises(error) as caught:
            way(*arrays)
        found.append(caught.value)
    return found


def _too_many_partitions(x: NkiTensor) -> None:
    tile = nl.ndarray((256, 512), nl.float32, buffer=nl.sbuf)
    out = nl.ndarray((256, 512), nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=out, data1=tile, data2=tile, op=nl.add)


def test_a_broken_limit_is_reported_in_the_documented_words() -> None:
    for failure in both_raise(_too_many_partitions, AssertionError, array(4, 4)):
        assert isinstance(failure, NkiValidationError)
        assert "tensor_tensor dst partition dimension 256 exceeds maximum 128" in str(failure)


def _wide_product(x: NkiTensor) -> None:
    tile = nl.load(x)
    nisa.nc_matmul(nl.ndarray((128, 512), nl.float32, nl.psum), tile[:, :256], tile)


def _row_too_far(x: NkiTensor) -> None:
    nl.load(x[0:129])


def _pattern_too_far(x: NkiTensor) -> None:
    nl.load(x.ap([[1024, 128], [1, 1024]], offset=1))


def _register_in_if(x: NkiTensor) -> None:
    if nisa.register_alloc(1):
        nl.load(x)


def _register_as_number(x: NkiTensor) -> None:
    range(nisa.register_alloc(1))  # type: ignore[call-overload]


def _register_sum(x: NkiTensor) -> None:
    nisa.register_alloc(1) + 1


def _step_from_register(x: NkiTensor) -> None:
    nl.fori_loop(0, 4, lambda i: None, step=nisa.register_alloc(1))  # type: ignore[arg-type]


def _loop_in_order(x: NkiTensor) -> None:
    with nl.no_reorder():
        nl.fori_loop(0, 4, lambda i: None)


def _frozen_index(x: NkiTensor) -> None:
    nl.fori_loop(0, 4, lambda i: nisa.register_move(i, 0))


def _mask(x: NkiTensor) -> None:
    nisa.tensor_copy(x, x, mask=x)


def _missing_name(x: NkiTensor) -> None:
    nl.arange(128)


def _two_indices(x: NkiTensor) -> None:
    index = nl.zeros((1, 1), nl.int32)
    x.select(0, index).select(0, index)


def _string_buffer(x: NkiTensor) -> None:
    nl.ndarray((4, 4), nl.float32, buffer="sram")  # type: ignore[arg-type]


def _transfer_from_psum(x: NkiTensor) -> None:
    nisa.dma_copy(x, nl.zeros((128, 512), nl.float32, buffer=nl.psum))


def _converting_hardware_transfer(x: NkiTensor) -> None:
    tile = nl.ndarray((128, 1024), nl.bfloat16)
    nisa.dma_copy(tile, x, dge_mode=nisa.dge_mode.hwdge)


REFUSED: list[tuple[Kernel, type[Exception], type[Exception]]] = [
    (_wide_product, BrokenRule, AssertionError),
    (_row_too_far, IndexOutsideTensor, IndexError),
    (_pattern_too_far, ImpossibleTensor, AssertionError),
    (_register_in_if, UnknownWhenTraced, TypeError),
    (_register_as_number, UnknownWhenTraced, TypeError),
    (_register_sum, NotInNki, TypeError),
    (_step_from_register, BrokenRule, AssertionError),
    (_loop_in_order, NotInNki, TypeError),
    (_frozen_index, NotInNki, TypeError),
    (_mask, MaskNotSupported, TypeError),
    (_missing_name, NoSuchName, AttributeError),
    (_two_indices, ImpossibleTensor, AssertionError),
    (_string_buffer, NotInNki, TypeError),
    (_transfer_from_psum, BrokenRule, NkiValidationError),
    (_converting_hardware_transfer, BrokenRule, NkiValidationError),
]


@pytest.mark.parametrize(
    ("module", "name", "hint"),
    [
        (nl, "mulitply", "; did you mean multiply?"),
        (nl, "qqqq", ""),
        (nisa, "tensor_scaler", "; did you mean tensor_scalar?"),
        (nisa, "qqqq", ""),
        (collectives, "all_redcue", "; did you mean all_reduce?"),
    ],
)
def test_a_misspelt_name_brings_the_one_most_like_it(
    module: ModuleType, name: str, hint: str
) -> None:
    with pytest.raises(NoSuchName) as caught:
        getattr(module, name)
    assert f"has no {name}{hint}\n" in str(caught.value)


@pytest.mark.parametrize(("kernel", "error", "known_as"), REFUSED)
def test_both_ways_refuse_with_one_message(
    kernel: Kernel, error: type[Exception], known_as: type[Exception]
) -> None:
    simulated, compiled = both_raise(kernel, error, array(128, 1024))
    assert isinstance(simulated, known_as)
    assert str(simulated) == str(compiled)
    assert __file__ in str(simulated)


def _halves(x: NkiTensor, meets: bool, reads: bool) -> NkiTensor:
    """Each core writes half of a shared tensor; then both read all of it."""
    rank, rows = nl.program_id(0), x.shape[0] // 2
    shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
    mine = slice(rank * rows, (rank + 1) * rows)
    nisa.dma_copy(shared[mine], nl.load(x[mine]))
    if meets:
        nisa.core_barrier(shared, (0, 1))
    whole = nl.load(shared if reads else x)
    nisa.dma_copy(out[rank], whole)
    return out


@pytest.mark.parametrize(("meets", "reads"), [(True, True), (False, False)])
def test_cores_that_synchronise_or_stay_disjoint_share_a_tensor(meets: bool, reads: bool) -> None:
    x = array(8, 4)
    for way in (nki.simulate(_halves)[2], nki.jit(_halves)[2]):
        np.testing.assert_array_equal(way(x, meets, reads), np.stack([x, x]))


def test_cores_that_do_not_synchronise_race_in_both_ways() -> None:
    with pytest.raises(CoresRace, match="core 0 reads elements of shared_hbm that core 1 writes"):
        nki.simulate(_halves)[2](array(8, 4), False, True)
    with pytest.raises(ProgramFault, match="race: unordered accesses"):
        nki.jit(_halves)[2](array(8, 4), False, True)


def _both_write(x: NkiTensor) -> NkiTensor:
    nisa.dma_copy(x, nl.full(x.shape, float(nl.program_id(0)), x.dtype))
    return x


def test_cores_do_not_both_write_an_argument() -> None:
    with pytest.raises(CoresRace, match="core 1 writes elements of x that core 0 writes"):
        nki.simulate(_both_write)[2](array(8, 4))


@pytest.mark.parametrize("cores", [1, 2])
def test_a_simulation_of_one_rank_computes_no_collective_of_two(cores: int) -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        collectives.all_reduce([x], [out], collectives.ReplicaGroup([[0, 1]]), nl.add)
        return out

    with pytest.raises(ParticipantsMissing, match="needs the ranks 0, 1, and this simulation"):
        nki.simulate(kernel)[cores](array(8, 4))


def _both_fill(x: NkiTensor, value: float | None) -> NkiTensor:
    between = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(between, nl.full(x.shape, 3.0, x.dtype))
    nisa.dma_copy(out, nl.load(between))
    if value is not None:
        nisa.dma_copy(between, nl.full(x.shape, value, x.dtype))
    return out


def test_cores_that_do_the_same_share_what_both_write(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.full((8, 4), 3.0)
    for seed in range(12):
        monkeypatch.setenv("NEURON_SIM_SEED", str(seed))
        np.testing.assert_array_equal(nki.jit(_both_fill)[2](array(8, 4), None), expected)
    np.testing.assert_array_equal(nki.simulate(_both_fill)[2](array(8, 4), None), expected)


def test_cores_that_do_the_same_do_not_write_one_tensor_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(CoresRace, match="writes elements of shared_hbm"):
        nki.simulate(_both_fill)[2](array(8, 4), 4.0)
    for seed in range(12):
        monkeypatch.setenv("NEURON_SIM_SEED", str(seed))
        with pytest.raises(ProgramFault, match="race: unordered accesses"):
            nki.jit(_both_fill)[2](array(8, 4), 4.0)


def test_a_compiled_race_of_two_values_is_reported_in_every_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(12):
        monkeypatch.setenv("NEURON_SIM_SEED", str(seed))
        with pytest.raises(ProgramFault, match="put a core_barrier between them"):
            nki.jit(_both_write)[2](array(8, 4))


def test_many_synchronisations_order_many_accesses() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        rank, tile = nl.program_id(0), nl.ndarray(x.shape, x.dtype)
        for turn in range(600):
            if turn % 2 == rank:
                nisa.dma_copy(tile, x)
                nisa.tensor_scalar(tile, tile, nl.add, 1.0)
                nisa.dma_copy(x, tile)
            nisa.core_barrier(x, (0, 1))
        return x

    np.testing.assert_array_equal(nki.simulate(kernel)[2](array(2, 4)), array(2, 4) + 600)


def test_an_index_that_names_no_row_is_an_index_error() -> None:
    def gather(x: NkiTensor, rows: NkiTensor) -> NkiTensor:
        index = nl.load(rows)
        tile = nl.ndarray((4, 8), nl.float32)
        nisa.dma_copy(tile, x.vector_select(0, index))
        return stored(tile)

    rows = np.array([[0], [1], [17], [2]], np.int32)
    with pytest.raises(IndexNotInTable, match="index 136 is out of bounds for axis 0"):
        nki.simulate(gather)(array(16, 8), rows)


def test_python_cannot_ask_for_values_of_a_compiled_kernel() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        assert nl.equal(nl.load(x), nl.load(x))
        return stored(nl.load(x))

    nki.simulate(kernel)(array(4, 4))
    with pytest.raises(UnknownWhenTraced):
        nki.jit(kernel)(array(4, 4))


def test_a_tensor_that_no_comparison_made_is_true_whatever_it_holds() -> None:
    """Kernels ask `if bias:` of what may be None, be it in HBM or on chip."""

    def kernel(x: NkiTensor) -> NkiTensor:
        tile = nl.zeros((4, 4), nl.float32, buffer=nl.sbuf)
        assert x and tile and nl.add(tile, tile)
        return stored(nl.load(x))

    zeros = np.zeros((4, 4), np.float32)
    for run in (nki.simulate(kernel), nki.jit(kernel)):
        np.testing.assert_array_equal(run(zeros), zeros)


def test_a_loop_on_the_device_cannot_be_left_by_break() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        for _ in nl.dynamic_range(4):
            break
        return stored(nl.load(x))

    with pytest.raises(NotInNki, match="break"):
        nki.jit(kernel)(array(4, 4))


@pytest.mark.parametrize(
    ("x", "cure"),
    [
        (np.ones((4, 4)), "convert it to float32"),
        (np.ones((4, 4), np.int64), "convert it to int32"),
        (np.ones((4, 4), np.complex64), "convert it to a dtype of nki.language"),
        (np.ones((0, 4), np.float32), "at least one element"),
        (np.array(1.0, np.float32), "a number of Python"),
    ],
)
def test_an_array_that_no_tensor_can_be_comes_with_its_cure(x: np.ndarray, cure: str) -> None:
    with pytest.raises(NotATensor, match=f"help: .*{cure}"):
        nki.simulate(nki.jit(lambda x: x))(x)


def test_launches_that_do_not_exist_are_refused() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        return stored(nl.load(x))

    with pytest.raises(BadLaunch, match="NEURON_PLATFORM_TARGET_OVERRIDE=trn1"):
        nki.jit(kernel, platform_target="trn1")
    with pytest.raises(BadLaunch, match="neither"):
        nki.jit(kernel)[3]
    with pytest.raises(BadLaunch, match="missing a required argument"):
        nki.jit(kernel)()
    with pytest.raises(BadLaunch, match="no logical cores of 2 physical cores"):
        nki.simulate(nki.jit(kernel)[2], target="trn1")(array(4, 4))


def test_cores_that_do_not_synchronise_are_reported() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        if nl.program_id(0) == 0:
            nisa.core_barrier(out, (0, 1))
        return out

    with pytest.raises(CoresDisagree, match="core 1 has ended"):
        nki.simulate(nki.jit(kernel)[2])(array(4, 4))


def _misspelt(x: NkiTensor) -> None:
    nisa.tensor_copy(dst=nl.ndarray((4, 4), nl.float32), source=x)


def _short(x: NkiTensor) -> None:
    nisa.tensor_copy(nl.ndarray((4, 4), nl.float32))


def _first_of_equals(x: NkiTensor) -> None:
    nisa.tensor_scalar(dst=x, data=x, op=nl.add, operand0=1.0)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (_misspelt, "nki.isa.tensor_copy: there is no parameter 'source'; did you mean src?"),
        (_short, "nki.isa.tensor_copy: missing a required argument: 'src'"),
    ],
)
def test_arguments_that_do_not_fit_name_the_parameters(kernel: Kernel, said: str) -> None:
    for failure in both_raise(kernel, WrongArguments, array(4, 4)):
        assert said in str(failure)
        assert "its parameters are dst, src, engine=unknown, name=None" in str(failure)


def _summed_by_numpy(x: NkiTensor) -> NkiTensor:
    return stored(np.sum(nl.load(x), axis=1))


def test_numpy_on_a_tensor_is_refused_with_the_cure() -> None:
    simulated, compiled = both_raise(_summed_by_numpy, TypeError, array(4, 4))
    assert "an array of NumPy (compute with nl and nki.isa" in str(simulated)
    assert "compute with functions of nl and nki.isa, not of NumPy" in str(compiled)
    assert "(_summed_by_numpy)" in str(compiled)


def _nine_banks(x: NkiTensor) -> NkiTensor:
    banks = [nl.ndarray((128, 512), nl.float32, buffer=nl.psum) for _ in range(9)]
    for bank in banks:
        nisa.memset(bank, 1.0)
    total = nl.zeros((128, 512), nl.float32, buffer=nl.sbuf)
    for bank in (*banks, *banks):
        nisa.tensor_tensor(total, total, bank, nl.add)
    return stored(total)


def test_a_full_memory_names_the_line_and_what_is_held() -> None:
    with pytest.raises(OnChipMemoryFull, match="live tiles hold 16384") as caught:
        nki.jit(_nine_banks)(array(4, 4))
    assert "(_nine_banks)" in str(caught.value)


def test_of_parameters_as_like_a_misspelt_one_the_first_is_named() -> None:
    for failure in both_raise(_first_of_equals, WrongArguments, array(4, 4)):
        assert "there is no parameter 'op'; did you mean op0?" in str(failure)


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda t: t + 1, "no operator +\n"),
        (lambda t: 2.0 * t, "no operator *\n"),
        (lambda t: t @ t, "nl.matmul(x, y)"),
        (lambda t: -t, "nl.negative(x)"),
        (lambda t: abs(t), "nl.abs(x)"),
        (lambda t: t < 0, "nl.less(x, y)"),
        (lambda t: operator.iadd(t, t), "no operator +="),
    ],
)
def test_operators_name_the_function_to_call(compute: Kernel, said: str) -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        return stored(compute(nl.load(x)))

    for failure in both_raise(kernel, NoOperator, array(4, 4)):
        assert said in str(failure)
        assert "test_nki_errors.py" in str(failure)


def test_every_operator_has_its_function() -> None:
    for _, function in (FUNCTIONS | COMPARISONS | UNARY).values():
        assert callable(getattr(nl, function))
