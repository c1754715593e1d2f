"""Constants of sums go outwards: random index arithmetic, loops whose ends are a constant apart."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import I64, Value

Run = Callable[..., None]
ENDS = (0, 1, -1, 2, 3, 48, -7, 2**31, 2**62, 2**63 - 1, -(2**63))


def wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def random_sum(rng: random.Random, b: Builder, known: list[tuple[Value, int]]) -> tuple[Value, int]:
    """A sum, a difference or a product of what is known, or of that and a number."""
    opcode = rng.choice(("add", "add", "sub", "mul"))
    sides = [rng.choice(known) for _ in range(2)]
    if rng.random() < 0.6:
        number = rng.choice(ENDS)
        sides[rng.randrange(2)] = b.const(number), number
    (x, one), (y, other) = sides
    numbers = {"add": one + other, "sub": one - other, "mul": one * other}
    return b.binary(opcode, x, y), wrapped(numbers[opcode])


@pytest.mark.parametrize("seed", range(40))
def test_regrouped_sums_are_what_the_machine_computes(run_kernel: Run, seed: int) -> None:
    rng = random.Random(seed)
    b = Builder()
    given, out = b.buffer("x", I64, readonly=True), b.buffer("out", I64)
    numbers = [rng.choice((*ENDS, rng.randrange(-(2**63), 2**63))) for _ in range(3)]
    known = [(b.load(given, at), number) for at, number in enumerate(numbers)]
    for _ in range(30):
        known.append(random_sum(rng, b, known))
    for at, (value, _) in enumerate(known):
        b.store(value, out, at)
    found = np.zeros(len(known), np.int64)
    run_kernel(b.finish(), [np.array(numbers, np.int64), found], [], 0, 1)
    assert list(found) == [number for _, number in known]


def test_what_is_a_constant_apart_shares_the_rest() -> None:
    b = Builder()
    x, y = b.param(), b.param()
    first = x * 8 + y
    for row, more in ((0, 0), (1, 8), (7, 56)):
        found = (x + row) * 8 + (y + 0)
        assert found is (first + more)
    assert ((x + 3) - x).const == 3
    assert (x + 8) - (x + 8) is b.const(0)
    assert (x + y) - y is x
    assert (x + y) - x is y
    assert (x - y) + y is x
    assert (x * 2) * 16 is x * 32
    assert (5 - x) is not (x - 5)


def test_lanes_are_not_regrouped() -> None:
    """What is data is computed in the order that the program has."""
    b = Builder()
    x = b.splat(b.param(), 4)
    made = (x + 1) * 8
    assert made.op is not None
    assert made.op.opcode == "mul"


@pytest.mark.parametrize("step", [1, 3, 16, -1, -4])
@pytest.mark.parametrize("length", [-3, 0, 1, 2, 4, 15, 16, 17])
def test_loops_whose_ends_are_a_constant_apart(run_kernel: Run, step: int, length: int) -> None:
    b = Builder()
    start, out = b.param(), b.buffer("out", I64)

    def body(i: Value, count: Value) -> list[Value]:
        b.store(i, out, count)
        return [count + 1]

    stop = start + (length if step > 0 else -length)
    (count,) = b.loop(start, stop, step, [b.const(0)], body)
    b.store(count, out, 31)
    found = np.full(32, -1, np.int64)
    wanted = list(range(40, 40 + (length if step > 0 else -length), step))
    function = b.finish()
    loops = [op for op in function.walk() if op.opcode == "for"]
    assert len(loops) == (len(wanted) > 1)
    assert all(op.attrs["runs"] for op in loops)
    run_kernel(function, [found], [40], 0, 1)
    assert list(found) == [*wanted, *[-1] * (31 - len(wanted)), len(wanted)]
