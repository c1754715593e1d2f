"""`Draft`: a program under construction, statement by statement.

Input: a generator of random numbers and which features programs may use. Output: lines of Python,
and for every name in scope its shape, type and whether every correct evaluation gives it exactly.
Invariant: the shapes of a statement's results come from JAX itself (`jax.eval_shape`); a statement
that JAX refuses leaves no trace.

Note [Exact]: what depends on the last bit (comparisons, rounding, argmax, float to integer) is
applied to exact values only: integers, and small numbers that were added, compared and moved. So
two correct evaluations cannot disagree by more than roundings. What slips through (a sum that
outgrows its type) is told apart afterwards, see `verdicts.py`.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

# The names that the text of a program may use besides its own.
NAMES: dict[str, Any] = {
    "jax": jax,
    "jnp": jnp,
    "np": np,
    "lax": lax,
    "io_callback": io_callback,
}

MOST_ELEMENTS = 2048
MOST_FAILURES = 12  # statements in a row that JAX refuses
_struct: Any = jax.ShapeDtypeStruct  # not annotated
_WORD = re.compile(r"\b[a-z]+\d+\b")


@dataclass(frozen=True)
class Known:
    """A name in scope. dtype: as JAX prints it, `key<fry>` for typed keys. exact: see Note
    [Exact]."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    exact: bool

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_key(self) -> bool:
        return self.dtype.startswith("key")

    @property
    def is_float(self) -> bool:
        """A float that can be computed with."""
        return self.dtype in ("float32", "float64", "bfloat16", "float16")

    @property
    def is_integer(self) -> bool:
        return self.dtype.lstrip("u") in ("int8", "int16", "int32", "int64")

    @property
    def is_signed(self) -> bool:
        return self.is_integer and not self.dtype.startswith("u")

    @property
    def is_bool(self) -> bool:
        return self.dtype == "bool"

    @property
    def is_complex(self) -> bool:
        return self.dtype.startswith("complex")

    @property
    def is_plain(self) -> bool:
        """What every step of movement takes."""
        return self.is_float or self.is_integer or self.is_bool

    def struct(self) -> Any:
        if self.is_key:
            return _struct(self.shape, jax.random.key(0).dtype)
        return _struct(self.shape, jnp.dtype(self.dtype))


def a_number(name: str) -> str:
    """An array without its NaNs, for what sees their bits: nobody says which these are."""
    return f"jnp.where(jnp.isnan({name}), 1, {name})"


class Refused(Exception):
    """A statement that JAX does not take, or a draw that found nothing to work on."""


