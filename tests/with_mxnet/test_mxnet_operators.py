"""The recorded results of operators are what MXNet computes."""

from __future__ import annotations

import mxnet
import numpy as np
import pytest

from support.mxnet_models.samples import SAMPLES, Sample, record, recorded


def computed(sample: Sample) -> list[np.ndarray]:
    symbol = mxnet.sym.load_json(sample.symbol().text())
    arrays = {n: mxnet.nd.array(a, dtype=a.dtype) for n, a in sample.named().items()}
    states = {n: arrays[n] for n in symbol.list_auxiliary_states()}
    given = {n: a for n, a in arrays.items() if n not in states}
    bound = symbol.bind(mxnet.cpu(), given, aux_states=states, grad_req="null")
    return [each.asnumpy() for each in bound.forward()]


def test_recorded_results_are_what_mxnet_computes(request: pytest.FixtureRequest) -> None:
    found = {sample.name: computed(sample) for sample in SAMPLES}
    if request.config.getoption("--bless"):
        record(found)
    expected = recorded()
    assert expected.keys() == found.keys()
    for name, arrays in found.items():
        for array, known in zip(arrays, expected[name], strict=True):
            np.testing.assert_allclose(array, known, rtol=1e-4, atol=1e-5, err_msg=name)
