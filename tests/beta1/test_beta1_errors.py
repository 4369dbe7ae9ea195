"""What is wrong in a kernel of Beta 1 is said in the documented words."""

from __future__ import annotations

import numpy as np
import pytest

from glia.nki import beta1 as nki
from glia.nki.beta1 import compiler as ncc
from glia.nki.beta1 import errors
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from glia.nki.beta1 import typing as nt
from glia.nki.names.errors import BadLaunch, NoSuchName, NotAnOutput, OutsideKernel
from glia_dropin.neuronxcc.shipping import missing_kernel

X = np.ones((8, 8), np.float32)


def _fails(error, body, *arrays, text="", compiled=False):
    """Run `body` as a kernel and return the error that it must end with."""

    def kernel(*tensors):
        out = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        body(*tensors)
        return out

    decorated = nki.benchmark(kernel) if compiled else nki.jit(kernel)
    with pytest.raises(error) as caught:
        decorated(*(arrays or (X,)))
    assert text in str(caught.value)
    assert __file__.rpartition("/")[2] in str(caught.value)
    return caught.value


def _square(x):
    return nl.load(x)[nl.arange(8)[:, None], nl.arange(8)[None, :]]


def test_one_dimensional_index() -> None:
    text = "Indexing a NKI tensor with 1D arange is not supported."
    _fails(errors.OneDimensionalIndex, lambda x: nl.exp(nl.load(x)[nl.arange(8), 0]), text=text)


def test_ambiguous_truth() -> None:
    text = "Cannot evaluate truth value of a multi-element tensor/array."
    found = _fails(errors.AmbiguousTruth, lambda x: not nl.load(x), text=text)
    assert isinstance(found, ValueError)


def test_annotation_mismatch() -> None:
    @nki.jit
    def kernel(x: nt.tensor[4, 8]):
        return x

    with pytest.raises(errors.AnnotationMismatch, match="annotated shape mismatch"):
        kernel(X)


def test_index_cannot_be_assigned() -> None:
    def assign(x):
        index = nl.arange(8)[:, None]
        index[0, 0] = 1

    _fails(errors.IndexCannotBeAssigned, assign, text="does not support item assignment")


def test_immutable_parameter() -> None:
    _fails(errors.ImmutableParameter, lambda x: nl.store(x, 1.0), text="immutable parameter `")


def test_control_flow_on_an_index() -> None:
    def branch(x):
        if nl.arange(8)[:, None] > 3:
            nl.load(x)

    def either(x):
        return (nl.arange(8)[:, None] > 3) or (nl.arange(8)[:, None] < 2)

    text = "Control-flow depending on `nl.arange` or `nl.mgrid` is not supported."
    _fails(errors.ControlFlowOnIndex, branch, text=text)
    _fails(errors.ControlFlowOnIndex, either, text=text)
    _fails(errors.ControlFlowOnIndex, lambda x: not nl.arange(8)[:, None], text=text)


def test_dynamic_control_flow() -> None:
    def branch(x):
        if nl.load(x[0:1, 0:1]):
            nl.load(x)

    _fails(errors.DynamicControlFlow, branch, text="Dynamic control-flow", compiled=True)


def test_too_many_dimensions() -> None:
    cube = np.ones((4, 4, 4), np.float32)
    _fails(errors.TooManyDimensions, lambda x: nl.transpose(nl.load(x)), cube)
    _fails(errors.TooManyDimensions, nl.load_transpose2d, cube, text="load_transpose2d")


def test_not_a_tile() -> None:
    def blocks(x):
        return nl.add(nl.zeros((4, nl.par_dim(8), 8), dtype=nl.float32), 32)

    _fails(errors.NotATile, blocks, text="Failed to infer tile from tensor")


def test_indirect_not_supported() -> None:
    rows = np.arange(8, dtype=np.int32)[:, None]

    def transposed(x, rows):
        return nl.load_transpose2d(x[nl.load(rows), nl.arange(8)[None, :]])

    _fails(errors.IndirectNotSupported, transposed, X, rows)


def test_indirect_free_dimension() -> None:
    rows = np.arange(8, dtype=np.int32)[None, :]

    def columns(x, rows):
        return nl.load(x[nl.arange(8)[:, None], nl.load(rows)])

    _fails(errors.IndirectFreeDimension, columns, X, rows, text="partition or block dimension")


def test_mutable_not_returned() -> None:
    @nki.jit
    def kernel(x: nt.mutable_tensor):
        out = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(x, 1.0)
        return out

    with pytest.raises(errors.MutableNotReturned, match="must be returned"):
        kernel(X.copy())


def test_nested_grid() -> None:
    inner = nki.jit(lambda x: x)
    _fails(errors.NestedGrid, lambda x: inner[2, 2](x), text="inside another kernel")


