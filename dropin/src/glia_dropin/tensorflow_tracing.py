"""Functions of TensorFlow traced for a device, from glia."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from glia.base.errors import CompileError
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


def auto_multicore(model: Any, example_inputs: Any, num_cores: int) -> Any:
    """Let cores take the calls of a traced model in turn, which is changed and returned.

    It is run once on the example inputs. The model may be one that was saved and loaded.
    """
    replicated = load_plugin("replication").replicate(model, num_cores)
    args, kwargs = (
        (example_inputs, {}) if isinstance(example_inputs, tuple)
        else ((), example_inputs) if isinstance(example_inputs, Mapping)
        else ((example_inputs,), {})
    )  # fmt: skip
    replicated(*args, **kwargs)
    return replicated


def auto_multicore_command(arguments: Sequence[str] | None = None) -> int:
    """The command tf-neuron-auto-multicore; its exit status."""
    parser = argparse.ArgumentParser(prog="tf-neuron-auto-multicore")
    parser.add_argument("model_dir", type=Path, help="a saved model that was traced")
    parser.add_argument("--num_cores", type=int, required=True, help="that take calls in turn")
    parser.add_argument("--new_model_dir", type=Path, required=True, help="where it is saved")
    given = parser.parse_args(arguments)
    try:
        load_plugin("replication").replicate_saved(
            given.model_dir, given.num_cores, given.new_model_dir
        )
    except (CompileError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def install() -> None:
    """Let saved models find the function behind their nodes, and programs `tensorflow.neuron`."""
    load_plugin("forward_operator")
    module = ModuleType("tensorflow.neuron", "Functions of TensorFlow traced, from glia.")
    for each in (trace, analyze_model, auto_multicore):
        setattr(module, each.__name__, each)
    sys.modules[module.__name__] = module
    sys.modules["tensorflow"].neuron = module  # type: ignore[attr-defined]


if importlib.util.find_spec("tensorflow"):
    install()
