"""Kernels as text, each below the dispatches that launch it.

Input: a schedule, the kernel of every region. Output: the texts of all different kernels, in the
order of their first launch. Invariant: a kernel's text is the same whoever launches it, so ranges
stand beside it, not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stagejit.codegen.generate import Generated
from stagejit.dispatch.regions import Region
from stagejit.schedule.plans.plan import Dispatch
from stagejit.schedule.schedule import Schedule

_MOST_SHOWN = 4


def texts_of(schedule: Schedule, kernels: Mapping[Region, Generated]) -> str:
    """A comment line for each of a kernel's dispatches, or for the first of many."""
    uses: dict[str, dict[Dispatch, None]] = {}
    texts: dict[str, str] = {}
    for dispatch, generated in _launched(schedule, kernels):
        uses.setdefault(generated.symbol, {})[dispatch] = None
        texts[generated.symbol] = generated.text
    shown = []
    for symbol, text in texts.items():
        each = [str(dispatch) for dispatch in uses[symbol]]
        lines = each if len(each) <= _MOST_SHOWN else each[: _MOST_SHOWN - 1]
        if len(lines) < len(each):
            lines = [*lines, f"and {len(each) - len(lines)} others"]
        shown.append("".join(f"// {line}\n" for line in lines) + text)
    return "\n".join(shown)


def _launched(
    schedule: Schedule, kernels: Mapping[Region, Generated]
) -> Iterator[tuple[Dispatch, Generated]]:
    for step in schedule.steps():
        for inner in step.bodies:
            yield from _launched(inner, kernels)
        if step.region.has_kernel:
            for part in step.region.parts:
                yield step.dispatch, kernels[part]
