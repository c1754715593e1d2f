"""Which JAX equations are calls, and what they call.

Input: a JAX equation. Output: the closed jaxpr to inline in its place, or None. Invariant: inlining
gives the values of the call; how JAX would differentiate it was decided before.
A `cond` that chooses by platform, or whose index is known, is a call of that branch, a
`custom_linear_solve` one of its solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stagejit.compat import ClosedJaxpr, Jaxpr
from stagejit.graph.ir import Value
from stagejit.trace.calls.primitives import jax_name

# Name of JAX's primitive -> the parameter that holds the called jaxpr. `jit_p` was once named pjit,
# and the primitive behind jax.checkpoint has had three names. JAX differentiates what these call.
CALLS: dict[str, str] = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "composite": "jaxpr",
    "eval_jaxpr": "call_jaxpr",
}
# And these have rules of their own for that.
_WITH_RULES: dict[str, str] = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}


def called_jaxpr(equation: Any) -> ClosedJaxpr | None:
    """The jaxpr that `equation` only calls, or None where it is no call (or takes other
    operands)."""
    name = jax_name(equation.primitive) or ""
    if name == "custom_linear_solve":
        return equation.params["jaxprs"].solve  # type: ignore[no-any-return]
    parameter = CALLS.get(name) or _WITH_RULES.get(name)
    jaxpr = equation.params.get(parameter) if parameter is not None else None
    if isinstance(jaxpr, Jaxpr) and not isinstance(jaxpr, ClosedJaxpr):  # one class from 0.12 on
        jaxpr = None if jaxpr.constvars else ClosedJaxpr(jaxpr, ())
    if not isinstance(jaxpr, ClosedJaxpr) or len(jaxpr.consts) != len(jaxpr.jaxpr.constvars):
        return None
    fits = len(jaxpr.jaxpr.invars) == len(equation.invars) and len(jaxpr.jaxpr.outvars) == len(
        equation.outvars
    )
    return jaxpr if fits else None


def held_operands(equation: Any) -> list[bool]:
    """For each operand of a call whether the call may only start when all of them are there: a
    `jax.checkpoint` in a backward pass computes again, later, what the forward pass has computed.
    """
    if jax_name(equation.primitive) is None:
        return [False] * len(equation.invars)
    prevent = equation.params.get("prevent_cse")
    if prevent is None or not equation.params.get("differentiated"):
        return [False] * len(equation.invars)
    return [prevent] * len(equation.invars) if isinstance(prevent, bool) else list(prevent)


def call_operands(equation: Any, operands: list[Value]) -> list[Value]:
    """The operands of an equation that what it calls takes: of a `custom_linear_solve` (matvec's,
    vecmat's, solve's, transpose_solve's, right-hand side) those of the solver."""
    if jax_name(equation.primitive) != "custom_linear_solve":
        return operands
    counts = equation.params["const_lengths"]
    first = counts.matvec + counts.vecmat
    right = first + counts.solve + counts.transpose_solve
    return [*operands[first : first + counts.solve], *operands[right:]]


def chosen_for_cpu(platforms: Sequence[Any]) -> int | None:
    """Which of the sets of platforms has the CPU, the only one that this compiler lowers for; a
    set that is None has all. None where none has it."""
    found = (at for at, names in enumerate(platforms) if names is None or "cpu" in names)
    return next(found, None)


def known_branch(equation: Any, first: Value, known: Callable[[Value], Any]) -> ClosedJaxpr | None:
    """The branch that a `cond` takes, whose index is its `first` operand; None where that is not
    known, or for any other equation. known: the number that a value is, None for one of a call.

    A choice by platform says itself which branch is whose: its index may come from outside of the
    loop that it is in."""
    if jax_name(equation.primitive) != "cond":
        return None
    platforms = equation.params.get("branches_platforms")
    index = known(first) if platforms is None else chosen_for_cpu(platforms)
    if index is None:
        return None
    branches = equation.params["branches"]
    return branches[min(max(int(index), 0), len(branches) - 1)]  # type: ignore[no-any-return]
