"""The function behind `PyFunc` nodes of saved models, which run their NEFF.

Its token is fixed, so that a process that loads a saved model finds it once this is imported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

import glia
from glia.neff.package import Neff
from glia.plugins.tensorflow.errors import DamagedModel, WrongModelInputs

TOKEN = "glia_neuron_forward_v1"


@dataclass(frozen=True)
class NodeDescription:
    """How a NEFF of a model is called, as JSON in its node."""

    digest: str
    takes_any_batch: bool = False

    def text(self) -> str:
        """The description as JSON."""
        return json.dumps(asdict(self))


def digest_of(neff: bytes) -> str:
    """What identifies a NEFF."""
    return hashlib.sha256(neff).hexdigest()


_LOADED: dict[str, Any] = {}  # models by digest


def _loaded(description: NodeDescription, neff: np.ndarray) -> Any:
    """The model of a NEFF; DamagedModel where it is not the one that is described."""
    if description.digest not in _LOADED:
        data = neff.tobytes()
        if digest_of(data) != description.digest:
            raise DamagedModel(reason="its NEFF is not the one that it was saved with")
        _LOADED[description.digest] = glia.load(Neff.from_bytes(data))
    return _LOADED[description.digest]


def _forward(text: bytes, neff: np.ndarray, *inputs: np.ndarray) -> list[np.ndarray]:
    """The results of a model's NEFF."""
    try:
        description = NodeDescription(**json.loads(text))
    except (ValueError, TypeError) as problem:
        raise DamagedModel(reason=f"its description is {text!r:.60}") from problem
    model = _loaded(description, neff)
    found: list[np.ndarray] = (
        in_chunks(model, inputs) if description.takes_any_batch else model(*inputs)
    )
    return found


def in_chunks(model: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results for inputs of any first extent, computed in parts of the traced one."""
    traced = model.inputs[0].shape[0]
    extents = {array.shape[0] if array.ndim else 0 for array in inputs}
    if len(extents) != 1 or {binding.shape[:1] for binding in model.inputs} != {(traced,)}:
        expected = ", ".join(f"{b.dtype}{list(b.shape)}" for b in model.inputs)
        raise WrongModelInputs(expected=expected, problem=f"first extents are {sorted(extents)}")
    (extent,) = extents
    pieces = []
    for start in range(0, max(1, extent), traced):
        parts = [array[start : start + traced] for array in inputs]
        missing = traced - len(parts[0])
        padded = [np.pad(part, [(0, missing), *[(0, 0)] * (part.ndim - 1)]) for part in parts]
        pieces.append(model(*padded))
    return [np.concatenate(each)[:extent] for each in zip(*pieces, strict=True)]


script_ops._py_funcs._funcs[TOKEN] = _forward  # as a token of its own making would be entered


def forward(
    description: NodeDescription, neff: Any, inputs: Sequence[Any], kinds: Sequence[tf.TensorSpec]
) -> list[Any]:
    """The node that runs a NEFF, and the shapes of its results."""
    given = [tf.constant(description.text()), neff, *inputs]
    found = tf.raw_ops.PyFunc(input=given, token=TOKEN, Tout=[each.dtype for each in kinds])
    for tensor, kind in zip(found, kinds, strict=True):
        batch = None if description.takes_any_batch else kind.shape[0] if kind.shape else None
        tensor.set_shape([batch, *kind.shape[1:]] if kind.shape else [])
    return list(found)
