"""Where JAX splits a program in two: all that this takes from JAX's internals.

Input: none. Output: JAX's rules for jit split one that reads weights so that both parts read them.
Invariant: where `problems()` finds that this JAX is built differently, nothing is replaced:
residuals are whole weights then, and values are the same.

Note [Rules of gradients]: JAX has tables of rules, by primitive, and five of them split or change
what is compiled: `grad`, `vjp` and `linearize` linearize it; loops and `checkpoint` evaluate it in
part, for what is known, or by a policy; and `vmap`, where a branch would get weights as a batch. A
weight is only asked for in what `bind` compiles, so what is around that needs no rule. What is
evaluated at once, outside of any program, is split, too, and both parts are given a snapshot of the
moment in which that is (`held.py`); what is not compiled by us, a program of `jax.jit` in which
a bound function is inlined, keeps JAX's own rules there: its residuals are copies of weights.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
from jax.extend.core import Var
from jax.extend.core.primitives import jit_p as _jit_p
from jax.interpreters.ad import Zero

from stagejit.base.records import record
from stagejit.compat import Literal, is_evaluated_now
from stagejit.runtime.gradients.again import (
    Parts,
    is_of_operand,
    made_again,
    of_one_moment,
    reads_weights,
    weights_of,
    with_weights_as_operands,
)
from stagejit.runtime.gradients.alone import opened
from stagejit.runtime.gradients.inside import with_weights_inside_bodies
from stagejit.runtime.gradients.splits import Split, in_two, without
from stagejit.runtime.lowering.marks import call_params, mark_of
from stagejit.runtime.lowering.seams import lacking, lacking_rules
from stagejit.trace.weights import weight_p

try:
    from jax._src import util
    from jax._src.interpreters import ad, batching, partial_eval
except ImportError as error:  # pragma: no cover - a JAX that is built differently
    ad = batching = partial_eval = util = None  # type: ignore[assignment]
    _IMPORT_ERROR = str(error)
else:
    _IMPORT_ERROR = ""
try:
    from jax._src.interpreters import remat  # under `jax_remat3`
except ImportError:  # pragma: no cover - a JAX that has it elsewhere
    remat = None  # type: ignore[assignment]


@cache
def problems() -> tuple[str, ...]:
    """What this JAX lacks of what is used here; empty where all is as expected."""
    if _IMPORT_ERROR:
        return (_IMPORT_ERROR,)
    rules = lacking_rules(
        (ad, "primitive_linearizations"),
        (batching, "fancy_primitive_batchers"),
        (partial_eval, "custom_partial_eval_rules"),
        (partial_eval, "partial_eval_jaxpr_custom_rules"),
    )
    functions = lacking(
        (ad, "linearize_jaxpr", ("jaxpr", "nonzeros", "is_vjp")),
        (partial_eval, "partial_eval_jaxpr_nounits_fwd", ("jaxpr", "unknowns", "instantiate")),
        (util, "weakref_lru_cache", ()),
    )
    return (*rules, *functions)


jit_p: Any = _jit_p
_INLINED = (True, "jax_early")  # where JAX traces
_installed = False
# As long as JAX has the jaxpr that is their first argument. None of them returns that one.
_linearized: Any
_evaluated: Any
_inside: Any
_parted: Any
_checkpointed: Any


def install() -> None:
    """Have JAX's backward programs read weights where they are; once."""
    global _installed, _linearized, _evaluated, _inside, _parted, _checkpointed
    if _installed or problems():
        return
    _installed = True
    remembered: Any = util.weakref_lru_cache
    _linearized, _evaluated = remembered(_linearize), remembered(_evaluate)
    _inside, _parted = remembered(with_weights_inside_bodies), remembered(_part)
    _checkpointed = remembered(_checkpoint)
    _replace(ad.primitive_linearizations, _jit_linearized)
    _replace(batching.fancy_primitive_batchers, _jit_of_batch)
    _replace(partial_eval.custom_partial_eval_rules, _jit_in_parts)
    _replace(partial_eval.partial_eval_jaxpr_custom_rules, _jit_by_policy)
    partial_eval.partial_eval_jaxpr_custom_rules[weight_p] = _weight_by_policy
    if not lacking_rules((remat, "rules")) and hasattr(remat, "remat_jaxpr"):
        _replace(remat.rules, _jit_of_checkpoint)


