"""Errors of Beta 1 kernels.

A message begins with the documented first line of the error (nki.errors), which programs match on;
the help names it. Errors are SyntaxErrors, as documented, except where Python has a closer class.
"""

from __future__ import annotations

from glia.base.errors import CompileError


class OneDimensionalIndex(CompileError, SyntaxError):
    """A tensor is indexed by nl.arange without a second axis.

    Cause: a tile has at least two dimensions, the partitions and one free dimension.
    Fix: give the index its axes with nl.arange(64)[:, None], or index with slices.
    Example: tile[nl.arange(64), 0].
    """

    code = "GLIA650"
    message = "Indexing a NKI tensor with 1D arange is not supported."
    help = "write nl.arange(n)[:, None] and nl.arange(m)[None, :] (err_1d_arange_not_supported)"


class AmbiguousTruth(CompileError, ValueError):
    """The truth value of a tensor of several elements is used in Python.

    Cause: `and`, `or`, `not` or `if` on a tensor.
    Fix: use &, | and ~ on tensors, and `is not None` to ask whether one was given.
    Example: `if bias:` where bias is a tensor of shape (128, 512).
    """

    code = "GLIA651"
    message = "Cannot evaluate truth value of a multi-element tensor/array."
    help = "use &, |, ~ or `is not None` (err_ambiguous_tensor_truth_value)"


class AnnotationMismatch(CompileError, SyntaxError):
    """A parameter has another shape than its annotation says.

    Cause: `x: nt.tensor[128, 512]` and an array of another shape.
    Fix: pass an array of that shape, or correct the annotation.
    Example: def kernel(x: nt.tensor[128, 512]) called with an array of shape (128, 128).
    """

    code = "GLIA652"
    message = (
        "Tensor shape and the annotated shape mismatch: shape of `{name}{shape}` does not match "
        "the expected shape of {expected}"
    )
    help = "pass an array of the annotated shape (err_annotation_shape_mismatch)"


class IndexCannotBeAssigned(CompileError, SyntaxError):
    """A kernel assigns to an element of an index or a mask.

    Cause: nl.arange and nl.mgrid give expressions, which have no memory.
    Fix: make a tile of the index with nki.isa.iota and assign to that.
    Example: x[0, 5] = 1 where x comes from nl.mgrid.
    """

    code = "GLIA653"
    message = "An `index` or `mask` tensor does not support item assignment."
    help = "make a tile of it with nki.isa.iota(index, dtype) (err_cannot_assign_to_index)"


class ImmutableParameter(CompileError, SyntaxError):
    """A kernel writes a parameter that is not declared mutable.

    Cause: nl.store to a tensor that the caller passed.
    Fix: annotate the parameter as nt.mutable_tensor and return it, or write to a new tensor.
    Example: nl.store(x, value=tile) where x is a parameter of the kernel.
    """

    code = "GLIA654"
    message = "Cannot update immutable parameter `{name}`"
    help = "annotate it as nt.mutable_tensor (err_cannot_update_immutable_parameter)"


class ControlFlowOnIndex(CompileError, SyntaxError):
    """Python branches on an index or a mask, which has many values at once.

    Cause: `if`, `while` or `not` on an expression of nl.arange or nl.mgrid.
    Fix: pass the condition as mask= to the functions that compute.
    Example: `if j > 2048:` where j holds nl.arange(512)[None, :].
    """

    code = "GLIA655"
    message = "Control-flow depending on `nl.arange` or `nl.mgrid` is not supported."
    help = "pass the condition as mask= (err_control_flow_condition_depending_on_arange)"


class DynamicControlFlow(CompileError, SyntaxError):
    """Python branches on the contents of a tensor while the kernel is compiled.

    Cause: `if` or `while` on a tile, whose contents exist only when the program runs.
    Fix: select with nl.where or masks, or simulate the kernel, where contents are known.
    Example: `if nl.load(flag):` in a kernel that nki.benchmark compiles.
    """

    code = "GLIA656"
    message = "Dynamic control-flow depending on tensor value is currently not supported by NKI."
    help = "select values with nl.where (err_dynamic_control_flow_not_supported)"


