"""Errors about what no NeuronCore computes, or has the memory for."""

from __future__ import annotations

from typing import ClassVar

from glia.base.errors import CompileError


class UnsupportedDtype(CompileError):
    """A value has an element type for which no code can be generated.

    Cause: The module computes in 64-bit floats, or in another type that no engine has and that
        earlier passes did not bring to a narrower one.
    Fix: Compile with `--f64 as-f32`, which computes in float32, or give float32: in PyTorch
        .float() of the model and its inputs, in JAX jax_enable_x64 off; cast values of other types
        to float32, bfloat16 or int32 before this operation.
    Example: jax.jit(jax.numpy.sin) lowered for a float64 argument.
    """

    code: ClassVar[str] = "NCC_ESPP004"
    message: ClassVar[str] = "{opcode} gives {type}, and there is no code generation for {dtype}"
    help: ClassVar[str] = "{cure}"


class UnsupportedFp8(CompileError):
    """An operation uses an 8-bit float format that the product refuses.

    Cause: `--product-limits` asks for the product's limits, and no engine has the formats E4M3FNUZ,
        E4M3B11FNUZ and E5M2FNUZ, which encode zero and NaN differently.
    Fix: use float8_e4m3, float8_e4m3fn or float8_e5m2, or leave --product-limits out.
    Example: a module whose parameter is f8e4m3fnuz[8], compiled with --product-limits.
    """

    code: ClassVar[str] = "NCC_ESPP047"
    also: ClassVar[tuple[str, ...]] = ("NCC_EVRF005",)
    message: ClassVar[str] = "the 8-bit float format {dtype} is not supported"
    help: ClassVar[str] = "use float8_e4m3, float8_e4m3fn or float8_e5m2, or no --product-limits"


class ConstantTooWide(CompileError):
    """A 64-bit integer constant does not fit 32 bits, to which 64-bit integers are narrowed.

    Cause: `--native-int64 disabled` asks that integers of 64 bits be computed in 32 bits.
    Fix: leave the option out, so that 64 bits are kept where values need them.
    Example: a module with the constant u64[] 4294967296, compiled with `--native-int64 disabled`.
    """

    code: ClassVar[str] = "NCC_ESFH002"
    message: ClassVar[str] = "the {dtype} constant {value} does not fit 32 bits"
    help: ClassVar[str] = "use a smaller constant, or leave out --native-int64 disabled"


class UnsupportedComplex(CompileError):
    """An operation on complex numbers has no expansion into real arithmetic.

    Cause: complex tensors are pairs of real tensors, which this operation does not allow.
    Fix: compute on the real and imaginary parts separately.
    Example: a bitcast of c64[8] to u64[8].
    """

    code: ClassVar[str] = "NCC_EVRF004"
    message: ClassVar[str] = "{opcode} of complex numbers is not supported"
    help: ClassVar[str] = "compute on the real and imaginary parts separately"


class NoIntegerDatapath(CompileError):
    """An operation on 64-bit integers has no integer datapath.

    Cause: integers of 64 bits are pairs of words, which this operation does not allow.
    Fix: convert the operands to int32 or float32 first, or compile with `--native-int64 disabled`.
    Example: an all-reduce of s64 among two replicas.
    """

    code: ClassVar[str] = "NCC_EVRF035"
    message: ClassVar[str] = "{opcode} of {bits}-bit integers has no integer datapath"
    help: ClassVar[str] = "convert the operands to float32, or see the options for integers"


class DeviceMemoryFull(CompileError):
    """The tensors of the program exceed the logical core's share of HBM.

    Cause: inputs, outputs, constants and intermediates that do not stay in SBUF exceed the memory.
    Fix: use smaller tensors or a narrower dtype, a target with more memory, or leave `--lnc 1` out:
    a logical core has the memory of its physical cores.
    Example: broadcasting a scalar to f32[80000000000].
    """

    code: ClassVar[str] = "NCC_EOOM001"
    also: ClassVar[tuple[str, ...]] = ("NCC_EOOM002", "NCC_EVRF009", "NCC_EXSP001")
    message: ClassVar[str] = (
        "the program needs {total} bytes of HBM on {target}, which has {capacity} for a "
        "logical core: {external} of inputs and outputs, {constants} of constants, "
        "{intermediate} of intermediates"
    )
    help: ClassVar[str] = "use smaller tensors or a narrower dtype, or a target with more memory"


class BadReplicaGroups(CompileError):
    """The groups or pairs of a collective do not fit the ranks that the module runs on.

    Cause: A group names a device that does not exist, names one twice or leaves one out, groups
        differ in size, or a tensor does not fall into as many pieces as a group has members.
    Fix: Name every device once, in groups of one size; or say how many devices there are, with
        `--replicas` and `--partitions`, where the module does not.
    Example: an all-reduce with replica_groups={{0,2}}, in which device 1 is missing.
    """

    code: ClassVar[str] = "GLIA131"
    message: ClassVar[str] = (
        "{kind} among {replicas} replicas of {partitions} partitions: {problem}"
    )
    help: ClassVar[str] = "name every device once; --replicas and --partitions say how many exist"


class TooManyRanks(CompileError):
    """A module runs on more devices than a program can be compiled for.

    Cause: Its replicas times its partitions are more than the largest installations have.
    Fix: Give the right numbers of `--replicas` and `--partitions`, or correct its groups.
    Example: a module compiled with --replicas 1000 --partitions 1000.
    """

    code: ClassVar[str] = "GLIA132"
    message: ClassVar[str] = "{replicas} replicas of {partitions} partitions are more than {most}"
    help: ClassVar[str] = "give smaller numbers of replicas and partitions"
