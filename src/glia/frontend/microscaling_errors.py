"""Errors in the custom calls QuantizeMX and ScaledMatmul."""

from __future__ import annotations

from typing import ClassVar

from glia.base.errors import CompileError


class QuantizeConfig(CompileError):
    """The backend_config of a QuantizeMX call is no JSON object.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: give a JSON object, such as {"dtype": "float8_e5m2"}.
    Example: QuantizeMX with backend_config "x"
    """

    code: ClassVar[str] = "NCC_EVRF036"
    message: ClassVar[str] = "the backend_config of QuantizeMX is no JSON object: {text!r}"
    help: ClassVar[str] = (
        "give a JSON object with dtype, and dim, block_size and scale_method where needed"
    )


class QuantizeOperands(CompileError):
    """A QuantizeMX call has not exactly one operand.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: pass the tensor to quantize and nothing else.
    Example: QuantizeMX with two operands
    """

    code: ClassVar[str] = "NCC_EVRF037"
    message: ClassVar[str] = "QuantizeMX has {count} operands, expected 1"
    help: ClassVar[str] = "pass the tensor to quantize and nothing else"


class QuantizeDimension(CompileError):
    """A QuantizeMX call quantizes along neither of the last two dimensions.

    Cause: dim is beyond the tensor, or not one of its last two dimensions.
    Fix: use dim -1 or -2.
    Example: QuantizeMX of bf16[4,8,32] along dimension 0
    """

    code: ClassVar[str] = "NCC_EVRF038"
    message: ClassVar[str] = "QuantizeMX cannot quantize {type} along dimension {dim}"
    help: ClassVar[str] = "use dim -1 or, for tensors of at least two dimensions, -2"


class QuantizeBlock(CompileError):
    """A QuantizeMX call has blocks of another size than 32.

    Cause: one scale serves 32 values in the OCP format.
    Fix: use block_size 32.
    Example: QuantizeMX with block_size 16
    """

    code: ClassVar[str] = "NCC_EVRF039"
    message: ClassVar[str] = "QuantizeMX has block_size {block}, expected 32"
    help: ClassVar[str] = "use block_size 32"


class QuantizeScale(CompileError):
    """A QuantizeMX call names an unknown method of scaling.

    Cause: only EMAX is defined.
    Fix: use scale_method EMAX.
    Example: QuantizeMX with scale_method FLOOR
    """

    code: ClassVar[str] = "NCC_EVRF040"
    message: ClassVar[str] = "QuantizeMX has scale_method {method!r}, expected 'EMAX'"
    help: ClassVar[str] = "use scale_method EMAX"


class QuantizeInput(CompileError):
    """A QuantizeMX call quantizes another type than bfloat16 or float16.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: convert the tensor to bfloat16 first.
    Example: QuantizeMX of f32[4,32]
    """

    code: ClassVar[str] = "NCC_EVRF041"
    message: ClassVar[str] = "QuantizeMX cannot quantize {type}"
    help: ClassVar[str] = "convert the tensor to bfloat16 or float16"


class QuantizeMalformed(CompileError):
    """The dtype or the declared result of a QuantizeMX call is wrong.

    Cause: dtype is neither float8_e5m2 nor float8_e4m3fn, or the packed result is not u32
        with a quarter of the elements.
    Fix: use a dtype of the two, and declare u32 with a quarter of the quantized dimension.
    Example: QuantizeMX with dtype float32
    """

    code: ClassVar[str] = "NCC_EVRF042"
    message: ClassVar[str] = "QuantizeMX is malformed: {reason}"
    help: ClassVar[str] = (
        "use float8_e5m2 or float8_e4m3fn, and declare u32 with a quarter of the dimension"
    )


class QuantizeResults(CompileError):
    """A QuantizeMX call does not return two tensors.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: declare the result (packed values, scales).
    Example: QuantizeMX with one result
    """

    code: ClassVar[str] = "NCC_EVRF057"
    message: ClassVar[str] = "QuantizeMX returns {type}, expected two tensors"
    help: ClassVar[str] = "declare the result (packed values, scales)"


class QuantizeExtent(CompileError):
    """A QuantizeMX call quantizes a dimension that is no multiple of four.

    Cause: four values are packed in one element.
    Fix: pad the dimension to a multiple of four.
    Example: QuantizeMX of bf16[4,30]
    """

    code: ClassVar[str] = "NCC_EVRF058"
    message: ClassVar[str] = (
        "QuantizeMX packs four values, but dimension {dim} of {type} has {extent}"
    )
    help: ClassVar[str] = "pad the dimension to a multiple of four"


class ScaledOperands(CompileError):
    """A ScaledMatmul call has not exactly four operands.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: pass both matrices and both tensors of scales.
    Example: ScaledMatmul with two operands
    """

    code: ClassVar[str] = "NCC_EVRF043"
    message: ClassVar[str] = "ScaledMatmul has {count} operands, expected 4"
    help: ClassVar[str] = "pass lhs, rhs, the scales of lhs and the scales of rhs"


