"""Random bits by the counter-based generators of XLA, in 32-bit integer arithmetic."""

from __future__ import annotations

import math
import zlib

import numpy as np

from glia.base.dtype import F32, PRED, U8, U16, U32, U64, DType
from glia.graph.counter_generators import halves
from glia.graph.expand.word_pairs import Wide, add_wide, full_product, less_wide
from glia.graph.ir import Graph, Node, TensorType
from glia.graph.ops import RngBits, RngUniform
from glia.graph.rules.constructors import (
    apply,
    bitcast,
    broadcast,
    constant,
    convert,
    get,
    iota,
    reshape,
    slice_along,
    splat,
    splat_like,
    stack,
    take,
)
from glia.graph.rules.driver import Tuple, apply_rules, map_regions, rule, rules_of
from glia.options import CompileOptions

_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_UNSIGNED = {8: U8, 16: U16, 32: U32, 64: U64}


def expand_random(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without RngBits and RngUniform; bits are those of the evaluator.

    The samples of the n-th RngUniform of a graph come from a fixed key that depends on n and its
    type, so that every execution gives the same samples; in a loop so does every iteration.
    """
    return apply_rules(_assign_keys(graph, "samples"), RULES)


@rule
def bits_by_philox(op: RngBits) -> Node | None:
    """rng_bits(state, philox) = Philox 4x32-10 on counters from the state"""
    if op.algorithm == "three_fry":
        return None
    words = _unpack_state(op.state)
    count = math.prod(op.result.shape)
    lanes = -(-count * max(1, op.result.dtype.bytes // 4) // 4)
    key, low, high = words[0], words[1], words[-1] if len(words) > 2 else words[0]
    if not lanes:
        return Tuple((op.state, splat(0, op.result.dtype, op.result.shape)))
    counter = add_wide(_broadcast_word(low, lanes), _lane_numbers(lanes))
    wrapped = _counter_carry(counter, low, lanes)
    upper = add_wide(_broadcast_word(high, lanes), Wide(wrapped, splat_like(0, wrapped)))
    values = _philox(_broadcast_word(key, lanes), (*counter, *upper))
    bits = _words_to_elements(reshape(stack(values, -1), (4 * lanes,)), op.result)
    new_low = add_wide(low, Wide(constant(lanes, U32), constant(0, U32)))
    overflow = convert(less_wide(new_low, low, signed=False), U32)
    new = [key, new_low]
    if len(words) > 2:
        new.append(add_wide(high, Wide(overflow, constant(0, U32))))
    return Tuple((_pack_state(new), bits))


@rule
def bits_by_three_fry(op: RngBits) -> Node | None:
    """rng_bits(state, three_fry) = ThreeFry 2x32-20 on counters from the state"""
    if op.algorithm != "three_fry":
        return None
    key, low = _unpack_state(op.state)
    wide = op.result.dtype.bits == 64
    half, split = (op.result.shape, -1) if wide else halves(op.result.shape)
    lanes = math.prod(half)
    if not lanes:
        return Tuple((op.state, splat(0, op.result.dtype, op.result.shape)))
    counter = add_wide(_broadcast_word(low, lanes), _lane_numbers(lanes))
    first, second = (reshape(x, half) for x in _three_fry(_broadcast_word(key, lanes), counter))
    new = add_wide(low, Wide(constant(lanes, U32), constant(0, U32)))
    state = _pack_state([key, new])
    if wide:
        pairs = stack((first, second), -1)
        return Tuple((state, bitcast(bitcast(pairs, U64), op.result.dtype)))
    words = stack((first, second), split + 1)
    words = reshape(words, (*half[:split], 2 * half[split], *half[split + 1 :]))
    words = slice_along(words, split, 0, op.result.shape[split] if op.result.shape else 1)
    return Tuple((state, _truncate_words(reshape(words, op.result.shape), op.result.dtype)))


def _unpack_state(state: Node) -> list[Wide]:
    """The 64-bit scalars of a state u64[n] as pairs of u32 scalars."""
    halves = bitcast(state, U32)
    rows = (take(halves, 0, i) for i in range(state.shape[0]))
    return [Wide(take(row, 0, 0), take(row, 0, 1)) for row in rows]


def _pack_state(words: list[Wide]) -> Node:
    return bitcast(stack([stack(word, 0) for word in words], 0), U64)


def _broadcast_word(word: Wide, lanes: int) -> Wide:
    return Wide(broadcast(word.low, (lanes,)), broadcast(word.high, (lanes,)))


def _lane_numbers(lanes: int) -> Wide:
    return Wide(iota(U32, (lanes,), 0), splat(0, U32, (lanes,)))


def _counter_carry(counter: Wide, start: Wide, lanes: int) -> Node:
    """1 where counting up from `start` overflowed 64 bits, else 0."""
    return convert(less_wide(counter, _broadcast_word(start, lanes), signed=False), U32)


def _philox(key: Wide, counter: tuple[Node, ...]) -> list[Node]:
    """Ten rounds: four words per lane."""
    s, k = list(counter), list(key)
    for _ in range(_PHILOX_ROUNDS):
        a = full_product(splat_like(_PHILOX_MULTIPLIERS[0], s[0]), s[0])
        b = full_product(splat_like(_PHILOX_MULTIPLIERS[1], s[2]), s[2])
        s = [
            apply("xor", apply("xor", b.high, s[1]), k[0]),
            b.low,
            apply("xor", apply("xor", a.high, s[3]), k[1]),
            a.low,
        ]
        k = [apply("add", word, splat_like(step, word))
             for word, step in zip(k, _PHILOX_STEPS, strict=True)]  # fmt: skip
    return s


def _three_fry(key: Wide, counter: Wide) -> tuple[Node, Node]:
    """Twenty rounds: two words per lane."""
    keys = [*key, apply("xor", apply("xor", *key), splat_like(_PARITY, key.low))]
    a, b = apply("add", counter.low, keys[0]), apply("add", counter.high, keys[1])
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            a = apply("add", a, b)
            left = apply("shift_left", b, splat_like(rotation, b))
            right = apply("shift_right_logical", b, splat_like(32 - rotation, b))
            b = apply("xor", apply("or", left, right), a)
        a = apply("add", a, keys[(group + 1) % 3])
        b = apply("add", apply("add", b, keys[(group + 2) % 3]), splat_like(group + 1, b))
    return a, b


def _words_to_elements(words: Node, result: TensorType) -> Node:
    """The first words as elements of a type."""
    count = math.prod(result.shape)
    if result.dtype.bits == 64:
        pairs = reshape(slice_along(words, 0, 0, 2 * count), (*result.shape, 2))
        return bitcast(bitcast(pairs, U64), result.dtype)
    return _truncate_words(reshape(slice_along(words, 0, 0, count), result.shape), result.dtype)


def _truncate_words(words: Node, dtype: DType) -> Node:
    """The low bits of u32 words as another integer type."""
    return bitcast(convert(words, _UNSIGNED[dtype.bits]), dtype)


def _assign_keys(graph: Graph, name: str) -> Graph:
    """The graph with every RngUniform replaced by samples from a key of its own."""
    count = 0

    def change(node: Node) -> Node | None:
        nonlocal count
        if isinstance(node, RngUniform):
            count += 1
            return _draw_samples(node, zlib.crc32(f"{name} {count} {node.result}".encode()))
        if node.region_fields:
            count += 1
            return map_regions(node, lambda region: _assign_keys(region, f"{name}.{count}"))
        return None

    changed = graph.rewrite(change)
    same = all(a is b for a, b in zip(changed.results, graph.results, strict=True))
    return graph if same else changed


def _draw_samples(op: RngUniform, key: int) -> Node:
    state = constant(np.array([key, 0]), U64)
    shape, dtype = op.result.shape, op.result.dtype
    a, b = broadcast(op.a, shape), broadcast(op.b, shape)
    if op.distribution == "normal":
        radius, angle = _unit_uniform(state, (2, *shape))
        return convert(_box_muller(radius, angle, convert(a, F32), convert(b, F32)), dtype)
    if dtype.is_float:
        (unit,) = _unit_uniform(state, (1, *shape))
        low, high = convert(a, F32), convert(b, F32)
        span = apply("subtract", high, low)
        return convert(apply("add", low, apply("multiply", span, unit)), dtype)
    bits = get(RngBits(state, TensorType(U32, shape), "default"), 1)
    if dtype is PRED:
        return apply("equal", apply("and", bits, splat_like(1, bits)), splat_like(1, bits))
    span = convert(apply("subtract", b, a), U32)
    return apply("add", a, convert(apply("remainder", bits, span), dtype))


def _unit_uniform(state: Node, shape: tuple[int, ...]) -> list[Node]:
    """Independent tensors, one per index of the first dimension, of floats in [0, 1)."""
    bits = get(RngBits(state, TensorType(U32, shape), "default"), 1)
    fraction = apply("shift_right_logical", bits, splat_like(9, bits))
    floats = bitcast(apply("or", fraction, splat_like(0x3F800000, bits)), F32)
    unit = apply("subtract", floats, splat_like(1, floats))
    return [take(unit, 0, i) for i in range(shape[0])]


def _box_muller(radius: Node, angle: Node, mean: Node, deviation: Node) -> Node:
    """Normal samples from two uniform ones (Box and Muller)."""
    inverted = apply("subtract", splat_like(1, radius), radius)
    length = apply("sqrt", apply("multiply", apply("log", inverted), splat_like(-2, radius)))
    cosine = apply("cos", apply("multiply", angle, splat_like(2 * math.pi, angle)))
    return apply("add", mean, apply("multiply", deviation, apply("multiply", length, cosine)))


RULES = rules_of(globals())
