"""Functions of TensorFlow traced for a device, from glia."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glia.cc_flags import environment_flags
from glia.frontend.errors import FrameworkMissing

_PLUGIN = "glia.plugins.tensorflow"


def load_plugin(module: str) -> Any:
    """A module of the plugin, which imports TensorFlow; FrameworkMissing without it."""
    if importlib.util.find_spec("tensorflow") is None:
        raise FrameworkMissing(what="tensorflow_neuronx", package="tensorflow", extra="tensorflow")
    return importlib.import_module(f"{_PLUGIN}.{module}")


def trace(
    func: Any, example_inputs: Any, subgraph_builder_function: Callable[[Any], bool] | None = None
) -> Any:
    """Compile a function for example inputs, as a Keras model.

    Flags are those of NEURON_CC_FLAGS; `subgraph_builder_function` says of a node whether it may
    be on the device.
    """
    plugin = load_plugin("tracing")
    flags = environment_flags().wrapper
    directory = flags.get("--workdir")
    tracing = plugin.Tracing(
        wanted=subgraph_builder_function,
        takes_any_batch="--dynamic-batch-size" in flags,
        inline_weights="--extract-weights" not in flags,
        directory=None if directory is None else Path(directory),
    )
    return plugin.trace(func, example_inputs, tracing)


def analyze_model(
    func: Any, example_inputs: Any, subgraph_builder_function: Callable[[Any], bool] | None = None
) -> dict[str, Any]:
    """Which operators of a function the device has; nothing is compiled."""
    found: dict[str, Any] = load_plugin("tracing").analyze(
        func, example_inputs, subgraph_builder_function
    )
    return found


if importlib.util.find_spec("tensorflow"):  # saved models find the function behind their nodes
    load_plugin("forward_operator")
