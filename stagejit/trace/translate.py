"""From a jaxpr to a `Graph`: calls inlined, every equation translated or delegated.

Input: a closed jaxpr. Output: a graph in the op set of `graph/ops/`, whose ops are in the order
of the user's program. Invariant: an equation whose types, parameters or primitive no translation
understands becomes a `delegate` with the reason; ops without use are gone, except those with
effects, which keep their order through tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from stagejit.base.decisions import Decision
from stagejit.base.loc import Loc
from stagejit.base.symbolic import Undecided
from stagejit.compat import (
    ClosedJaxpr,
    Literal,
    constant_array,
    has_static_shape,
    loc_of,
    type_of,
)
from stagejit.errors import InternalError, UnsupportedOpError
from stagejit.graph.ir import Graph, Value
from stagejit.trace import control, elements, one_device, products, reductions
from stagejit.trace.calls import callbacks, foreign, linalg, moments
from stagejit.trace.calls.implementations import implemented, is_implemented
from stagejit.trace.calls.inline import call_operands, called_jaxpr, held_operands, known_branch
from stagejit.trace.calls.own import OwnTranslations
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.complex.rules import NAMES as COMPLEX
from stagejit.trace.delegation import why_not_native
from stagejit.trace.emitter import Emitter
from stagejit.trace.math import elementwise, special
from stagejit.trace.moving import indexing, shapes, sorting
from stagejit.trace.translation import Site, Translation, Unsupported
from stagejit.trace.weights import weight_p
from stagejit.trace.windows import window
from stagejit.types import DType, TensorType

TRANSLATIONS: dict[str, Translation] = {
    **elementwise.TRANSLATIONS,
    **shapes.TRANSLATIONS,
    **reductions.TRANSLATIONS,
    **products.TRANSLATIONS,
    **indexing.TRANSLATIONS,
    **sorting.TRANSLATIONS,
    **special.TRANSLATIONS,
    **foreign.TRANSLATIONS,
    **one_device.TRANSLATIONS,
    **window.TRANSLATIONS,
}

# What can be planned for symbolic sizes: ops whose boxes are sums of products of them.
SYMBOLIC = frozenset(elementwise.TRANSLATIONS) | {
    "broadcast_in_dim", "concatenate", "dot_general", "expand_dims", "pad", "reduce_and",
    "reduce_max", "reduce_min", "reduce_or", "reduce_sum", "reshape", "slice", "squeeze",
    "transpose", "dynamic_update_slice", "rev", "split", "stack",
}  # fmt: skip

# How often a primitive's implementation may lead to that primitive again. A solver may call another
# solver inside, with the same primitive; one that is implemented by itself has to end somewhere.
MOST_WITHIN_ITSELF = 4

# Orders delegated equations with effects: each takes its predecessor's token after its own operands
# and gives one after its own results.
TOKEN = TensorType(DType("token", "opaque", 0, 0), ())


def trace_jaxpr(
    closed_jaxpr: ClosedJaxpr,
    *,
    name: str,
    donated: Sequence[bool] = (),
    delegate: bool = True,
    control_flow: bool = True,
    argument_names: Sequence[str] | None = None,
    left_to_xla: str = "",
    own: OwnTranslations | None = None,
) -> Graph:
    """The graph of a closed jaxpr.

    donated: for each argument whether the caller gives it up; all False where shorter.
    delegate: False raises UnsupportedOpError, at the user's line, for what has no translation.
    control_flow: False delegates every loop and branch, with its body.
    argument_names: shown in dumps; those of the jaxpr's arguments by position where missing.
    left_to_xla: if not empty, why its only equation is delegated as it stands.
    own: translations of a user's, asked before the package's.
    """
    jaxpr = closed_jaxpr.jaxpr
    graph = Graph(name)
    names = list(argument_names or ())
    for index, variable in enumerate(jaxpr.invars):
        graph.add_input(
            names[index] if index < len(names) else f"arg{index}",
            type_of(variable.aval),
            donated=bool(donated[index]) if index < len(donated) else False,
        )
    tracer = _Tracer(graph, delegate, control_flow)
    tracer.own = own or OwnTranslations()
    if left_to_xla:
        graph.set_outputs(tracer.whole(closed_jaxpr, graph.inputs, left_to_xla))
    else:
        graph.set_outputs(tracer.run(closed_jaxpr, graph.inputs, Loc()))
    return _without_unused(graph)


def _without_unused(graph: Graph) -> Graph:
    """Without what nobody reads."""
    graph.eliminate_dead()
    sorting.drop_unused(graph)
    graph.eliminate_dead()
    return graph


def graph_of(
    fn: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    donated: Sequence[bool] = (),
    delegate: bool = True,
) -> Graph:
    """The graph of a function of arrays, before any rewrite; for tests and for looking at.

    args: arrays, pytrees of arrays or `jax.ShapeDtypeStruct`s.
    """
    closed_jaxpr = jax.make_jaxpr(fn)(*args)
    name = name or getattr(fn, "__name__", "f").replace("<lambda>", "f")
    return trace_jaxpr(closed_jaxpr, name=name, donated=donated, delegate=delegate)


class _Tracer:
    """inside: the loop or branch whose body this is, in words; nothing in it may be delegated."""

    def __init__(self, graph: Graph, delegate: bool, control_flow: bool, inside: str = "") -> None:
        self.emit = Emitter(graph)
        self.delegate, self.control_flow, self.inside = delegate, control_flow, inside
        self.alone: frozenset[str] = frozenset()  # names of axes of one device around us
        self.is_ours = False  # whether JAX's locations are those of our own code
        self.token: Value | None = None
        self.own = OwnTranslations()
        self.implementing: list[Any] = []  # primitives whose implementation is being translated

    def run(self, closed_jaxpr: ClosedJaxpr, arguments: Sequence[Value], call: Loc) -> list[Value]:
        """Translate all equations of a jaxpr; those without a location get the call's."""
        jaxpr = closed_jaxpr.jaxpr
        env: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
        self.emit.loc = call
        for variable, value in zip(jaxpr.constvars, closed_jaxpr.consts, strict=True):
            env[variable] = self._constant(value, variable.aval)

        def read(atom: Any) -> Value:
            if isinstance(atom, Literal):
                return self._constant(atom.val, atom.aval)
            return env[atom]

        for equation in jaxpr.eqns:
            loc = call if self.is_ours else loc_of(equation) or call
            if call and loc is not call:
                loc = replace(loc, call=call)
            self.emit.loc = loc
            operands = [read(atom) for atom in equation.invars]
            if equation.primitive is weight_p:
                type = type_of(equation.outvars[0].aval)
                env[equation.outvars[0]] = self.emit.weight(equation.params["weight"], type)
                continue
            one = moments.same_value(equation, operands)
            if one is not None:
                env[equation.outvars[0]] = one
                continue
            translated = self.own.translated(self.emit, equation, self._site, operands)
            if translated is not None:
                env.update(zip(equation.outvars, translated, strict=True))
                continue
            implementation = linalg.implementation(equation)
            if implementation is not None:
                results: Sequence[Value] = self._implemented(implementation, operands, loc)
                env.update(zip(equation.outvars, results, strict=True))
                continue
            called = called_jaxpr(equation)
            if called is None and operands:
                called = known_branch(equation, operands[0], self.emit.known)
                operands = operands if called is None else operands[1:]
            if called is not None:
                operands = call_operands(equation, self._held(equation, operands))
                results = self.run(called, operands, loc)
            else:
                results = self._equation(equation, operands, loc)
            env.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _implemented(self, ours: ClosedJaxpr, operands: list[Value], loc: Loc) -> Sequence[Value]:
        """What a jaxpr that the user did not write gives; all of it stands at their line."""
        before, self.is_ours = self.is_ours, True
        try:
            return self.run(ours, operands, loc)
        finally:
            self.is_ours = before

    def _held(self, equation: Any, operands: list[Value]) -> list[Value]:
        """The operands of a call; those of a checkpoint go through a barrier, as in JAX."""
        held = held_operands(equation)
        if not any(held):
            return operands
        barred = [x for x, holds in zip(operands, held, strict=True) if holds]
        made = iter(self.emit.barrier(barred))
        return [next(made) if holds else x for x, holds in zip(operands, held, strict=True)]

    def whole(self, closed_jaxpr: ClosedJaxpr, operands: list[Value], reason: str) -> list[Value]:
        """The results of a jaxpr whose only equation takes and returns all, delegated."""
        (equation,) = closed_jaxpr.jaxpr.eqns
        return list(self._delegate(equation, self._site(equation), operands, reason, Loc()))

    def _equation(self, equation: Any, operands: list[Value], loc: Loc) -> Sequence[Value]:
        site = self._site(equation)
        has_effects = bool(one_device.effects_beside(equation, self.alone))
        try:
            if site.primitive == "shard_map":
                return self._body_of(site, operands, loc)
            if control.is_unrolled(site) and not has_effects:

                def inline(jaxpr: ClosedJaxpr, arguments: Sequence[Value]) -> Sequence[Value]:
                    return self.run(jaxpr, arguments, loc)

                return _typed(site, control.unrolled(self.emit, site, inline, operands), loc)
            found = control.TRANSLATIONS.get(site.primitive) if self.control_flow else None
            if found is not None:
                _check(found, site, operands, has_effects)
                return _typed(site, found.rule(self.emit, site, self._nested, *operands), loc)
            if self.inside and site.primitive in callbacks.TRANSLATIONS:
                return _translate(self.emit, site, operands, False, callbacks.TRANSLATIONS)
            is_op = site.primitive in TRANSLATIONS or site.primitive in COMPLEX
            if not is_op or is_implemented(site):
                return self._computed(equation, site, operands, loc)
            return _translate(self.emit, site, operands, has_effects, TRANSLATIONS)
        except Undecided as undecided:
            raise _not_for_all_sizes(site, str(undecided), loc) from None
        except Unsupported as unsupported:
            if not all(map(has_static_shape, (*(v.type for v in operands), *site.results))):
                raise _not_for_all_sizes(site, str(unsupported), loc) from None
            return self._delegate(equation, site, operands, str(unsupported), loc)

    def _body_of(self, site: Site, operands: list[Value], loc: Loc) -> Sequence[Value]:
        """shard_map on one device  -->  its body. Raises Unsupported where something in that is not
        native: XLA may have to know the axes' names there."""
        body, names = one_device.body_on_one_device(site.params)
        before = self.alone, self.inside
        self.alone |= names
        try:
            inputs = [(f"x{at}", value.type) for at, value in enumerate(operands)]
            self._nested("body", inputs, 0, lambda _, inline, values: inline(body, values))
            self.inside = self.inside or "body"
            return _typed(site, self.run(body, operands, loc), loc)
        finally:
            self.alone, self.inside = before

    def _computed(
        self, equation: Any, site: Site, operands: list[Value], loc: Loc
    ) -> Sequence[Value]:
        """A primitive that is no op of ours, as the JAX function that computes it."""
        if self.implementing.count(equation.primitive) >= MOST_WITHIN_ITSELF:
            raise Unsupported(why_not_native(site.primitive))

        def decline(rewrite: str, reason: str) -> None:
            what = f"{site.primitive}: {', '.join(map(str, site.results))}"
            self.own.decisions.append(Decision(rewrite, what, False, reason, loc))

        found = implemented(equation, site, self._nested, decline)
        self.implementing.append(equation.primitive)
        try:
            return self._implemented(found, operands, loc)
        finally:
            self.implementing.pop()

    def _nested(
        self,
        name: str,
        inputs: Sequence[tuple[str, TensorType]],
        carries: int,
        build: control.Build,
    ) -> Graph:
        """A body: see `control.Nested`. Raises Unsupported where something in it is not native."""
        graph = Graph(name)
        for at, (input_name, type) in enumerate(inputs):
            graph.add_input(input_name, type, donated=at < carries)
        tracer, call = _Tracer(graph, self.delegate, self.control_flow, name), self.emit.loc
        tracer.emit.loc, tracer.is_ours, tracer.alone = call, self.is_ours, self.alone
        tracer.implementing = [*self.implementing]
        tracer.own = self.own

        def inline(closed_jaxpr: ClosedJaxpr, arguments: Sequence[Value]) -> Sequence[Value]:
            return tracer.run(closed_jaxpr, arguments, call)

        graph.set_outputs(build(tracer.emit, inline, graph.inputs))
        self.emit.graph.of_gradient |= graph.of_gradient
        return _without_unused(graph)

    def _delegate(
        self, equation: Any, site: Site, operands: list[Value], reason: str, loc: Loc
    ) -> Sequence[Value]:
        if self.inside:
            raise Unsupported(f"its {self.inside} has {site.primitive}: {reason}")
        if not self.delegate:
            raise UnsupportedOpError(
                f"cannot lower `{site.primitive}`: {reason}",
                loc=loc,
                next_step="it runs through XLA when Options(delegate=True), the default",
            )
        reason = f"{site.primitive}: {reason}"
        if not equation.effects:
            return self.emit.emit_many(
                "delegate", operands, site.results, equation=equation, reason=reason, effects=()
            )
        effects = tuple(sorted(str(effect) for effect in equation.effects))
        previous = [self.token] if self.token is not None else []
        *results, self.token = self.emit.emit_many(
            "delegate",
            [*operands, *previous],
            [*site.results, TOKEN],
            equation=equation,
            reason=reason,
            effects=effects,
        )
        return results

    def _site(self, equation: Any) -> Site:
        avals_out = tuple([variable.aval for variable in equation.outvars])
        name = jax_name(equation.primitive) or f"{equation.primitive} (not JAX's)"
        return Site(
            *one_device.on_one_device(equation, name, self.alone),
            tuple(map(type_of, avals_out)),
            tuple([atom.aval for atom in equation.invars]),
            avals_out,
        )

    def _constant(self, value: Any, aval: Any) -> Value:
        type = type_of(aval)
        array = constant_array(value, aval, type)
        if type.dtype.kind == "opaque":
            return self.emit.opaque_const(array, type)
        return self.emit.const(array, type.dtype)


