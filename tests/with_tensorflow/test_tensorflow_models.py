"""Models of Keras, small and with random weights, compute what they do with TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from glia.frontend.hlo import import_hlo
from glia.graph.evaluate import evaluate
from glia.plugins.tensorflow.tracing import function_to_hlo

# The smallest images that the models take
FAMILIES: dict[str, tuple[int, dict[str, Any]]] = {
    "MobileNetV2": (32, {"alpha": 0.35}), "MobileNetV3Small": (32, {"minimalistic": True}),
    "ResNet50": (32, {}), "DenseNet121": (32, {}), "EfficientNetB0": (32, {}),
    "InceptionV3": (75, {}), "Xception": (71, {}), "VGG16": (32, {}),
}  # fmt: skip


def close(function: Any, *inputs: np.ndarray) -> None:
    expected = tf.nest.flatten(function(*inputs))
    example = tuple(tf.constant(each) for each in inputs)
    found = evaluate(import_hlo(function_to_hlo(function, example)), list(inputs))
    for array, tensor in zip(found, expected, strict=True):
        scale = max(1e-3, float(np.abs(tensor).max()))
        np.testing.assert_allclose(array, tensor, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_image_model_computes_what_it_does_with_tensorflow(name: str) -> None:
    keras.utils.set_random_seed(0)
    size, keywords = FAMILIES[name]
    make = getattr(keras.applications, name)
    model = make(weights=None, classes=10, input_shape=(size, size, 3), **keywords)
    close(model, np.random.default_rng(0).uniform(-1, 1, (1, size, size, 3)).astype(np.float32))


class Transformer(keras.Model):  # type: ignore[misc]  # no types of Keras
    """A language model of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(50, 32)
        self.attentions = [keras.layers.MultiHeadAttention(4, 8) for _ in range(2)]
        self.norms = [keras.layers.LayerNormalization() for _ in range(4)]
        self.wide = [keras.layers.Dense(64, activation="gelu") for _ in range(2)]
        self.narrow = [keras.layers.Dense(32) for _ in range(2)]
        self.head = keras.layers.Dense(50)

    def call(self, words: Any) -> Any:
        x = self.table(words)
        for n in range(2):
            y = self.norms[2 * n](x)
            x = x + self.attentions[n](y, y, use_causal_mask=True)
            x = x + self.narrow[n](self.wide[n](self.norms[2 * n + 1](x)))
        return self.head(x)


def test_a_transformer_computes_what_it_does_with_tensorflow() -> None:
    keras.utils.set_random_seed(0)
    close(Transformer(), np.arange(12, dtype=np.int32).reshape(2, 6) * 3 % 50)
