"""The function behind `PyFunc` nodes of saved models, which run their NEFF.

Its token is fixed, so that a process that loads a saved model finds it once this is imported.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
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
    """How a NEFF of a model is called, as JSON in its node.

    Each of `cores` has the model once, and they take calls in turn.
    """

    digest: str
    takes_any_batch: bool = False
    cores: int = 1

    def text(self) -> str:
        """The description as JSON."""
        return json.dumps(asdict(self))


def digest_of(neff: bytes) -> str:
    """What identifies a NEFF."""
    return hashlib.sha256(neff).hexdigest()


_LOADED: dict[tuple[str, int], Any] = {}  # models by digest and core
_TURNS: dict[str, Iterator[int]] = {}  # calls of a model that have begun, by digest


def _loaded(description: NodeDescription, neff: np.ndarray) -> Any:
    """The model of a NEFF on the core whose turn it is; DamagedModel where it is another NEFF."""
    turn = next(_TURNS.setdefault(description.digest, itertools.count()))
    key = description.digest, turn % description.cores
    if key not in _LOADED:
        data = neff.tobytes()
        if digest_of(data) != description.digest:
            raise DamagedModel(reason="its NEFF is not the one that it was saved with")
        _LOADED[key] = glia.load(Neff.from_bytes(data))
    return _LOADED[key]


def _forward(text: bytes, neff: np.ndarray, *inputs: np.ndarray) -> list[np.ndarray]:
    """The results of a model's NEFF."""
    model = _loaded(description := described(text), neff)
    found: list[np.ndarray] = (
        in_chunks(model, inputs) if description.takes_any_batch else model(*inputs)
    )
    return found


def described(text: bytes) -> NodeDescription:
    """The description that a node has; DamagedModel where it is none."""
    try:
        found = NodeDescription(**json.loads(text))
        if found.cores < 1:
            raise ValueError(found.cores)
    except (ValueError, TypeError) as problem:
        raise DamagedModel(reason=f"its description is {text!r:.60}") from problem
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
    given: Sequence[Any], kinds: Sequence[tf.TensorSpec], *, takes_any_batch: bool
) -> list[Any]:
    """The node that runs a NEFF, with the shapes of its results.

    It is given a description's text, the NEFF and its inputs.
    """
    found = tf.raw_ops.PyFunc(input=given, token=TOKEN, Tout=[each.dtype for each in kinds])
    for tensor, kind in zip(found, kinds, strict=True):
        batch = None if takes_any_batch else kind.shape[0] if kind.shape else None
        tensor.set_shape([batch, *kind.shape[1:]] if kind.shape else [])
    return list(found)
