"""What a translation is: one JAX equation in, a few equations of our op set out.

Input: an `Emitter`, the JAX equation's parameters and types (`Site`), and the operands. Output: the
result variables, or `Unsupported` with a reason, upon which the equation is delegated. Invariant: a
translation names every parameter that it understands, so a parameter of a later JAX leads to
delegation and never to wrong code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stagejit.base.records import record
from stagejit.compat import size_of
from stagejit.graph.ir import Value
from stagejit.types import TensorType


class Unsupported(Exception):
    """This equation has no translation; the message is the reason, in the user's terms."""


@record
class Site:
    """The JAX equation being translated.

    primitive: the name of one of JAX's own; that of a foreign one stands in no table.
    results: physical types. inputs, outputs: the abstract values, as JAX has them.
    """

    primitive: str
    params: Mapping[str, Any]
    results: tuple[TensorType, ...]
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()

    @property
    def result(self) -> TensorType:
        """The only result's type."""
        (type,) = self.results
        return type

    def with_params(self, changed: Mapping[str, Any]) -> Site:
        """The same equation with some parameters changed."""
        return replace(self, params={**self.params, **changed})

    def of(self, result: TensorType, **changed: Any) -> Site:
        """The same equation with another result, and parameters changed."""
        return replace(self.with_params(changed), results=(result,))


Rule = Callable[..., Value | Sequence[Value]]  # (emitter, site, *operands)


@record
class Translation:
    """`rule` and the parameters it understands.

    `ignored` are parameters that cannot change the values computed on one device (shardings,
    hints).
    """

    rule: Rule
    params: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()

    def check(self, site: Site) -> None:
        """Raises Unsupported for a parameter that is neither known, ignored, nor absent (None)."""
        for name, value in site.params.items():
            if name not in self.params and name not in self.ignored and value is not None:
                shown = f"{name}={value}" if isinstance(value, str | int | float) else name
                raise Unsupported(f"parameter {shown} is not understood")


def translation(rule: Rule, *params: str, ignored: Sequence[str] = ()) -> Translation:
    """A `Translation` that understands `params`."""
    return Translation(rule, frozenset(params), frozenset(ignored))


def integers(values: Sequence[Any]) -> tuple[int, ...]:
    """Plain ints from a parameter that may hold NumPy integers, or symbolic sizes."""
    return tuple(map(size_of, values))
