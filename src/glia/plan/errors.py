"""Errors of planning."""

from __future__ import annotations

from glia.base.errors import CompileError


class BadShapes(CompileError):
    """A file of shapes cannot be planned with.

    Cause: It is not JSON, lacks a number that the shapes of a decoder follow from, or has one that
        does not fit the others.
    Fix: Give the config.json of a decoder as Hugging Face has it: hidden_size, intermediate_size,
        num_hidden_layers, num_attention_heads and vocab_size at least.
    Example: glia plan config.json without num_hidden_layers in it
    """

    code = "GLIA541"
    message = "{path} cannot be planned with: {reason}"
    help = (
        "give a decoder's config.json: hidden_size, intermediate_size, num_hidden_layers,"
        " num_attention_heads, vocab_size"
    )


class UnknownMachine(CompileError):
    """`glia plan` is asked for an instance that it does not know.

    Cause: The name is neither an instance type with Neuron devices nor a target.
    Fix: Name one of those that the help line lists.
    Example: glia plan config.json --target p5.48xlarge
    """

    code = "GLIA542"
    message = "there is no instance {name!r}{nearest}"
    help = "instances are {known}; the name of a target is one chip of it"


class NothingFits(CompileError):
    """No way to divide the model over the instance fits in the memory of its cores.

    Cause: Weights and, in training, gradients, states of the optimizer and activations need more
        than all cores have; or the batch cannot be shared out.
    Fix: Take a larger instance, a shorter sequence or another batch; plan for prefill or decode if
        the model is only served.
    Example: glia plan llama-70b.json --target trn1.2xlarge
    """

    code = "GLIA543"
    message = (
        "{model} does not fit for {phase} on {machine}: the least that was found is {least} GiB a"
        " core of {has}, with {split}"
    )
    help = "take a larger instance, --sequence or --batch smaller, or another --phase"


class PartFailed(CompileError):
    """A part of the model does not compile, so that no way to divide it could be timed.

    Cause: The compiler refuses a layer of these shapes, or the process that compiles it was ended.
    Fix: Compile a layer by itself with `neuronx-cc compile` for the whole message.
    Example: a decoder with heads of 4096 elements
    """

    code = "GLIA544"
    message = "no way to divide {model} could be timed: {part} does not compile: {reason}"
    help = "look at the message of the part; plan another shape, or another --optlevel"
