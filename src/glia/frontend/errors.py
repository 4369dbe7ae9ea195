"""Errors about the files and modules given to the compiler."""

from __future__ import annotations

from glia.base.errors import CompileError


class UnreadableFile(CompileError):
    """The model file cannot be opened.

    Cause: The path does not exist, is a directory, or may not be read.
    Fix: Give the path of one file that holds a serialized HLO module, or StableHLO.
    Example: glia.compile("no_such_file.pb")
    """

    code = "GLIA101"
    message = "cannot read {path}: {reason}"
    help = "give the path of one file: an HloProto, an HloModuleProto, or StableHLO"


class NotAnHloModule(CompileError):
    """The bytes are not a serialized HLO module.

    Cause: The input is empty, text, cut short, another format, or compressed but not with gzip.
    Fix: Save the module with `as_serialized_hlo_module_proto()` or let the framework plug-in do it.
    Example: glia.compile(b"HloModule main")
    """

    code = "GLIA102"
    message = "the input is not a serialized HLO module: {reason}"
    help = "pass the bytes of an HloProto or HloModuleProto, plain or gzip"


class MalformedModule(CompileError):
    """The HLO module contradicts itself.

    Cause: An instruction names an operand, computation or parameter that is not there, or has the
        wrong number of operands, or computations call each other in a cycle; often a damaged file.
    Fix: Export the module again; if it was written by a tool, correct that tool.
    Example: glia.compile(module_whose_add_has_one_operand)
    """

    code = "GLIA103"
    message = "the HLO module is malformed: {reason}"
    help = "export the module again from the framework"


class BadLiteral(CompileError):
    """A constant's data does not match its shape.

    Cause: The literal holds fewer or more elements than its shape says, or bytes its dtype lacks.
    Fix: Export the module again; check that the file was copied completely.
    Example: glia.compile(module_with_a_constant_of_three_elements_for_shape_4)
    """

    code = "GLIA104"
    message = "constant of type {type} holds {found}, expected {expected}"
    help = "export the module again and check that the file was copied completely"


class TensorTooLarge(CompileError):
    """A shape describes a tensor no device can hold.

    Cause: The product of the dimensions is beyond one tebibyte, or there are too many dimensions.
    Fix: Split or shard the tensor; check that the shape is meant.
    Example: jax.jit(lambda x: jnp.broadcast_to(x, (2**30, 2**30)))
    """

    code = "GLIA105"
    message = "tensor {shape} is beyond what can be compiled: {reason}"
    help = "split or shard the tensor"


class UnknownDType(CompileError):
    """A shape has an element type this compiler does not know.

    Cause: The module uses a newer or opaque XLA element type, or a float of MLIR that HLO lacks.
    Fix: Convert the tensor to one of the known dtypes.
    Example: a module with a tensor of XLA primitive type 200
    """

    code = "GLIA106"
    message = "element type {element_type} is not known"
    help = "known dtypes: {known}"


class ModuleTooComplex(CompileError):
    """Inlining the module's calls would give an unreasonable number of instructions.

    Cause: Computations call each other so often or so deeply that the flat program is too long.
    Fix: Use a loop (`while`, `lax.scan`, `lax.fori_loop`) instead of repeated calls.
    Example: sixty functions, each of which calls the previous one twice
    """

    code = "GLIA107"
    message = "the module is too complex: {reason}"
    help = "use a loop instead of repeated or nested calls"


class NotAModel(CompileError, TypeError):
    """glia.compile was given something that is no model.

    Cause: The value is neither a model in one of the forms that are read, nor the path of one.
    Fix: Pass what the message names; lower a JAX function with jax.jit(f).lower(...) first.
    Example: glia.compile(3)
    """

    code = "GLIA111"
    message = "glia.compile cannot take {given}; it takes one of: {known}"
    help = "{cure}"