class TooManyDimensions(CompileError, SyntaxError):
    """An operand has more dimensions than the function takes.

    Cause: nl.transpose and nl.load_transpose2d take two dimensions.
    Fix: index the tensor so that two dimensions are left, or reshape it.
    Example: nl.transpose(x) where x has the shape (64, 32, 2).
    """

    code = "GLIA657"
    message = (
        "NKI API tensor parameter exceeds max supported number of dimensions: `{name}{shape}` of "
        "'{function}' has more than {most}"
    )
    help = "reshape or index the tensor (err_exceed_max_supported_dimension)"


class NotATile(CompileError, SyntaxError):
    """A function computes on a tensor whose first dimension is not the partitions.

    Cause: a tensor with block dimensions before nl.par_dim is used as a whole.
    Fix: index its block dimensions away, one tile after the other.
    Example: nl.add(a, 32) where a has the shape (4, nl.par_dim(8), 8).
    """

    code = "GLIA658"
    message = "Failed to infer tile from tensor '{name}' of shape {shape}."
    help = "index the block dimensions first (err_failed_to_infer_tile_from_local_tensor)"


class IndirectNotSupported(CompileError, SyntaxError):
    """A function gets a tensor whose rows are chosen by another tensor.

    Cause: only loads, stores and copies by DMA follow indices in memory.
    Fix: gather with nl.load or nki.isa.dma_copy first.
    Example: nl.exp(x[index_tile, i_f]).
    """

    code = "GLIA659"
    message = "The API does not allow using tiles / tensors with indirect indices."
    help = "load or copy first (err_indirect_indices_are_not_supported_with_nki_api)"


class IndirectFreeDimension(CompileError, SyntaxError):
    """An index in memory chooses along a dimension other than the first of the access.

    Cause: a transfer takes one index for every row.
    Fix: index by the tile in the position of the rows, with nl.arange companions elsewhere.
    Example: nl.load(x[i_p, index_tile]) where index_tile holds an index for every partition.
    """

    code = "GLIA660"
    message = (
        "Dynamic indexing for load/store only supports the indirect indexing to be on the "
        "partition or block dimension."
    )
    help = "index rows by the tile, columns by nl.arange (err_indirect_indices_free_dim)"


class MutableNotReturned(CompileError, SyntaxError):
    """A kernel writes a mutable parameter and does not return it.

    Cause: nt.mutable_tensor says that the caller sees the change through what is returned.
    Fix: add the parameter to what the kernel returns.
    Example: a kernel that stores to `x: nt.mutable_tensor` and returns only another tensor.
    """

    code = "GLIA661"
    message = "A mutable kernel parameter must be returned by `return`: `{name}`"
    help = "return it too (err_mutable_parameter_not_returned)"


class NestedGrid(CompileError, SyntaxError):
    """A kernel calls another kernel with a grid.

    Cause: kernel[4, 4](...) inside a kernel.
    Fix: call it without the grid, in loops when needed.
    Example: inner[2](x) in the body of a kernel.
    """

    code = "GLIA662"
    message = (
        "Calling kernel with spmd grid ({kernel}[{grid}]) inside another kernel is not supported"
    )
    help = "call the inner kernel without a grid (err_nested_kernel_with_spmd_grid)"


class TooManyPartitions(CompileError, SyntaxError):
    """A tile spans more partitions than the memories have.

    Cause: the first dimension of a tensor on chip, or of what is loaded, is over 128.
    Fix: loop over tiles of nl.tile_size.pmax rows.
    Example: nl.load(x) where x has the shape (256, 512).
    """

    code = "GLIA663"
    message = (
        "Size of partition dimension {count} exceeds architecture limitation of {most}. "
        "(number of partitions {count} exceed architecture limitation of {most})"
    )
    help = "loop over tiles of {most} partitions (err_num_partition_exceed_arch_limit)"


class PartitionMismatch(CompileError, SyntaxError):
    """Operands of an instruction span different numbers of partitions.

    Cause: nki.isa functions and operators do not broadcast over the partitions.
    Fix: broadcast with tile.broadcast_to([128, n]) or nl.broadcast_to.
    Example: nki.isa.tensor_tensor(x, y, op=nl.add) of shapes (128, 512) and (1, 512).
    """

    code = "GLIA664"
    message = "Number of partitions mismatch in parameters ({operands}) of '{function}'"
    help = "broadcast the partitions first (err_num_partition_mismatch)"


