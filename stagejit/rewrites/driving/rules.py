"""What a rewrite is: a function of a graph and an op, and what it is about.

Input: a function, by the decorator `rewrite`. Output: a `Rule` for the driver. Invariant: a rule
looks, builds, and returns a replacement, a reason (`declined`), or None where it has nothing to
say; it changes nothing that was there before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stagejit.base.decisions import Decision
from stagejit.base.extension import Extension
from stagejit.base.records import record
from stagejit.errors import ExtensionError
from stagejit.graph.definition import known_kinds
from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.graph.ir import Graph, Op, Value
from stagejit.options import suggested


@record
class Declined:
    """A rewrite's pattern matched, but a guard failed."""

    reason: str


def declined(reason: str) -> Declined:
    """What a rewrite returns when a guard fails: the reason, for the user to read."""
    return Declined(checked_reason(reason))


def checked_reason(reason: str) -> str:
    """Raises TypeError for what is no text; of an extension that is an ExtensionError."""
    if not isinstance(reason, str) or not reason.strip():
        raise TypeError(f"a reason is a text that says why, not {reason!r}")
    return reason


def require_own(decisions: Iterable[Decision], extension: Extension) -> None:
    """Raises ExtensionError for decisions of an extension under the name of another rewrite."""
    for decision in decisions:
        if decision.rewrite != extension.name:
            said = f"recorded a decision of {decision.rewrite!r}"
            raise extension.fault(f"{said}; its name is {extension.name!r}")


Outcome = Value | Declined | None
Function = Callable[[Graph, Op], Outcome]


@record
class Rule:
    """One rewrite. `name` is that of `Options(disable=...)`, `roots` the op kinds it looks at,
    `functions` those of a map, `of` the kinds that make their operand number `operand`; any where
    there are none. `weights`: it is about those, and only asked of a graph that has some."""

    name: str
    roots: frozenset[str]
    function: Function
    of: frozenset[str] = frozenset()
    operand: int = 0
    counts: bool = False  # whether it asks the graph who else reads a value
    functions: frozenset[str] = frozenset()
    extension: Extension | None = None  # of which it is a part
    weights: bool = False

    def fits(self, op: Op) -> bool:
        """Whether the kinds are those of the pattern."""
        if not self.of:
            return True
        there = -len(op.operands) <= self.operand < len(op.operands)
        return there and op.operands[self.operand].op.kind in self.of

    @property
    def before_after(self) -> str:
        """The first line of its docstring."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


def rewrite(
    name: str,
    *,
    roots: str,
    functions: str = "",
    of: str = "",
    operand: int = 0,
    counts: bool = False,
    weights: bool = False,
) -> Callable[[Function], Rule]:
    """Make a rule of a function `(graph, op) -> Value | declined(reason) | None`.

    roots: op kinds, separated by spaces. functions: those of a map, any by default. of: the kinds
        that make `operand` of it; any by default.
    counts: whether it asks who else reads a value, so that it is tried again when fewer do.
    weights: whether it has nothing to say of a graph without weights.
    """
    kinds, producers, names = (frozenset(text.split()) for text in (roots, of, functions))
    return lambda function: Rule(
        name, kinds, function, producers, operand, counts, names, weights=weights
    )


@dataclass(frozen=True, eq=False, repr=False)
class OwnRule(Extension):
    """A rule of a user's that joins the worklist of a step, by the name of that."""

    rule: Rule
    step: str


def require_kinds_of_ops(rules: Iterable[Rule]) -> None:
    """Raises ExtensionError for one of a user's that asks for ops of a kind that there is not."""
    for rule in rules:
        unknown = sorted((rule.roots | rule.of).difference(known := known_kinds()))
        if unknown and rule.extension is not None:
            raise ExtensionError(
                f"rewrite {rule.name!r} asks for ops of kind {unknown[0]!r}, which there is not",
                loc=rule.extension.loc,
                next_step=_meant(unknown[0], known),
            )


def _meant(kind: str, known: list[str]) -> str:
    """What to ask for in the place of a kind that there is not."""
    if kind in MAP_FUNCTIONS:
        return f'that is a function of a map: ask for roots="map", functions="{kind}"'
    return suggested(kind, known)
