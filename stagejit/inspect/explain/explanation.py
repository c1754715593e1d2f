"""`Explanation`: what `f.explain(...)` returns.

Input: `Facts`. Output: `str()` is a text, notebooks show a page, `as_json()` is data. Invariant:
all three say the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagejit.inspect.explain.data import data_of
from stagejit.inspect.explain.notes import Facts
from stagejit.inspect.explain.rendering.compilations import data_of_past
from stagejit.inspect.explain.rendering.text import text_of
from stagejit.inspect.explain.rendering.web import fragment_of, page_of
from stagejit.inspect.explain.schema import SCHEMA, ExplanationData
from stagejit.inspect.explain.what_if import data_of_worths
from stagejit.inspect.explain.why import why


@dataclass(frozen=True, repr=False)
class Explanation(Facts):
    """What the compilation of a call did, by the lines of the user's file: the dispatches that a
    line became (with bytes and operations), what was left to XLA, copied, packed, rewritten or not
    and why, placed, and chosen for kernels (with modelled seconds)."""

    def as_text(self, *, kernels: bool = False, collapse: bool = True) -> str:
        """One block for each source line: the line, then its notes: after `>` the dispatches that
        it became, `!` what is left to XLA, `~` what each call packs, `|` why two dispatches of
        which one reads what the other one makes are two, `+` applied and `-` declined rewrites,
        `=` what is written where, or packed once. What has no line stands last.

        kernels: also after `*` what was chosen for each kernel, modelled times, and how long the
            steps of the compilation took: they depend on the machine.
        collapse: what is alike is said once, and how often ("x 12").
        """
        return text_of(self, kernels=kernels, collapse=collapse)

    def why(self, a: str | int, b: str | int) -> str:
        """Where each of two is evaluated, and why both are in one dispatch or in several: what was
        fused, or, for each dispatch that reads what the other one makes, what kept them apart. One
        sentence a line.

        a, b: dispatches ("@contract.1"), lines ("net.py:7", or 7 of any file), ops by the names of
            `as_text("graph")` ("%5"), all ops that do something ("max") or are of a kind
            ("reduce"), or all of a function of yours ("attend").

        Raises OptionsError for what is none of these.
        """
        return why(self, a, b)

    def __str__(self) -> str:
        return self.as_text()

    __repr__ = __str__  # what a prompt, or a notebook without HTML, shows

    def as_html(self) -> str:
        """A page of its own, for a file: it loads nothing, can be searched, and is light or dark as
        the reader's system."""
        return page_of(self)

    def _repr_html_(self) -> str:
        return fragment_of(self)

    def as_json(self) -> ExplanationData:
        """Plain data, for `json.dumps`: see `schema.py`."""
        return {
            **data_of(self),
            "schema": SCHEMA,
            "compilations": data_of_past(self.past),
            "what_if": data_of_worths(self.what_if),
        }