class DimensionTooLarge(CompileError, SyntaxError):
    """A dimension of an operand is larger than the engine takes.

    Cause: more than 128 columns to transpose or stationary, more than 512 moving.
    Fix: loop over tiles of at most that size.
    Example: nl.transpose(x) where x has the shape (128, 512).
    """

    code = "GLIA665"
    message = (
        "Size of dimension {axis} in '{name}{shape}' of '{function}' exceeds architecture "
        "limitation of {most}."
    )
    help = "loop over tiles of at most {most} (err_size_of_dimension_exceed_arch_limit)"


class DestinationTooSmall(CompileError, SyntaxError):
    """An assigned value has more elements than its destination.

    Cause: shapes that do not broadcast from the value to the destination.
    Fix: assign to a slot of the shape of the value.
    Example: y[...] = x where y has the shape (128, 1) and x (128, 512).
    """

    code = "GLIA666"
    message = (
        "Illegal shape in assignment destination: shape {dst} of parameter 'dst' is smaller than "
        "other parameter shapes {src}."
    )
    help = "assign to a slot of that shape (err_store_dst_shape_smaller_than_other_shape)"


class AccessOutOfBound(CompileError, SyntaxError, IndexError):
    """An index that is known when the kernel is compiled leaves its tensor.

    Cause: the last tile of a loop overhangs.
    Fix: mask it, mask=(i * 512 + i_f < n), or correct the index.
    Example: nl.load(x[i_p, i * 512 + i_f]) where x has 4000 columns and i * 512 reaches 4095.
    """

    code = "GLIA667"
    message = (
        "Out-of-bound access for tensor `{name}` on dimension {axis}: index range [{low}, {high}] "
        "exceed dimension size of {extent}"
    )
    help = "mask the part outside (err_tensor_access_out_of_bound)"


class UnsupportedMask(CompileError, SyntaxError):
    """A mask is no conjunction or disjunction of affine comparisons, or does not fit the tile.

    Cause: contents of tensors, a mask of another shape than the tile, or one that is no box for a
    function that computes on a whole box, as products, shuffles and transposes do.
    Fix: compare sums of nl.arange, loop indices and numbers, joined by & or |; where a box is asked
    for, compute on all of it and mask the store.
    Example: nl.exp(x, mask=nl.load(flags)).
    """

    code = "GLIA668"
    message = "NKI mask expressions must be affine expressions of static loop indices: {what}"
    help = "join comparisons of affine indices by & or | (err_unsupported_expression_in_mask)"


class WrongMemory(CompileError, SyntaxError):
    """An operand is in a memory that the function cannot use.

    Cause: computing on a tensor in HBM, or loading from one on chip.
    Fix: nl.load what is in HBM first; nl.copy between tiles on chip.
    Example: nl.exp(x) where x is a parameter of the kernel.
    """

    code = "GLIA669"
    message = (
        "Expected operand '{name}' of '{function}' to be in address space '{wanted}', but got a "
        "tile in '{found}' instead."
    )
    help = "load it or copy it first (err_unsupported_memory)"


class MixedIndexing(CompileError, SyntaxError):
    """One access uses both slices and index objects.

    Cause: `:` or nl.ds next to an expression of nl.arange.
    Fix: use slices only, or an nl.arange for every dimension.
    Example: tile[nl.arange(4)[:, None], :].
    """

    code = "GLIA670"
    message = "Mixing basic tensor indexing and advanced tensor indexing is not supported."
    help = "use either (err_unsupported_mixing_basic_advanced_tensor_indexing)"


class UnsupportedIndex(CompileError, SyntaxError):
    """An access that no affine access pattern of the hardware describes.

    Cause: indices that are not affine, whose shapes do not fit together, or that move along the
    partitions and along another dimension at once.
    Fix: index the partitions by an nl.arange(n)[:, None] of their own.
    Example: tile[i_p, i_p], the diagonal of a tile.
    """

    code = "GLIA671"
    message = "Tensor access with {what} is not supported."
    help = "index the partitions by nl.arange(n)[:, None], the rest by nl.arange(m)[None, :]"


