"""Counter-based random generators, bit for bit as XLA expands `rng-bit-generator`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_PHILOX_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_THREE_FRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(state: Array, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Array, Array]:
    """New state and bits of Philox 4x32-10; state is u64[2] or u64[3]: key, counter (low, high).

    Without a high half, the counter starts with the key as its high half, as in XLA's expansion.
    """
    count = math.prod(shape)
    lanes = -(-count * max(1, dtype.itemsize // 4) // 4)
    key, low = state[0], state[1]
    high = state[-1] if len(state) > 2 else key
    index = np.arange(lanes, dtype=np.uint64)
    with np.errstate(over="ignore"):
        counter = low + index
        upper = high + (counter < index).astype(np.uint64)
        words = _philox_words(key, counter, upper)
        new_low = low + np.uint64(lanes)
        new_high = high + np.uint64(new_low < low)
    new = state.copy()
    new[1] = new_low
    if len(state) > 2:
        new[2] = new_high
    return new, _words_to_elements(words.reshape(-1), shape, dtype)


def _philox_words(key: Any, low: Array, high: Array) -> Array:
    """Ten rounds on counters (low, high): uint32[lanes, 4]."""
    s = [low & _LOW, low >> _HALF, high & _LOW, high >> _HALF]
    k = [int(key) & 0xFFFFFFFF, int(key) >> 32]
    for _ in range(10):
        a, b = _PHILOX_MULTIPLIERS[0] * s[0], _PHILOX_MULTIPLIERS[1] * s[2]
        s = [
            (b >> _HALF) ^ s[1] ^ np.uint64(k[0]),
            b & _LOW,
            (a >> _HALF) ^ s[3] ^ np.uint64(k[1]),
            a & _LOW,
        ]
        k = [(part + step) & 0xFFFFFFFF for part, step in zip(k, _PHILOX_KEY_STEPS, strict=True)]
    return np.stack(s, axis=-1).astype(np.uint32)


def three_fry(state: Array, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Array, Array]:
    """New state and bits of ThreeFry 2x32-20; state is u64[2]: key, counter."""
    if dtype.itemsize == 8:
        lanes, split = math.prod(shape), -1
        half = shape
    else:
        half, split = halves(shape)
        lanes = math.prod(half)
    with np.errstate(over="ignore"):
        counter = state[1] + np.arange(lanes, dtype=np.uint64)
        first, second = _three_fry_words(state[0], counter)
        new = np.array([state[0], state[1] + np.uint64(lanes)], np.uint64)
    if split < 0:
        wide = first.astype(np.uint64) | second.astype(np.uint64) << _HALF
        return new, wide.reshape(shape).astype(dtype)
    pairs = np.stack([first.reshape(half), second.reshape(half)], axis=split + 1)
    words = pairs.reshape(*half[:split], 2 * half[split], *half[split + 1 :])
    kept = np.take(words, np.arange(shape[split] if shape else 1), axis=split)
    return new, kept.reshape(shape).astype(dtype)


def halves(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The shape halved along its first even dimension, else along its largest."""
    if not shape:
        return (1,), 0
    even = [d for d, extent in enumerate(shape) if extent % 2 == 0]
    split = even[0] if even else max(range(len(shape)), key=lambda d: (shape[d], -d))
    return (*shape[:split], -(-shape[split] // 2), *shape[split + 1 :]), split


def _three_fry_words(key: Any, counter: Array) -> tuple[Array, Array]:
    """Twenty rounds on 64-bit counters: two uint32 words each."""
    keys = [np.uint32(int(key) & 0xFFFFFFFF), np.uint32(int(key) >> 32)]
    keys.append(keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA))
    a = (counter & _LOW).astype(np.uint32) + keys[0]
    b = (counter >> _HALF).astype(np.uint32) + keys[1]
    for group in range(5):
        for rotation in _THREE_FRY_ROTATIONS[group % 2]:
            a = a + b
            b = (b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation))
            b = b ^ a
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def _words_to_elements(words: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """The first words as elements of the shape; narrow elements keep the low bits of a word."""
    count = math.prod(shape)
    if dtype.itemsize == 8:
        pairs = words.astype(np.uint64).reshape(-1, 2)
        words = pairs[:, 0] | pairs[:, 1] << _HALF
    return words[:count].astype(dtype).reshape(shape)
