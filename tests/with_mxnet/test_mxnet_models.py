"""Models of MXNet's zoo, with random weights, compute what they do with MXNet."""

from __future__ import annotations

from pathlib import Path

import mxnet
import numpy as np
import pytest
from mxnet.gluon.model_zoo import vision

from glia.frontend.hlo import import_hlo
from glia.graph.evaluate import evaluate
from glia.plugins.mxnet.model_files import model_to_hlo

SMALLEST = {"densenet121": 224, "squeezenet1_0": 224, "inception_v3": 299, "alexnet": 64}
FAMILIES = (
    "alexnet", "densenet121", "inception_v3", "mobilenet0_25", "mobilenet_v2_0_25", "resnet18_v1",
    "resnet18_v2", "squeezenet1_0", "vgg11", "vgg11_bn",
)  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_model_computes_what_it_does_with_mxnet(name: str, tmp_path: Path) -> None:
    mxnet.random.seed(0)
    net = getattr(vision, name)(classes=10)
    net.initialize(mxnet.init.Xavier())
    net.hybridize()
    size = SMALLEST.get(name, 32)
    x = mxnet.nd.random.uniform(-1, 1, (1, 3, size, size))
    expected = net(x).asnumpy()
    net.export(str(tmp_path / "model"))
    files = (tmp_path / "model-symbol.json", tmp_path / "model-0000.params")
    (found,) = evaluate(import_hlo(model_to_hlo(*files, {"data": x.shape})), [x.asnumpy()])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * abs(expected).max())