def _replace(rules: Any, made: Callable[[Any], Any]) -> None:
    rules[jit_p] = made(rules[jit_p])


def _is_ours(jaxpr: Any) -> bool:
    """Whether it reads weights; what changes operands by their number stays JAX's."""
    return reads_weights(jaxpr) and not any(map(is_of_operand, jaxpr.effects))


def _is_compiled(params: dict[str, Any]) -> bool:
    """Whether what is called outside of any program is one of ours, also in a backward part, where
    JAX runs the equations of what is inlined one by one."""
    inline = params.get("inline")  # from jax 0.11 on, of an enumeration
    return mark_of(params) is not None and getattr(inline, "value", inline) not in _INLINED


def _jit_of_batch(original: Any) -> Any:
    def rule(axis_data: Any, vals_in: Any, dims_in: Any, jaxpr: Any, **params: Any) -> Any:
        jaxpr = _inside(jaxpr) or jaxpr if _is_ours(jaxpr) else jaxpr
        return original(axis_data, vals_in, dims_in, jaxpr=jaxpr, **params)

    return rule


# -- linearization --------------------------------------------------------------------------------


@record
class _Linear:
    """is_nonzero: whether each result has a tangent. structured: from jax 0.11 on, the tree of the
    residuals whose structure a primitive gave, and which results they are."""

    split: Split
    is_nonzero: tuple[bool, ...]
    structured: tuple[Any, tuple[int, ...]] | None


def _linearize(jaxpr: Any, nonzeros: tuple[bool, ...], is_vjp: bool, at_once: bool) -> _Linear:
    jaxpr = with_weights_inside_bodies(jaxpr) or jaxpr
    weights = weights_of(jaxpr)
    lifted = with_weights_as_operands(jaxpr, weights)
    nonzeros = (*[False] * len(weights), *nonzeros)
    found = ad.linearize_jaxpr(jaxpr=lifted, nonzeros=nonzeros, is_vjp=is_vjp)
    first, results, is_nonzero, forwards, second = found
    count = len(opened(first).outvars)
    constants = len(jaxpr.consts)
    returned = len(opened(jaxpr).outvars)
    split = in_two(first, second, weights, forwards, constants, returned, at_once)
    structured = None
    if not isinstance(results, int):  # from jax 0.11 on
        tree = results.unpack()[2]
        numbers = range(count - len(tree), count)
        structured = tree, tuple(split.places[at] for at in numbers)
    return _Linear(split, tuple(is_nonzero), structured)


def _jit_linearized(original: Any) -> Any:
    def rule(is_vjp: bool, nzs: Any, *primals_in: Any, jaxpr: Any, **params: Any) -> Any:
        at_once = _is_ours(jaxpr) and is_evaluated_now()
        if not _is_ours(jaxpr) or (at_once and not _is_compiled(params)):
            return original(is_vjp, nzs, *primals_in, jaxpr=jaxpr, **params)
        made = _linearized(jaxpr, tuple(nzs), is_vjp, at_once)
        avals = [each.aval.to_tangent_aval() for each in opened(jaxpr).outvars]
        inputs = [at for at, is_nonzero in enumerate(nzs) if is_nonzero]
        outputs = [at for at, is_nonzero in enumerate(made.is_nonzero) if is_nonzero]

        def tangents_of(residuals: Any, structured: Any, *tangents: Any) -> Any:
            leaves = jax.tree.leaves(structured)
            operands = [*residuals, *(tangents[at] for at in inputs), *leaves]
            numbers = [*[None] * len(residuals), *inputs, *[None] * len(leaves)]
            primitive = ad.vjp_node(jit_p) if is_vjp and hasattr(ad, "vjp_node") else jit_p
            called = call_params(params, made.split.second, numbers, outputs)
            found = iter(primitive.bind(*operands, **called))
            return [
                next(found) if is_nonzero else Zero(aval)
                for is_nonzero, aval in zip(made.is_nonzero, avals, strict=True)
            ]

        all_of_them = range(len(primals_in)), range(len(avals))
        found, residuals = made.split.bound(params, primals_in, *all_of_them, jaxpr.consts)
        primals, is_nonzero = found[: len(avals)], list(made.is_nonzero)
        if made.structured is None:
            linear = functools.partial(_without_structure, tangents_of)
            return primals, is_nonzero, residuals, linear
        tree, numbers = made.structured
        structured = tree.update([found[at] for at in numbers]).unflatten()
        return primals, is_nonzero, residuals, structured, tangents_of

    return rule


