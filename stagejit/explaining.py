"""From a compilation to its explanation.

Input: a `Compilation`, any of whose steps have run. Output: an `Explanation`. Invariants: what is
explained is what runs: a call that JAX runs without us has no plan here, and the bodies of loops
that XLA runs are compiled as they would be for it; no machine code is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from stagejit.codegen.cuda.device import Device
from stagejit.graph.ir import Op
from stagejit.inspect.explain import Explanation
from stagejit.inspect.explain.collect import facts_of
from stagejit.inspect.explain.notes import Facts, Inside
from stagejit.pipeline import Compilation
from stagejit.runtime.history import Past
from stagejit.runtime.left_bodies import bodies_in
from stagejit.runtime.staged import Request
from stagejit.schedule.schedule import Delegation


def explanation_of(compilation: Compilation, past: Past | None = None) -> Explanation:
    """What is said of a compilation. past: of its function."""
    facts = replace(facts_of_compilation(compilation), past=past)
    return Explanation(**{field.name: getattr(facts, field.name) for field in fields(facts)})


def facts_of_compilation(c: Compilation) -> Facts:
    """Runs the steps that are needed: not those behind the schedule for symbolic sizes, of which no
    call runs anything."""
    target = c.request.options.target
    if c.left_to_xla:
        return Facts(c.request.name, left_to_xla=c.left_to_xla, target=target)
    c.run_until("schedule")
    if not c.plan.sizes:
        c.run_until("host" if isinstance(c.target, Device) else "codegen")
    made = facts_of(c.schedule, c.kernels, c.target, target)
    decisions = (*made.decisions, *c.on_streams)
    return replace(made, decisions=decisions, inside=tuple(_inside(c)))


def _inside(c: Compilation) -> Iterator[Inside]:
    """The bodies of loops and branches that XLA runs, where their pieces are ours."""
    for segment in c.schedule.segments:
        if not isinstance(segment, Delegation):
            continue
        op = segment.step.region.anchor
        assert op is not None
        for number, body in enumerate(_bodies(c, op)):
            options, platform = c.request.options, c.request.platform
            donated = (False,) * len(body.in_avals)
            made = Compilation.of(Request("body", body, options, donated, platform=platform))
            which = "body" if _is_loop(op) else f"branch {number}"
            yield Inside(segment.step.dispatch.name, which, facts_of_compilation(made))


def _bodies(c: Compilation, op: Op) -> list[Any]:
    equation = op.attrs["equation"]
    left = any(equation is each.attrs["equation"] for each in c.left)
    return [] if equation is None or left else bodies_in(equation)


def _is_loop(op: Op) -> bool:
    return "branches" not in op.attrs["equation"].params