def _not_for_all_sizes(site: Site, reason: str, loc: Loc) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"cannot plan `{site.primitive}` for all sizes at once: {reason}",
        loc=loc,
        next_step="plan it for arguments with numbers for sizes, as a call does",
    )


def _translate(
    emit: Emitter,
    site: Site,
    operands: list[Value],
    effects: bool,
    translations: Mapping[str, Translation],
) -> Sequence[Value]:
    found = translations.get(site.primitive)
    _check(found, site, operands, effects)
    if any(map(elements.is_disguised, (*site.inputs, *site.outputs))):
        made = elements.translate(emit, site, operands, found)
    elif found is None:
        raise Unsupported(why_not_native(site.primitive))
    else:
        made = found.rule(emit, site, *operands)
    return _typed(site, made, emit.loc)


def _typed(site: Site, made: Value | Sequence[Value], loc: Loc) -> Sequence[Value]:
    """What a translation made. Raises InternalError unless it has the types of the equation."""
    results = (made,) if isinstance(made, Value) else made
    for result, type in zip(results, site.results, strict=True):
        if result.type is not type and result.type != type and has_static_shape(type):
            what = f"`{site.primitive}` was translated to {result.type} instead of {type}"
            raise InternalError(what, step="trace", loc=loc)
    return results


def _check(found: Translation | None, site: Site, operands: list[Value], effects: bool) -> None:
    """Raises Unsupported for an equation that `found` is not made for."""
    if effects:
        raise Unsupported("it has side effects")
    for type in (*(v.type for v in operands), *site.results):
        if not type.dtype.is_native:
            raise Unsupported(f"element type {type.dtype}")
        if not has_static_shape(type) and site.primitive not in SYMBOLIC:
            raise Unsupported(f"symbolic size in {type}")
    if found is not None:
        found.check(site)
