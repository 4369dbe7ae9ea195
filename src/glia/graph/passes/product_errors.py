"""What AWS's compiler refuses and glia compiles: errors under `--product-limits` only."""

from __future__ import annotations

from typing import ClassVar

from glia.base.errors import CompileError


class LimitedRandomAlgorithm(CompileError):
    """A random generator names its algorithm.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`; it
        has the default algorithm only.
    Fix: use the framework's default generator, or leave out the option.
    Example: lax.rng_bit_generator(key, (8,), algorithm=RandomAlgorithm.RNG_THREE_FRY)
    """

    code: ClassVar[str] = "NCC_EVRF006"
    message: ClassVar[str] = "random algorithm {algorithm} is refused, the default one is not"
    help: ClassVar[str] = "use the default algorithm, or leave out --product-limits"


class LimitedDilations(CompileError):
    """A convolution dilates both its input and its kernel.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`.
    Fix: dilate one of the two, or leave out the option.
    Example: lax.conv_general_dilated(x, k, (1, 1), 'SAME', lhs_dilation=(2, 2),
        rhs_dilation=(2, 2))
    """

    code: ClassVar[str] = "NCC_EVRF010"
    message: ClassVar[str] = (
        "input dilation {x_dilation} and kernel dilation {kernel_dilation} are refused together"
    )
    help: ClassVar[str] = "dilate one of the two, or leave out --product-limits"


class LimitedStride(CompileError):
    """A convolution with strides dilates its input.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`.
    Fix: drop the stride or the dilation, or leave out the option.
    Example: lax.conv_general_dilated(x, k, (2, 2), 'SAME', lhs_dilation=(2, 2))
    """

    code: ClassVar[str] = "NCC_EVRF011"
    message: ClassVar[str] = "stride {stride} and input dilation {x_dilation} are refused together"
    help: ClassVar[str] = "drop one of the two, or leave out --product-limits"


class LimitedTopK(CompileError):
    """A top-k selection, or a sort with positions, of integers.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`.
    Fix: convert to float32 first, or leave out the option.
    Example: jax.lax.top_k(integers, 5)
    """

    code: ClassVar[str] = "NCC_EVRF013"
    message: ClassVar[str] = "top-k of {dtype} is refused"
    help: ClassVar[str] = "convert to a float, or leave out --product-limits"


class LimitedScatterReduction(CompileError):
    """A scatter combines booleans or integers below 32 bits.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`; its
        scatters compute in floats.
    Fix: convert to float32 first, or leave out the option.
    Example: jax.numpy.zeros(8, 'int8').at[i].add(1)
    """

    code: ClassVar[str] = "NCC_EVRF016"
    message: ClassVar[str] = "a scatter that combines {dtype} is refused"
    help: ClassVar[str] = "convert to a float, or leave out --product-limits"


class LimitedBaseDilation(CompileError):
    """A window reduction dilates its input.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`.
    Fix: dilate with lax.pad first, or leave out the option.
    Example: lax.reduce_window(x, 0., lax.add, (2,), (1,), 'VALID', base_dilation=(2,))
    """

    code: ClassVar[str] = "NCC_EVRF017"
    message: ClassVar[str] = "base dilation {dilation} of a window reduction is refused"
    help: ClassVar[str] = "dilate with lax.pad, or leave out --product-limits"


class LimitedWindowDilation(CompileError):
    """A window reduction dilates its window.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`.
    Fix: slice the input first, or leave out the option.
    Example: lax.reduce_window(x, 0., lax.add, (2,), (1,), 'VALID', window_dilation=(2,))
    """

    code: ClassVar[str] = "NCC_EVRF018"
    message: ClassVar[str] = "window dilation {dilation} of a window reduction is refused"
    help: ClassVar[str] = "slice the input, or leave out --product-limits"


class LimitedWindowOperands(CompileError):
    """A window reduction has several inputs.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`.
    Fix: reduce one tensor at a time, or leave out the option.
    Example: lax.reduce_window((x, y), (0., 0.), combine, (2,), (1,), 'VALID')
    """

    code: ClassVar[str] = "NCC_EVRF019"
    message: ClassVar[str] = "a window reduction of {count} tensors is refused"
    help: ClassVar[str] = "reduce one at a time, or leave out --product-limits"


class LimitedShift(CompileError):
    """An arithmetic shift to the right of integers that have not 32 bits.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`.
    Fix: convert to int32 first, or leave out the option.
    Example: jax.numpy.int16(64) >> jax.numpy.int16(2)
    """

    code: ClassVar[str] = "NCC_EVRF022"
    message: ClassVar[str] = "an arithmetic shift to the right of {dtype} is refused"
    help: ClassVar[str] = "convert to int32, or leave out --product-limits"


