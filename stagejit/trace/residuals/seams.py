"""Where JAX splits a program in two: all that this takes from JAX's internals.

Input: none. Output: JAX's own functions that split a jaxpr give weights to both parts. Invariant:
where `problems()` finds that this JAX is built differently, nothing is replaced: residuals are
whole weights then, and values are the same.

Note [Seams of gradients]: there are three, and JAX offers a hook for none of them.
`ad.linearize_jaxpr`, which `grad`, `vjp` and `linearize` call for what is compiled, looped or
branched; `partial_eval.partial_eval_jaxpr_nounits`, and its variant of forwarded residuals, which
they call for what has only a rule for forward mode, such as `checkpoint` and `while_loop`; and
`batching.batch_jaxpr2`, which `vmap` calls for what is compiled: where a predicate is batched, all
that a branch reads is, too, unless it makes that itself. For the third way to split, by a policy of
`checkpoint`, JAX has a table of rules. JAX remembers all results of these, by the identity of the
jaxpr; so what is made of them is remembered here in the same way.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from jax.extend.core.primitives import jit_p

from stagejit.compat import Literal, flattree
from stagejit.trace.residuals.again import Given, Parts, made_again
from stagejit.trace.residuals.alone import has_weights, opened
from stagejit.trace.residuals.inside import given_to, with_weights_inside
from stagejit.trace.weights import weight_p

try:
    from jax._src import util
    from jax._src.interpreters import ad, batching, partial_eval
except ImportError as error:  # pragma: no cover - a JAX that is built differently
    ad = batching = partial_eval = util = None  # type: ignore[assignment]
    _IMPORT_ERROR = str(error)
else:
    _IMPORT_ERROR = ""


@cache
def problems() -> tuple[str, ...]:
    """What this JAX lacks of what is used here; empty where all is as expected."""
    if _IMPORT_ERROR:
        return (_IMPORT_ERROR,)
    found = []
    wanted: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
        (ad, "linearize_jaxpr", ("jaxpr", "nonzeros", "instantiate", "allow_fwds", "is_vjp")),
        (partial_eval, "partial_eval_jaxpr_nounits", ("jaxpr", "unknowns", "instantiate")),
        (
            partial_eval,
            "partial_eval_jaxpr_nounits_fwd",
            ("jaxpr", "unknowns", "instantiate", "fwd"),
        ),
        (batching, "batch_jaxpr2", ("closed_jaxpr", "axis_data", "in_axes")),
    )
    for module, name, parameters in wanted:
        function = getattr(module, name, None)
        if function is None:
            found.append(f"{module.__name__} has no {name}")
        elif list(inspect.signature(function).parameters) != list(parameters):
            found.append(f"{name} takes other parameters")
    if not hasattr(util, "weakref_lru_cache"):
        found.append("jax._src.util has no weakref_lru_cache")
    if jit_p not in getattr(partial_eval, "partial_eval_jaxpr_custom_rules", {}):
        found.append("the jit primitive has no rule for partial evaluation by a policy")
    return tuple(found)


_installed = False


def install() -> None:
    """Have JAX's backward programs make anew what weights alone determine; once."""
    global _installed
    if _installed or problems():
        return
    _installed = True
    ours, inside = _remembered(_has_weights), _remembered(with_weights_inside)
    split = _remembered(made_again)
    _replace_linearize(ours, inside, split)
    _replace_partial_eval(ours, inside, split)
    _replace_batching(ours, inside)
    rules = partial_eval.partial_eval_jaxpr_custom_rules
    rules[weight_p] = _by_policy
    rules[jit_p] = _jit_by_policy(rules[jit_p], ours, inside, split)


def _has_weights(closed: Any) -> bool:
    return given_to(closed) is not None or has_weights(opened(closed))


def _remembered(function: Any) -> Any:
    """As long as JAX has the jaxpr that is its first argument."""
    return util.weakref_lru_cache(function)


def _replace_linearize(ours: Any, inside: Any, split: Any) -> None:
    original = ad.linearize_jaxpr

    def linearize_jaxpr(
        jaxpr: Any, nonzeros: Any, instantiate: Any = False, allow_fwds: Any = True, *, is_vjp: bool
    ) -> Any:
        if not ours(jaxpr):
            return original(jaxpr, nonzeros, instantiate, allow_fwds, is_vjp=is_vjp)
        found = original(inside(jaxpr), nonzeros, instantiate, allow_fwds, is_vjp=is_vjp)
        first, results, nonzero, forwards, second = found
        at = len(opened(jaxpr).outvars)
        given = _given(jaxpr, [True] * len(opened(jaxpr).invars), forwards, allow_fwds)
        parts = split(first, second, _residuals(at, forwards), given)
        if parts is None:
            return found
        results = _without(results, at, parts.moved)
        return parts.first, results, nonzero, _forwards(jaxpr, forwards, parts), parts.second

    ad.linearize_jaxpr = linearize_jaxpr