class AllocatedKernelLimit(CompileError, SyntaxError):
    """A tensor at a chosen address is used as the documentation does not allow.

    Cause: initial contents for a tensor with a direct allocation, or an allocator that gives a
    place outside the memory.
    Fix: nl.ndarray and then an assignment; keep tiles within the memory.
    Example: nl.zeros((nl.par_dim(128), 4), nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0)).
    """

    code = "GLIA672"
    message = "{what}"
    help = "allocate with nl.ndarray, within the memory, and assign the contents"


class NotShipped(CompileError, ImportError):
    """A kernel, or a helper of one, that AWS ships inside neuronxcc as unpublished code.

    Cause: neuronxcc.nki._private_kernels and _pre_prod_kernels hold compiled, unpublished code.
    Fix: use a kernel of the public nki-samples repository, or write one.
    Example: from neuronxcc.nki._private_kernels.mlp import mlp_isa_kernel.
    """

    code = "GLIA673"
    message = "{module}.{name} is unpublished code of AWS, which glia does not have"
    help = "use a kernel from the public nki-samples repository instead"


class WrongActivationOperand(CompileError, SyntaxError):
    """A parameter of nki.isa.activation has a dtype or shape that the engine does not take.

    Cause: a bias that is no vector of floats, or a scale that is no number and no float32 vector.
    Fix: make the bias with nki.isa.memset((128, 1), value, dtype=nl.float32).
    Example: nki.isa.activation(op=nl.exp, data=x, scale=tile) where tile has the shape (128, 128).
    """

    code = "GLIA674"
    message = "{text}"
    help = "give a number or a float32 vector of shape (partitions, 1)"


class ProgramsDisagree(CompileError, RuntimeError):
    """Programs of a grid synchronise at different calls.

    Cause: one program reaches an nl.all_reduce that another of its group never reaches, or reaches
    it with a tile of another shape or dtype, or with another operator.
    Fix: let all programs along the reduced axes make the same calls in the same order.
    Example: nl.all_reduce(x, op=np.add, program_axes=0) under `if nl.program_id(0) == 0:`.
    """

    code = "GLIA676"
    message = "program {program} waits in {call}, {other}"
    help = "all programs along the axes must make the same calls in the same order"


class UnsupportedHere(CompileError, SyntaxError):
    """A call that Beta 1 does not support, or whose meaning is not public.

    Cause: an argument of another type or value than the documentation has, or the library of a
    custom operator.
    Fix: the message says what to write in its place.
    Example: nl.sum(x, axis=0), over the partitions.
    """

    code = "GLIA675"
    message = "{what} is not supported: {why}"
    help = "docs/nki.md lists what Beta 1 covers"


class LocalOutOfScope(CompileError, SyntaxError):
    """A tensor is used outside the loop, or in another iteration of the loop, that made it.

    Cause: loops of nl.affine_range and nl.sequential_range are traced once, so that a tile made in
    the body ends with it; `data = data + x` in a loop makes a new tile, and keeps nothing.
    Fix: make the tensor before the loop and assign to it with `data[...] = data + x`.
    Example: tile = nl.load(x) in a loop of nl.affine_range, and nl.store(y, value=tile) after it.
    """

    code = "GLIA690"
    message = "Local variable '{name}' is referenced outside of its parent scope"
    help = "make it before the loop, assign to it[...] (err_local_variable_used_out_of_scope)"


class SharedInLoop(CompileError, SyntaxError):
    """A kernel makes a tensor of shared HBM in a loop.

    Cause: nl.ndarray(..., buffer=nl.shared_hbm) under nl.affine_range or nl.sequential_range.
    Fix: make it before the loop; a tensor that no other program reads is in nl.private_hbm.
    Example: for i in nl.affine_range(8): nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    """

    code = "GLIA691"
    message = "shared_hbm tensor can only be created in top level kernel scope"
    help = "make it before the loop (err_shared_hbm_must_in_kernel_level)"


class HbmWithContents(CompileError, SyntaxError):
    """A tensor in HBM is made with contents.

    Cause: nl.zeros, nl.ones, nl.full and the like with a buffer of HBM.
    Fix: make it with nl.ndarray and write it with nl.store.
    Example: nl.full((3, 128, 512), 1.0, nl.float32, buffer=nl.shared_hbm).
    """

    code = "GLIA692"
    message = "Creating HBM tensor with init value is not supported."
    help = "nl.ndarray, then nl.store (err_hbm_tensor_with_init_value_not_supported)"