def test_too_many_partitions() -> None:
    text = "Size of partition dimension 256 exceeds architecture limitation of 128."
    _fails(errors.TooManyPartitions, nl.load, np.ones((256, 4), np.float32), text=text)
    _fails(errors.TooManyPartitions, lambda x: nl.zeros((256, 4), dtype=nl.float32), text=text)


def test_partition_mismatch() -> None:
    text = "Number of partitions mismatch in parameters (data1[8, 8], data2[1, 8]) of"
    _fails(errors.PartitionMismatch, lambda x: nl.load(x) + nl.load(x[0:1, :]), text=text)


def test_dimension_too_large() -> None:
    wide = np.ones((8, 600), np.float32)
    _fails(errors.DimensionTooLarge, lambda x: nl.transpose(nl.load(x)), wide)
    text = "Size of dimension 1 in 'moving[8, 600]' of 'nki.isa.nc_matmul' exceeds"
    _fails(
        errors.DimensionTooLarge,
        lambda x: nisa.nc_matmul(nl.load(x)[:, 0:8], nl.load(x)),
        wide,
        text=text,
    )


def test_destination_too_small() -> None:
    def assign(x):
        slot = nl.ndarray((8, 1), dtype=nl.float32)
        slot[...] = nl.load(x)

    _fails(errors.DestinationTooSmall, assign, text="Illegal shape in assignment destination")


def test_access_out_of_bound() -> None:
    text = "on dimension 1: index range [4, 11] exceed dimension size of 8"
    found = _fails(
        errors.AccessOutOfBound,
        lambda x: nl.load(x[nl.arange(8)[:, None], 4 + nl.arange(8)[None, :]]),
        text=text,
    )
    assert isinstance(found, SyntaxError)
    _fails(errors.AccessOutOfBound, lambda x: nl.load(x[:, 4:12]), text=text)


def test_an_index_in_memory_out_of_bounds_is_an_index_error() -> None:
    @nki.jit
    def kernel(x, rows):
        return nl.load(x[nl.load(rows), nl.arange(8)[None, :]])

    with pytest.raises(IndexError) as caught:
        kernel(X, np.array([[0], [9]], np.int32))
    assert type(caught.value) is IndexError
    assert str(caught.value) == "index 72 is out of bounds for axis 0 with size 64"


def test_unsupported_mask() -> None:
    def either(x):
        i_p = nl.arange(8)[:, None]
        return nl.exp(nl.load(x), mask=(i_p < 2) | nl.load(x))

    def no_box(x):
        i_p = nl.arange(8)[:, None]
        return nl.softmax(nl.load(x), axis=1, mask=(i_p < 2) | (i_p > 4))

    _fails(errors.UnsupportedMask, either, text="must be affine expressions")
    _fails(errors.UnsupportedMask, no_box, text="softmax that is not a box")
    _fails(errors.UnsupportedMask, lambda x: nl.exp(nl.load(x), mask=nl.load(x)))
    _fails(errors.UnsupportedMask, lambda x: nl.arange(8)[:, None] < 2.5)

    def some_partitions(x):
        some = nl.arange(8)[:, None] + nl.arange(8)[None, :] * 0 < 4
        nisa.nc_stream_shuffle(nl.load(x), nl.load(x), list(range(32)), mask=some)

    _fails(errors.UnsupportedMask, some_partitions, text="nc_stream_shuffle")


def test_wrong_memory() -> None:
    text = "Expected operand 'x' of 'exp' to be in address space 'psum|sbuf', but got a tile in"
    _fails(errors.WrongMemory, nl.exp, text=text)
    _fails(errors.WrongMemory, lambda x: nl.load(nl.load(x)), text="to be in address space 'hbm'")


def test_mixed_indexing() -> None:
    text = "Mixing basic tensor indexing and advanced tensor indexing is not supported."
    _fails(errors.MixedIndexing, lambda x: nl.load(x)[nl.arange(8)[:, None], :], text=text)


