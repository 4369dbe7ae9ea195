"""Cross-entropy over a large vocabulary, forward and backward, in one pass over the logits each.

What, for each position i with target t[i]:

    lse[i] = log(sum over v of exp(logits[i, v]))           loss[i] = lse[i] - logits[i, t[i]]
    gradient[i, v] = scale * (exp(logits[i, v] - lse[i]) - (1 if v == t[i] else 0))

Shapes: logits [positions, vocabulary] in HBM, float32 or a 16-bit float; targets [positions] int32;
loss and lse [positions] float32; gradient as logits. `scale` is 1 / positions for a mean.

Layout: positions on the partitions, 128 at a time; the vocabulary, a chunk at a time, on the free
dimension, where it is reduced. A vocabulary of 128 thousand would fill SBUF, so chunks are
independent: each keeps its own greatest logit m and its own sum of exp(logit - m), a column of each
for every chunk. In the end the sums are weighted with exp(m - greatest m of all) and added.

Roofline: forward, a logit is read once (DMA: 92 per nanosecond in float32, 184 in bfloat16, on
Trainium2), is compared once on Vector (123) and goes through exp on Scalar once (154), where the
sum is for free: the accumulator of the activation. float32 is bound by DMA, bfloat16 by Vector.
Backward, a logit is read and its gradient written: twice the DMA, and the one exp is all that
computes, with -lse as its bias and log(scale) in it.

Tiling: 4096 logits a chunk, three rotating buffers. The target's logit is not searched
for: a gather fetches one element of each row from HBM, and backward a scatter corrects one element
of each row when all else is written.
"""

from __future__ import annotations

import math

from glia.kernels.parts.rows import BufferRing, ceil_div, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

CHUNK = 4096  # of the vocabulary
BUFFERS = 3


