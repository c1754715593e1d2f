"""`explain`: every decision of a compilation, by the user's source line.

Input: the decisions of a plan. Output: text for a terminal, HTML for a notebook. Invariant: no
decision is left out; those without a line come last.
"""

from __future__ import annotations

import html
import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from stagejit.decisions import Decision
from stagejit.loc import Loc


@dataclass(frozen=True)
class Explanation:
    """Decisions in order; `str()` is the text, notebooks show the table."""

    name: str
    decisions: tuple[Decision, ...]

    def as_text(self) -> str:
        """One block for each source line: the line, then `+` applied and `-` declined rewrites."""
        lines = [
            f"{self.name}: {sum(d.applied for d in self.decisions)} applied, "
            f"{sum(not d.applied for d in self.decisions)} declined"
        ]
        for loc, decisions in by_line(self.decisions):
            source = linecache.getline(loc.file, loc.line).strip()
            lines.append(f"\n{loc}" + (f"    {source}" if source else ""))
            lines += [
                f"  {'+' if d.applied else '-'} {d.rewrite} @ {d.op}: {d.reason}" for d in decisions
            ]
        return "\n".join(lines)

    __str__ = as_text

    def _repr_html_(self) -> str:
        rows = []
        for loc, decisions in by_line(self.decisions):
            source = linecache.getline(loc.file, loc.line).strip()
            rows.append(
                f"<tr><th colspan=4 align=left>{html.escape(str(loc))} "
                f"<code>{html.escape(source)}</code></th></tr>"
            )
            for decision in decisions:
                cells = (
                    "applied" if decision.applied else "declined",
                    decision.rewrite,
                    decision.op,
                    decision.reason,
                )
                rows.append("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
        return f"<table><caption>{html.escape(self.name)}</caption>{''.join(rows)}</table>"


def by_line(decisions: Sequence[Decision]) -> list[tuple[Loc, list[Decision]]]:
    """Decisions grouped by source line, known lines first, otherwise in order."""

    def line(decision: Decision) -> tuple[bool, str, int]:
        return (not decision.loc, decision.loc.file, decision.loc.line)

    ordered = sorted(decisions, key=line)
    groups = [list(group) for _, group in groupby(ordered, key=line)]
    return [(Loc(group[0].loc.file, group[0].loc.line), group) for group in groups]
