"""Operands whose elements an index on chip chooses: read and written, of every function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from glia import nki
from glia.base.errors import Unspecified
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.errors import BrokenRule, ImpossibleTensor, NotInNki
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.runtime.errors import UndocumentedResult
from support.nki_ways import both, normal, stored

Array = np.ndarray[Any, Any]
COLUMNS, CHOSEN = 40, 20


@pytest.fixture(autouse=True)
def _generation_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")


def offsets(partitions: int, group: int, seed: int = 0) -> Array:
    """An index with distinct offsets in the list of each group."""
    random = np.random.default_rng(seed)
    columns = -(-COLUMNS // group)
    lists = []
    for _ in range(partitions // group):
        filled = np.zeros(columns * group, np.uint16)
        filled[:COLUMNS] = random.permutation(COLUMNS)
        lists.append(filled.reshape(columns, group).T)
    return np.concatenate(lists)


def lists(index: Array, group: int, count: int) -> Iterator[tuple[slice, list[int]]]:
    """The partitions of each group and its offsets, one element of the index after the other."""
    for first in range(0, len(index), group):
        found = [int(index[first + i % group, i // group]) for i in range(count)]
        yield slice(first, first + group), found


def gathered(table: Array, index: Array, count: int = CHOSEN, group: int = 16) -> Array:
    result = np.empty((len(table), count), table.dtype)
    for rows, found in lists(index, group, count):
        for i, offset in enumerate(found):
            result[rows, i] = table[rows, offset]
    return result


def scattered(table: Array, values: Array, index: Array, group: int = 16) -> Array:
    result = table.copy()
    for rows, found in lists(index, group, values.shape[1]):
        for i, offset in enumerate(found):
            result[rows, offset] = values[rows, i]
    return result


def half(values: Array) -> Array:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


# --- functions of one tensor ---------------------------------------------------------------------

Call = Callable[[NkiTensor, NkiTensor, NkiTensor], Any]  # dst, data, other
FUNCTIONS: dict[str, tuple[Call, Callable[[Array, Array], Array]]] = {
    "tensor_copy": (lambda d, a, b: nisa.tensor_copy(d, a), lambda a, b: a),
    "tensor_copy on scalar": (
        lambda d, a, b: nisa.tensor_copy(d, a, engine=nisa.engine.scalar), lambda a, b: a,
    ),
    "tensor_tensor": (lambda d, a, b: nisa.tensor_tensor(d, a, b, nl.add), lambda a, b: a + b),
    "tensor_scalar": (
        lambda d, a, b: nisa.tensor_scalar(d, a, nl.multiply, 3.0, op1=nl.subtract, operand1=1.0),
        lambda a, b: a * np.float32(3) - np.float32(1),
    ),
    "tensor_scalar on gpsimd": (
        lambda d, a, b: nisa.tensor_scalar(d, a, nl.add, 2.0, engine=nisa.engine.gpsimd),
        lambda a, b: a + np.float32(2),
    ),
    "activation": (lambda d, a, b: nisa.activation(d, nl.relu, a), lambda a, b: np.maximum(a, 0)),
    "activate2": (
        lambda d, a, b: nisa.activate2(d, nl.relu, a, 2.0, 0.0, nl.multiply, nl.add),
        lambda a, b: np.maximum(a * np.float32(2), 0),
    ),
    "tensor_scalar_reduce": (
        lambda d, a, b: nisa.tensor_scalar_reduce(d, a, nl.maximum, 0.5, nl.add),
        lambda a, b: np.maximum(a, np.float32(0.5)),
    ),
    "tensor_scalar_cumulative": (
        lambda d, a, b: nisa.tensor_scalar_cumulative(d, a, nl.add, nl.maximum, 0.0),
        lambda a, b: np.maximum.accumulate(a, axis=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum], ids=lambda b: b.value)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_gathers_what_it_reads_and_scatters_what_it_writes(
    name: str, buffer: Any
) -> None:
    if buffer is nl.psum and ("gpsimd" in name or "scalar" in name or name.startswith("activ")):
        return  # GpSimd does not reach PSUM; Scalar does not scatter to it, see below
    call, meaning = FUNCTIONS[name]

    def kernel(x: NkiTensor, y: NkiTensor, i: NkiTensor, j: NkiTensor) -> tuple[NkiTensor, ...]:
        data, other, index, places = (nl.load(each) for each in (x, y, i, j))
        read = nl.ndarray((64, CHOSEN), nl.float32)
        call(read, data.indirect(index, CHOSEN), other)
        written = nl.zeros((64, COLUMNS), nl.float32, buffer=buffer)
        call(written.indirect(places, CHOSEN), data.indirect(index, CHOSEN), other)
        return stored(read), stored(written)

    x, y = normal(64, COLUMNS), normal(64, CHOSEN, seed=1)
    index, places = offsets(64, 16, 2), offsets(64, 16, 3)
    read, written = both(kernel, x, y, index, places)
    expected = meaning(gathered(x, index), y)
    np.testing.assert_array_equal(read, expected)
    empty = np.zeros((64, COLUMNS), np.float32)
    np.testing.assert_array_equal(written, scattered(empty, expected, places))


def test_reductions_and_exponentials_read_chosen_columns() -> None:
    def kernel(x: NkiTensor, i: NkiTensor) -> tuple[NkiTensor, ...]:
        data, index = nl.load(x), nl.load(i)
        most = nl.ndarray((32, 1), nl.float32)
        nisa.tensor_reduce(most, nl.maximum, data.indirect(index, CHOSEN), axis=1)
        powers = nl.ndarray((32, CHOSEN), nl.float32)
        nisa.exponential(powers, nl.copy(data, dtype=nl.bfloat16).indirect(index, CHOSEN))
        return stored(most), stored(powers)

    x, index = normal(32, COLUMNS), offsets(32, 16)
    most, powers = both(kernel, x, index)
    np.testing.assert_array_equal(most, gathered(x, index).max(axis=1, keepdims=True))
    np.testing.assert_allclose(powers, np.exp(gathered(half(x), index)), rtol=1e-5)


def test_a_predicated_copy_keeps_chosen_elements_where_the_predicate_is_0() -> None:
    def kernel(x: NkiTensor, y: NkiTensor, p: NkiTensor, i: NkiTensor) -> NkiTensor:
        data, values, predicate, index = (nl.load(each) for each in (x, y, p, i))
        nisa.tensor_copy_predicated(
            data.indirect(index, CHOSEN), values, predicate.indirect(index, CHOSEN)
        )
        return stored(data)

    x, y, index = normal(32, COLUMNS), normal(32, CHOSEN, seed=1), offsets(32, 16)
    predicate = (normal(32, COLUMNS, seed=2) > 0).astype(np.uint8)
    chosen = np.where(gathered(predicate, index) != 0, y, gathered(x, index))
    result = both(kernel, x, y, predicate, index)
    np.testing.assert_array_equal(result, scattered(x, chosen, index))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32])
def test_offsets_count_elements_of_all_free_dimensions(dtype: Any) -> None:
    def kernel(x: NkiTensor, i: NkiTensor) -> NkiTensor:
        data, index = nl.load(x), nl.load(i)
        tile = nl.ndarray((32, 4, 5), nl.float32)
        nisa.tensor_copy(tile, data[32:64].indirect(index[32:64], CHOSEN).reshape((32, 4, 5)))
        return stored(tile)

    x, index = normal(64, 5, 8), offsets(64, 16).astype(dtype)
    expected = gathered(x.reshape(64, 40)[32:], index[32:]).reshape(32, 4, 5)
    np.testing.assert_array_equal(both(kernel, x, index), expected)


# --- the Tensor Engine ---------------------------------------------------------------------------


def _product(accumulates: bool) -> Callable[..., NkiTensor]:
    def kernel(x: NkiTensor, y: NkiTensor, i: NkiTensor, j: NkiTensor, k: NkiTensor) -> NkiTensor:
        left, right = (nl.copy(nl.load(each), dtype=nl.bfloat16) for each in (x, y))
        rows, columns, places = (nl.load(each) for each in (i, j, k))
        total = nl.zeros((32, COLUMNS), nl.float32, buffer=nl.psum)
        for _ in range(2 if accumulates else 1):
            nisa.nc_matmul(
                total.indirect(places, CHOSEN), left.indirect(rows, 32),
                right.indirect(columns, CHOSEN), accumulate=accumulates or None,
            )  # fmt: skip
        return stored(total)

    return kernel


@pytest.mark.parametrize("accumulates", [False, True])
def test_products_of_chosen_columns_go_to_chosen_columns(accumulates: bool) -> None:
    x, y = normal(64, COLUMNS), normal(64, COLUMNS, seed=1)
    rows, columns, places = (offsets(n, 32, seed) for seed, n in enumerate((64, 64, 32)))
    result = both(_product(accumulates), x, y, rows, columns, places)
    left, right = gathered(half(x), rows, 32, 32), gathered(half(y), columns, CHOSEN, 32)
    product = left.T @ right * (2 if accumulates else 1)
    expected = scattered(np.zeros((32, COLUMNS), np.float32), product, places, 32)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_accumulate_is_required_at_run_time_offsets() -> None:
    def kernel(x: NkiTensor, i: NkiTensor) -> NkiTensor:
        tile, index = nl.load(x), nl.load(i)
        total = nl.zeros((32, COLUMNS), nl.float32, buffer=nl.psum)
        for _ in range(2):
            nisa.nc_matmul(total.indirect(index, CHOSEN), tile[:, :32], tile[:, :CHOSEN])
        return stored(total)

    for run in (nki.simulate(kernel), nki.jit(kernel)):
        with pytest.raises(NotInNki, match="give accumulate=True or False"):
            run(normal(32, COLUMNS), offsets(32, 32))


def test_microscaled_products_choose_values_and_scales_together() -> None:
    def kernel(x: NkiTensor, i: NkiTensor, is_whole: bool, wrong: bool) -> NkiTensor:
        data, index = nl.copy(nl.load(x), dtype=nl.bfloat16), nl.load(i)
        values = nl.ndarray((32, 8), nl.float8_e4m3fn_x4)
        scales = nl.zeros((32, 8), nl.uint8)
        nisa.quantize_mx(values, data, scales)
        operands = (values, values, scales, scales)
        if not is_whole:
            operands = tuple(each.indirect(index, 8) for each in operands)
        if wrong:
            operands = (*operands[:3], scales)
        product = nl.ndarray((8, 8), nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(product, *operands)
        return stored(product)

    x = normal(32, 32)
    index = np.zeros((32, 1), np.uint16)
    index[:8, 0] = [3, 1, 0, 2, 7, 6, 5, 4]
    whole = both(kernel, x, index, is_whole=True, wrong=False)
    result = both(kernel, x, index, is_whole=False, wrong=False)
    order = index[:8, 0]
    np.testing.assert_array_equal(result, whole[order][:, order])
    with pytest.raises(BrokenRule, match="moving and moving_scale are indirect together"):
        nki.simulate(kernel)(x, index, is_whole=False, wrong=True)


# --- what is refused -----------------------------------------------------------------------------

Refused = Callable[[NkiTensor, NkiTensor, NkiTensor], Any]  # tile [64, 40], index, out [64, 20]
BROKEN: dict[str, tuple[Refused, str]] = {
    "a bias": (
        lambda t, i, d: nisa.activation(d, nl.exp, t[:, :CHOSEN], bias=t.indirect(i, 1)),
        "bias cannot be an indirect view; copy it to a tile",
    ),
    "a function without": (
        lambda t, i, d: nisa.reciprocal(d, t.indirect(i, CHOSEN)),
        "data cannot be an indirect view",
    ),
    "a transfer": (lambda t, i, d: nisa.dma_copy(d, t.indirect(i, CHOSEN)), "src cannot be an"),
    "engine": (
        lambda t, i, d: nisa.tensor_copy(d, t.indirect(i, CHOSEN), engine=nisa.engine.gpsimd),
        "for vector and scalar engines",
    ),
    "start of the index": (
        lambda t, i, d: nisa.tensor_copy(d[:16], t[:16].indirect(i[16:32], CHOSEN)),
        "of at most 32 at 0, 32, 64 or 96",
    ),
    "start of the table": (
        lambda t, i, d: nisa.tensor_copy(d[:32], t[:32].indirect(i[32:64], CHOSEN)),
        "src and index must start on the same partition",
    ),
    "start of the destination": (
        lambda t, i, d: nisa.tensor_copy(t[:32].indirect(i[32:64], CHOSEN), d[:32]),
        "the index of dst must start on the same partition as src",
    ),
    "too many": (
        lambda t, i, d: nisa.tensor_copy(t, t.indirect(i, COLUMNS + 10)),
        "must have the same number",
    ),
    "more than the index has": (
        lambda t, i, d: nisa.tensor_copy(nl.ndarray((64, 49), nl.float32), t.indirect(i, 49)),
        "index must hold an offset for each element",
    ),
    "scalar to PSUM": (
        lambda t, i, d: nisa.activation(
            nl.zeros((64, 40), nl.float32, buffer=nl.psum).indirect(i, CHOSEN), nl.exp, d
        ),
        "the Scalar Engine scatters to SBUF only",
    ),
    "float32 products": (
        lambda t, i, d: nisa.nc_matmul(
            nl.zeros((32, 20), nl.float32, buffer=nl.psum), t.indirect(i, 32), d
        ),
        "indirect stationary and moving are float16, bfloat16 or 8-bit floats",
    ),
    "a part of the array": (
        lambda t, i, d: nisa.nc_matmul(
            nl.zeros((32, 40), nl.float32, buffer=nl.psum).indirect(i[:32], CHOSEN),
            t[:32, :32], d[:32], accumulate=False, tile_position=(32, 0), tile_size=(32, 64),
        ),
        "tile_position is unset or",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_rules_of_indirect_operands_are_kept_in_both_ways(name: str) -> None:
    call, text = BROKEN[name]

    def kernel(x: NkiTensor, i: NkiTensor) -> NkiTensor:
        tile, index = nl.load(x), nl.load(i)
        call(tile, index, nl.zeros((64, CHOSEN), nl.float32))
        return stored(tile)

    for run in (nki.simulate(kernel), nki.jit(kernel)):
        with pytest.raises(BrokenRule, match=text):
            run(normal(64, COLUMNS), offsets(64, 16))


def test_earlier_generations_have_no_indirect_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: NkiTensor, i: NkiTensor) -> NkiTensor:
        tile, chosen = nl.load(x), nl.ndarray((32, CHOSEN), nl.float32)
        nisa.tensor_copy(chosen, tile.indirect(nl.load(i), CHOSEN))
        return stored(chosen)

    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    with pytest.raises(BrokenRule, match="from generation 4 on"):
        nki.simulate(kernel)(normal(32, COLUMNS), offsets(32, 16))


READS: dict[str, Callable[[NkiTensor, NkiTensor], Any]] = {
    "array": lambda t, i: np.asarray(t.indirect(i, CHOSEN)),
    "truth": lambda t, i: bool(nl.equal(t, t).indirect(i, CHOSEN)),
    "print": lambda t, i: nl.device_print("t", t.indirect(i, CHOSEN)),
}


@pytest.mark.parametrize("read", READS)
def test_contents_at_an_index_are_not_those_at_the_start(read: str) -> None:
    def kernel(x: NkiTensor, i: NkiTensor) -> None:
        READS[read](nl.load(x), nl.load(i))

    with pytest.raises(ImpossibleTensor, match="copy it to a tile first"):
        nki.simulate(kernel)(normal(32, COLUMNS), offsets(32, 16))


VIEWS: dict[str, Callable[[NkiTensor, NkiTensor], Any]] = {
    "sliced": lambda t, i: t.indirect(i, CHOSEN)[:, 1:],
    "sliced short": lambda t, i: t.indirect(i, CHOSEN)[:, :8],
    "stepped": lambda t, i: t.indirect(i, CHOSEN)[:, ::2],
    "selected": lambda t, i: t.indirect(i, CHOSEN).select(1, 0),
    "permuted": lambda t, i: t.indirect(i, CHOSEN).reshape((32, 4, 5)).permute((0, 2, 1)),
    "repeated": lambda t, i: t.indirect(i, 1).broadcast(1, 4),
    "another pattern": lambda t, i: t.indirect(i, CHOSEN).ap([[40, 32], [1, 4]]),
    "chosen twice": lambda t, i: t.indirect(i, CHOSEN).indirect(i, 4),
    "not even": lambda t, i: t.reshape((32, 5, 8))[:, :, :6].indirect(i, 4),
    "other partitions": lambda t, i: t[:16].indirect(i, 4),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_chosen_view_keeps_its_elements(name: str) -> None:
    def kernel(x: NkiTensor, i: NkiTensor) -> None:
        VIEWS[name](nl.load(x), nl.load(i))

    with pytest.raises(ImpossibleTensor):
        nki.simulate(kernel)(normal(32, COLUMNS), offsets(32, 16))


@pytest.mark.parametrize("wrong,text", [(COLUMNS, "element 40 of 40"), (7, "an element twice")])
def test_what_offsets_outside_or_twice_do_is_not_specified(wrong: int, text: str) -> None:
    def kernel(x: NkiTensor, i: NkiTensor) -> NkiTensor:
        tile, values = nl.load(x), nl.zeros((32, 2), nl.float32)
        nisa.tensor_copy(tile.indirect(nl.load(i), 2), values)
        return stored(tile)

    index = np.full((32, 1), 7, np.uint16)
    index[[1, 17]] = wrong
    with pytest.raises(Unspecified, match=text):
        nki.simulate(kernel)(normal(32, COLUMNS), index)
    with pytest.raises(UndocumentedResult, match=text):
        nki.jit(kernel)(normal(32, COLUMNS), index)
