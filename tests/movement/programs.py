"""Random programs that move data: pads, concatenations, slices, updates, and what computes or reads
the moved values.

`movements()` draws a `Movement`: Python source over a vocabulary (see `vocabulary.py`), arguments,
which of them are donated, and options. Values stay within a few times those of the arguments, so
that float32 and float64 can be compared; `exact` results were only moved.
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

from stagejit.options import SWITCHES, Options
from tests.movement.vocabulary import Array, Jax, Numpy, meant
from tests.strategies import Drawn

SIZES = (1, 2, 3, 4, 5, 8, 17, 33)
DTYPES = ("float32", "float32", "float32", "float32", "bfloat16", "int32", "int8", "bool")
LARGEST = 4000  # elements


@dataclass
class Movement:
    """`source` defines `f(m, a0, a1, ...)`, which returns `results`."""

    source: str
    args: list[Any]
    results: list[Drawn]
    coarsest: str
    donated: tuple[int, ...]
    options: Options
    program: Callable[..., Any] = field(repr=False)

    def fn(self, *args: Any) -> Any:
        """The program for JAX."""
        return self.program(Jax, *args)

    def expected(self) -> list[Array]:
        """What it means, in NumPy."""
        with np.errstate(all="ignore"):
            args = [np.asarray(x).astype(meant(x.dtype)) for x in self.args]
            return [np.asarray(x) for x in self.program(Numpy, *args)]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in self.args)
        return f"\n# {shapes}, donated {self.donated}\n# {self.options}\n{self.source}"


@st.composite
def movements(draw: Any, *, steps: tuple[int, int] = (5, 12)) -> Movement:
    """A random program of so many steps, with one to three arrays and an index as arguments."""
    builder = Builder(draw)
    for _ in range(draw(st.integers(1, 3))):
        builder.argument()
    builder.add_argument(np.int32(draw(st.integers(-3, 6))))
    for _ in range(draw(st.integers(*steps))):
        builder.step()
    return builder.finish()


def assert_means(program: Movement, results: Sequence[Any], expected: Sequence[Array]) -> None:
    """What was only moved is equal; the rest within a few roundings of its type."""
    tolerance = {"float32": 2e-5, "bfloat16": 4e-2}[program.coarsest]
    for item, got, want in zip(program.results, map(np.asarray, results), expected, strict=True):
        assert (got.dtype.name, got.shape) == (item.dtype, item.shape)
        got = got.astype(want.dtype)
        if item.exact or not item.is_float:
            np.testing.assert_array_equal(got, want)
        else:
            scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
            np.testing.assert_allclose(got, want, tolerance, tolerance * scale)


Step = Callable[["Builder"], tuple[str, bool] | None]


class Builder:
    """Adds one line after the other. All arguments of a program are close to one base shape, so
    that its values fit together."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.items: list[Drawn] = []
        self.lines: list[str] = []
        self.args: list[Any] = []
        self.scope: dict[str, Any] = {"np": np}
        rank = draw(st.sampled_from((1, 2, 2, 3, 3, 4, 4)))
        self.base = tuple(draw(st.sampled_from(SIZES)) for _ in range(rank))
        while math.prod(self.base) > LARGEST // 4:
            self.base = tuple((n + 1) // 2 for n in self.base)
        self.dtypes = draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=2))

    # -------------------------------------------------------------- arguments

    def argument(self) -> None:
        shape = list(self.base)
        if self.chance(2):
            shape[self.integer(0, len(shape) - 1)] = self.choose((*SIZES[:6], 0))
        self.array(tuple(shape), self.choose(self.dtypes))

    def array(self, shape: tuple[int, ...], dtype: str) -> Drawn:
        rng = np.random.default_rng(self.integer(0, 99))
        numbers = rng.integers(0, 2, shape) if dtype == "bool" else rng.integers(-8, 9, shape)
        scaled = numbers / 4 if "float" in dtype else numbers
        return self.add_argument(np.asarray(scaled).astype(jnp.dtype(dtype)))

    def add_argument(self, array: Any) -> Drawn:
        item = Drawn(f"a{len(self.args)}", array.shape, array.dtype.name, True)
        self.args.append(array)
        self.items.append(item)
        return item

    # ------------------------------------------------------------------ steps

    def step(self) -> None:
        from tests.movement.steps import STEPS

        made = self.choose(STEPS)(self)
        if made is None:  # no value that this step can read
            return
        text, exact = made
        names = ", ".join(item.name for item in self.items)
        line = eval(f"lambda m, {names}: {text}", self.scope)
        types = [jax.ShapeDtypeStruct(item.shape, item.dtype) for item in self.items]
        result = jax.eval_shape(lambda *values: line(Jax, *values), *types)
        if math.prod(result.shape) > LARGEST or result.ndim > 5:
            return
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.items.append(Drawn(name, result.shape, result.dtype.name, exact))

    def finish(self) -> Movement:
        made = [item for item in self.items if item.name.startswith("v")] or self.items
        results = [made[-1], *(self.choose(made) for _ in range(self.integer(0, 3)))]
        if self.chance(5):
            results.append(self.choose(self.items))  # an argument, or one twice
        names = ", ".join(f"a{number}" for number in range(len(self.args)))
        lines = [
            f"def f(m, {names}):",
            *self.lines,
            f"return [{', '.join(item.name for item in results)}]",
        ]
        source = "\n    ".join(lines)
        exec(source, self.scope)
        donated = tuple(n for n in range(len(self.args)) if self.chance(3))
        types = {item.dtype for item in self.items}
        return Movement(
            source,
            self.args,
            results,
            "bfloat16" if "bfloat16" in types else "float32",
            donated,
            self.options(),
            self.scope["f"],
        )

    def options(self) -> Options:
        switched_off = st.sets(st.sampled_from(sorted(SWITCHES)), max_size=4)
        return Options(
            disable=tuple(self.draw(switched_off)) if self.chance(2) else (),
            verify=self.chance(2),
            full_barriers=self.chance(12),
            operand_limit=self.choose((16, 16, 16, 4, 2)),
            cache_dir="",
        )

    # ---------------------------------------------------------------- choices

    def choose(self, items: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(items)))

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, max(low, high)))

    def chance(self, of: int) -> bool:
        """One in `of`; no, as failures shrink."""
        return self.integer(0, of - 1) == of - 1

    def item(self, accept: Callable[[Drawn], bool] = lambda item: True) -> Drawn | None:
        fitting = [item for item in reversed(self.items) if accept(item)]
        return self.choose(fitting) if fitting else None

    def array_item(self, accept: Callable[[Drawn], bool] = lambda item: True) -> Drawn | None:
        return self.item(lambda item: item.rank > 0 and accept(item))

    def index(self) -> str:
        """A scalar that is not known before the program runs, or is."""
        scalars = [i.name for i in self.items if i.shape == () and i.dtype == "int32" and i.exact]
        return self.choose([*scalars, "0", "1", "2"])

    def starts(self, rank: int) -> str:
        return "(" + "".join(f"{self.index()}, " for _ in range(rank)) + ")"

    def fitting(self, shape: tuple[int, ...], dtype: str) -> tuple[str, bool]:
        """An expression for a value of that shape: a part of another one, computed or not."""

        def holds(item: Drawn) -> bool:
            return (
                item.dtype == dtype
                and item.rank == len(shape)
                and all(a >= b for a, b in zip(item.shape, shape, strict=True))
            )

        x = self.item(holds)
        if x is None or self.chance(4):
            return f"m.full({shape}, 1, '{dtype}')", True
        offsets = [self.integer(0, a - b) for a, b in zip(x.shape, shape, strict=True)]
        cut = ", ".join(f"{o}:{o + n}" for o, n in zip(offsets, shape, strict=True))
        text = x.name if x.shape == shape else f"{x.name}[{cut}]"
        if x.is_float and self.chance(3):
            return f"m.tanh({text})", False
        return text, x.exact
