"""XLA's counter-based random bits: takes a generator's state, hands on (new state, bits).

Threefry 2x32 with 20 rounds and Philox 4x32 with 10 (Salmon et al., SC 2011).  What XLA adds is how
the counters are laid over the result: Threefry interleaves the two words of a block along one dimension of the result.
Philox writes the four words of a block one after the other.
"""

from __future__ import annotations

import math

import numpy as np

THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
THREEFRY_PARITY = 0x1BD11BDA

PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)

_LOW = np.uint64(0xFFFFFFFF)


def _split(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """u64 -> (low, high) u32."""
    return (words & _LOW).astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)


def _join(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


def threefry2x32(
    key: tuple[np.ndarray, np.ndarray], counter: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """One block of Threefry 2x32 for each element.  key, counter, result: pairs of u32 arrays."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(THREEFRY_PARITY))
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in THREEFRY_ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def philox4x32(
    key: tuple[np.ndarray, np.ndarray], counter: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, ...]:
    """One block of Philox 4x32 for each element.  key: 2, counter and result: 4 u32 arrays."""
    k0, k1 = key
    a, b, c, d = counter
    first, second = map(np.uint64, PHILOX_MULTIPLIERS)
    for _ in range(PHILOX_ROUNDS):
        low0, high0 = _split(a.astype(np.uint64) * first)
        low1, high1 = _split(c.astype(np.uint64) * second)
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
        k0, k1 = k0 + np.uint32(PHILOX_WEYL[0]), k1 + np.uint32(PHILOX_WEYL[1])
    return a, b, c, d


def choose_threefry_axis(shape: tuple[int, ...]) -> int:
    """The dimension along which the words of a block lie beside each other, in a result of 32-bit elements."""
    even = [d for d, extent in enumerate(shape) if extent % 2 == 0]
    return even[0] if even else shape.index(max(shape))


def generate_threefry_bits(
    state: np.ndarray, shape: tuple[int, ...], bytes_per_element: int
) -> tuple[np.ndarray, np.ndarray]:
    """state: u64[2] = (key, counter).  Bits: u32, or u64 for 8-byte elements, of `shape`."""
    with np.errstate(over="ignore"):
        key = _split(state[:1])
        if bytes_per_element == 8:
            count = math.prod(shape)
            counters = state[1:] + np.arange(count, dtype=np.uint64)
            bits = _join(*threefry2x32(key, _split(counters))).reshape(shape)
        else:
            full = shape or (2,)
            axis = choose_threefry_axis(full)
            half = tuple((e + 1) // 2 if d == axis else e for d, e in enumerate(full))
            count = math.prod(half)
            counters = state[1:] + np.arange(count, dtype=np.uint64)
            words = [w.reshape(half) for w in threefry2x32(key, _split(counters))]
            pairs = np.stack(words, axis + 1)
            merged = pairs.reshape(tuple(2 * e if d == axis else e for d, e in enumerate(half)))
            bits = merged[tuple(slice(e) for e in full)] if shape else merged[0]
        return np.array([state[0], state[1] + np.uint64(count)]), np.asarray(bits)


def generate_philox_bits(
    state: np.ndarray, shape: tuple[int, ...], bytes_per_element: int
) -> tuple[np.ndarray, np.ndarray]:
    """state: u64[3] = (key, counter low, high).  Bits: u32 (u64 for 8 bytes) of `shape`."""
    with np.errstate(over="ignore"):
        count = math.prod(shape)
        blocks = -(-count * (2 if bytes_per_element == 8 else 1) // 4)
        low = state[1] + np.arange(blocks + 1, dtype=np.uint64)
        high = state[2] + (low < state[1])
        words = philox4x32(_split(state[:1]), (*_split(low[:-1]), *_split(high[:-1])))
        if bytes_per_element == 8:
            words = (_join(words[0], words[1]), _join(words[2], words[3]))
        bits = np.stack(words, 1).reshape(-1)[:count].reshape(shape)
        return np.array([state[0], low[-1], high[-1]]), bits
