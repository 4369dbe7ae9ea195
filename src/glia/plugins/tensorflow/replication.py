"""Traced models on several cores, which take calls in turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from glia.plugins.pjrt.visible_cores import visible_cores
from glia.plugins.tensorflow.errors import NotReplicable
from glia.plugins.tensorflow.forward_operator import described


def replicate(model: Any, cores: int) -> Any:
    """Let cores take a model's calls in turn, which is changed and returned.

    The model is one that `trace` has returned, or that was saved from one and loaded. Raises
    NotReplicable for any other, and where there are not as many cores.
    """
    known = visible_cores().count
    if not isinstance(cores, int) or not 1 <= cores <= known:
        raise NotReplicable(cores=cores, reason=f"the process sees {known}")
    texts = [each for each in getattr(model, "descriptions", ()) if each.numpy()]
    if not texts:
        raise NotReplicable(cores=cores, reason=f"{type(model).__name__} is not a traced model")
    for variable in texts:
        description = described(variable.numpy())
        variable.assign(replace(description, cores=cores).text())
    return model


def replicate_saved(directory: Path, cores: int, result: Path) -> None:
    """Save a saved model again, for so many cores."""
    model = tf.saved_model.load(str(directory))
    tf.saved_model.save(replicate(model, cores), str(result))
