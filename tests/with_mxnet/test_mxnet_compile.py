"""mx_neuron.compile makes symbols and blocks that MXNet runs, saves and loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet
import numpy as np
import pytest

import mx_neuron
from glia.neff.package import Neff
from glia.plugins.mxnet.errors import BadSymbolInputs
from glia.plugins.mxnet.subgraphs import SUBGRAPH

X = mxnet.nd.array(np.linspace(-1, 1, 8).reshape(2, 4))


def classifier() -> tuple[Any, dict[str, Any]]:
    data = mxnet.sym.var("data")
    hidden = mxnet.sym.FullyConnected(data, num_hidden=6, name="first")
    active = mxnet.sym.Activation(hidden, act_type="relu", name="active")
    last = mxnet.sym.FullyConnected(active, num_hidden=3, name="last")
    shapes = {"first_weight": (6, 4), "first_bias": (6,), "last_weight": (3, 6), "last_bias": (3,)}
    mxnet.random.seed(0)
    arrays = {n: mxnet.nd.random.uniform(-1, 1, shape) for n, shape in shapes.items()}
    return mxnet.sym.SoftmaxOutput(last, name="softmax"), arrays


def run(symbol: Any, arguments: dict[str, Any], **inputs: Any) -> np.ndarray:
    bound = symbol.bind(mxnet.cpu(), {**arguments, **inputs}, grad_req="null")
    found: np.ndarray = bound.forward()[0].asnumpy()
    return found


def expected() -> np.ndarray:
    symbol, arguments = classifier()
    return run(symbol, arguments, data=X, softmax_label=mxnet.nd.zeros(2))


def subgraphs(symbol: Any) -> list[str]:
    listed = symbol.attr_dict().values()
    return [each["subgraphs"] for each in listed if each.get("op_type") == SUBGRAPH]


def test_a_compiled_symbol_computes_what_the_symbol_does(tmp_path: Path) -> None:
    symbol, arguments = classifier()
    found = mx_neuron.compile(symbol, arguments, {}, {"data": X}, work_dir=tmp_path, target="trn1")
    assert len(subgraphs(found[0])) == 1 and '"FullyConnected"' in subgraphs(found[0])[0]
    np.testing.assert_allclose(run(found[0], found[1], data=X), expected(), atol=1e-5)
    assert Neff.load(tmp_path / "neuron_subgraph0.neff").target == "trn1"
    assert (tmp_path / "neuron_subgraph0.hlo.pb").stat().st_size > 0


def test_a_compiled_symbol_is_saved_and_loaded(tmp_path: Path) -> None:
    symbol, arguments = classifier()
    made = mxnet.contrib.neuron.compile(symbol, arguments, {}, {"data": X})
    mxnet.model.save_checkpoint(str(tmp_path / "model"), 3, *made)
    loaded, values, _ = mxnet.model.load_checkpoint(str(tmp_path / "model"), 3)
    np.testing.assert_allclose(run(loaded, values, data=X), expected(), atol=1e-5)


def test_excluded_nodes_stay_with_mxnet() -> None:
    symbol, arguments = classifier()
    found, values, _ = mx_neuron.compile(
        symbol, arguments, {}, {"data": X}, excl_node_names=["active"]
    )
    assert "active_output" in found.get_internals().list_outputs()
    assert len(subgraphs(found)) == 2
    np.testing.assert_allclose(run(found, values, data=X), expected(), atol=1e-5)


def test_operators_that_the_device_lacks_stay_with_mxnet() -> None:
    data = mxnet.sym.var("data")
    lacking = mxnet.sym.cumsum(mxnet.sym.exp(data), axis=1, name="sums")
    symbol = mxnet.sym.tanh(lacking)
    found, values, _ = mx_neuron.compile(symbol, {}, {}, {"data": X})
    assert "sums_output" in found.get_internals().list_outputs() and len(subgraphs(found)) == 2
    reference = np.tanh(np.cumsum(np.exp(X.asnumpy()), 1))
    np.testing.assert_allclose(run(found, values, data=X), reference, atol=1e-5)


def block() -> Any:
    net = mxnet.gluon.nn.HybridSequential()
    net.add(mxnet.gluon.nn.Conv2D(4, 3), mxnet.gluon.nn.BatchNorm(), mxnet.gluon.nn.Dense(3))
    net.initialize()
    return net


def test_a_block_is_compiled_exported_and_imported(tmp_path: Path) -> None:
    net, x = block(), mxnet.nd.random.uniform(-1, 1, (2, 3, 6, 6))
    reference = net(x).asnumpy()
    compiled = mx_neuron.compile(net, inputs={"data": x})
    np.testing.assert_allclose(compiled(x).asnumpy(), reference, atol=1e-5)
    compiled.export(str(tmp_path / "net"))
    files = (str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    loaded = mxnet.gluon.SymbolBlock.imports(*files)
    np.testing.assert_allclose(loaded(x).asnumpy(), reference, atol=1e-5)


def test_a_damaged_neff_is_refused() -> None:
    symbol, arguments = classifier()
    found, values, _ = mx_neuron.compile(symbol, arguments, {}, {"data": X})
    values["neuron_subgraph0_neff"][1100:1400] = 0
    with pytest.raises(mxnet.MXNetError):
        run(found, values, data=X)


def test_another_shape_is_refused() -> None:
    symbol, arguments = classifier()
    found, values, _ = mx_neuron.compile(symbol, arguments, {}, {"data": X})
    with pytest.raises(mxnet.MXNetError):
        run(found, values, data=mxnet.nd.zeros((3, 4)))


def test_inputs_that_do_not_fit_are_refused() -> None:
    symbol, arguments = classifier()
    with pytest.raises(BadSymbolInputs, match="no input 'date'"):
        mx_neuron.compile(symbol, arguments, {}, {"date": X})
    with pytest.raises(BadSymbolInputs, match="no array"):
        mx_neuron.compile(symbol, arguments, {}, {"data": 3})
    with pytest.raises(Exception, match="--tarket"):
        mx_neuron.compile(symbol, arguments, {}, {"data": X}, tarket="trn1")


def trained_step(net: Any, loss_of: Any) -> float:
    trainer = mxnet.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    with mxnet.autograd.record():
        loss = loss_of(net)
    loss.backward()
    trainer.step(1)
    return float(loss.asscalar())


def test_a_block_is_trained_on_the_host_and_compiled_again() -> None:
    mxnet.random.seed(0)
    net = mxnet.gluon.nn.Dense(3, in_units=4)
    net.initialize()
    net.hybridize()

    def loss_of(block: Any) -> Any:
        return ((block(X) - 1) ** 2).mean()

    losses = [trained_step(net, loss_of) for _ in range(10)]
    compiled = mx_neuron.compile(net, inputs={"data": X})
    assert losses[-1] < losses[0] / 2
    assert float(loss_of(compiled).asscalar()) < losses[-1]


def test_a_gradient_of_a_compiled_block_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    net = mxnet.gluon.nn.Dense(3, in_units=4)
    net.initialize()
    net.hybridize()
    compiled = mx_neuron.compile(net, inputs={"data": X})
    x = X.copy()
    x.attach_grad()
    with pytest.raises(mxnet.MXNetError):
        with mxnet.autograd.record():
            loss = compiled(x).sum()
        loss.backward()
        x.grad.wait_to_read()
    assert "GLIA736" in capfd.readouterr().out
