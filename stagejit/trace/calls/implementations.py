"""Primitives that are computed by others: JAX's on random keys, those of `in_jax/` and
`windows/`, what `mlir.lower_fun` lowers, and those of libraries.

Input: an equation whose primitive is no op of ours. Output: a closed jaxpr that takes its operands,
physical ones where the primitive works on keys, and gives its results. Invariant: a jaxpr whose
results have other types than the equation's is refused, so an implementation that does not do what
its primitive says leaves the equation to XLA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagejit.compat import ClosedJaxpr, key_function, physical_aval, traced, type_of
from stagejit.trace.calls.primitives import implementation
from stagejit.trace.complex.combining import AS_JAX
from stagejit.trace.complex.combining import FUNCTIONS as ON_COMPLEX
from stagejit.trace.complex.parts import is_complex
from stagejit.trace.control import Nested
from stagejit.trace.delegation import is_explained, why_not_native
from stagejit.trace.in_jax.associative import is_associative
from stagejit.trace.in_jax.bounds import PROBABILITIES, within_bounds
from stagejit.trace.in_jax.primitives import FUNCTIONS
from stagejit.trace.translation import Site, Unsupported

_ON_KEYS = frozenset({"random_seed", "random_split", "random_fold_in", "random_bits"})


def is_implemented(site: Site) -> bool:
    """Whether its primitive, elsewhere an op of ours, is one of these on complex numbers."""
    named = site.primitive in ON_COMPLEX or site.primitive in AS_JAX
    return named and any(map(is_complex, site.inputs))


def implemented(
    equation: Any, site: Site, nested: Nested, decline: Callable[[str, str], None]
) -> ClosedJaxpr:
    """The jaxpr that computes an equation. Raises Unsupported where nobody says how.

    decline: is told the name of a rewrite that could not be, and why."""
    if equation.effects:
        raise Unsupported("it has side effects")
    if site.primitive in _ON_KEYS:
        function: Any = key_function(site.primitive, site.params, site.inputs)
        avals, params = [physical_aval(aval) for aval in site.inputs], {}
    else:
        function = (ON_COMPLEX if is_implemented(site) else FUNCTIONS).get(site.primitive)
        if function is None and not is_explained(site.primitive):
            function = implementation(equation.primitive)
        if function is None:
            raise Unsupported(why_not_native(site.primitive))
        if site.primitive in PROBABILITIES:
            function = within_bounds(function)
        avals, params = list(site.inputs), dict(site.params)
        if site.primitive == "reduce":
            params["in_parts"] = is_associative(equation, site, nested)
            if not params["in_parts"]:
                decline("split-reduce", "its function is not known to be associative")
    try:
        closed: ClosedJaxpr = traced(function, avals, params, equation)
    except Exception as error:  # whatever somebody else's function raises
        raise Unsupported(f"its implementation is no JAX function: {_first_line(error)}") from None
    if tuple(type_of(aval) for aval in closed.out_avals) != site.results:
        raise Unsupported("its implementation gives other types than it declares")
    return closed


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]
