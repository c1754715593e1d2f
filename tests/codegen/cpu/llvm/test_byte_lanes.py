"""Bytes that change places across a register: LLVM comes to an end with what we write, and the
values are those of the interpreter."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.codegen.cpu.llvm.lower import lower
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.interpreter.run import interpret
from stagejit.codegen.ir.nodes import Function, Type, Value
from stagejit.codegen.ir.verifier import verify
from stagejit.codegen.target import Target
from tests.codegen.conftest import assembly
from tests.randomness import RNG

BYTE = Type("i8")
WITHOUT = Target.avx512()
WITH = replace(WITHOUT, features=f"{WITHOUT.features},+avx512vbmi")
TARGETS = {"without": WITHOUT, "with": WITH}
PERMUTED, SHUFFLED, FENCE = "llvm.x86.avx512.permvar.qi.512", "shufflevector", 'asm ""'
PATIENCE_SECONDS = 120


def places(rng: random.Random, lanes: int, room: int) -> list[int]:
    """Where each of `lanes` lanes comes from among `room`, the last ones perhaps from nowhere."""
    few = rng.choice((2, 3, 4, 5, 8, 16, 32))
    first = rng.choice((0, 0, 0, 1, rng.randrange(room)))
    ways: list[Callable[[int], int]] = [
        lambda k: k // few, lambda k: k % few, lambda k: k * few, lambda k: room - 1 - k,
        lambda k: k, lambda k: k // few * few, lambda k: rng.randrange(room), lambda k: k ^ few,
        lambda k: k % few * max(1, room // few) + k // few,
        lambda k: k // few + room // 2 * (k % 2),
    ]  # fmt: skip
    way, known = rng.choice(ways), rng.choice((lanes, lanes, lanes * 3 // 4, lanes // 3 + 1))
    return [(way(k) + first) % room if k < known else -1 for k in range(lanes)]


def kernel(seed: int) -> tuple[Function, int]:
    """Shuffles of bytes with arithmetic before, between and behind them; and lanes of a load."""
    rng = random.Random(seed)
    b = Builder()
    buffers = [b.buffer(name, BYTE, readonly=name != "z") for name in "xyz"]
    source = rng.choice((8, 16, 32, 64, 64, 64, 128))
    result = rng.choice((16, 32, 64, 64, 64, 128))
    x, y = (b.load(each, b.lo, source) for each in buffers[:2])
    if rng.random() < 0.6:
        x, y = (
            b.binary(rng.choice(("xor", "add")), each, rng.choice((1, 3, x))) for each in (x, y)
        )
    of_two = rng.random() < 0.3
    lanes = places(rng, result, 2 * source if of_two else source)
    defined = [max(lane, 0) for lane in lanes]
    found = [
        b.shuffle(x, y if of_two else None, defined),
        b.shuffle(y, x if of_two else None, defined),
    ]
    made = b.binary(rng.choice(("xor", "and", "sub")), *found)
    if rng.random() < 0.4:
        again = places(rng, result, result)
        made = b.binary("add", b.shuffle(made, None, [max(lane, 0) for lane in again]), 5)
    b.store(made, buffers[2], b.lo)
    verify(b.finish())
    return b.finish(), max(source, result)


def compile_all(seeds: Sequence[int]) -> None:
    """Says which it begins with: where it never ends, that one was too much."""
    for seed in seeds:
        for name, target in TARGETS.items():
            print(seed, name, flush=True)
            assembly(kernel(seed)[0], target)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_llvm_comes_to_an_end(first: int) -> None:
    """In a process of its own, which can be ended."""
    text = f"from {__name__} import compile_all; compile_all(range({first}, {first + 100}))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        begun = (error.stdout or b"").decode().split("\n")
        pytest.fail(f"LLVM has not ended seed and target {begun[-2:]}")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("seed", range(40))
def test_machine_code_is_what_is_interpreted(seed: int, compile_kernel: Callable[..., Any]) -> None:
    function, count = kernel(seed)
    x, y, z = RNG.integers(0, 256, (3, count)).astype(np.int8)
    found = z.copy()
    compile_kernel(function)([x, y, found], [], 0, 1)
    interpret(function, [x, y, z])
    np.testing.assert_array_equal(found, z)


def text_of(made: Callable[[Builder, Value, Value], Value], target: Target, lanes: int = 64) -> str:
    b = Builder()
    x, y, z = (b.buffer(name, BYTE, readonly=name != "z") for name in "xyz")
    b.store(made(b, b.load(x, b.lo, lanes), b.load(y, b.lo, lanes)), z, b.lo)
    return lower(b.finish(), "k", target)


def twice(b: Builder, x: Value, y: Value) -> Value:
    return b.shuffle(x, None, [k // 2 for k in range(x.type.lanes)])


def test_it_is_an_instruction_where_there_is_one() -> None:
    text = text_of(twice, WITH)
    assert PERMUTED in text
    assert SHUFFLED not in text
    assert FENCE not in text


def test_elsewhere_nothing_moves_across_a_shuffle() -> None:
    text = text_of(twice, WITHOUT)
    assert PERMUTED not in text
    assert text.count(SHUFFLED) == 1
    assert text.count(FENCE) == 2


@pytest.mark.parametrize("target", [Target.avx2(), Target.sse2(), WITH.with_short_vectors])
def test_dont_where_registers_are_shorter(target: Target) -> None:
    text = text_of(twice, target)
    assert PERMUTED not in text
    assert FENCE not in text


def test_dont_within_128_bits() -> None:
    text = text_of(lambda b, x, y: b.shuffle(x, None, [k ^ 1 for k in range(64)]), WITH)
    assert PERMUTED not in text
    assert FENCE not in text


def test_dont_of_two_registers() -> None:
    text = text_of(lambda b, x, y: b.shuffle(x, y, [k // 2 + k % 2 * 64 for k in range(64)]), WITH)
    assert PERMUTED not in text
    assert FENCE not in text


def test_dont_for_fewer_bytes() -> None:
    assert PERMUTED not in text_of(twice, WITH, lanes=32)


def test_dont_for_words() -> None:
    b = Builder()
    x, z = (b.buffer(name, Type("i16"), readonly=name == "x") for name in "xz")
    b.store(twice(b, b.load(x, b.lo, 32), b.lo), z, b.lo)
    text = lower(b.finish(), "k", WITH)
    assert PERMUTED not in text
    assert FENCE not in text


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.bool_])
@pytest.mark.parametrize("columns", [2, 3, 4, 5, 8, 16])
def test_images_of_bytes(columns: int, dtype: Any) -> None:
    """What is the same for all columns, and for all rows, of few columns."""
    x, y = RNG.integers(0, 2 if dtype is np.bool_ else 256, (2, 23)).astype(dtype)
    u, v = x[:columns], y[:columns]

    def f(x: Any, y: Any, u: Any, v: Any) -> Any:
        return (x[:, None] ^ y[:, None]) & (u ^ v), jnp.repeat(x ^ dtype(1), columns)

    both, repeated = stagejit.jit(f)(x, y, u, v)
    np.testing.assert_array_equal(both, (x[:, None] ^ y[:, None]) & (u ^ v))
    np.testing.assert_array_equal(repeated, np.repeat(x ^ dtype(1), columns))
