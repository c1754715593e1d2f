"""Where JAX splits a program in two: all that this takes from JAX's internals.

Input: none. Output: JAX's rules for jit split one that reads weights so that both parts read them.
Invariant: where `problems()` finds that this JAX is built differently, nothing is replaced:
residuals are whole weights then, and values are the same.

Note [Rules of gradients]: JAX has tables of rules, by primitive, and four of them split or change
what is compiled: `grad`, `vjp` and `linearize` linearize it; loops and `checkpoint` evaluate it in
part, for what is known, or by a policy; and `vmap`, where a branch would get weights as a batch. A
weight is only asked for in what `bind` compiles, so what is around that needs no rule. What is
evaluated at once, outside of any program, is split, too, and both parts are given a snapshot of the
moment in which that is (`held.py`); what is not compiled by us, a program of `jax.jit` in which
a bound function is inlined, keeps JAX's own rules there: its residuals are copies of weights.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
from jax.extend.core import Var
from jax.extend.core.primitives import jit_p as _jit_p
from jax.interpreters.ad import Zero

from stagejit.compat import Literal, is_evaluated_now
from stagejit.runtime.gradients.again import (
    Parts,
    is_of_operand,
    made_again,
    moments_in,
    of_one_moment,
    reads_weights,
    weights_of,
    with_weights_as_operands,
    with_weights_inside,
)
from stagejit.runtime.gradients.alone import opened
from stagejit.runtime.gradients.held import held_snapshot
from stagejit.runtime.gradients.inside import with_weights_inside_bodies
from stagejit.runtime.lowering.marks import call_params, mark_of
from stagejit.trace.weights import Weight, weight_p

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
    for module, name in (
        (ad, "primitive_linearizations"),
        (batching, "fancy_primitive_batchers"),
        (partial_eval, "custom_partial_eval_rules"),
        (partial_eval, "partial_eval_jaxpr_custom_rules"),
    ):
        if jit_p not in getattr(module, name, {}):
            found.append(f"{name} has no rule for the jit primitive")
    for module, name, parameters in (
        (ad, "linearize_jaxpr", ["jaxpr", "nonzeros", "instantiate", "allow_fwds", "is_vjp"]),
        (partial_eval, "partial_eval_jaxpr_nounits_fwd", ["jaxpr", "unknowns", "instantiate"]),
        (util, "weakref_lru_cache", []),
    ):
        function = getattr(module, name, None)
        known = list(inspect.signature(function).parameters) if function is not None else None
        if known is None or known[: len(parameters)] != parameters:
            found.append(f"{module.__name__} has no {name}({', '.join(parameters)})")
    return tuple(found)


jit_p: Any = _jit_p
_installed = False
# As long as JAX has the jaxpr that is their first argument. None of them returns that one.
_linearized: Any
_evaluated: Any
_inside: Any
_parted: Any


def install() -> None:
    """Have JAX's backward programs read weights where they are; once."""
    global _installed, _linearized, _evaluated, _inside, _parted
    if _installed or problems():
        return
    _installed = True
    remembered: Any = util.weakref_lru_cache
    _linearized, _evaluated = remembered(_linearize), remembered(_evaluate)
    _inside, _parted = remembered(with_weights_inside_bodies), remembered(_part)
    _replace(ad.primitive_linearizations, _jit_linearized)
    _replace(batching.fancy_primitive_batchers, _jit_of_batch)
    _replace(partial_eval.custom_partial_eval_rules, _jit_in_parts)
    _replace(partial_eval.partial_eval_jaxpr_custom_rules, _jit_by_policy)
    partial_eval.partial_eval_jaxpr_custom_rules[weight_p] = _weight_by_policy


def _replace(rules: Any, made: Callable[[Any], Any]) -> None:
    rules[jit_p] = made(rules[jit_p])


def _is_ours(jaxpr: Any) -> bool:
    """Whether it reads weights; what changes operands by their number stays JAX's."""
    return reads_weights(jaxpr) and not any(map(is_of_operand, jaxpr.effects))


