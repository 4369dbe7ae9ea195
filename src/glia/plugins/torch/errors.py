"""Errors of what PyTorch hands over, beside those of the front ends."""

from __future__ import annotations

from glia.base.errors import CompileError


class TooManyShapes(CompileError):
    """A function was called with more shapes than may be compiled for it.

    Cause: Each shape is a program of its own, and torch.compile was called with inputs of ever new
        shapes.
    Fix: Pad the inputs to a few sizes (a DataLoader's drop_last=True leaves out a smaller last
        batch), or raise torch._dynamo.config.recompile_limit. With torch.compile(dynamic=False)
        PyTorch runs the function on the host for shapes beyond the limit.
    Example: torch.compile(model, backend="neuron") on sentences of every length there is
    """

    code = "GLIA721"
    message = "{name} was compiled for {count} shapes and is called with another: {shapes}"
    help = (
        "pad the inputs to a few sizes, raise torch._dynamo.config.recompile_limit, or let PyTorch"
        " run further shapes on the host: torch.compile(..., dynamic=False)"
    )


class UntraceableStructure(CompileError):
    """Arguments or results of a traced function have a form that TorchScript lacks.

    Cause: A dict or list mixes tensors with tuples, or a value is neither tensor nor container.
    Fix: Return tensors, tuples, or dicts and lists of tensors; of a model of Hugging Face ask for
        return_dict=False.
    Example: torch_neuronx.trace of a function that returns {"a": x, "b": (x, x)}
    """

    code = "GLIA722"
    message = "{where} of the traced function {problem}"
    help = "use tensors, tuples, and dicts and lists of values of one type"


class UnusableTrace(CompileError):
    """A module is not one that trace has made, or is damaged.

    Cause: The module was not traced, or the attribute that says how its NEFF is called was changed.
    Fix: Give the module that trace has returned, or trace the model again.
    Example: torch_neuronx.dynamic_batch(torch.jit.script(model))
    """

    code = "GLIA723"
    message = "the module cannot be used as a traced model: {reason}"
    help = "give the module that trace has returned, or trace the model again"


class WrongTraceInputs(CompileError, ValueError):
    """A traced model is called with other tensors than it was traced for.

    Cause: A traced model has fixed shapes and dtypes.
    Fix: Pad the inputs to these, trace the model for others, or use dynamic_batch for the batch.
    Example: a model traced for a batch of 4, called with one of 3
    """

    code = "GLIA724"
    message = "the traced model takes {expected}: {problem}"
    help = "pad the inputs, trace the model for their shapes, or use torch_neuronx.dynamic_batch"


class BadTraceArgument(CompileError, ValueError):
    """An argument of a function for traced models has a value that it does not take.

    Cause: The message says which.
    Fix: Give one of the values that the message names.
    Example: torch_neuronx.move_trace_to_device(trace, 99)
    """

    code = "GLIA725"
    message = "{argument}={value}: {problem}"
    help = "give {hint}"


class NoSuchCore(CompileError, ValueError):
    """A device names a NeuronCore that the process does not see.

    Cause: The number is that of no core of the instance, or NEURON_RT_VISIBLE_CORES or
        NEURON_RT_NUM_CORES leaves it out.
    Fix: Name a core that torch.neuron.device_count() counts.
    Example: torch.ones(2, device="neuron:99")
    """

    code = "GLIA726"
    message = "there is no device neuron:{index}: the process sees {count} NeuronCores"
    help = "name a device from neuron:0 to neuron:{last}"


class PlacedOnMissingCore(CompileError, RuntimeError):
    """A traced model is for NeuronCores that the process does not see.

    Cause: The model was placed where the process saw more cores; here NEURON_RT_VISIBLE_CORES or
        NEURON_RT_NUM_CORES, or the instance, leaves some of them out.
    Fix: Let the process see these cores, or place the model on others after loading it.
    Example: a model that move_trace_to_device(trace, 3) has placed, loaded where
        NEURON_RT_NUM_CORES=2
    """

    code = "GLIA728"
    message = "the traced model is for {cores}: the process sees {count} NeuronCores"
    help = "raise NEURON_RT_NUM_CORES, or call torch_neuronx.move_trace_to_device(trace, 0)"


class DataDependentValue(CompileError):
    """A function that is traced takes a number, or a branch, from the values of a tensor.

    Cause: A compiled model has one sequence of operations for all inputs, so that a number of
        Python (`.item()`, `.tolist()`) and a branch cannot depend on what a tensor holds.
    Fix: Keep the value a tensor, and choose by torch.where; or use torch.compile, which runs such
        a part of a function on the host.
    Example: torch_neuronx.trace(lambda x: x if x.sum() > 0 else -x, torch.ones(2))
    """

    code = "GLIA729"
    message = "{what} depends on the values of a tensor"
    help = (
        "keep the value a tensor (torch.where, no .item()), or use torch.compile, which runs such"
        " a part on the host"
    )


class MixedDevices(CompileError, RuntimeError):
    """An operator is called with tensors of several devices.

    Cause: A model, or a part of its inputs, was not moved to the device of the rest.
    Fix: Move the model and its inputs to one device.
    Example: torch.ones(2, device="neuron") + torch.ones(2)
    """

    code = "GLIA727"
    message = "{operator} is called with tensors on {devices}"
    help = 'move the model and its inputs to one device: .to("neuron")'


class SparseOnDevice(CompileError, RuntimeError):
    """A tensor on the device would be sparse.

    Cause: An embedding has sparse=True, whose gradients are sparse, or a tensor is made sparse; the
        device has dense tensors only.
    Fix: Use dense gradients and tensors, or leave the sparse ones on the host.
    Example: torch.eye(3, device="neuron").to_sparse()
    """

    code = "GLIA730"
    message = "{problem}: the device has dense tensors only"
    help = "use dense tensors, and sparse=False in embeddings, or keep sparse tensors on the host"
