"""From a compilation to its explanation, and to the text of each stage.

Input: a `Compilation`, any of whose steps have run. Output: an `Explanation`; texts by the names of
`Lowered.as_text`, each of which runs the steps that it needs. Invariants: what is explained is what
runs: a call that JAX runs without us has no plan here, and the bodies of loops that XLA runs are
compiled as they would be for it; no machine code is made for an explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from stagejit.codegen.cuda.device import Device
from stagejit.codegen.generate import Generated
from stagejit.errors import OptionsError
from stagejit.graph.ir import Op
from stagejit.graph.text.printer import as_text
from stagejit.inspect.explain import Explanation
from stagejit.inspect.explain.call_sites import with_calls
from stagejit.inspect.explain.collect import facts_of
from stagejit.inspect.explain.edges import edges_of
from stagejit.inspect.explain.notes import Facts, Inside
from stagejit.inspect.explain.what_if import Measured, Worth
from stagejit.options import SWITCHES, Options, suggested
from stagejit.pipeline import Compilation
from stagejit.runtime.compilations.history import Past
from stagejit.runtime.hosting import program as host
from stagejit.runtime.left_bodies import bodies_in
from stagejit.runtime.lowering.staged import Request
from stagejit.runtime.objects.engine import disassemble
from stagejit.schedule.plans.comparison import Totals
from stagejit.schedule.schedule import Delegation

Timed = Callable[[Sequence[Options]], list[Measured]]


def explanation_of(
    compilation: Compilation,
    past: Past | None = None,
    *,
    disable: Sequence[str] = (),
    what_if: Sequence[str] | bool = (),
    timed: Timed | None = None,
) -> Explanation:
    """What is said of a compilation. past: of its function. disable: rewrites without which it is
    explained, and compared. what_if: rewrites that are told what they are worth, each by itself;
    True for all that were applied. timed: measures calls under several options.

    Raises OptionsError for names that are no rewrites.
    """
    options = compilation.request.options
    explained = compilation
    groups: list[tuple[str, ...]] = [(name,) for name in _names(compilation, what_if)]
    if disable:
        explained = without(compilation, tuple(disable))
        groups.insert(0, tuple(disable))
    facts = replace(facts_of_compilation(explained), past=past)
    if groups and not compilation.left_to_xla:
        others = [without(compilation, group) for group in groups]
        measured: list[Measured] = []
        if timed is not None:
            measured = timed([options, *(other.request.options for other in others)])
        own, missing = totals_of(compilation)
        worths = [
            Worth(group, own, totals, (measured[0], measured[at]) if measured else None,
                  tuple(dict.fromkeys((*missing, *uncounted))))
            for at, (group, (totals, uncounted)) in enumerate(
                zip(groups, map(totals_of, others), strict=True), 1
            )
        ]  # fmt: skip
        facts = replace(facts, what_if=tuple(worths))
    return Explanation(**{field.name: getattr(facts, field.name) for field in fields(facts)})


def without(compilation: Compilation, rewrites: tuple[str, ...]) -> Compilation:
    """The same call, compiled without some rewrites."""
    options = compilation.request.options
    changed = replace(options, disable=(*options.disable, *rewrites))
    return Compilation.of(replace(compilation.request, options=changed), compilation.left_to_xla)


def totals_of(compilation: Compilation) -> tuple[Totals, tuple[str, ...]]:
    """What a call costs; the modelled time is that of its kernels, and what it does not have."""
    facts = facts_of_compilation(compilation)
    totals = compilation.plan.totals(compilation.target)
    return replace(totals, modelled_seconds=facts.seconds), facts.uncounted


def _names(compilation: Compilation, what_if: Sequence[str] | bool) -> list[str]:
    if what_if is not True:
        options = compilation.request.options
        known = [*(extension.name for extension in options.extensions), *SWITCHES]
        for name in what_if or ():
            if name not in known:
                raise OptionsError(
                    f"unknown rewrite {name!r} in what_if",
                    next_step=suggested(name, known, "stagejit/rewrites/README.md"),
                )
        return list(what_if or ())
    applied = {d.rewrite for d in facts_of_compilation(compilation).decisions if d.applied}
    return [name for name in SWITCHES if name in applied]


def facts_of_compilation(c: Compilation) -> Facts:
    """Runs the steps that are needed: not those behind the schedule for symbolic sizes, of which no
    call runs anything."""
    target = c.request.options.target
    if c.left_to_xla:
        return Facts(c.request.name, left_to_xla=c.left_to_xla, target=target)
    c.run_until("schedule")
    if not c.plan.sizes:
        c.run_until("host")
    program = c.cuda if isinstance(c.target, Device) and not c.plan.sizes else None
    made = facts_of(c.schedule, c.kernels, c.target, target, program)
    returning = (program.handed_over for program in c.hosts.values())
    decisions = (*made.decisions, *c.on_threads, *filter(None, returning))
    edges = edges_of(c.schedule, c.whereabouts)
    return replace(
        made,
        dispatches=tuple(with_calls(made.dispatches, edges.homes)),
        decisions=decisions,
        scratch_nbytes_per_worker=max((h.scratch_nbytes() for h in c.hosts.values()), default=0),
        inside=tuple(_inside(c)),
        between=edges.between,
        waits=edges.waits,
        homes=edges.homes,
        gone=edges.gone,
        buffers=edges.buffers,
        compile_times=c.compile_times,
    )


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


# -- the texts of stages ---------------------------------------------------------------------------


def texts_of(c: Compilation) -> dict[str, Callable[[], str]]:
    """Each stage that the target of a compilation has, with what makes its text."""
    common = {
        "jaxpr": lambda: c.request.jaxpr.pretty_print(use_color=False),
        "graph": lambda: as_text(c.run_until("encode").graph),
        "dispatches": lambda: as_text(c.run_until("place").dispatches),
        "plan": lambda: c.run_until("schedule").plan.as_text(),
        "loops": lambda: _each_kernel(c, _loops),
    }
    if isinstance(device := c.target, Device):
        from stagejit.runtime.cuda import steps as gpu

        return common | {
            "cuda": lambda: gpu.texts_of(c.run_until("codegen").schedule, c.kernels),
            "ptx": lambda: _each_kernel(c, lambda g: gpu.compile_ptx(g.text, device.arch)),
            "host": lambda: gpu.as_text(c.run_until("host").cuda),
        }
    return common | {
        "llvm": lambda: "\n".join(_texts(c)),
        "asm": lambda: "\n".join(map(disassemble, _texts(c))),
        "host": lambda: "\n".join(map(host.as_text, c.run_until("host").hosts.values())),
    }


def _texts(c: Compilation) -> Iterator[str]:
    """LLVM IR of what is called."""
    called = {name for host in c.run_until("host").hosts.values() for name in host.kernels()}
    return (text for symbol, text in c.texts.items() if symbol in called)


def _loops(g: Generated) -> str:
    return f"// {g.symbol}\n{g.kernel.loops_text()}{g.kernel.function.as_text()}"


def _each_kernel(c: Compilation, text: Callable[[Generated], str]) -> str:
    """Those of equal kernels once."""
    kernels = c.run_until("codegen").kernels.values()
    distinct = {generated.symbol: generated for generated in kernels}
    return "\n".join(text(generated) for generated in distinct.values())