def _without_structure(tangents_of: Any, residuals: Any, *tangents: Any) -> Any:
    return tangents_of(residuals, (), *tangents)


# -- partial evaluation ---------------------------------------------------------------------------


def _evaluate(
    jaxpr: Any, unknown: tuple[bool, ...], at_once: bool
) -> tuple[Split, tuple[bool, ...]]:
    """The parts, and which results are unknown in the first."""
    jaxpr = with_weights_inside_bodies(jaxpr) or jaxpr
    weights = weights_of(jaxpr)
    lifted = with_weights_as_operands(jaxpr, weights)
    known = [False] * len(weights)
    first, second, unknowns, _, forwards = partial_eval.partial_eval_jaxpr_nounits_fwd(
        jaxpr=lifted, unknowns=(*known, *unknown), instantiate=False
    )
    results = sum(not each for each in unknowns)
    split = in_two(first, second, weights, forwards, len(jaxpr.consts), results, at_once)
    return split, tuple(unknowns)


def _jit_in_parts(original: Any) -> Any:
    """Where nothing else is known, weights are not either: they stay inside."""

    def rule(trace: Any, *tracers: Any, jaxpr: Any, **params: Any) -> Any:
        unknown = tuple(not each.is_known() for each in tracers)
        if not _is_ours(jaxpr) or not any(unknown):
            return original(trace, *tracers, jaxpr=jaxpr, **params)
        if all(unknown):
            return trace.default_process_primitive(jit_p, tracers, {"jaxpr": jaxpr, **params})
        if (at_once := is_evaluated_now()) and not _is_compiled(params):
            return original(trace, *tracers, jaxpr=jaxpr, **params)
        split, unknowns = _evaluated(jaxpr, unknown, at_once)
        known = [at for at, is_unknown in enumerate(unknown) if not is_unknown]
        operands = [tracers[at].pval.get_known() for at in known]
        outputs = [at for at, is_unknown in enumerate(unknowns) if not is_unknown]
        found, residuals = split.bound(params, operands, known, outputs, jaxpr.consts)
        results = dict(zip(outputs, found, strict=False))
        inputs = [at for at, is_unknown in enumerate(unknown) if is_unknown]
        outputs = [at for at, is_unknown in enumerate(unknowns) if is_unknown]
        taken = [*map(trace.new_instantiated_const, residuals), *(tracers[at] for at in inputs)]
        numbers = [*[None] * len(residuals), *inputs]
        called = call_params(params, split.second, numbers, outputs)
        if outputs:
            later = trace.default_process_primitive(jit_p, taken, called)
            results |= dict(zip(outputs, later, strict=True))
        return [results[at] for at in range(len(unknowns))]

    return rule


# -- checkpoints that are a transformation ---------------------------------------------------------


def _checkpoint(jaxpr: Any, policy: Any, others: tuple[Any, ...], at_once: bool) -> Split:
    """others: from jax 0.11 on, what else JAX's function takes."""
    more = {"allow_fwds": False} if others else {}
    in_parts: Any = remat.remat_jaxpr
    first, second, residuals = in_parts(jaxpr, policy, *others, **more)
    count = residuals if isinstance(residuals, int) else len(residuals)
    results = len(opened(jaxpr).outvars)
    return in_two(first, second, [], [None] * count, 0, results, at_once)


