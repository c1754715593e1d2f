"""Translations of users: what a primitive, of JAX's or of anybody's, is made of, by them.

Input: those of a compilation's extensions, equations. Output: the values that an equation gives, or
None where none of them has any of it, upon which the package's translations are asked. Invariant:
what a translation makes has the types of the equation; each one that was asked leaves a decision.

Note [Elements of others]: a complex number is a pair here, a key its words, a number of 4 or 8 bits
a byte. What a user writes for numbers would do the same to each part, which means something else:
only a translation that says so is given parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jax.extend.core import Primitive

from stagejit.base.decisions import Decision
from stagejit.base.extension import Extension
from stagejit.base.numbers import a_type
from stagejit.errors import ExtensionError
from stagejit.graph.ir import Value
from stagejit.graph.verifier import verify_op
from stagejit.trace.calls.primitives import has_meaning
from stagejit.trace.elements import element_name, is_disguised
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Rule, Site, Unsupported


@dataclass(frozen=True, eq=False, repr=False)
class OwnTranslation(Extension):
    """How a user translates a primitive. takes_parts: equations, too, whose elements are made of
    others."""

    primitive: Primitive
    rule: Rule
    takes_parts: bool = False


@dataclass
class OwnTranslations:
    """Those of one compilation; decisions: what they did."""

    own: tuple[OwnTranslation, ...] = ()
    decisions: list[Decision] = field(default_factory=list)

    def translated(
        self,
        emit: Emitter,
        equation: Any,
        site_of: Callable[[Any], Site],
        operands: Sequence[Value],
    ) -> Sequence[Value] | None:
        """What the first one that has something makes of an equation; None where none has. Raises
        ExtensionError for one that fails."""
        refused: Callable[[], ExtensionError] | None = None
        for own in self.own:
            if own.primitive is equation.primitive:
                site, first = site_of(equation), emit.graph.next_id
                try:
                    made = _translated(own, emit, equation, site, operands)
                except Unsupported as unsupported:
                    self._told(own, site, emit, False, str(unsupported))
                    refused = partial(_refusal, own, emit, str(unsupported))
                    continue
                kinds = dict.fromkeys(op.kind for op in emit.graph.ops_since(first))
                reason = f"becomes {', '.join(kinds) or 'what is there already'}"
                self._told(own, site, emit, True, reason)
                return made
        if refused is not None and not has_meaning(equation.primitive):
            raise refused()
        return None

    def _told(
        self, own: OwnTranslation, site: Site, emit: Emitter, applied: bool, reason: str
    ) -> None:
        what = f"{own.primitive}: {', '.join(map(str, site.results))}"
        self.decisions.append(Decision(own.name, what, applied, reason, emit.loc))


def _refusal(own: OwnTranslation, emit: Emitter, reason: str) -> ExtensionError:
    return ExtensionError(
        f"extension {own.name!r} declined `{own.primitive}`, which nobody else computes: {reason}",
        loc=emit.loc or own.loc,
        next_step="hand it operands that it takes, or say by stagejit.inline what it is otherwise",
    )


def _translated(
    own: OwnTranslation, emit: Emitter, equation: Any, site: Site, operands: Sequence[Value]
) -> Sequence[Value]:
    """Raises Unsupported for an equation that the translation is not made for."""
    if equation.effects:
        raise Unsupported("it has side effects")
    for each in (*(value.type for value in operands), *site.results):
        if not each.dtype.is_native:
            raise Unsupported(f"element type {each.dtype}")
    disguised = [aval for aval in (*site.inputs, *site.outputs) if is_disguised(aval)]
    if disguised and not own.takes_parts:
        names = ", ".join(dict.fromkeys(map(element_name, disguised)))
        raise Unsupported(f"elements of {names} are made of others, which only parts=True takes")
    made: Any = None
    returned = list(emit.graph.outputs)
    where = f" ({emit.loc})" if emit.loc else ""
    with own.running(f"failed at `{own.primitive}`{where}"):
        try:
            first = emit.graph.next_id
            made = own.rule(emit, site, *operands)
            for op in emit.graph.ops_since(first):  # it may have added them with types of its own
                verify_op(op)
        except Unsupported as unsupported:
            made = unsupported
    if isinstance(made, Unsupported):
        raise made
    if made is not None and not isinstance(made, Value | Sequence):
        raise own.fault(f"returned {a_type(made)} for `{own.primitive}`, no Values")
    results = (made,) if isinstance(made, Value) else tuple(made or ())
    if list(emit.graph.outputs) != returned:
        raise own.fault(f"set what the graph returns as it translated `{own.primitive}`")
    if not all(each.op in emit.graph for each in results if isinstance(each, Value)):
        raise own.fault(f"returned a value of another graph for `{own.primitive}`")
    types = tuple(each.type if isinstance(each, Value) else type(each) for each in results)
    if types != site.results:
        wanted, got = (", ".join(map(str, each)) or "nothing" for each in (site.results, types))
        raise own.fault(f"translated `{own.primitive}` to {got} instead of {wanted}")
    return results
