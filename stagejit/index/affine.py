"""Affine index expressions over bounded variables, exact under the index arithmetic of views.

Input: loop variables with known extents. Output: `Affine` sums `const + sum(coeff * var)`. Division
and remainder, which reshapes need, stay affine where the ranges prove it; otherwise they introduce
a derived variable that says how it is computed. Invariant: every variable ranges over `0 <= var <
extent`.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from stagejit.base.symbolic import Expr, at_most, is_multiple
from stagejit.base.threads.locks import new_lock

T = TypeVar("T")

_ids = itertools.count()


class Var:
    """An index variable in `[0, extent)`.

    kind "loop": iterated by a loop. "div" and "mod": `operand // divisor` and `operand % divisor`.
    "dynamic": a number read at run time (`source` names it), already clamped to the range; another
    one wherever a variable of `follows` stands elsewhere.
    """

    __slots__ = (
        "__weakref__", "divisor", "extent", "follows", "id", "kind", "name", "operand", "source",
    )  # fmt: skip

    def __init__(
        self,
        extent: int,
        name: str = "i",
        kind: str = "loop",
        *,
        operand: Affine | None = None,
        divisor: int = 0,
        source: Any = None,
        follows: frozenset[Var] = frozenset(),
    ) -> None:
        self.id = next(_ids)
        self.extent, self.name, self.kind = extent, name, kind
        self.operand, self.divisor, self.source = operand, divisor, source
        self.follows = follows

    def __repr__(self) -> str:
        return f"{self.name}{self.id}<{self.extent}"


_shared: weakref.WeakValueDictionary[Hashable, Var] = weakref.WeakValueDictionary()
_sharing = new_lock()


def shared(key: Hashable, make: Callable[[], Var]) -> Var:
    """The variable that stands for `key`: one object as long as anybody holds it, on any thread,
    so that indices made of it compare equal."""
    with _sharing:
        known = _shared.get(key)
        if known is None:
            known = _shared[key] = make()
        return known


class _Watch(threading.local):
    """What is divided on this thread, while somebody wants to know."""

    divided: list[tuple[Affine, int]] | None = None


_watch = _Watch()


def watching_divisions(make: Callable[[], T]) -> tuple[T, list[tuple[Affine, int]]]:
    """What `make` gives, and all that it divides by more than 1: forms and divisors."""
    outer, _watch.divided = _watch.divided, []
    try:
        return make(), _watch.divided
    finally:
        _watch.divided = outer


class SplitNeeded(Exception):
    """Raised by a strict division: iterating `var` as `(extent // inner, inner)` would make it
    exact."""

    def __init__(self, var: Var, inner: int) -> None:
        super().__init__(f"split {var} by {inner}")
        self.var, self.inner = var, inner


class Affine:
    """`const + sum(coeff * var)`; terms are sorted by variable and have no zero coefficients. It is
    not changed, but no frozen dataclass: few objects are made as often, and that takes half."""

    __slots__ = ("_hash", "const", "terms")

    def __init__(self, terms: tuple[tuple[Var, int], ...] = (), const: int = 0) -> None:
        self.terms, self.const = terms, const
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Affine):
            return NotImplemented
        return self.const == other.const and self.terms == other.terms

    def __hash__(self) -> int:
        """Kept: indices are keys of all that evaluates values."""
        known = self._hash
        if known is None:
            known = self._hash = hash((self.terms, self.const))
        return known

    def __reduce__(self) -> tuple[type[Affine], tuple[Any, ...]]:
        return Affine, (self.terms, self.const)  # variables of another process hash otherwise

    @staticmethod
    def of(var: Var) -> Affine:
        """The variable itself; one of extent 1 is 0."""
        return Affine(((var, 1),)) if var.extent != 1 else Affine()

    def __add__(self, other: Affine | int) -> Affine:
        if not isinstance(other, Affine):
            return Affine(self.terms, self.const + other) if other != 0 else self
        if not other.terms:
            return self + other.const
        if not self.terms:
            return other + self.const
        const = self.const + other.const
        if self.terms[-1][0].id < other.terms[0][0].id:  # as of axes from the first to the last
            return _rejoined(self.terms + other.terms, const)
        coeffs = dict(self.terms)
        for var, coeff in other.terms:
            coeffs[var] = coeffs.get(var, 0) + coeff
        terms = [term for term in coeffs.items() if term[1]]
        return _rejoined(tuple(sorted(terms, key=lambda term: term[0].id)), const)

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (other * -1 if isinstance(other, Affine) else -other)

    def __mul__(self, factor: int) -> Affine:
        if factor == 1:
            return self
        if factor == 0:
            return Affine()
        return Affine(tuple([(v, c * factor) for v, c in self.terms]), self.const * factor)

    def coeff(self, var: Var) -> int:
        for known, coeff in self.terms:
            if known is var:
                return coeff
        return 0

    def vars(self) -> Iterable[Var]:
        return (v for v, _ in self.terms)

    @property
    def loops_only(self) -> bool:
        """Whether nothing in it is divided or found out as a kernel runs."""
        return all(var.kind == "loop" for var in self.vars())

    def loop_vars(self) -> set[Var]:
        """Loop variables that this depends on, also through derived variables and through what is
        read at run time."""
        found: set[Var] = set()
        for var, _ in self.terms:
            if var.operand is not None:
                found |= var.operand.loop_vars()
            elif var.kind == "loop":
                found.add(var)
            found |= var.follows
        return found

    def range(self) -> tuple[int, int]:
        """Smallest and largest value, both included."""
        lo = self.const + sum(c * (v.extent - 1) for v, c in self.terms if c < 0)
        hi = self.const + sum(c * (v.extent - 1) for v, c in self.terms if c > 0)
        return lo, hi

    def substitute(self, mapping: Mapping[Var, Affine]) -> Affine:
        """Replace loop variables, also inside derived ones."""
        if len(self.terms) == 1 and not self.const and self.terms[0][1] == 1:
            return _substitute(self.terms[0][0], mapping, {})
        return self._substituted(mapping, {})

    def _substituted(self, mapping: Mapping[Var, Affine], known: dict[Var, Affine]) -> Affine:
        """`known`: what derived variables have become; quotients and remainders share operands."""
        total = Affine((), self.const)
        for var, coeff in self.terms:
            if var not in known:
                known[var] = _substitute(var, mapping, known)
            total = total + known[var] * coeff
        return total

    def divmod(self, divisor: int, *, strict: bool = False) -> tuple[Affine, Affine]:
        """(self // divisor, self % divisor). strict: raise SplitNeeded where splitting a loop
        variable would avoid a derived variable."""
        if divisor == 1:
            return self, Affine()
        if _watch.divided is not None:
            _watch.divided.append((self, divisor))
        quotient, rest = self._without_multiples(divisor)
        lo, hi = rest.range()
        if lo // divisor == hi // divisor:
            shift = lo // divisor
            return quotient + shift, rest - shift * divisor
        if strict:
            _require_split(rest, divisor)
        return quotient + _derived("div", rest, divisor), _derived("mod", rest, divisor)

    def _without_multiples(self, divisor: int) -> tuple[Affine, Affine]:
        """The quotient of what is a multiple of the divisor, and the rest."""
        if isinstance(divisor, Expr):
            multiples = {v for v, c in self.terms if is_multiple(c, divisor)}
            const = self.const if is_multiple(self.const, divisor) else 0
            return (
                Affine(
                    tuple((v, c // divisor) for v, c in self.terms if v in multiples),
                    const // divisor,
                ),
                Affine(tuple(t for t in self.terms if t[0] not in multiples), self.const - const),
            )
        return (
            Affine(
                tuple((v, c // divisor) for v, c in self.terms if c % divisor == 0),
                self.const // divisor,
            ),
            Affine(tuple((v, c) for v, c in self.terms if c % divisor), self.const % divisor),
        )

    def __str__(self) -> str:
        parts = [f"{c}*{v!r}" if c != 1 else repr(v) for v, c in self.terms]
        return " + ".join([*parts, str(self.const)] if self.const or not parts else parts)


def _rejoined(terms: tuple[tuple[Var, int], ...], const: int) -> Affine:
    """c*d*(x // d) + c*(x % d)  -->  c*x"""
    for mod, coeff in terms:
        if mod.kind != "mod":
            continue
        for div, factor in terms:
            if (
                div.kind == "div"
                and div.divisor == mod.divisor
                and div.operand == mod.operand
                and factor == coeff * mod.divisor
            ):
                assert mod.operand is not None
                rest = tuple((v, c) for v, c in terms if v is not mod and v is not div)
                return Affine(rest, const) + mod.operand * coeff
    return Affine(terms, const)


def _require_split(rest: Affine, divisor: int) -> None:
    for var, coeff in rest.terms:
        if var.kind == "loop" and 0 < coeff < divisor and divisor % coeff == 0:
            inner = divisor // coeff
            if var.extent > inner and var.extent % inner == 0:
                raise SplitNeeded(var, inner)


def _derived(kind: str, operand: Affine, divisor: int) -> Affine:
    """Equal divisions share one variable."""
    lo, hi = operand.range()
    base = lo // divisor
    shifted = operand - base * divisor  # not negative, so that kernels divide unsigned numbers
    extent = divisor if kind == "mod" else hi // divisor - base + 1

    def make() -> Var:
        return Var(extent, kind[0], kind, operand=shifted, divisor=divisor)

    var = Affine.of(shared((kind, operand, divisor), make))
    return var if kind == "mod" else var + base


def _substitute(var: Var, mapping: Mapping[Var, Affine], known: dict[Var, Affine]) -> Affine:
    if var in mapping:
        return mapping[var]
    if var.follows:
        return _following(var, mapping)
    if var.operand is None:
        return Affine.of(var)
    inner = var.operand._substituted(mapping, known)
    if inner == var.operand:
        return Affine.of(var)
    quotient, remainder = inner.divmod(var.divisor)
    return quotient if var.kind == "div" else remainder


def _following(var: Var, mapping: Mapping[Var, Affine]) -> Affine:
    """A number that follows what its variables have become: one variable for all forms."""
    moved = [mapping[one].loop_vars() if one in mapping else {one} for one in var.follows]
    follows = frozenset[Var]().union(*moved)
    if follows == var.follows:
        return Affine.of(var)

    def make() -> Var:
        return Var(var.extent, var.name, var.kind, source=var.source, follows=follows)

    return Affine.of(shared((var, follows), make))


def along(var: Var, vector: Var, places: Sequence[int]) -> list[int] | None:
    """What a variable is where another one stands at each of these places, if it tells."""
    if var is vector:
        return list(places)
    if var.operand is None:
        return None
    total = [var.operand.const] * len(places)
    for inner, factor in var.operand.terms:
        found = along(inner, vector, places)
        if found is None:
            return None
        total = [a + factor * each for a, each in zip(total, found, strict=True)]
    divisor = var.divisor
    return [a // divisor if var.kind == "div" else a % divisor for a in total]


Index = tuple[Affine, ...]


def linearize(index: Sequence[Affine], shape: Sequence[int]) -> Affine:
    """Row-major element offset of `index` in an array of `shape`."""
    if len(index) != len(shape):
        raise ValueError(f"an index of {len(index)} into {len(shape)} dimensions")
    if not index:
        return Affine()
    offset = index[0]
    for part, extent in zip(index[1:], shape[1:], strict=True):
        offset = offset * extent + part
    return offset


def delinearize(offset: Affine, shape: Sequence[int], *, strict: bool = False) -> Index:
    """The index whose row-major offset in `shape` is `offset`."""
    parts: list[Affine] = []
    for extent in reversed(shape[1:]):
        offset, part = offset.divmod(extent, strict=strict)
        parts.append(part)
    if shape:
        parts.append(offset)
    return tuple(reversed(parts))


def reshape_index(
    index: Sequence[Affine], to: Sequence[int], of: Sequence[int], *, strict: bool = False
) -> Index:
    """Index into an array of shape `of` whose reshape to `to` is read at `index`.

    Dimensions are matched in groups of equal size, so that only dimensions that really merge or
    split are divided; size-1 dimensions cost nothing.
    """
    parts: list[Affine] = []
    for offset, shape in _reshaped(index, to, of):
        parts.extend(delinearize(offset, shape, strict=strict))
    return tuple(parts)


def divisions(
    index: Sequence[Affine], to: Sequence[int], of: Sequence[int]
) -> list[tuple[Affine, int]]:
    """What `reshape_index` divides, each by the size of all but the first of the dimensions that it
    becomes."""
    groups = ((offset, math.prod(shape[1:])) for offset, shape in _reshaped(index, to, of))
    return [(offset, divisor) for offset, divisor in groups if divisor != 1]


def _reshaped(
    index: Sequence[Affine], to: Sequence[int], of: Sequence[int]
) -> Iterator[tuple[Affine, list[int]]]:
    """The offset in each group of dimensions, and the group's part of `of`."""
    i = 0
    pending: list[int] = []
    taken: list[Affine] = []
    taken_shape: list[int] = []
    size_of = size_to = 1
    for extent in of:
        pending.append(extent)
        size_of *= extent
        while size_to != size_of and at_most(size_to, size_of) and i < len(to):
            taken.append(index[i])
            taken_shape.append(to[i])
            size_to *= to[i]
            i += 1
        if size_to == size_of:
            yield linearize(taken, taken_shape), pending
            pending, taken, taken_shape = [], [], []
            size_of = size_to = 1
    if pending:
        yield linearize([*taken, *index[i:]], [*taken_shape, *to[i:]]), pending
