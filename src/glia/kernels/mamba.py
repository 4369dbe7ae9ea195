"""The selective scan of a Mamba layer, fused: nothing with a state dimension leaves the chip.

What, for each batch, channel c and time t, with state 0 before the first time:

    state[s] = exp(delta[c, t] * a[c, s]) * state[s] + delta[c, t] * u[c, t] * b[s, t]
    out[c, t] = sum over s of c_[s, t] * state[s]

Shapes, float32: delta and u [batch, channels, time], a [channels, states], b and c_
[batch, states, time]; out [batch, channels, time].

Layout: channels on the partitions, which are independent; time on the free dimension, along which
Vector's scan runs. States are the outer loop. b and c_ have no channel: every partition needs the
same row. The Tensor Engine copies a row to all partitions, multiplying by a matrix that is one in
that row and zero elsewhere (a column of the identity, read 128 times), and leaves it in PSUM. That
is where Vector wants it: an operation on two tensors takes two cycles per element when both are in
SBUF, and one when one of them is in PSUM.

Roofline, per state and 128 channels: Vector takes one cycle per time step for delta * u * b, two
for the scan and one for the product with c_: 4. Scalar takes one for exp(delta * a), the product
being its free `scale`. The sum over states costs Vector nothing: the Tensor Engine adds the
products up in PSUM, as products with the identity matrix. In float32 it takes 4 cycles of 2.8 GHz
for a column: 4 for that sum and, over two tiles of channels, 4 more for the rows of b and c_.
Vector is the bound: on Trainium1, for [1, 256 channels, 512 steps, 16 states], 2 * 16 * 4 * 512
cycles of 1.12 GHz are 58.5 us, where DMA needs 6 us. Without PSUM and the Tensor Engine's help
Vector would take 10 cycles instead of 4, and the first version of the documented tutorial, which
does that, was measured at 172.93 us.

Tiling: 512 steps are a bank of PSUM. Two tiles of channels share the rows of b and c_ of a state.
The rows of the next states are made before the Tensor Engine waits for this state's products, so
that Vector never waits for them: three pairs of banks for rows, one bank for each tile's sum.
Longer sequences continue from the last column of each scan, [128 channels, 1] for each state.
"""

from __future__ import annotations

from glia.kernels.parts.rows import BufferRing, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

TILES_PER_PASS = 2  # of channels that share the rows of b and c_
BUFFERS = 4  # buffers of each intermediate


@jit
def mamba(delta: NkiTensor, u: NkiTensor, a: NkiTensor, b: NkiTensor, c: NkiTensor) -> NkiTensor:
    """The selective scan of [batch, channels, time] with [states] of a, b and c for each."""
    batch, channels, time = delta.shape
    states = a.shape[1]
    assert states <= nl.tile_size.pmax, f"{states} states are more than there are partitions"
    assert u.shape == delta.shape, f"u {u.shape} and delta {delta.shape} differ"
    assert a.shape == (channels, states), f"a {a.shape} is not for {channels} channels"
    expected = batch, states, time
    assert b.shape == c.shape == expected, f"b {b.shape} and c {c.shape} are not {expected}"
    out = nl.ndarray(delta.shape, delta.dtype, buffer=nl.shared_hbm, name="out")
    pmax = nl.tile_size.pmax
    buffers = _Buffers((min(pmax, channels), min(nl.tile_size.psum_bank_fmax, time)), states)
    for n in range(batch):
        for first, count in split(channels, TILES_PER_PASS * pmax):
            tiles = []
            for start, partitions in split(count, pmax):
                place = nl.ds(first + start, partitions)
                rates = nl.ndarray((partitions, states), nl.float32)
                nisa.dma_copy(rates, a[place], engine=nisa.engine.sync)
                tiles.append(_ChannelTile(delta[n, place], u[n, place], out[n, place], rates))
            for step, steps in split(time, buffers.shape[1]):
                _scan(tiles, b[n], c[n], step, steps, buffers)
    return out


class _ChannelTile:
    """Up to 128 channels: their tensors in HBM, their rates a, and their current states."""

    def __init__(self, delta: NkiTensor, u: NkiTensor, out: NkiTensor, rates: NkiTensor) -> None:
        self.delta, self.u, self.out, self.rates = delta, u, out, rates
        self.final_states = nl.zeros(rates.shape, nl.float32)