def _jit_of_checkpoint(original: Any) -> Any:
    """how: a policy; from jax 0.11 on, the trace that has it, and residuals are returned."""

    def rule(how: Any, *args: Any, jaxpr: Any, **params: Any) -> Any:
        at_once = _is_ours(jaxpr) and is_evaluated_now()
        if not _is_ours(jaxpr) or (at_once and not _is_compiled(params)):
            return original(how, *args, jaxpr=jaxpr, **params)
        is_trace = hasattr(how, "custom_vjp_rules")
        policy, others = (how.policy, (how.custom_vjp_rules,)) if is_trace else (how, ())
        made = _checkpointed(jaxpr, policy, others, at_once)
        numbers = range(len(args)), range(len(opened(jaxpr).outvars))
        found, residuals = made.bound(params, args, *numbers, ())
        inputs = [*[None] * len(residuals), *numbers[0]]
        called = call_params(params, made.second, inputs, numbers[1])
        results = found[: len(numbers[1])]
        if is_trace:
            return results, residuals, lambda given, *args: jit_p.bind(*given, *args, **called)
        return results, lambda *args: jit_p.bind(*residuals, *args, **called)

    return rule


# -- by a policy ----------------------------------------------------------------------------------


def _weight_by_policy(saveable: Any, unknown: Any, known: Any, equation: Any) -> Any:
    """A weight in both parts, whatever the policy says. Returns an equation for each, whether its
    result is unknown in the first, and known in the second; and residuals."""
    return equation, equation, [False], [True], []


def _part(first: Any, second: Any, residuals: tuple[tuple[int, int], ...]) -> Parts | None:
    parts = of_one_moment(made_again(first, second, residuals))
    return None if parts.first is first else parts


def _jit_by_policy(original: Any) -> Any:
    def rule(saveable: Any, unknown: Any, known: Any, equation: Any) -> Any:
        jaxpr = equation.params["jaxpr"]
        if not _is_ours(jaxpr):
            return original(saveable, unknown, known, equation)
        if (changed := _inside(jaxpr)) is not None:
            equation = equation.replace(params={**equation.params, "jaxpr": changed})
        found = original(saveable, unknown, known, equation)
        first, second, *of_results, residuals = found
        saved = {variable: at for at, variable in enumerate(first.outvars)}
        own = set(equation.outvars)
        pairs = [
            (saved[v], at)
            for at, v in enumerate(second.invars)
            if not isinstance(v, Literal) and v in saved and v not in own
        ]
        parts = _parted(first.params["jaxpr"], second.params["jaxpr"], tuple(pairs))
        if parts is None:
            return found
        gone = {first.outvars[at] for at in parts.moved}
        then = [Var(each.aval) for each in parts.moments]
        added = [first.invars[at] for at in parts.added]
        there = [*residuals, *itertools.compress(equation.invars, known)]
        new = [v for v in added if not any(v is other for other in there)]
        new = [v for v in new if not isinstance(v, Literal)]
        outputs = without(range(len(first.outvars)), parts.moved)
        inputs = without(range(len(second.invars)), parts.taken)
        nothing = [None] * (len(then) + len(added))
        return (
            first.replace(
                outvars=[*without(first.outvars, parts.moved), *then],
                params=call_params(
                    first.params,
                    parts.first,
                    range(len(first.invars)),
                    [*outputs, *[None] * len(then)],
                ),
            ),
            second.replace(
                invars=[*then, *added, *without(second.invars, parts.taken)],
                params=call_params(
                    second.params,
                    parts.second,
                    [*nothing, *inputs],
                    range(len(second.outvars)),
                ),
            ),
            *of_results,
            [*then, *new, *(each for each in residuals if each not in gone)],
        )

    return rule