class LimitedScatterBounds(CompileError):
    """A scatter counts its indices beyond the tensor.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`; the
        updates beyond are dropped otherwise.
    Fix: count as far as the tensor goes, or leave out the option.
    Example: jax.numpy.zeros((3, 4)).at[jax.numpy.arange(10)].set(1)
    """

    code: ClassVar[str] = "NCC_EVRF031"
    message: ClassVar[str] = "indices 0 to {last} of a scatter leave a dimension of {extent}"
    help: ClassVar[str] = "count as far as the dimension goes, or leave out --product-limits"


class LimitedGatherBounds(CompileError):
    """A gather counts its indices beyond the tensor.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`;
        often a table of positions is too short for the sequence.
    Fix: enlarge the table, or leave out the option, which clamps the indices.
    Example: table[jax.numpy.arange(10)] of a table of 3 rows
    """

    code: ClassVar[str] = "NCC_EVRF056"
    message: ClassVar[str] = "indices 0 to {last} of a gather leave a dimension of {extent}"
    help: ClassVar[str] = "enlarge the table, or leave out --product-limits"


class LimitedFp8(CompileError):
    """A value is float8_e4m3fn on a target before trn3.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`;
        those cores multiply float8_e4m3 only, and otherwise bfloat16 takes its place.
    Fix: compile for trn3, use float8_e4m3, or leave out the option.
    Example: a module with a parameter f8e4m3fn[8], compiled for trn2
    """

    code: ClassVar[str] = "NCC_EVRF051"
    message: ClassVar[str] = "{opcode} of f8e4m3fn is refused on {target}"
    help: ClassVar[str] = "compile for trn3, use float8_e4m3, or leave out --product-limits"


class LimitedIntegerScatter(CompileError):
    """A scatter combines 32-bit or 64-bit integers.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`; it
        would round them to float32.
    Fix: convert to float32, allow that with `--implicit-integer-downcast scatter`, or leave
        out the option.
    Example: jax.numpy.zeros(8, 'int32').at[i].add(1)
    """

    code: ClassVar[str] = "NCC_EVRF060"
    message: ClassVar[str] = (
        "a scatter that combines {dtype} is refused, as float32 does not hold its values"
    )
    help: ClassVar[str] = "give --implicit-integer-downcast scatter, or leave out --product-limits"


class LimitedAllReduce(CompileError):
    """An all-reduce of 32-bit or 64-bit integers.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`; it
        would round them to float32.
    Fix: convert to float32, allow that with `--implicit-integer-downcast all_reduce`, or
        leave out the option.
    Example: jax.lax.psum(counts, 'i') of int32 counts
    """

    code: ClassVar[str] = "NCC_EVRF061"
    message: ClassVar[str] = (
        "an all-reduce of {dtype} is refused, as float32 does not hold its values"
    )
    help: ClassVar[str] = (
        "give --implicit-integer-downcast all_reduce, or leave out --product-limits"
    )


class LimitedPower(CompileError):
    """A power of 64-bit integers.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`; it
        would compute in 32 bits.
    Fix: convert to int32, allow that with `--implicit-integer-downcast pow`, or leave out the
        option.
    Example: jax.lax.pow(x, x) of int64 x
    """

    code: ClassVar[str] = "NCC_EVRF062"
    message: ClassVar[str] = "a power of {dtype} is refused, as 32 bits do not hold its values"
    help: ClassVar[str] = "give --implicit-integer-downcast pow, or leave out --product-limits"


class LimitedReduceScatter(CompileError):
    """A reduce-scatter of 32-bit or 64-bit integers.

    Cause: AWS's compiler refuses it, and the module was compiled with `--product-limits`; it
        would round them to float32.
    Fix: convert to float32, allow that with `--implicit-integer-downcast reduce_scatter`, or
        leave out the option.
    Example: jax.lax.psum_scatter(counts, 'i') of int32 counts
    """

    code: ClassVar[str] = "NCC_EVRF063"
    message: ClassVar[str] = (
        "a reduce-scatter of {dtype} is refused, as float32 does not hold its values"
    )
    help: ClassVar[str] = (
        "give --implicit-integer-downcast reduce_scatter, or leave out --product-limits"
    )


class LimitedInstructions(CompileError):
    """The program has more instructions than AWS's compiler allows.

    Cause: the model is large, or unrolled far, and the module was compiled with
        `--product-limits`; the limit is five million.
    Fix: compile with `-O1`, use loops (lax.scan), split the model, or leave out the option.
    Example: a model of many thousand unrolled layers
    """

    code: ClassVar[str] = "NCC_EVRF007"
    also: ClassVar[tuple[str, ...]] = ("NCC_EBVF030", "NCC_EXTP004")
    message: ClassVar[str] = "the program has {count} instructions, the limit is {limit}"
    help: ClassVar[str] = "compile with -O1, use loops, or leave out --product-limits"
