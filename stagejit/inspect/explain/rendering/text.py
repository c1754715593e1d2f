"""An explanation as text for a terminal.

Input: `Facts`. Output: lines. Invariant: the same on every machine unless kernels are asked for;
what is collapsed is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stagejit.base.numbers import counted, nbytes_text, seconds_text
from stagejit.graph.text.quoting import quoted
from stagejit.inspect.explain import what_if
from stagejit.inspect.explain.notes import Between, Facts, Launched, PartOf
from stagejit.inspect.explain.rendering.compilations import lines_of, steps_of
from stagejit.inspect.explain.rendering.lines import Item, blocks_of
from stagejit.inspect.explain.rendering.wording import (
    between_of,
    calls_of,
    moot_of,
    said_of,
    sign_of,
)
from stagejit.schedule.plans.turns import dispatches_text

_MOST_NAMES = 6  # of those that an item stands for


def text_of(facts: Facts, *, kernels: bool, collapse: bool) -> str:
    """One block for each source line: the line, then its notes, each behind its sign."""
    if facts.left_to_xla:
        return "\n".join([f"{quoted(facts.name)}: {without_us(facts)}", *lines_of(facts.past)])
    lines = [f"{quoted(facts.name)}: {summary_of(facts, kernels=kernels)}", *lines_of(facts.past)]
    if kernels and facts.compile_times is not None:
        lines.append(steps_of(facts.compile_times))
    lines += what_if.lines_of(facts.what_if)
    for block in blocks_of(facts.notes(kernels=kernels), collapse=collapse):
        source = f"    {block.source}" if block.source else ""
        lines += ["", f"{block.title}{source}"]
        if block.like:
            others = ", ".join(str(each.loc.line) for each in block.like)
            lines.append(f"  and {counted(len(block.like), 'line')} like it: {others}")
        lines += [f"  {_line(item, kernels)}" for item in block.items]
    if facts.peak is not None and facts.peak_nbytes:
        lines += ["", *f"peak of memory: {facts.peak}".splitlines()]
    if kernels and facts.scratch_nbytes_per_worker:
        lines += [] if facts.peak_nbytes else [""]
        lines.append(scratch_of(facts))
    for inside in facts.inside:
        inner = text_of(inside.facts, kernels=kernels, collapse=collapse)
        lines += ["", f"inside @{inside.dispatch}, which XLA runs: its {inside.which}"]
        lines += [f"  {line}".rstrip() for line in inner.splitlines()]
    return "\n".join(lines)


def without_us(facts: Facts) -> str:
    """What is said of a call that JAX runs alone."""
    return f"JAX runs this call without stagejit: {facts.left_to_xla}"


def summary_of(facts: Facts, *, kernels: bool) -> str:
    """What there is, counted."""
    return "; ".join(filter(None, (", ".join(_work(facts, kernels)), ", ".join(_log(facts)))))


def _work(facts: Facts, kernels: bool) -> Iterator[str]:
    inner = sum(each.is_inner for each in facts.dispatches)
    yield dispatches_text(len(facts.dispatches) - inner, inner)
    if facts.copies:
        moved = facts.copied_nbytes - facts.carried_nbytes
        copied, all_ = nbytes_text(moved), len(facts.copies)
        filled = nbytes_text(facts.filled_nbytes)
        more = f" (and {filled} of borders filled)" if facts.filled_nbytes else ""
        yield (f"1 copy of {copied}" if all_ == 1 else f"{all_} copies, {copied} in all") + more
    if facts.carried_nbytes:
        yield f"{nbytes_text(facts.carried_nbytes)} of carries copied"
    if facts.packing:
        widened = sum(bool(each.widens and each.packs) for each in facts.packs)
        more = f" ({widened} of blocks that are widened in scratch)" if widened else ""
        yield f"{counted(facts.packing, 'pack')} in each call{more}"
    if facts.delegated:
        yield f"{counted(len(facts.delegated), 'equation')} left to XLA"
    if kernels and facts.seconds is not None:
        yield model_of(facts.seconds, facts.uncounted)


def scratch_of(facts: Facts) -> str:
    """What is allocated beside the peak."""
    each = nbytes_text(facts.scratch_nbytes_per_worker)
    return f"scratch of kernels: {each} for each thread, beside the peak"


def model_of(seconds: float, uncounted: Sequence[str]) -> str:
    """What a call takes, and what that does not have."""
    if not uncounted:
        return f"{seconds_text(seconds)} by the model"
    return f"at least {seconds_text(seconds)} by the model ({', '.join(uncounted)})"


def _log(facts: Facts) -> Iterator[str]:
    applied = sum(decision.applied for decision in facts.decisions)
    yield f"{applied} applied"
    yield f"{len(facts.decisions) - applied} declined"
    yield f"{len(facts.placements)} placed"


def _line(item: Item, kernels: bool) -> str:
    if item.is_moot:
        return f"+ {moot_of(item)}"
    said = f"{sign_of(item.first)} {said_of(item.first, kernels=kernels)}{calls_of(item)}"
    if item.count == 1:
        return said
    readers = {note.second if isinstance(note, Between) else "" for note in item.notes}
    if isinstance(item.first, Between) and len(readers) == 1:
        return f"| {between_of(item.first, dict.fromkeys(_firsts(item)))}"
    names = ", ".join(_names(item))
    return f"{said}  x {item.count}{f': {names}' if names else ''}"


def _firsts(item: Item) -> Iterator[str]:
    """Who makes what one dispatch reads."""
    for note in item.notes[:_MOST_NAMES]:
        if isinstance(note, Between):
            yield f"@{note.first}"
    if item.count > _MOST_NAMES:
        yield f"{item.count - _MOST_NAMES} others"


def _names(item: Item) -> Iterator[str]:
    """Of the dispatches that an item stands for."""
    names = [f"@{note.dispatch}" for note in item.notes if isinstance(note, Launched | PartOf)]
    yield from names[:_MOST_NAMES]
    if len(names) > _MOST_NAMES:
        yield "..."