# -- parts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Split:
    """first: returns the results, then what others are found by. residuals: of each that `second`
    takes, before all else, what it is: a "result" of `first`, an "operand", a "constant" or a
    "snapshot", and which one. places: of the results of `first` that were there before. held: of
    which moments both parts take a snapshot, the first one before all else."""

    first: Any
    second: Any
    residuals: tuple[tuple[str, int], ...]
    places: dict[int, int]
    held: tuple[Weight, ...]

    def bound(
        self, params: dict[str, Any], operands: Sequence[Any], numbers: Sequence[int],
        results: Sequence[int], constants: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        """The results of the first part, and the residuals. numbers, results: of what the program
        takes and returns, those that this part does."""
        others = [None] * (len(opened(self.first).outvars) - len(results))
        snapshot = [held_snapshot(self.held)] if self.held else []
        inputs = [*[None] * len(snapshot), *numbers]
        called = call_params(params, self.first, inputs, [*results, *others])
        found = jit_p.bind(*snapshot, *operands, **called)
        given = {"result": found, "operand": operands, "constant": constants, "snapshot": snapshot}
        return found, [given[kind][number] for kind, number in self.residuals]


def _split(
    first: Any,
    second: Any,
    weights: Sequence[Weight],
    forwards: Sequence[int | None],
    constants: int,
    results: int,
    at_once: bool,
) -> _Split:
    """Of what JAX made of a program whose first operands are these weights. forwards: for each
    residual, which constant or operand of the program it is, or None for the next result of the
    first part, behind its own `results`."""
    sources = _sources(results, constants, len(weights), forwards)
    asked = {at: weights[number] for at, (kind, number) in enumerate(sources) if kind == "weight"}
    first = with_weights_inside(first, dict(enumerate(weights)))
    second = with_weights_inside(second, asked)
    sources = [source for source in sources if source[0] != "weight"]
    pairs = [(number, at) for at, (kind, number) in enumerate(sources) if kind == "result"]
    count = len(opened(first).outvars)
    parts = of_one_moment(made_again(first, second, pairs), is_held=at_once)
    places = {number: at for at, number in enumerate(_others(range(count), parts.moved))}
    then = [("result", len(places) + at) for at in range(len(parts.moments))]
    left = [
        (kind, places[number] if kind == "result" else number)
        for kind, number in _others(sources, parts.taken)
    ]
    added = [("operand", at) for at in parts.added]
    held = dict.fromkeys((*moments_in(parts.first), *moments_in(parts.second)))
    given = [("snapshot", 0)] if parts.is_held else []
    return _Split(
        parts.first, parts.second, (*then, *given, *added, *left), places,
        tuple(held) if parts.is_held else (),
    )  # fmt: skip


def _sources(
    nresults: int, nconstants: int, nweights: int, forwards: Sequence[int | None]
) -> list[tuple[str, int]]:
    """What each residual is, by JAX's numbers: of constants, then operands, the weights first; or
    else the next result behind those of the program."""
    found, numbers = list[tuple[str, int]](), itertools.count(nresults)
    for at in forwards:
        if at is None:
            found.append(("result", next(numbers)))
        elif at < nconstants:
            found.append(("constant", at))
        elif at < nconstants + nweights:
            found.append(("weight", at - nconstants))
        else:
            found.append(("operand", at - nconstants - nweights))
    return found


def _others(values: Sequence[Any], numbers: Collection[int]) -> list[Any]:
    return [each for number, each in enumerate(values) if number not in numbers]


def _jit_of_batch(original: Any) -> Any:
    def rule(axis_data: Any, vals_in: Any, dims_in: Any, jaxpr: Any, **params: Any) -> Any:
        jaxpr = _inside(jaxpr) or jaxpr if _is_ours(jaxpr) else jaxpr
        return original(axis_data, vals_in, dims_in, jaxpr=jaxpr, **params)

    return rule


# -- linearization --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Linear:
    """is_nonzero: whether each result has a tangent. structured: from jax 0.11 on, the tree of the
    residuals whose structure a primitive gave, and which results they are."""

    split: _Split
    is_nonzero: tuple[bool, ...]
    structured: tuple[Any, tuple[int, ...]] | None


def _linearize(jaxpr: Any, nonzeros: tuple[bool, ...], is_vjp: bool, at_once: bool) -> _Linear:
    jaxpr = with_weights_inside_bodies(jaxpr) or jaxpr
    weights = weights_of(jaxpr)
    lifted = with_weights_as_operands(jaxpr, weights)
    nonzeros = (*[False] * len(weights), *nonzeros)
    found = ad.linearize_jaxpr(lifted, nonzeros, is_vjp=is_vjp)
    first, results, is_nonzero, forwards, second = found
    count = len(opened(first).outvars)
    constants = len(jaxpr.consts)
    returned = len(opened(jaxpr).outvars)
    split = _split(first, second, weights, forwards, constants, returned, at_once)
    structured = None
    if not isinstance(results, int):  # from jax 0.11 on
        tree = results.unpack()[2]
        numbers = range(count - len(tree), count)
        structured = tree, tuple(split.places[at] for at in numbers)
    return _Linear(split, tuple(is_nonzero), structured)


def _jit_linearized(original: Any) -> Any:
    def rule(is_vjp: bool, nzs: Any, *primals_in: Any, jaxpr: Any, **params: Any) -> Any:
        at_once = is_evaluated_now()
        if not _is_ours(jaxpr) or (at_once and mark_of(params) is None):
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
) -> tuple[_Split, tuple[bool, ...]]:
    """The parts, and which results are unknown in the first."""
    jaxpr = with_weights_inside_bodies(jaxpr) or jaxpr
    weights = weights_of(jaxpr)
    lifted = with_weights_as_operands(jaxpr, weights)
    known = [False] * len(weights)
    first, second, unknowns, _, forwards = partial_eval.partial_eval_jaxpr_nounits_fwd(
        lifted, (*known, *unknown), instantiate=False
    )
    results = sum(not each for each in unknowns)
    split = _split(first, second, weights, forwards, len(jaxpr.consts), results, at_once)
    return split, tuple(unknowns)


def _jit_in_parts(original: Any) -> Any:
    """Where nothing else is known, weights are not either: they stay inside."""

    def rule(trace: Any, *tracers: Any, jaxpr: Any, **params: Any) -> Any:
        unknown = tuple(not each.is_known() for each in tracers)
        if not _is_ours(jaxpr) or not any(unknown):
            return original(trace, *tracers, jaxpr=jaxpr, **params)
        if all(unknown):
            return trace.default_process_primitive(jit_p, tracers, {"jaxpr": jaxpr, **params})
        if (at_once := is_evaluated_now()) and mark_of(params) is None:
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
        outputs = _others(range(len(first.outvars)), parts.moved)
        inputs = _others(range(len(second.invars)), parts.taken)
        nothing = [None] * (len(then) + len(added))
        return (
            first.replace(
                outvars=[*_others(first.outvars, parts.moved), *then],
                params=call_params(
                    first.params,
                    parts.first,
                    range(len(first.invars)),
                    [*outputs, *[None] * len(then)],
                ),
            ),
            second.replace(
                invars=[*then, *added, *_others(second.invars, parts.taken)],
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
