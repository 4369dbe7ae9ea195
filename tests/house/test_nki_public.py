"""What public kernels write and no document has is there, and does what they expect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glia import nki
from glia.nki import language as nl
from glia.nki.errors import ImpossibleTensor
from glia.nki.tensor import NkiTensor
from house.nki_public import PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_what_public_kernels_write_gives_what_they_expect(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = list(PUBLIC[name]())
    assert pairs
    for found, right in pairs:
        if not isinstance(right, np.ndarray):
            assert found == right
        else:
            assert found.shape == right.shape
            found, right = (each.astype(np.float64) for each in (found, right))
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


def test_partitions_marked_elsewhere_say_what_to_write() -> None:
    def kernel(x: NkiTensor) -> None:
        nl.ndarray((4, nl.par_dim(8), 16), nl.float32, buffer=nl.sbuf)  # type: ignore[attr-defined]

    with pytest.raises(ImpossibleTensor, match="make a list of tensors"):
        nki.simulate(kernel)(np.zeros((8, 16), np.float32))
