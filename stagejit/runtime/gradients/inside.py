"""Branches that ask themselves for the weights that they read, and loops of which that is known.

Input: a jaxpr before JAX differentiates or batches it. Output: one that computes the same.
Invariant: loops and branches have the operands that they had; some are not read any more.

Note [Weights in branches]: what a branch hands to the backward part of that branch is one of
several values, by the predicate, so weights among them would depend on an argument; and where a
predicate is batched, all operands of the branches are. So each branch becomes a call that asks for
its weights, of which JAX's rules of jit are ours (`seams.py`).

Note [Layers]: a loop that goes through slices of weights hands them to its backward part where they
are. What it computes of a slice (`w.T`, a factor) would be stacked, though, once for each layer. So
its body becomes a call, too, in which `known_p` says of which operands the backward part computes
that again.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import Var, new_jaxpr_eqn
from jax.extend.core.primitives import jit_p

from stagejit.compat import ClosedJaxpr, Jaxpr, Literal, scan_counts
from stagejit.runtime.gradients.again import copied, replaced, with_operands
from stagejit.runtime.gradients.alone import (
    Depends,
    Values,
    jaxprs_in,
    of_arguments,
    opened,
)
from stagejit.runtime.lowering.marks import plain_params
from stagejit.trace.calls.inline import CALLS
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.weights import known_p, weight_p

# What costs as much as reading: all else is computed outside, as a loop or a branch that has it
# would compute it each time, if it is beyond the budget.
_CHEAP = frozenset(
    (
        "broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "neg", "reshape", "rev",
        "slice", "squeeze", "transpose",
    )
)  # fmt: skip
# The equations that a value of weights is from, the first one first, and what they call it.
Origin = tuple[list[Any], Any]


def with_weights_inside_bodies(closed: Any) -> Any | None:
    """cond %p (%w = weight) (branch: f %w)  -->  cond %p (branch: call (%w = weight; f %w))

    None where nothing is changed.
    """
    jaxpr = opened(closed)
    made = _changed(jaxpr, of_arguments(jaxpr), {})
    return None if made is jaxpr else ClosedJaxpr(made, closed.consts)


def _changed(jaxpr: Any, given: Sequence[Depends], origins: Mapping[Any, Origin]) -> Any:
    """given: what its arguments depend on. origins: of those of them that are of weights."""
    if not _has_bodies(jaxpr):
        return jaxpr
    values, known, equations = Values(jaxpr, given), dict(origins), []
    for equation in jaxpr.eqns:
        _note(equation, known)
        depends = [values.of(each) for each in equation.invars]
        equations.append(_equation(equation, depends, known))
    if all(one is other for one, other in zip(equations, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=equations)


def _has_bodies(jaxpr: Any) -> bool:
    return any(
        jax_name(each.primitive) in ("cond", "scan")
        or any(map(_has_bodies, jaxprs_in(each.params)))
        for each in jaxpr.eqns
    )


def _note(equation: Any, known: dict[Any, Origin]) -> None:
    if equation.primitive is weight_p:
        known[equation.outvars[0]] = [equation], equation.outvars[0]
    elif jax_name(equation.primitive) in _CHEAP and len(equation.invars) == 1:
        found = _origins(equation.invars, known)[0]
        if found is not None:
            made = Var(equation.outvars[0].aval)
            moved = equation.replace(invars=[found[1]], outvars=[made])
            known[equation.outvars[0]] = [*found[0], moved], made


def _origins(atoms: Sequence[Any], known: Mapping[Any, Origin]) -> list[Origin | None]:
    return [None if isinstance(atom, Literal) else known.get(atom) for atom in atoms]


def _equation(equation: Any, depends: Sequence[Depends], known: Mapping[Any, Origin]) -> Any:
    """The same with other bodies."""
    name, params = jax_name(equation.primitive), dict(equation.params)
    origins = _origins(equation.invars, known)
    if name == "cond":
        params["branches"] = tuple(
            _branch(each, depends[1:], origins[1:]) for each in params["branches"]
        )
    elif name == "scan":
        params["jaxpr"] = _loop(params, depends, origins)
    elif name in CALLS and len(opened(params[CALLS[name]]).invars) == len(origins):
        params[CALLS[name]] = _body(params[CALLS[name]], depends, origins)
    if all(_is_same(params[each], equation.params[each]) for each in params):
        return equation
    return equation.replace(params=params)


def _is_same(one: Any, other: Any) -> bool:
    both = isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other)
    return one is other or (both and all(map(operator.is_, one, other)))


def _body(body: Any, depends: Sequence[Depends], origins: Sequence[Origin | None]) -> Any:
    jaxpr = opened(body)
    made = _changed(jaxpr, depends, _by_argument(jaxpr, origins))
    if made is jaxpr:
        return body
    return ClosedJaxpr(made, body.consts) if body is not jaxpr or body.consts else made


def _loop(
    params: Mapping[str, Any], depends: Sequence[Depends], origins: Sequence[Origin | None]
) -> Any:
    """The body. If it gets slices of weights, a call of it, see Note [Layers]."""
    constants, carries = scan_counts(params, len(depends))
    slices = constants + carries
    known = [*depends[:constants], *[Depends.ON_ARGUMENTS] * carries, *depends[slices:]]
    body = _body(params["jaxpr"], known, origins[:constants])
    jaxpr = opened(body)
    if Depends.ON_WEIGHTS not in known[slices:] or jaxpr.effects or _knows(jaxpr):
        return body
    inner = [Var(v.aval) for v in jaxpr.invars]
    renamed, equations = dict[Any, Any](), []
    for v, operand, each in zip(jaxpr.invars, inner, known, strict=True):
        renamed[v] = operand
        if each is Depends.ON_WEIGHTS:
            renamed[v] = Var(v.aval)
            equations.append(new_jaxpr_eqn([operand], [renamed[v]], known_p, {}, set()))
    equations += [with_operands(each, renamed) for each in jaxpr.eqns]
    results = [replaced(each, renamed) for each in jaxpr.outvars]
    return _call(body, inner, results, equations, jaxpr.invars)


def _knows(jaxpr: Any) -> bool:
    return any(
        each.primitive is known_p or any(map(_knows, jaxprs_in(each.params))) for each in jaxpr.eqns
    )


def _by_argument(jaxpr: Any, origins: Sequence[Origin | None]) -> dict[Any, Origin]:
    pairs = zip(jaxpr.invars, origins, strict=False)
    return {inner: origin for inner, origin in pairs if origin is not None}


def _branch(branch: Any, depends: Sequence[Depends], origins: Sequence[Origin | None]) -> Any:
    """A call of the branch, in which that has the weights."""
    jaxpr = opened(branch)
    read = {v for each in jaxpr.eqns for v in each.invars if not isinstance(v, Literal)}
    found = {v: each for v, each in _by_argument(jaxpr, origins).items() if v in read}
    if not found or jaxpr.effects:
        return _body(branch, depends, origins)
    renamed, equations = dict[Any, Any](), list[Any]()
    for v, (origin, made) in found.items():
        inner = dict[Any, Any]()
        equations += copied(origin, inner)
        renamed[v] = inner[made]
    changed = _changed(jaxpr, depends, found)
    equations += [with_operands(each, renamed) for each in changed.eqns]
    results = [replaced(v, renamed) for v in jaxpr.outvars]
    operands = [v for v in jaxpr.invars if v not in found]
    return _call(branch, operands, results, equations, operands)


def _call(
    body: Any, operands: Sequence[Any], results: Sequence[Any], equations: Sequence[Any],
    given: Sequence[Any],
) -> Any:  # fmt: skip
    """The body as a call of these equations. given: of its operands, those that the call takes."""
    jaxpr = opened(body)
    info = jaxpr.debug_info.with_unknown_names()
    inner = Jaxpr(jaxpr.constvars, operands, results, equations, jaxpr.effects, info)
    params = plain_params(ClosedJaxpr(inner, body.consts), "body")
    outer = [Var(v.aval) for v in jaxpr.outvars]
    call = new_jaxpr_eqn(list(given), outer, jit_p, params, set())
    made = Jaxpr([], jaxpr.invars, outer, [call], jaxpr.effects, jaxpr.debug_info)
    return ClosedJaxpr(made, [])
