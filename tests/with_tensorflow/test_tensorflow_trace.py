"""tensorflow_neuronx.trace makes Keras models that TensorFlow saves and loads."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import glia
import tensorflow_neuronx
from glia.base.errors import CompileError
from glia.frontend.errors import UnsupportedOperator
from glia.neff.package import Neff
from glia.plugins.tensorflow import forward_operator
from glia.plugins.tensorflow.errors import (
    DamagedModel,
    NotReplicable,
    UntraceableFunction,
    WrongModelInputs,
)
from glia.plugins.tensorflow.forward_operator import NodeDescription, _forward, described
from glia.plugins.tensorflow.tracing import function_to_hlo
from glia.plugins.tensorflow.training import on_device
from glia_dropin.tensorflow_tracing import auto_multicore_command
from house.source import REPOSITORY

tfn = importlib.import_module("tensorflow.neuron")  # which tensorflow_neuronx puts there

X = tf.constant(np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8))


def model() -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)]
    return keras.Sequential([keras.layers.Input((8,)), *layers])


def close(found: Any, expected: Any) -> None:
    for array, known in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(array, known, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def traced() -> Any:
    return tensorflow_neuronx.trace(model(), X)


def test_a_traced_model_computes_what_the_model_does(traced: Any) -> None:
    assert isinstance(traced, keras.Model) and traced.on_neuron_ratio == 1
    close(traced(X), model()(X))


def test_a_saved_model_runs_in_another_process(traced: Any, tmp_path: Path) -> None:
    tf.saved_model.save(traced, str(tmp_path / "saved"))
    np.save(tmp_path / "x.npy", X)
    code = (
        "import numpy as np, tensorflow as tf, tensorflow_neuronx; "
        "print(float(tf.reduce_sum(tf.saved_model.load('saved')(np.load('x.npy')))))"
    )
    paths = os.pathsep.join(str(REPOSITORY / each) for each in ("src", "dropin/src"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": paths}, check=True,
    )  # fmt: skip
    assert float(done.stdout) == pytest.approx(float(tf.reduce_sum(model()(X))), abs=1e-4)


def test_another_shape_is_refused_with_the_one_that_is_taken(traced: Any) -> None:
    with pytest.raises((WrongModelInputs, RuntimeError), match=r"takes float32\[2, 8\]"):
        traced(tf.zeros((3, 8)))


def nested(x: Any, more: Any) -> Any:
    return {"sum": x + more["a"], "parts": [x * 2, (more["a"], x - 1)]}


def test_tuples_and_dicts_are_several_arguments() -> None:
    one, other = tf.ones(3), {"a": tf.range(3, dtype=tf.float32)}
    close(tensorflow_neuronx.trace(nested, (one, other))(one, other), nested(one, other))
    by_name = {"x": one, "more": other}
    close(tensorflow_neuronx.trace(nested, by_name)(**by_name), nested(one, other))


def mixed(x: Any) -> Any:
    y = tf.nn.relu(x) * 3
    lengths = tf.cast(tf.strings.length(tf.strings.as_string(y)), tf.float32)
    return lengths * 2 + y, tf.where(y > 1)


def test_what_the_device_lacks_stays_with_tensorflow(tmp_path: Path) -> None:
    found = tensorflow_neuronx.trace(mixed, X)
    assert 0.4 < found.on_neuron_ratio < 1
    close(found(X), mixed(X))
    tf.saved_model.save(found, str(tmp_path / "saved"))
    close(tf.saved_model.load(str(tmp_path / "saved"))(X), mixed(X))


def test_operators_are_analyzed_by_their_types() -> None:
    found = tensorflow_neuronx.analyze_model(mixed, X)
    assert {"AsString", "StringLength", "Where"} <= set(found["unsupported_operators"])
    assert "Relu" in found["supported_operators"] and found["operator_count"]["AsString"] == 1
    assert found["total_count"] > found["supported_count"] > 3
    assert 40 < found["percent_supported"] < 100


def test_a_function_says_which_operators_may_be_on_the_device() -> None:
    found = tensorflow_neuronx.trace(model(), X, lambda node: node.op == "MatMul")
    assert 0 < found.on_neuron_ratio < 1
    close(found(X), model()(X))


def counted(x: Any) -> Any:
    total = tf.zeros(())
    for _ in tf.range(3):
        if tf.reduce_sum(x) > total:
            total += 1.0
    return total * x


def test_loops_and_branches_on_tensors_are_of_the_graph() -> None:
    for value in (0.5, 2.0):
        x = tf.fill((2,), value)
        close(tensorflow_neuronx.trace(counted, x)(x), tf.function(counted)(x))


def test_an_unsupported_operator_is_named_with_its_line() -> None:
    with pytest.raises(UnsupportedOperator, match=r"(?s)AsString.*test_tensorflow_trace\.py"):
        function_to_hlo(mixed, X)


def test_sizes_that_data_decides_are_refused() -> None:
    with pytest.raises(UntraceableFunction, match="nothing of it is for the device"):
        tensorflow_neuronx.trace(tf.where, tf.constant([True, False]))


def test_any_batch_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--dynamic-batch-size")
    found = tensorflow_neuronx.trace(model(), X)
    for extent in (1, 2, 5):
        x = tf.random.normal((extent, 8))
        close(found(x), model()(x))


def test_extracted_weights_are_inputs_of_the_neff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = f"--extract-weights inf2.xlarge --workdir {tmp_path} --target trn1"
    monkeypatch.setenv("NEURON_CC_FLAGS", flags)
    found = tensorflow_neuronx.trace(model(), X)
    close(found(X), model()(X))
    neff = Neff.load(tmp_path / "part0.neff")
    assert neff.target == "trn1" and len(glia.load(neff).inputs) == 5
    assert (tmp_path / "part0.hlo.pb").stat().st_size > 0


def test_a_damaged_neff_is_refused(traced: Any) -> None:
    data = traced._neffs[0].numpy()
    with pytest.raises(DamagedModel):
        _forward(NodeDescription("0").text().encode(), data, X.numpy())
    with pytest.raises(DamagedModel):
        _forward(b"{", data, X.numpy())


def test_functions_without_tensors_are_refused() -> None:
    with pytest.raises(UntraceableFunction, match="is a str"):
        tensorflow_neuronx.trace(tf.identity, "text")
    with pytest.raises(UntraceableFunction, match="no tensors"):
        tensorflow_neuronx.trace(lambda x: None, X)
    with pytest.raises(UntraceableFunction, match="has the shape"):
        tensorflow_neuronx.trace(tf.identity, tf.TensorSpec((None, 2)))


# --- training ------------------------------------------------------------------------------------


def test_a_step_of_training_writes_the_variables_that_it_does_with_tensorflow() -> None:
    net, target = model(), tf.ones((2, 4))
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build(net.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(x) - y) ** 2)
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return loss

    variables = [*net.variables, *optimizer.variables]
    start = [each.numpy() for each in variables]
    expected = [float(step(X, target)) for _ in range(3)]
    known = [each.numpy() for each in variables]
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    compiled = on_device(step)
    found = [float(compiled(X, target)) for _ in range(3)]
    close(found, expected)
    for variable, value in zip(variables, known, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-3, atol=1e-4)


def test_a_step_of_training_cannot_be_traced() -> None:
    variable = tf.Variable(1.0)
    with pytest.raises(UntraceableFunction, match="writes a variable"):
        tensorflow_neuronx.trace(lambda x: variable.assign_add(x), tf.constant(1.0))


def test_what_xla_refuses_has_a_code() -> None:
    with pytest.raises(CompileError, match="GLIA741"):
        on_device(tf.strings.as_string)(tf.constant(1.0))


# --- several cores -------------------------------------------------------------------------------


def test_cores_take_calls_of_a_replicated_model_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: dict[Any, Any] = {}
    monkeypatch.setattr(forward_operator, "_LOADED", loaded)
    replicated = tfn.auto_multicore(tensorflow_neuronx.trace(model(), X), X, num_cores=3)
    assert isinstance(replicated, keras.Model)
    for _ in range(4):
        close(replicated(X), model()(X))
    assert sorted(core for _, core in loaded) == [0, 1, 2]
    assert len({id(each) for each in loaded.values()}) == 3


def test_a_saved_model_is_replicated_by_the_command(traced: Any, tmp_path: Path) -> None:
    before, after = tmp_path / "one", tmp_path / "many"
    tf.saved_model.save(traced, str(before))
    words = [str(before), "--num_cores", "2", "--new_model_dir", str(after)]
    assert auto_multicore_command(words) == 0
    loaded = tf.saved_model.load(str(after))
    close(loaded(X), model()(X))
    assert [described(e.numpy()).cores for e in loaded.descriptions if e.numpy()] == [2]
    assert [described(e.numpy()).cores for e in traced.descriptions if e.numpy()] == [1]


@pytest.mark.parametrize("cores", [0, 999])
def test_cores_that_there_are_not_are_refused(traced: Any, cores: int) -> None:
    with pytest.raises(NotReplicable, match="the process sees"):
        tfn.auto_multicore(traced, X, num_cores=cores)


def test_a_model_that_is_not_traced_is_not_replicated(tmp_path: Path, capfd: Any) -> None:
    with pytest.raises(NotReplicable, match="not a traced model"):
        tfn.auto_multicore(model(), X, num_cores=2)
    tf.saved_model.save(tf.Module(), str(tmp_path / "other"))
    words = [str(tmp_path / "other"), "--num_cores", "2", "--new_model_dir", str(tmp_path / "to")]
    assert auto_multicore_command(words) == 1
    assert "GLIA744" in capfd.readouterr().err and not (tmp_path / "to").exists()
