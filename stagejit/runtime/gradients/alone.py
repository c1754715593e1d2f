"""Which values of a jaxpr weights alone determine.

Input: a jaxpr, as JAX's transformations make them. Output: for each value whether it depends on
arguments, on weights and no argument, or on neither. Invariant: what is said to depend on no
argument does not; what calls back, what others define, and what has effects counts as an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from stagejit.compat import Literal, scan_counts
from stagejit.trace.calls.inline import CALLS
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.weights import known_p, weight_p


class Depends(IntEnum):
    """The largest of what a value is computed of."""

    ON_NOTHING = 0
    ON_WEIGHTS = 1
    ON_ARGUMENTS = 2


# Made twice, these are called twice, or take long: nothing is made once of what a loop may never
# end to compute.
_NEVER_TWICE = frozenset(
    ("pure_callback", "io_callback", "debug_callback", "ffi_call", "custom_call", "while")
)


class Values:
    """What each variable of a jaxpr depends on."""

    def __init__(self, jaxpr: Any, given: Sequence[Depends]) -> None:
        self._known: dict[Any, Depends] = dict(zip(jaxpr.invars, given, strict=True))
        for equation in jaxpr.eqns:
            results = _results(equation, [self.of(each) for each in equation.invars])
            self._known.update(zip(equation.outvars, results, strict=True))

    def of(self, atom: Any) -> Depends:
        if isinstance(atom, Literal):
            return Depends.ON_NOTHING
        return self._known.get(atom, Depends.ON_NOTHING)  # a constant


def opened(jaxpr: Any) -> Any:
    """The jaxpr without its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def results_of(jaxpr: Any, given: Sequence[Depends]) -> list[Depends]:
    """What the results of a jaxpr depend on, given that of its arguments."""
    values = Values(jaxpr, given)
    return [values.of(each) for each in jaxpr.outvars]


def of_arguments(jaxpr: Any) -> list[Depends]:
    """For a jaxpr whose arguments may be anything."""
    return [Depends.ON_ARGUMENTS] * len(jaxpr.invars)


def jaxprs_in(params: dict[str, Any]) -> list[Any]:
    """Those among the parameters of an equation, without their constants."""
    found = []
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            jaxpr = opened(each)
            if hasattr(jaxpr, "eqns") and hasattr(jaxpr, "invars"):
                found.append(jaxpr)
    return found


def _results(equation: Any, given: list[Depends]) -> list[Depends]:
    if equation.primitive in (weight_p, known_p):
        return [Depends.ON_WEIGHTS]
    name = jax_name(equation.primitive)
    if equation.effects or name is None or name in _NEVER_TWICE:
        return [Depends.ON_ARGUMENTS] * len(equation.outvars)
    if name in CALLS:
        jaxpr = opened(equation.params[CALLS[name]])
        if len(jaxpr.invars) == len(given) and len(jaxpr.outvars) == len(equation.outvars):
            return results_of(jaxpr, given)
    if name == "scan":
        return _scanned(equation, given)
    inside = [depends for jaxpr in jaxprs_in(equation.params) for depends in _all(jaxpr)]
    return [max([*given, *inside], default=Depends.ON_NOTHING)] * len(equation.outvars)


def _all(jaxpr: Any) -> list[Depends]:
    """Of all values in a jaxpr, as far as they do not get it from its arguments."""
    values = Values(jaxpr, [Depends.ON_NOTHING] * len(jaxpr.invars))
    return [values.of(each) for equation in jaxpr.eqns for each in equation.outvars]


def _scanned(equation: Any, given: list[Depends]) -> list[Depends]:
    constants, carries = scan_counts(equation.params, len(given))
    jaxpr, known = opened(equation.params["jaxpr"]), list(given)
    while True:
        results = results_of(jaxpr, known)
        for at, result in enumerate(results[:carries]):
            results[at] = max(result, known[constants + at])
        if known[constants : constants + carries] == results[:carries]:
            return results
        known[constants : constants + carries] = results[:carries]