class OutputNotWritten(CompileError, SyntaxError):
    """A kernel returns a tensor that it never wrote.

    Cause: most often a loop of zero iterations, such as nl.affine_range(128 // 129).
    Fix: round up, nl.affine_range(math.ceil(m / n)), with masks; or nl.store a value before.
    Example: a kernel that returns nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm).
    """

    code = "GLIA693"
    message = "Tensor `{name}` is returned by the kernel but never written to"
    help = "write all of it, also when loops have no iterations (err_tensor_output_not_written_to)"


class OutputDependency(CompileError, SyntaxError):
    """Iterations of a loop of nl.affine_range write the same place.

    Cause: the destination, which was made before the loop, is not indexed by the loop.
    Fix: index it, a[i] = ...; loop by nl.sequential_range; or combine, with += or nl.loop_reduce.
    Example: a[0] = 0 in a loop of nl.affine_range, where a has the shape (4, 128, 512).
    """

    code = "GLIA698"
    message = "Unexpected output dependencies: different iterations of a loop write `{name}`"
    help = "index it by the loop, or use nl.sequential_range (err_unexpected_output_dependencies)"


class WhileNeedsEntry(CompileError, ValueError):
    """A kernel asks for a condition before the first iteration of a while loop.

    Cause: `while` on an nt.scalar of a tile, which only the running program knows.
    Fix: begin with cond = nt.scalar(True), and set cond at the end of every iteration.
    Example: `while nt.scalar(tile) < 10:`.
    """

    code = "GLIA694"
    message = "Traditional while loops are not supported - use do-while pattern instead."
    help = "set cond = nt.scalar(True) before it (err_while_loop_requires_unconditional_entry)"


class EndlessWhile(CompileError, SyntaxError):
    """No iteration of a while loop on the device can be the last.

    Cause: the condition is true whatever the iteration computes, as nt.scalar(True) is.
    Fix: set the condition in the body to a comparison of an nt.scalar of a tile.
    Example: `while cond:` where cond = nt.scalar(True) and the body does not set cond.
    """

    code = "GLIA695"
    message = "the condition of a while loop is still true after an iteration, and reads no tile"
    help = "set it in the body, cond = nt.scalar(tile) < 10"


class PythonChanges(CompileError, SyntaxError):
    """The body of a while loop changes a value of Python for its next iteration.

    Cause: the loop is traced once, so that numbers, lists and other values of Python stay those of
    the first iteration; only tiles and nt.scalar are carried on, with the same shape and dtype.
    Fix: count in an nt.scalar or in a tile, and index with a tile of one element.
    Example: `n = n + 1` in the body of `while cond:`, where n is an int.
    """

    code = "GLIA696"
    message = "`{name}` changes in the body of a while loop: {why}"
    help = "keep it in a tile that is made before the loop, and assign to tile[...]"


class SumsChangeInWhile(CompileError, SyntaxError):
    """A tile in PSUM holds sums of products when a while loop begins, and other contents after it.

    Cause: the body adds products to a tile and then assigns to it, or to a block at its address.
    Fix: make the tile with nl.zeros in the body, or copy the sums to SBUF and compute there.
    Example: acc += nl.matmul(x, y), then acc[...] = 0, in the body of `while cond:`.
    """

    code = "GLIA697"
    message = "tile {name} in PSUM holds sums before an iteration of a while loop and none after it"
    help = "make the tile in the body of the loop, nl.zeros(..., buffer=nl.psum)"


class PartialAssignment(CompileError, SyntaxError):
    """A tile takes a value of which elements are left out, and which has another dtype or place.

    Cause: such a value is made first and copied; what it leaves out must stay in the tile, and
    which elements that are is not known here: indices out of bounds were skipped, the mask is one
    over other dimensions, or the assignment is of a part of the value.
    Fix: give the function the dtype of the tile; index the tile with the dimensions of the value.
    Example: tile[...] = nl.load(x[index, i_f], dtype=nl.bfloat16, mode=nisa.oob_mode.skip), where
    the tile is float32.
    """

    code = "GLIA699"
    message = "a value that leaves elements out cannot be copied, {what}"
    help = "give the function that makes it the dtype of the tile"
