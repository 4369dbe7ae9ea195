"""A mixture of experts as blocks of tokens, each block multiplied by one expert's weights.

What: tokens have been sorted into blocks of B positions, so that all of a block go to one expert e.
For every position, with x the hidden state of its token:

    out[token] += affinity[token, e] * (silu(x @ gate[e]) * (x @ up[e])) @ down[e]

Shapes, as the documented kernel has them: hidden [T + 1, H], its last row a token that fills up
blocks; affinities [(T + 1) * E, 1]; gate_up [E, H, 2, I]; down [E, I, H]; positions [N * B] int32,
the token of every position, T for none; experts [N, 1] int32, the expert of every block; out
[T + 1, H], its last row zero. No token is twice in a block. float32 or a 16-bit float; H, I and B
are multiples of 128.

Layout: the first products add over H, so the tokens of a block are fetched as rows by a gather, 128
at a time, and transposed on the Tensor Engine to have H on the partitions. The weights lie as they
are needed: H on the partitions for gate and up, I for down. What comes out of the first products
has I on the partitions, which is what the second adds over: no transposition in between.

Roofline of a block, bfloat16 on Trainium2: 3 * B * H * I / 128**2 columns of the Tensor Engine, and
H * B / 128 to transpose the tokens. DMA moves 6 * H * I bytes of weights, and every token once in
and twice out, because it is added to what is there. With B = 512 and H = I = 1024 that is 42.7 us
of the Tensor Engine and 25 us of DMA; with fewer than 250 or so tokens to a block, DMA is the
bound.

Tiling: the expert of a block is known only when the program runs, so the addresses of the weights
come from a register; the next block's weights and tokens are fetched before this block's products
are issued. Up to 512 tokens are a bank of PSUM in the first products, 512 columns of H in the
second. Scalar takes silu of what gate gives on its way out of PSUM, Vector multiplies it with what
up gives, which is still there; in the end Vector weighs each token with its affinity, one number
for each partition, and a scatter adds the rows to the result, but those of the last token, which is
out of bounds of what the scatter sees and left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from glia.kernels.parts.rows import BufferRing, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor
from glia.nki.tensors.dynamic_offsets import DynamicSlice

ROWS = 128  # of the Tensor Engine
COLUMNS = 512  # of a bank of PSUM


@jit
def moe_blocks(
    hidden: NkiTensor,
    affinities: NkiTensor,
    gate_up: NkiTensor,
    down: NkiTensor,
    positions: NkiTensor,
    experts: NkiTensor,
    block: int,
) -> NkiTensor:
    """The sum over all experts of each token, [T + 1, H]."""
    width, inner = hidden.shape[1], down.shape[1]
    assert width % ROWS == inner % ROWS == block % ROWS == 0, "H, I and B are multiples of 128"
    count = down.shape[0]
    assert gate_up.shape == (count, width, 2, inner), f"gate_up {gate_up.shape}, down {down.shape}"
    assert affinities.shape == (hidden.shape[0] * count, 1), f"affinities {affinities.shape}"
    assert positions.shape == (experts.shape[0] * block,), (
        f"{positions.shape[0]} positions are not {experts.shape[0]} blocks of {block}"
    )
    out = nl.ndarray(hidden.shape, hidden.dtype, buffer=nl.shared_hbm, name="out")
    _clear(out)
    work = _ExpertBuffers(hidden, affinities, gate_up, down, out, block)
    work.read_experts(experts)
    blocks = positions.shape[0] // block
    prefetched = work.load(positions, 0)
    for number in range(blocks):
        loaded = prefetched
        if number + 1 < blocks:  # before the engines wait for what this block needs
            prefetched = work.load(positions, number + 1)
        work.add_block(loaded)
    return out


def _clear(out: NkiTensor) -> None:
    """Write zeros everywhere."""
    zeros = nl.zeros((ROWS, out.shape[1]), out.dtype)
    for first, count in split(out.shape[0], ROWS):
        nisa.dma_copy(out[nl.ds(first, count)], zeros[:count], engine=nisa.engine.sync)


@dataclass(frozen=True)
class _BlockInputs:
    """The inputs of a block: for each 128 tokens their indices, rows, affinities; the weights."""

    tokens: list[NkiTensor]
    rows: list[NkiTensor]
    affinities: list[NkiTensor]
    gate_up: NkiTensor  # [128, H / 128, 2, I]
    down: NkiTensor  # [128, I / 128, H]


class _ExpertBuffers:
    """The buffers of a kernel and the stages of a block."""

    def __init__(
        self,
        hidden: NkiTensor,
        affinities: NkiTensor,
        gate_up: NkiTensor,
        down: NkiTensor,
        out: NkiTensor,
        block: int,
    ) -> None:
        self.hidden, self.all_affinities, self.out = hidden, affinities, out
        self.all_gate_up, self.all_down, self.block = gate_up, down, block
        dtype, width, inner = hidden.dtype, hidden.shape[1], down.shape[1]
        groups = block // ROWS
        self.gate_up = BufferRing(2, (ROWS, width // ROWS, 2, inner), dtype)
        self.down = BufferRing(2, (ROWS, inner // ROWS, width), dtype)
        self.tokens, self.affinity_rows = (
            BufferRing(3 * groups, (ROWS, 1), nl.int32) for _ in range(2)
        )
        self.affinities = BufferRing(3 * groups, (ROWS, 1), nl.float32)
        self.rows = BufferRing(2 * groups, (ROWS, width), dtype)
        self.results = BufferRing(3, (ROWS, width), dtype)
        self.transposed = nl.ndarray((ROWS, width // ROWS, block), dtype)
        self.inner = BufferRing(2, (ROWS, inner // ROWS, block), dtype)
        self.activated = BufferRing(3, (ROWS, min(COLUMNS, block)), nl.float32)
        self.banks = BufferRing(6, (ROWS, COLUMNS), nl.float32, nl.psum)
        self.transpose_banks = BufferRing(2, (ROWS, ROWS), dtype, nl.psum)

    def read_experts(self, experts: NkiTensor) -> None:
        """Load every block's expert, on all partitions, and the number of experts."""
        blocks = experts.shape[0]
        self.experts = nl.ndarray((ROWS, blocks), nl.int32)
        everywhere = experts.reshape((1, blocks)).broadcast(0, ROWS)
        nisa.dma_copy(self.experts, everywhere, engine=nisa.engine.sync)
        self.count = nl.full((ROWS, 1), self.all_down.shape[0], nl.int32)

    def load(self, positions: NkiTensor, number: int) -> _BlockInputs:
        """Fetch the weights, tokens and affinities of a block."""
        expert = self.experts[:, number : number + 1]
        groups = [
            self._load_tokens(positions[nl.ds(number * self.block + start, ROWS)], expert)
            for start in range(0, self.block, ROWS)
        ]
        expert_index = expert[:1]
        gate_up, down = self.gate_up.next(), self.down.next()
        for tiles, weights in ((gate_up, self.all_gate_up), (down, self.all_down)):
            source = weights.select(0, expert_index)
            for part in range(tiles.shape[1]):
                rows = source[nl.ds(part * ROWS, ROWS)]
                nisa.dma_copy(tiles[:, part], rows, engine=nisa.engine.sync)
        tokens, rows_of_tokens, affinities = (list(each) for each in zip(*groups, strict=True))
        return _BlockInputs(tokens, rows_of_tokens, affinities, gate_up, down)

    def _load_tokens(
        self, positions: NkiTensor, expert: NkiTensor
    ) -> tuple[NkiTensor, NkiTensor, NkiTensor]:
        """(indices, rows, affinities) of 128 tokens."""
        tokens, affinity_rows = self.tokens.next(), self.affinity_rows.next()
        nisa.dma_copy(tokens, positions.reshape((ROWS, 1)), engine=nisa.engine.sync)
        rows, affinities = self.rows.next(), self.affinities.next()
        nisa.dma_copy(rows, self.hidden.vector_select(0, tokens))
        gpsimd = nisa.gpsimd_engine  # whose int32 is exact
        nisa.tensor_tensor(affinity_rows, tokens, self.count, nl.multiply, engine=gpsimd)
        nisa.tensor_tensor(affinity_rows, affinity_rows, expert, nl.add, engine=gpsimd)
        nisa.dma_copy(affinities, self.all_affinities.vector_select(0, affinity_rows))
        return tokens, rows, affinities

    def add_block(self, loaded: _BlockInputs) -> None:
        """Add the outputs of a block's expert to the result."""
        for group, rows in enumerate(loaded.rows):
            self._transpose_tokens(rows, self.transposed[:, :, nl.ds(group * ROWS, ROWS)])
        inner = self.inner.next()
        for start, count in split(self.block, COLUMNS):
            columns = nl.ds(start, count)
            for part in range(inner.shape[1]):
                self._activate(inner[:, part, columns], loaded.gate_up, part, columns)
        for group, tokens in enumerate(loaded.tokens):
            result = self.results.next()
            for column, count in split(result.shape[1], COLUMNS):
                total = self.banks.next()[:, :count]
                for part in range(inner.shape[1]):
                    stationary = inner[:, part, nl.ds(group * ROWS, ROWS)]
                    moving = loaded.down[:, part, nl.ds(column, count)]
                    nisa.nc_matmul(total, stationary, moving, accumulate=part > 0)
                piece, affinity = result[:, nl.ds(column, count)], loaded.affinities[group]
                vector = nisa.vector_engine
                nisa.tensor_scalar(piece, total, nl.multiply, affinity, engine=vector)
            last = self.out.shape[0] - 1  # takes no sum: its index is out of bounds and skipped
            target = self.out[:last].vector_select(0, tokens)
            nisa.dma_compute(target, [target, result], nl.add, oob_mode=nisa.oob_mode.skip)

    def _transpose_tokens(self, rows: NkiTensor, transposed: NkiTensor) -> None:
        """[tokens, H] as [128, H / 128, tokens]."""
        for part in range(transposed.shape[1]):
            place = self.transpose_banks.next()
            nisa.nc_transpose(place, rows[:, nl.ds(part * ROWS, ROWS)])
            if part % 2:
                nisa.activation(transposed[:, part], nl.copy, place)
            else:
                nisa.tensor_copy(transposed[:, part], place, engine=nisa.vector_engine)

    def _activate(
        self, inner: NkiTensor, weights: NkiTensor, part: int, columns: DynamicSlice
    ) -> None:
        """silu(gate) * up for 128 inner columns of some tokens."""
        sums = []
        for projection in range(2):
            total = self.banks.next()[:, : inner.shape[1]]
            for depth in range(weights.shape[1]):
                stationary = weights[:, depth, projection, nl.ds(part * ROWS, ROWS)]
                moving = self.transposed[:, depth, columns]
                nisa.nc_matmul(total, stationary, moving, accumulate=depth > 0)
            sums.append(total)
        activated = self.activated.next()[:, : inner.shape[1]]
        nisa.activation(activated, nl.silu, sums[0])
        nisa.tensor_tensor(inner, activated, sums[1], nl.multiply)