def _replace_partial_eval(ours: Any, inside: Any, split: Any) -> None:
    original = partial_eval.partial_eval_jaxpr_nounits_fwd

    def partial_eval_jaxpr_nounits_fwd(
        jaxpr: Any, unknowns: Any, instantiate: Any, fwd: Any = True
    ) -> Any:
        if not ours(jaxpr):
            return original(jaxpr, unknowns, instantiate, fwd)
        found = original(inside(jaxpr), unknowns, instantiate, fwd)
        first, second, unknown, avals, forwards = found
        at = len(unknown) - sum(unknown)
        given = _given(jaxpr, [not each for each in unknowns], forwards, fwd)
        parts = split(first, second, _residuals(at, forwards), given)
        if parts is None:
            return found
        avals = _others(avals, {each - at for each in parts.moved})
        return parts.first, parts.second, unknown, avals, _forwards(jaxpr, forwards, parts)

    def partial_eval_jaxpr_nounits(jaxpr: Any, unknowns: Any, instantiate: Any) -> Any:
        return partial_eval_jaxpr_nounits_fwd(jaxpr, unknowns, instantiate, False)[:-1]

    partial_eval.partial_eval_jaxpr_nounits_fwd = partial_eval_jaxpr_nounits_fwd
    partial_eval.partial_eval_jaxpr_nounits = partial_eval_jaxpr_nounits


def _given(
    jaxpr: Any, known: Sequence[bool], forwards: Sequence[int | None], may: Any
) -> Given | None:
    """Of the arguments of the first part: those that are known. may: whether each of all, or any,
    can be forwarded. forwards: by JAX's numbers, which begin with constants."""
    depends = given_to(jaxpr)
    if depends is None:
        return None
    constants = len(jaxpr.consts)
    may = [may] * len(known) if isinstance(may, bool) else may[len(may) - len(known) :]
    return Given(
        tuple(None if at is None or at < constants else at - constants for at in forwards),
        tuple(itertools.compress(depends, known)),
        tuple(itertools.compress(may, known)),
    )


def _forwards(jaxpr: Any, forwards: Sequence[int | None], parts: Parts) -> list[int | None]:
    """Of the residuals that the second part takes then."""
    return _others(forwards, parts.taken) + [len(jaxpr.consts) + at for at in parts.added]


def _residuals(at: int, forwards: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Those that the first part returns, behind its results, and the second takes, before all else.
    forwards: for each that it takes, which argument of the first it is, or None."""
    operands = [number for number, each in enumerate(forwards) if each is None]
    return tuple(enumerate(operands, at))


def _others(values: Sequence[Any], numbers: Collection[int]) -> list[Any]:
    return [each for number, each in enumerate(values) if number not in numbers]


def _without(results: Any, at: int, moved: frozenset[int]) -> Any:
    """How many residuals the first part returns; from jax 0.11 on all of its results, in a tree."""
    if isinstance(results, int):
        return results - len(moved)
    own, residuals, others = results.unpack()
    kept = _others(list(residuals), {each - at for each in moved})
    return flattree.pack((own, flattree.flatten(kept), others))


def _replace_batching(ours: Any, inside: Any) -> None:
    original = batching.batch_jaxpr2

    def batch_jaxpr2(closed_jaxpr: Any, axis_data: Any, in_axes: Any) -> Any:
        jaxpr = inside(closed_jaxpr) if ours(closed_jaxpr) else closed_jaxpr
        return original(jaxpr, axis_data, in_axes)

    batching.batch_jaxpr2 = batch_jaxpr2


# -- by a policy ----------------------------------------------------------------------------------

_OF_OPERANDS = ("in_shardings", "in_layouts", "donated_invars")
_OF_RESULTS = ("out_shardings", "out_layouts")


def _by_policy(saveable: Any, unknown: Any, known: Any, equation: Any) -> Any:
    """A weight in both parts, whatever the policy says. Returns an equation for each, whether its
    result is unknown in the first, and known in the second; and residuals."""
    return equation, equation, [False], [True], []


def _jit_by_policy(original: Any, ours: Any, inside: Any, split: Any) -> Any:
    def rule(saveable: Any, unknown: Any, known: Any, equation: Any) -> Any:
        jaxpr = equation.params["jaxpr"]
        if not ours(jaxpr):
            return original(saveable, unknown, known, equation)
        equation = equation.replace(params={**equation.params, "jaxpr": inside(jaxpr)})
        found = original(saveable, unknown, known, equation)
        first, second, *of_results, residuals = found
        saved = {variable: at for at, variable in enumerate(first.outvars)}
        for variable in equation.outvars:
            saved.pop(variable, None)
        pairs = [(saved[v], at) for at, v in enumerate(second.invars) if _is_among(v, saved)]
        parts = split(first.params["jaxpr"], second.params["jaxpr"], tuple(pairs))
        if parts is None:
            return found
        moved = {first.outvars[at] for at in parts.moved}
        return (
            first.replace(
                outvars=_others(first.outvars, parts.moved),
                params=_params(first, parts.first, _OF_RESULTS, parts.moved),
            ),
            second.replace(
                invars=_others(second.invars, parts.taken),
                params=_params(second, parts.second, _OF_OPERANDS, parts.taken),
            ),
            *of_results,
            [each for each in residuals if each not in moved],
        )

    return rule


def _is_among(atom: Any, variables: dict[Any, int]) -> bool:
    return not isinstance(atom, Literal) and atom in variables


def _params(
    equation: Any, jaxpr: Any, names: Sequence[str], numbers: Collection[int]
) -> dict[str, Any]:
    fewer = {name: tuple(_others(equation.params[name], numbers)) for name in names}
    return {**equation.params, **fewer, "jaxpr": jaxpr}
