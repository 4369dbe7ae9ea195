"""The algebra of views against NumPy: every view copied out holds what NumPy's view holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.errors import ImpossibleTensor, IndexOutsideTensor
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import both, normal, stored

View = Callable[[Any], Any]

# (view of a tensor of shape 8, 4, 6; the same in NumPy), which hold in HBM and on chip.
VIEWS: dict[str, tuple[View, Callable[[np.ndarray], np.ndarray]]] = {
    "slice": (lambda t: t[2:6, 1:, ::2], lambda a: a[2:6, 1:, ::2]),
    "ds": (lambda t: t[:, nl.ds(1, 2), :], lambda a: a[:, 1:3]),
    "ellipsis": (lambda t: t[..., -3:], lambda a: a[..., -3:]),
    "slice method": (lambda t: t.slice(2, 1, 6, 2), lambda a: a[:, :, 1:6:2]),
    "select": (lambda t: t.select(1, 2), lambda a: a[:, 2]),
    "select last": (lambda t: t.select(-1, -1), lambda a: a[..., -1]),
    "permute": (lambda t: t.permute((0, 2, 1)), lambda a: a.transpose(0, 2, 1)),
    "broadcast": (
        lambda t: t[:, 1:2].broadcast(1, 3), lambda a: np.broadcast_to(a[:, 1:2], (8, 3, 6)),
    ),
    "expand": (lambda t: t.expand_dim(1), lambda a: a[:, None]),
    "squeeze": (lambda t: t[:, 1:2].squeeze_dim(1), lambda a: a[:, 1]),
    "reshape": (lambda t: t.reshape((8, 3, 8)), lambda a: a.reshape(8, 3, 8)),
    "reshape -1": (lambda t: t.reshape((8, -1)), lambda a: a.reshape(8, 24)),
    "reshape dim": (lambda t: t.reshape_dim(2, (2, -1)), lambda a: a.reshape(8, 4, 2, 3)),
    "flatten": (lambda t: t.flatten_dims(1, 2), lambda a: a.reshape(8, 24)),
    "rearrange": (
        lambda t: t.rearrange(("p", "a", ("h", "w")), ("p", "w", ("a", "h")), {"h": 2}),
        lambda a: a.reshape(8, 4, 2, 3).transpose(0, 3, 1, 2).reshape(8, 3, 8),
    ),
    "view narrow": (lambda t: t.view(nl.uint8), lambda a: a.view(np.uint8)),
    "view wide": (
        lambda t: t.view(nl.uint16).view(nl.int32), lambda a: a.view(np.uint16).view(np.int32),
    ),
    "ap": (
        lambda t: t.ap([[24, 8], [6, 2], [2, 3]], offset=7),
        lambda a: np.lib.stride_tricks.as_strided(a.reshape(-1)[7:], (8, 2, 3), (96, 24, 8)),
    ),
    "ap dtype": (
        lambda t: t.ap([[48, 8], [1, 4]], offset=2, dtype=nl.uint16),
        lambda a: a.reshape(8, 24).view(np.uint16)[:, 2:6],
    ),
    "view of a view": (
        lambda t: t[2:6].slice(1, 1, 3).permute((0, 2, 1))[:, 1:],
        lambda a: a[2:6, 1:3].transpose(0, 2, 1)[:, 1:],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views_in_hbm_are_those_of_numpy(name: str) -> None:
    view, expected = VIEWS[name]

    def kernel(x: NkiTensor) -> NkiTensor:
        part = view(x)
        out = nl.ndarray(part.shape, part.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, part)
        return out

    x = normal(8, 4, 6)
    np.testing.assert_array_equal(both(kernel, x), expected(x))


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("slice", "view of a view")])
def test_views_on_chip_are_those_of_numpy(name: str) -> None:
    view, expected = VIEWS[name]

    def kernel(x: NkiTensor) -> NkiTensor:
        part = view(nl.load(x))
        copied = nl.ndarray(part.shape, part.dtype)
        nisa.tensor_copy(copied, part)
        return stored(copied)

    x = normal(8, 4, 6)
    np.testing.assert_array_equal(both(kernel, x), expected(x))


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("broadcast", "view narrow")])
def test_writing_through_a_view_changes_what_it_names_and_nothing_else(name: str) -> None:
    view, of_numpy = VIEWS[name]

    def kernel(x: NkiTensor, y: NkiTensor) -> NkiTensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        nisa.dma_copy(view(out), y)
        return out

    x = normal(8, 4, 6)
    new = np.arange(of_numpy(x).size).reshape(of_numpy(x).shape).astype(of_numpy(x).dtype)
    expected = x.copy()
    of_numpy(expected)[...] = new
    np.testing.assert_array_equal(both(kernel, x, new).view(np.int32), expected.view(np.int32))


def test_views_know_their_layout() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        t = nl.ndarray((128, 64), nl.float32, name="held")
        part = t.slice(1, 8, 24)
        assert part.get_pattern() == [[64, 128], [1, 16]]
        assert (part.offset, part.strides, part.size, part.ndim) == (8, (64, 1), 2048, 2)
        assert (part.name, part.dtype, part.buffer) == ("held", "float32", nl.sbuf)
        by_hand = t.ap([[64, 128], [1, 16]], offset=8)
        assert (by_hand.get_pattern(), by_hand.offset) == (part.get_pattern(), part.offset)
        assert part.ap([[64, 128], [1, 4]]).offset == 8
        assert t.is_contiguous() and part.is_contiguous()
        assert not t[:, ::2].is_contiguous()
        assert t[64:, 3:].offset == 64 * 64 + 3
        assert t[5].shape == (1, 64) and t[:, 3].shape == (128, 1)
        assert x[2].shape == (4, 6) and x[2, 1, 1].shape == (1,)
        assert not t.is_indirect() and x.select(0, nl.zeros((1, 1), nl.int32)).is_indirect()
        return stored(nl.load(x))

    both(kernel, normal(8, 4, 6))


REFUSED: dict[str, View] = {
    "partitions reshaped": lambda t: t.reshape((4, 48)),
    "elements lost": lambda t: t.reshape((8, 23)),
    "partitions moved": lambda t: t.permute((1, 0, 2)),
    "partitions repeated": lambda t: t[0:1].broadcast(0, 4),
    "more than one repeated": lambda t: t.broadcast(1, 8),
    "apart merged": lambda t: t[:, :, :3].flatten_dims(1, 2),
    "apart reshaped": lambda t: t.permute((0, 2, 1)).reshape((8, 24)),
    "widened unevenly": lambda t: t.view(nl.uint8)[:, :, :6].view(nl.float32),
    "apart viewed": lambda t: t[:, :, ::2].view(nl.uint8),
    "every other partition": lambda t: t.ap([[25, 4], [1, 4]]),
    "beyond its end": lambda t: stored(t.ap([[24, 8], [1, 25]])),
    "no such dimension": lambda t: t.select(3, 0),
    "unknown dtype": lambda t: t.view("float99"),
}
OUTSIDE: dict[str, View] = {
    "slice": lambda t: t[:, 0:5],
    "integer": lambda t: t[:, 4],
    "backwards": lambda t: t[:, 2:1],
    "too many": lambda t: t[0, 0, 0, 0],
    "slice method": lambda t: t.slice(1, 0, 5),
    "select": lambda t: t.select(1, 4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_views_that_the_layout_does_not_allow_are_refused(name: str) -> None:
    with pytest.raises(ImpossibleTensor):
        nki.simulate(lambda x: REFUSED[name](nl.load(x)))(normal(8, 4, 6))


@pytest.mark.parametrize("name", OUTSIDE)
def test_indices_are_not_clamped(name: str) -> None:
    with pytest.raises(IndexOutsideTensor):
        nki.simulate(lambda x: OUTSIDE[name](nl.load(x)))(normal(8, 4, 6))


def test_tensors_at_addresses_share_what_overlaps() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        whole = nl.ndarray((64, 16), nl.float32, address=(0, 4096))
        lower = nl.ndarray((32, 8), nl.float32, address=(32, 4096 + 32))
        nisa.dma_copy(whole, x)
        nisa.memset(lower, 0.0)
        return stored(whole)

    x = normal(64, 16)
    expected = x.copy()
    expected[32:, 8:] = 0
    np.testing.assert_array_equal(nki.simulate(kernel)(x), expected)
    np.testing.assert_array_equal(nki.jit(kernel)(x), expected)