class ScaledLeftType(CompileError):
    """The left matrix of a ScaledMatmul call is not packed.

    Cause: it is not the u32 tensor that QuantizeMX returns.
    Fix: pass the packed values of QuantizeMX.
    Example: ScaledMatmul with a left matrix bf16[4,32]
    """

    code: ClassVar[str] = "NCC_EVRF044"
    message: ClassVar[str] = "the left matrix of ScaledMatmul is {type}, expected u32"
    help: ClassVar[str] = "pass the packed values that QuantizeMX returns"


class ScaledResult(CompileError):
    """A ScaledMatmul call returns neither float32 nor bfloat16.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: declare the result in float32 or bfloat16.
    Example: ScaledMatmul that returns f16[4,4]
    """

    code: ClassVar[str] = "NCC_EVRF045"
    message: ClassVar[str] = "ScaledMatmul returns {type}, expected f32 or bf16"
    help: ClassVar[str] = "declare the result in float32 or bfloat16"


class ScaledLeftRank(CompileError):
    """The left matrix of a ScaledMatmul call has less than two dimensions.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: reshape it to a matrix.
    Example: ScaledMatmul with a left operand u32[8]
    """

    code: ClassVar[str] = "NCC_EVRF046"
    message: ClassVar[str] = (
        "the left matrix of ScaledMatmul is {type}, expected two dimensions or more"
    )
    help: ClassVar[str] = "reshape it to a matrix"


class ScaledRightRank(CompileError):
    """The right matrix of a ScaledMatmul call has less than two dimensions.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: reshape it to a matrix.
    Example: ScaledMatmul with a right operand u32[8]
    """

    code: ClassVar[str] = "NCC_EVRF047"
    message: ClassVar[str] = (
        "the right matrix of ScaledMatmul is {type}, expected two dimensions or more"
    )
    help: ClassVar[str] = "reshape it to a matrix"


class ScaledBatch(CompileError):
    """The batch dimensions of a ScaledMatmul call have different sizes.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: give both matrices the same batch.
    Example: ScaledMatmul of batches of 2 and 3 matrices
    """

    code: ClassVar[str] = "NCC_EVRF048"
    message: ClassVar[str] = "ScaledMatmul multiplies batches of {left} and {right} matrices"
    help: ClassVar[str] = "give both matrices the same batch"


class ScaledConfig(CompileError):
    """The backend_config of a ScaledMatmul call cannot be read.

    Cause: it is no JSON, or a list of dimensions holds something that is no whole number.
    Fix: leave it empty, or give JSON with lists of whole numbers.
    Example: ScaledMatmul with backend_config "x"
    """

    code: ClassVar[str] = "NCC_EVRF049"
    message: ClassVar[str] = "the backend_config of ScaledMatmul cannot be read: {text!r}"
    help: ClassVar[str] = "leave it empty, or give JSON with lists of whole numbers"


class ScaledContraction(CompileError):
    """The matrices of a ScaledMatmul call disagree on the size that is summed over.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: contract dimensions of one size.
    Example: ScaledMatmul of u32[4,8] and u32[4,16]
    """

    code: ClassVar[str] = "NCC_EVRF050"
    message: ClassVar[str] = "ScaledMatmul contracts {left} with {right} elements"
    help: ClassVar[str] = "contract dimensions of one size"


class ScaledOverlap(CompileError):
    """A dimension of a ScaledMatmul call is both batch and contracted.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: give every dimension one role.
    Example: ScaledMatmul with lhs_batch_dimensions [1] of a matrix contracted along 1
    """

    code: ClassVar[str] = "NCC_EVRF053"
    message: ClassVar[str] = "dimension {dim} of {type} is both batch and contracted"
    help: ClassVar[str] = "give every dimension one role"


class ScaledBatchRange(CompileError):
    """A batch dimension of a ScaledMatmul call is beyond its matrix.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: use dimensions from 0 to the rank less one.
    Example: ScaledMatmul with lhs_batch_dimensions [5]
    """

    code: ClassVar[str] = "NCC_EVRF054"
    message: ClassVar[str] = "batch dimension {dim} is not one of {type}"
    help: ClassVar[str] = "use dimensions from 0 to the rank less one"


class ScaledContractionRange(CompileError):
    """A contracted dimension of a ScaledMatmul call is beyond its matrix.

    Cause: the custom call was written by hand, or by another version of the framework.
    Fix: use dimensions from 0 to the rank less one.
    Example: ScaledMatmul with lhs_contracting_dimensions [5]
    """

    code: ClassVar[str] = "NCC_EVRF055"
    message: ClassVar[str] = "contracted dimension {dim} is not one of {type}"
    help: ClassVar[str] = "use dimensions from 0 to the rank less one"
