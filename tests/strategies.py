"""Random JAX programs over the native op set, for hypothesis.

`programs()` draws a `RandomProgram`: Python source (so that a failure can be read and kept as a
test), the function that it defines, and its arguments. Whatever claims to run JAX functions
(interpreter, rewrites, compiled code) can be compared on them with `assert_agrees`.

Values stay of moderate size, and what depends on the last bit (comparisons, rounding, argmax,
float to integer) is applied only to values that every correct evaluation gives exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.steps import control, elementwise, movement, sums

FLOATS = ("float32", "float32", "float32", "bfloat16", "float16")
INTEGERS = ("int32", "int32", "uint8", "int8", "uint32")
SIZES = (1, 2, 3, 4, 5, 7, 0, 17)
# Each step adds one line: it reads values of the program so far and returns the text of a new one,
# and whether all correct evaluations agree on its bits; None where no value fits.
STEPS = (*elementwise.STEPS, *movement.STEPS, *sums.STEPS, *control.STEPS)
Made = tuple[str, bool] | None


@dataclass(frozen=True)
class Drawn:
    """A value of the program under construction. exact: all correct evaluations agree on its
    bits."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    exact: bool

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    @property
    def is_integer(self) -> bool:
        return "int" in self.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass
class RandomProgram:
    """`source` defines `f(v0, v1, ...)`, which takes `args`.

    coarsest: the float type with the fewest digits that a value has; all errors are measured in it.
    """

    source: str
    args: list[Any]
    coarsest: str
    fn: Callable[..., Any] = field(repr=False)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in map(np.asarray, self.args))
        return f"\n# arguments: {shapes}\n{self.source}"


@st.composite
def programs(
    draw: Any,
    *,
    max_steps: int = 8,
    floats: Sequence[str] = FLOATS,
    integers: Sequence[str] = INTEGERS,
) -> RandomProgram:
    """A random program with one to three array arguments and a scalar index."""
    builder = Builder(draw, list(floats), list(integers))
    for _ in range(draw(st.integers(1, 3))):
        builder.argument()
    builder.index_argument()
    for _ in range(draw(st.integers(1, max_steps))):
        builder.step()
    return builder.finish()


def evaluate(program: RandomProgram) -> list[np.ndarray]:
    """What JAX gives."""
    return [np.asarray(x) for x in jax.jit(program.fn)(*program.args)]


# What a few roundings in a type do to values of moderate size, relative to the greatest of them.
_ROUNDING = {"float32": 2e-4, "float16": 6e-3, "bfloat16": 4e-2}


def assert_agrees(program: RandomProgram, actual: Sequence[Any], expected: Sequence[Any]) -> None:
    """Integers equal; floats within what a few roundings in the coarsest type of the program do.

    expected may be in float64 where actual is narrower.
    """
    tolerance = _ROUNDING[program.coarsest]
    assert len(actual) == len(expected)
    for ours, theirs in zip(map(np.asarray, actual), map(np.asarray, expected), strict=True):
        assert ours.shape == theirs.shape
        if ours.dtype.kind in "biu":
            np.testing.assert_array_equal(ours, theirs)
            continue
        wide, reference = ours.astype(np.float64), theirs.astype(np.float64)
        finite = np.abs(reference[np.isfinite(reference)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        np.testing.assert_allclose(wide, reference, rtol=tolerance, atol=tolerance * scale)


class Builder:
    def __init__(self, draw: Any, floats: list[str], integers: list[str]) -> None:
        self.draw, self.floats, self.integers = draw, floats, integers
        self.values: list[Drawn] = []
        self.lines: list[str] = []
        self.args: list[Any] = []
        self.scope: dict[str, Any] = {"jax": jax, "jnp": jnp, "lax": lax, "np": np}

    # -------------------------------------------------------------- arguments

    def argument(self) -> None:
        dtype = self.choose([*self.floats, *self.integers[:3], "bool"])
        shape = tuple(self.draw(st.lists(st.sampled_from(SIZES), max_size=3)))
        seed = self.draw(st.integers(0, 99))
        self.add_argument(_numbers(np.random.default_rng(seed), shape, dtype), dtype)

    def index_argument(self) -> None:
        self.index = f"v{len(self.values)}"
        self.add_argument(np.int32(self.draw(st.integers(-3, 6))), "int32")

    def add_argument(self, array: Any, dtype: str) -> None:
        self.args.append(array)
        self.values.append(Drawn(f"v{len(self.values)}", array.shape, dtype, True))

    # ------------------------------------------------------------------ steps

    def step(self) -> None:
        make = self.choose(STEPS)
        made = make(self)
        if made is None:  # nothing so far that this op can read
            return
        text, exact = made
        types = {v.name: jax.ShapeDtypeStruct(v.shape, v.dtype) for v in self.values}
        result = jax.eval_shape(
            lambda values: eval(text, self.scope, values),
            types,
        )
        if math.prod(result.shape) > 4000 or result.ndim > 5:
            return
        name = f"v{len(self.values)}"
        self.lines.append(f"{name} = {text}")
        self.values.append(Drawn(name, result.shape, result.dtype.name, exact))

    def finish(self) -> RandomProgram:
        count = len(self.args)
        made = self.values[count:] or self.values[:1]
        results = {made[-1].name, *(self.choose(made).name for _ in range(2))}
        arguments = ", ".join(v.name for v in self.values[:count])
        body = [
            f"def f({arguments}):",
            *(f"    {line}" for line in self.lines),
            f"    return [{', '.join(sorted(results))}]",
        ]
        source = "\n".join(body)
        scope = dict(self.scope)
        exec(source, scope)
        present = {v.dtype for v in self.values}
        coarsest = next((t for t in ("bfloat16", "float16") if t in present), "float32")
        return RandomProgram(source, self.args, coarsest, scope["f"])

    # ---------------------------------------------------------------- choices

    def choose(self, items: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(items)))

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, max(low, high)))

    def value(self, accept: Callable[[Drawn], bool] = lambda v: True) -> Drawn | None:
        """A value, later ones first, so that programs become deep."""
        fitting = [v for v in reversed(self.values) if accept(v)]
        return self.choose(fitting) if fitting else None

    def axis(self, x: Drawn) -> int:
        return self.integer(0, x.rank - 1)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith("uint"):
        return rng.integers(0, 9, shape).astype(dtype)
    if dtype.startswith("int"):
        return rng.integers(-8, 9, shape).astype(dtype)
    return (rng.integers(-12, 13, shape) / 4).astype(jnp.dtype(dtype))