class FrameworkMissing(CompileError, ImportError):
    """A front end needs a framework that is not installed.

    Cause: StableHLO and jax programs are converted by jaxlib, which is not installed.
    Fix: pip install "glia[jax]", or pass a serialized HLO module.
    Example: glia.compile(stablehlo_text) without jax
    """

    code = "GLIA108"
    message = "{what} needs {package}, which is not installed"
    help = 'pip install "glia[{extra}]"'


class BadStableHlo(CompileError):
    """A StableHLO module cannot be converted to HLO.

    Cause: The text or bytecode does not parse or verify, uses what HLO does not have, or is damaged
        so that the process in which jaxlib reads it ends.
    Fix: Read jaxlib's message; check the dialect version; export the module again.
    Example: glia.compile("func.func @main(")
    """

    code = "GLIA109"
    message = "jaxlib cannot convert the StableHLO module: {reason}"
    help = "check that the module verifies and that its entry function is called main"


class BadCustomCall(CompileError):
    """A custom call's operands or configuration do not fit its target.

    Cause: The number of operands, their shapes or the backend_config are not what the target takes.
    Fix: Emit the custom call as the framework's own library does.
    Example: AwsNeuronSoftmax with backend_config "x"
    """

    code = "GLIA110"
    message = "custom call {target}: {reason}"
    help = "emit the custom call as the framework's own library does"


class KernelOfAnotherTarget(CompileError):
    """A kernel in a model was traced for another target than the model is compiled for.

    Cause: A kernel is traced when the model is, for the target that the environment names then. A
        target given to the compilation alone comes too late.
    Fix: Name the target in the environment before the model is traced.
    Example: a kernel traced for trn2, and jax.jit(..., compiler_options={"target": "trn1"})
    """

    code = "GLIA113"
    message = "kernel {name} was traced for {kernel}, and the model is compiled for {model}"
    help = "set NEURON_PLATFORM_TARGET_OVERRIDE={model} before the model is traced"


class KernelOfAnotherVersion(CompileError):
    """A custom call holds a kernel that another version of glia has traced.

    Cause: The model was traced with another version, or taken from a cache of one.
    Fix: Trace the model again with the installed version.
    Example: a model saved before an upgrade, whose kernels are in an older encoding
    """

    code = "NCC_EVRF065"
    message = "kernel call {name} was traced by another version: {reason}"
    help = "trace the model again with the installed version of glia"


class UnsupportedOperator(CompileError):
    """The module holds an operator the compiler does not support.

    Cause: The HLO opcode is unknown, or it talks to the host (infeed, outfeed, a send or recv
        with it).
    Fix: Express the computation with the operators `neuronx-cc list-operators` prints.
    Example: jax.jit(lambda t: jax.lax.infeed(t))
    """

    code = "NCC_EVRF001"
    message = "operator {opcode} is not supported{nearest}"
    help = "express the computation with the operators that `neuronx-cc list-operators` prints"


class UnknownCustomCall(CompileError):
    """The module calls a custom-call target the compiler does not know.

    Cause: The target's name is misspelt or belongs to another backend.
    Fix: Use one of the targets named in the message.
    Example: hlo.CustomCallOp([t], [x], call_target_name="UNRECOGNIZED_TARGET")
    """

    code = "NCC_EVRF015"
    also = ("NCC_EHCA005",)
    message = "custom-call target {target!r} is not known{nearest}"
    help = "known targets: {known}"


class DynamicShape(CompileError):
    """A tensor's shape is not known at compile time.

    Cause: A dimension is dynamic (bounded or unbounded).
    Fix: Pad to a fixed size, or compile one program for each size.
    Example: torch.nonzero(x) inside the compiled function
    """

    code = "NCC_EMOD025"
    message = "{name} has the dynamic shape {shape}"
    help = "pad to a fixed size, or compile one program for each size"


class VerificationFailed(CompileError):
    """An instruction breaks a rule of HLO.

    Cause: The operands' shapes, dtypes or attributes do not fit the operation or its result.
    Fix: Correct the program at the named source line.
    Example: an add of f32[2] and f32[3]
    """

    code = "NCC_EVRF064"
    message = "HLO verification failed: {reason}"
    help = "correct the operation at the named source line"
