"""Errors of what TensorFlow hands over, beside those of the front ends."""

from __future__ import annotations

from glia.base.errors import CompileError


class UntraceableFunction(CompileError):
    """A function of TensorFlow cannot be compiled for example inputs.

    Cause: The example inputs are no tensors, the function has no result, or nothing of it is for
        the device.
    Fix: Give tensors, or a list, tuple or dict of them; analyze_model says what the device has.
    Example: tensorflow_neuronx.trace(lambda x: None, tf.zeros(2))
    """

    code = "GLIA741"
    message = "the function cannot be traced: {reason}"
    help = "give tensors as example inputs; analyze_model says what the device has of a function"


class WrongModelInputs(CompileError, ValueError):
    """A traced model is called with other tensors than it was traced for.

    Cause: A traced model has fixed shapes and dtypes.
    Fix: Pad the inputs to these, trace the function for others, or set --dynamic-batch-size.
    Example: a model traced for a batch of 4, called with one of 3
    """

    code = "GLIA742"
    message = "the traced model takes {expected}: {problem}"
    help = "pad the inputs, trace for their shapes, or put --dynamic-batch-size in NEURON_CC_FLAGS"


class DamagedModel(CompileError):
    """A saved model holds a NEFF that is not the one it was saved with.

    Cause: The files of the saved model were changed, or copied in part.
    Fix: Copy the whole folder again, or trace and save the function again.
    Example: a saved model whose variables file was overwritten
    """

    code = "GLIA743"
    message = "the saved model cannot be used: {reason}"
    help = "copy the whole folder of the model again, or trace and save the function again"


class NotReplicable(CompileError, ValueError):
    """A model cannot be put on so many cores.

    Cause: The process does not see as many cores, or the model is not one that trace has made.
    Fix: Give a number of cores that there are, and a model that trace has returned, or that was
        saved from one.
    Example: tensorflow.neuron.auto_multicore(traced, x, num_cores=999)
    """

    code = "GLIA744"
    message = "the model cannot be put on {cores} cores: {reason}"
    help = "give a traced model, and as many cores as the process sees or fewer"
