"""Threefry 2x32: Random123's counter-based random bits (Salmon et al. 2011), as loop-nest IR.

Input: two words of key and two of a counter, u32. Output: one of the two words of random bits.
Invariant: both words of a place come from one call, which computes them together, since equal calls
are one; a kernel has the rounds once however often it draws.
"""

from __future__ import annotations

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Type, Value
from stagejit.codegen.ir.shared_code import called

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry(b: Builder, key0: Value, key1: Value, x0: Value, x1: Value, word: int) -> Value:
    """Random word 0 or 1 of a key and a counter."""
    both = called(b, "threefry2x32", (key0, key1, x0, x1), _both_words, "long")
    lanes = x0.type.lanes
    if not lanes:
        return b.extract(both, word)
    return b.shuffle(both, None, range(word * lanes, (word + 1) * lanes))


def _both_words(b: Builder, key0: Value, key1: Value, x0: Value, x1: Value) -> Value:
    """The words side by side, as one vector."""
    keys = (key0, key1, key0 ^ key1 ^ PARITY)
    x0, x1 = x0 + key0, x1 + key1
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = _rotated(b, x1, distance) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + (group + 1)
    lanes = x0.type.lanes
    if lanes:
        return b.shuffle(x0, x1, range(2 * lanes))
    pair = b.const(0, Type("i32", 2))
    return b.insert(b.insert(pair, x0, 0), x1, 1)


def _rotated(b: Builder, x: Value, distance: int) -> Value:
    return (x << distance) | (x >> (32 - distance))