@dataclass
class Draft:
    """See the module's docstring. depth: how many functions the current lines are nested in."""

    rng: random.Random
    features: frozenset[str]
    x64: bool
    steps: Sequence[tuple[float, Callable[[Draft], None]]] = ()
    scope: dict[str, Known] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    depth: int = 0
    count: list[int] = field(default_factory=lambda: [0])

    # ------------------------------------------------------------------ names

    def fresh(self, letter: str = "v") -> str:
        self.count[0] += 1
        return f"{letter}{self.count[0]}"

    def pick(self, wanted: Callable[[Known], bool] = lambda known: known.is_plain) -> Known:
        """A name in scope, late ones more often."""
        found = [known for known in self.scope.values() if wanted(known)]
        if not found:
            raise Refused("nothing in scope")
        # Those of a body are few among all that it could read.
        at = max(self.rng.randrange(len(found)) for _ in range(3 if self.depth else 2))
        return found[at]

    def without_elements(self) -> Known:
        """An array of no elements, made where there is none."""
        try:
            return self.pick(lambda known: known.is_plain and known.size == 0)
        except Refused:
            dtype, n = self.rng.choice(("float32", "int32", "bool")), self.rng.randint(1, 3)
            shape = self.rng.choice(((0,), (0, n), (n, 0)))
            self.let(f"jnp.zeros({shape}, jnp.{dtype})", True)
            return self.scope[next(reversed(self.scope))]

    def like(self, known: Known, *, exact: bool = False) -> Known:
        """Another value that goes with `known` elementwise: of its type, of a shape that
        broadcasts."""

        def goes(other: Known) -> bool:
            if other.dtype != known.dtype or (exact and not other.exact):
                return False
            try:
                shape = np.broadcast_shapes(other.shape, known.shape)
            except ValueError:
                return False
            return math.prod(shape) <= MOST_ELEMENTS

        return self.pick(goes)

    # ------------------------------------------------------------------ statements

    def let(
        self, expression: str, exact: bool, before: Sequence[str] = (), results: int = 1
    ) -> None:
        """`v7 = expression`, after the lines `before` (definitions of functions)."""
        targets = [self.fresh() for _ in range(results)]
        line = f"{', '.join(targets)} = {expression}"
        found = self.infer([*before, line], targets)
        for target, aval in zip(targets, found, strict=True):
            self.scope[target] = Known(target, tuple(aval.shape), str(aval.dtype), exact)
        self.lines += [*before, line]

    def infer(self, lines: Sequence[str], results: Sequence[str]) -> list[Any]:
        """What the lines would give, by JAX."""
        text = "\n".join(lines)
        words = dict.fromkeys((*_WORD.findall(text), *results))
        read = [word for word in words if word in self.scope]
        body = "\n".join(f"    {line}" for line in text.split("\n"))
        source = f"def probe({', '.join(read)}):\n{body}\n    return [{', '.join(results)}]"
        made: dict[str, Any] = {}
        exec(source, dict(NAMES), made)
        try:
            avals = jax.eval_shape(made["probe"], *(self.scope[name].struct() for name in read))
        except Exception as error:
            raise Refused(str(error)) from None
        for aval in avals:
            if not hasattr(aval, "shape") or math.prod(aval.shape) > MOST_ELEMENTS:
                raise Refused("too large")
        return list(avals)

    def step(self) -> None:
        """One more statement of any kind."""
        weights = [weight for weight, _ in self.steps]
        for _ in range(MOST_FAILURES):
            _, take = self.rng.choices(self.steps, weights)[0]
            lines, names = len(self.lines), len(self.scope)
            try:
                take(self)
            except Refused:
                del self.lines[lines:]
                self.scope = dict([*self.scope.items()][:names])
            else:
                return

    # ------------------------------------------------------------------ functions

    @contextmanager
    def function(self, name: str, params: Sequence[Known]) -> Iterator[list[str]]:
        """Statements written inside become the body of a function `name`; the list that it gives is
        filled with the definition's lines at the end. The body reads what is in scope outside."""
        outer, lines = self.scope, self.lines
        self.scope = outer | {param.name: param for param in params}
        self.lines, self.depth = [], self.depth + 1
        made: list[str] = []
        try:
            yield made
            head = f"def {name}({', '.join(param.name for param in params)}):"
            made += [head, *(f"    {line}" for text in self.lines for line in text.split("\n"))]
        finally:
            self.scope, self.lines, self.depth = outer, lines, self.depth - 1

    def returns(self, text: str) -> None:
        self.lines.append(f"return {text}")

    def cast(self, shape: tuple[int, ...], dtype: str, exact: bool) -> str:
        """The name of a value of this type, which is made where there is none."""
        fits = [
            known
            for known in self.scope.values()
            if (known.shape, known.dtype) == (shape, dtype) and (known.exact or not exact)
        ]
        if fits and self.rng.random() < 0.8:
            return fits[max(self.rng.randrange(len(fits)) for _ in range(3))].name
        if dtype.startswith("key"):
            if not fits:
                raise Refused("no such key")
            return fits[-1].name
        try:
            self._made_for(shape, dtype, exact)
        except Refused:
            if fits:
                return fits[-1].name
            self.let(f"jnp.full({shape}, 1, jnp.{dtype})", True)
        return next(reversed(self.scope))

    def _made_for(self, shape: tuple[int, ...], dtype: str, exact: bool) -> None:
        """A value of another shape or type, converted."""
        integral = jnp.issubdtype(jnp.dtype(dtype), jnp.integer) or dtype == "bool"
        sure = exact or integral or "float8" in dtype
        small = ("int8", "uint8", "bool") if exact and not integral else None
        source = self.pick(
            lambda known: (
                known.is_plain
                and (known.exact or not sure)
                and known.rank <= 4
                and (small is None or known.dtype in small or known.dtype == dtype)
            )
        )
        text = source.name if source.dtype == dtype else f"{source.name}.astype(jnp.{dtype})"
        self.let(f"jnp.resize({text}, {shape})" if source.shape != shape else text, source.exact)