def test_unsupported_index() -> None:
    def diagonal(x):
        i_p = nl.arange(8)[:, None]
        return nl.exp(nl.load(x)[i_p, i_p])

    _fails(errors.UnsupportedIndex, diagonal, text="along the partitions")
    _fails(errors.UnsupportedIndex, lambda x: nl.arange(8)[:, None] // 3, text="not affine")


def test_allocated_kernel_limit() -> None:
    place = ncc.sbuf.mod_alloc(base_addr=0)
    text = "with init value is not supported in allocated NKI kernels"
    _fails(
        errors.AllocatedKernelLimit,
        lambda x: nl.zeros((8, 8), dtype=nl.float32, buffer=place),
        text=text,
    )

    def outside(x):
        buffer = ncc.sbuf.mod_alloc(base_addr=1 << 20)
        tile = nl.ndarray((8, 8), dtype=nl.float32, buffer=buffer)
        tile[...] = 0

    _fails(errors.AllocatedKernelLimit, outside, text="are outside")


def test_not_shipped() -> None:
    with pytest.raises(errors.NotShipped, match="quant_mlp_isa_kernel") as caught:
        missing_kernel("neuronxcc.nki._private_kernels.mlp")("quant_mlp_isa_kernel")
    assert isinstance(caught.value, ImportError)


def test_wrong_activation_operand() -> None:
    def scaled(x):
        return nisa.activation(op=nl.exp, data=nl.load(x), scale=nl.load(x))

    def biased(x):
        return nisa.activation(op=nl.exp, data=nl.load(x), bias=nisa.memset((8, 1), 1, np.int8))

    _fails(errors.WrongActivationOperand, scaled, text="either a scalar value or a 1D vector")
    _fails(errors.WrongActivationOperand, biased, text="Bias parameter of activation")


def test_unsupported_here() -> None:
    _fails(errors.UnsupportedHere, lambda x: nl.sum(nl.load(x), axis=0), text="axis 0")
    _fails(errors.UnsupportedHere, lambda x: nl.all_reduce(nl.load(x), np.add, 0))
    _fails(errors.UnsupportedHere, lambda x: nl.ndarray((8, 8), np.complex64), text="complex64")


def test_calls_outside_a_kernel_and_bad_launches() -> None:
    with pytest.raises(OutsideKernel, match=r"nl\.ndarray"):
        nl.ndarray((8, 8), nl.float32)
    with pytest.raises(BadLaunch, match="the grid"):
        nki.jit(lambda x: x)[-1]
    with pytest.raises(BadLaunch, match="absolute path"):
        nki.profile(lambda x: x, working_directory="here")(X)
    with pytest.raises(NoSuchName, match="neuronxcc"):
        _ = nl.no_such_name
    with pytest.raises(NoSuchName, match=r"no sigmod; did you mean sigmoid\?"):
        _ = nl.sigmod
    with pytest.raises(NoSuchName, match=r"no tensor_tensr; did you mean tensor_tensor\?"):
        _ = nisa.tensor_tensr
    with pytest.raises(NotAnOutput):
        nki.benchmark(lambda x: 1)(X)


def _stored(x, tile):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=tile)
    return out


def _leaves_its_loop(x):
    for _ in nl.affine_range(2):
        tile = nl.load(x)
    return _stored(x, tile)


def _rebinds(x):
    tile = nl.load(x)
    for _ in nl.sequential_range(2):
        tile = nl.add(tile, 1.0)
    return _stored(x, tile)


def _takes_the_last_turns(x):
    tiles = []
    for _ in nl.affine_range(2):
        tiles.append(nl.load(x))
        nl.exp(tiles[0])
    return _stored(x, 1.0)


@pytest.mark.parametrize("kernel", [_leaves_its_loop, _rebinds, _takes_the_last_turns])
@pytest.mark.parametrize("compiled", [False, True])
def test_local_variable_used_out_of_scope(kernel, compiled) -> None:
    text = "outside of its parent scope"
    _fails(errors.LocalOutOfScope, kernel, X, text=text, compiled=compiled)


def test_a_local_variable_assigned_in_a_loop_keeps_its_scope() -> None:
    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        for _ in nl.sequential_range(2):
            inner = nl.add(tile, 1.0)
            tile[...] = inner
        for _ in nl.static_range(2):
            unrolled = nl.add(tile, 1.0)
        return _stored(x, unrolled)

    np.testing.assert_array_equal(kernel(X), X + 3)


def test_shared_hbm_must_be_made_in_the_kernel() -> None:
    def kernel(x):
        for _ in nl.affine_range(1):
            out = _stored(x, 1.0)
        return out

    _fails(errors.SharedInLoop, kernel, X, text="top level kernel scope")


def test_hbm_tensor_with_init_value() -> None:
    def kernel(x):
        return nl.full(x.shape, 1.0, dtype=x.dtype, buffer=nl.shared_hbm)

    _fails(errors.HbmWithContents, kernel, X, text="with init value is not supported")


def test_tensor_output_not_written_to() -> None:
    def kernel(x, iterations):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for _ in nl.affine_range(iterations):
            nl.store(out, value=nl.load(x))
        return out

    with pytest.raises(errors.OutputNotWritten, match="never written to"):
        nki.jit(kernel)(X, 0)
    np.testing.assert_array_equal(nki.jit(kernel)(X, 1), X)