class _Buffers:
    """Rotating buffers, most of them [channels, steps]."""

    def __init__(self, shape: tuple[int, int], states: int) -> None:
        self.shape = shape
        self.identity = nl.shared_identity_matrix(nl.tile_size.pmax, nl.float32)
        self.delta, self.u, self.inputs, self.out = (
            BufferRing(2 * TILES_PER_PASS, shape, nl.float32) for _ in range(4)
        )
        self.decay, self.inflow, self.state, self.product = (
            BufferRing(BUFFERS, shape, nl.float32) for _ in range(4)
        )
        self.b_and_c = BufferRing(4, (states, shape[1]), nl.float32)
        self.rows = BufferRing(6, shape, nl.float32, nl.psum)
        self.sums = BufferRing(TILES_PER_PASS, shape, nl.float32, nl.psum)


def _scan(
    tiles: list[_ChannelTile], b: NkiTensor, c: NkiTensor, step: int, steps: int, buffers: _Buffers
) -> None:
    """Scan all states of some channels over `steps` time steps from `step` on."""
    time_range = nl.ds(step, steps)
    drive, read = (_load(buffers.b_and_c, each[:, time_range]) for each in (b, c))
    deltas = [_load(buffers.delta, tile.delta[:, time_range]) for tile in tiles]
    inputs = []
    for tile, delta in zip(tiles, deltas, strict=True):
        u = _load(buffers.u, tile.u[:, time_range])
        product = buffers.inputs.next()[: u.shape[0], :steps]
        nisa.tensor_tensor(product, delta, u, nl.multiply, engine=nisa.gpsimd_engine)
        inputs.append(product)
    sums = [buffers.sums.next()[: delta.shape[0], :steps] for delta in deltas]
    prefetched = _broadcast_rows(drive, read, 0, buffers)
    for s in range(b.shape[0]):
        row, weight = prefetched
        states = [
            _scan_state(tile, delta, u, row, s, buffers)
            for tile, delta, u in zip(tiles, deltas, inputs, strict=True)
        ]
        if s + 1 < b.shape[0]:  # before the Tensor Engine waits for this state's products
            prefetched = _broadcast_rows(drive, read, s + 1, buffers)
        for state, total in zip(states, sums, strict=True):
            product = buffers.product.next()[: state.shape[0], :steps]
            nisa.tensor_tensor(product, state, weight[: state.shape[0]], nl.multiply)
            unit = buffers.identity[: state.shape[0], : state.shape[0]]
            nisa.nc_matmul(total, unit, product, accumulate=s > 0)
    for tile, total in zip(tiles, sums, strict=True):
        result = buffers.out.next()[: total.shape[0], :steps]
        nisa.activation(result, nl.copy, total)
        nisa.dma_copy(tile.out[:, time_range], result, engine=nisa.gpsimd_engine)


def _scan_state(
    tile: _ChannelTile, delta: NkiTensor, u: NkiTensor, row: NkiTensor, s: int, buffers: _Buffers
) -> NkiTensor:
    """State s of up to 128 channels at every step."""
    partitions, steps = delta.shape
    rings = buffers.decay, buffers.inflow, buffers.state
    decay, inflow, state = (ring.next()[:partitions, :steps] for ring in rings)
    carry = tile.final_states[:, s : s + 1]
    nisa.activation(decay, nl.exp, delta, scale=tile.rates[:, s : s + 1])
    nisa.tensor_tensor(inflow, u, row[:partitions], nl.multiply)
    nisa.tensor_tensor_scan(state, decay, inflow, carry, nl.multiply, nl.add)
    nisa.tensor_copy(carry, state[:, steps - 1 : steps], engine=nisa.gpsimd_engine)
    return state


def _load(ring: BufferRing, source: NkiTensor) -> NkiTensor:
    tile = ring.next()[: source.shape[0], : source.shape[1]]
    nisa.dma_copy(tile, source, engine=nisa.engine.sync)
    return tile


def _broadcast_rows(
    drive: NkiTensor, read: NkiTensor, s: int, buffers: _Buffers
) -> list[NkiTensor]:
    """Row s of two tiles [states, steps], broadcast to all partitions in PSUM."""
    states, steps = drive.shape
    copies = [buffers.rows.next()[:, :steps] for _ in (drive, read)]
    selector = buffers.identity[:states, s : s + 1].broadcast(1, buffers.shape[0])
    for copy, rows in zip(copies, (drive, read), strict=True):
        nisa.nc_matmul(copy, selector, rows, accumulate=False)
    return copies
