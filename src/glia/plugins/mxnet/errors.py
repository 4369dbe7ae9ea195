"""Errors of models of MXNet: their files, their operators and what is asked of them."""

from __future__ import annotations

from glia.base.errors import CompileError


class BadSymbolFile(CompileError):
    """A file is not the description of a model of MXNet.

    Cause: The text is not JSON, lacks nodes or heads, or a node's inputs are not before it; often a
        file that was cut short or is of another format.
    Fix: Save the model again with symbol.save, or block.export.
    Example: parse_symbol(b"{}")
    """

    code = "GLIA731"
    message = "the symbol cannot be read: {reason}"
    help = "save the model again with symbol.save or block.export"


class BadParameterFile(CompileError):
    """A file does not hold the arrays of a model of MXNet.

    Cause: The file is of another format, was cut short, or holds sparse arrays.
    Fix: Save the arrays again with mx.nd.save, or block.export; convert sparse ones to dense ones.
    Example: parse_parameters(b"")
    """

    code = "GLIA732"
    message = "the parameters cannot be read: {reason}"
    help = "save the arrays again with mx.nd.save or block.export, dense ones"


class BadAttribute(CompileError):
    """An operator of MXNet has an attribute that is wrong or not supported.

    Cause: The message names the attribute and what it holds.
    Fix: Choose another value, or name the node in excl_node_names, so that it runs on the host.
    Example: a Pooling with pool_type="lp"
    """

    code = "GLIA733"
    message = "{operator} {name}: attribute {attribute}={value} {problem}"
    help = "choose another value, or run the node on the host: excl_node_names=[{name!r}]"


class BadSymbolInputs(CompileError, ValueError):
    """A model of MXNet and what is given for it do not fit.

    Cause: An input or parameter is missing, unknown, or has a shape that an operator does not take.
    Fix: Give an array for every input of the symbol, and the parameters that it was saved with.
    Example: mx_neuron.compile(symbol, args, aux, inputs={})
    """

    code = "GLIA734"
    message = "the model and its inputs do not fit: {reason}"
    help = "give an array for every input of the symbol, and the parameters it was saved with"


class UnusableSubgraph(CompileError):
    """A compiled part of a model of MXNet cannot be run.

    Cause: The NEFF among its parameters is missing or damaged, or its description was changed.
    Fix: Compile the model again, and save symbol and parameters together.
    Example: a symbol that was compiled, bound with the parameters from before
    """

    code = "GLIA735"
    message = "the compiled part {name} cannot be used: {reason}"
    help = "compile the model again, and save symbol and parameters together"


class CompiledForInference(CompileError):
    """A gradient was asked of a compiled model of MXNet.

    Cause: Models are compiled with the values that their parameters have, forward only.
    Fix: Train the block or symbol that was compiled, on the host, and compile it again.
    Example: loss.backward() where loss is of a block that mx_neuron.compile returned
    """

    code = "GLIA736"
    message = "the compiled part of {inputs} inputs has no gradient: it is for inference"
    help = "train the block or symbol that was compiled, and compile it again"