@jit
def cross_entropy_forward(logits: NkiTensor, targets: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
    """(loss, lse) of [positions, vocabulary], each [positions] in float32."""
    positions, vocabulary = logits.shape
    assert targets.shape == (positions,), f"targets {targets.shape} for {positions} positions"
    loss, lse = (
        nl.ndarray((positions, 1), nl.float32, buffer=nl.shared_hbm, name=name)
        for name in ("loss", "lse")
    )
    shape = min(nl.tile_size.pmax, positions), min(CHUNK, vocabulary)
    loaded, unused = BufferRing(BUFFERS, shape, logits.dtype), BufferRing(2, shape, nl.bfloat16)
    for first, partitions in split(positions, nl.tile_size.pmax):
        rows = nl.ds(first, partitions)
        answers = _elements_at(logits, _target_offsets(targets, first, partitions, vocabulary))
        target_logits, result = (nl.ndarray((partitions, 1), nl.float32) for _ in range(2))
        nisa.dma_copy(target_logits, answers)
        columns = partitions, ceil_div(vocabulary, CHUNK)
        negative_maxima, sums = (nl.ndarray(columns, nl.float32) for _ in range(2))  # minus m; sums
        for number, (start, count) in enumerate(split(vocabulary, CHUNK)):
            data = loaded.next()[:partitions, :count]
            nisa.dma_copy(data, logits[rows, nl.ds(start, count)], engine=nisa.engine.sync)
            negated, total = (each[:, number : number + 1] for each in (negative_maxima, sums))
            nisa.tensor_reduce(negated, nl.maximum, data, axis=1, negate=True)
            exponentials = unused.next()[:partitions, :count]
            nisa.activation_reduce(exponentials, nl.exp, data, nl.add, total, bias=negated)
        _combine_chunks(result, negative_maxima, sums)
        nisa.dma_copy(lse[rows], result, engine=nisa.gpsimd_engine)
        difference = nl.ndarray((partitions, 1), nl.float32)
        nisa.tensor_tensor(difference, result, target_logits, nl.subtract)
        nisa.dma_copy(loss[rows], difference, engine=nisa.gpsimd_engine)
    return loss.reshape((positions,)), lse.reshape((positions,))


@jit
def cross_entropy_backward(
    logits: NkiTensor, targets: NkiTensor, lse: NkiTensor, scale: float
) -> NkiTensor:
    """The gradient of scale * sum(loss) for the logits; scale > 0."""
    positions, vocabulary = logits.shape
    given = targets.shape, lse.shape
    assert given == ((positions,),) * 2, f"targets and lse {given} for {positions} positions"
    assert scale > 0, f"scale is {scale}, whose logarithm is taken"
    gradient = nl.ndarray(logits.shape, logits.dtype, buffer=nl.shared_hbm, name="gradient")
    shape = min(nl.tile_size.pmax, positions), min(CHUNK, vocabulary)
    loaded, stored = (BufferRing(BUFFERS, shape, logits.dtype) for _ in range(2))
    for first, partitions in split(positions, nl.tile_size.pmax):
        rows = nl.ds(first, partitions)
        bias = nl.ndarray((partitions, 1), nl.float32)
        nisa.dma_copy(bias, lse[rows].reshape((partitions, 1)), engine=nisa.engine.sync)
        nisa.tensor_scalar(bias, bias, nl.multiply, -1.0, op1=nl.add, operand1=math.log(scale))
        for start, count in split(vocabulary, CHUNK):
            place = rows, nl.ds(start, count)
            data, result = (ring.next()[:partitions, :count] for ring in (loaded, stored))
            nisa.dma_copy(data, logits[place], engine=nisa.engine.sync)
            nisa.activation(result, nl.exp, data, bias=bias)
            nisa.dma_copy(gradient[place], result, engine=nisa.gpsimd_engine)
        target_offsets = _target_offsets(targets, first, partitions, vocabulary)
        target_logits, corrected = (nl.ndarray((partitions, 1), logits.dtype) for _ in range(2))
        nisa.dma_copy(target_logits, _elements_at(logits, target_offsets))
        target_probabilities = nl.ndarray((partitions, 1), nl.float32)
        nisa.activation(target_probabilities, nl.exp, target_logits, bias=bias)
        nisa.tensor_scalar(corrected, target_probabilities, nl.subtract, scale)
        nisa.dma_copy(_elements_at(gradient, target_offsets), corrected)
    return gradient


def _combine_chunks(result: NkiTensor, negative_maxima: NkiTensor, sums: NkiTensor) -> None:
    """result = log-sum-exp over all chunks, from the negative maximum and sum of each."""
    minimum, total = (nl.ndarray(result.shape, nl.float32) for _ in range(2))
    weights = nl.ndarray(negative_maxima.shape, nl.float32)
    nisa.tensor_reduce(minimum, nl.minimum, negative_maxima, axis=1)
    nisa.activation(weights, nl.exp, negative_maxima, scale=-1.0, bias=minimum)
    nisa.tensor_tensor(weights, weights, sums, nl.multiply)
    nisa.tensor_reduce(total, nl.add, weights, axis=1)
    nisa.activation(total, nl.log, total)
    nisa.tensor_tensor(result, total, minimum, nl.subtract)


def _target_offsets(targets: NkiTensor, first: int, partitions: int, vocabulary: int) -> NkiTensor:
    """Flat indices in the logits of the targets of some rows, [partitions, 1] int32."""
    chosen, rows = (nl.ndarray((partitions, 1), nl.int32) for _ in range(2))
    source = targets[nl.ds(first, partitions)].reshape((partitions, 1))
    nisa.dma_copy(chosen, source, engine=nisa.engine.sync)
    nisa.iota(rows, [[0, 1]], offset=first * vocabulary, channel_multiplier=vocabulary)
    nisa.tensor_tensor(chosen, chosen, rows, nl.add, engine=nisa.gpsimd_engine)  # exact
    return chosen


def _elements_at(table: NkiTensor, target_offsets: NkiTensor) -> NkiTensor:
    """A gather or scatter view: one element of the table for each flat index."""
    return table.reshape((table.size, 1)).vector_select(0, target_offsets)
