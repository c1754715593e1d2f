"""`Picture`: what `lowered.picture(...)` gives.

Input: titles and `Panel`s. Output: a view in a notebook, an HTML page, an SVG file. Invariant: all
of them stand alone; a file is there as a whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stagejit.errors import OptionsError
from stagejit.inspect import page
from stagejit.inspect.files import write
from stagejit.inspect.page import Markup, Section, joined
from stagejit.inspect.pictures.drawing import svg
from stagejit.inspect.pictures.drawing.svg import Drawing


@dataclass(frozen=True)
class Panel:
    """One part of a picture. note: beside its title. details: markup below the drawing.
    is_open: to begin with; only such panels are in the SVG."""

    title: str
    drawing: Drawing | None
    note: str = ""
    details: str = ""
    is_open: bool = True

    def section(self) -> Section:
        drawn = self.drawing.as_markup() if self.drawing else Markup("")
        return Section(self.title, joined([drawn, Markup(self.details)]), self.note, self.is_open)


@dataclass(frozen=True, repr=False)
class Picture:
    """A picture of one stage. what: its name, as in `lowered.picture(what)`. title: of the whole.

    Shown by notebooks; `svg` is an SVG document of its own, `html` an HTML page; `save` writes
    one of them."""

    what: str
    title: str
    note: str
    panels: tuple[Panel, ...]

    @property
    def svg(self) -> str:
        """A document with the drawings that are open to begin with, below each other."""
        shown = [
            (panel.title if len(self.panels) > 1 else "", panel.drawing)
            for panel in self.panels
            if panel.drawing and panel.is_open
        ]
        head = f"{self.title}: {self.note}" if self.note else self.title
        words = Drawing(svg.width_of(head) + 24, 22, svg.text(12, 18, head, "sj-strong"))
        return svg.stacked([("", words), *shown]).as_file()

    @property
    def html(self) -> str:
        """A page of its own."""
        return page.page(self.title, self._sections(), note=self.note)

    def __repr__(self) -> str:
        """What a prompt shows, which cannot draw."""
        return f"<picture of {self.title}: {self.what}; .save('{self.what}.html') writes it>"

    def _repr_html_(self) -> str:
        return page.fragment(self.title, self._sections(), note=self.note)

    def sections(self) -> Iterator[Section]:
        """Its panels, for a page with `svg.style()` that has others, too."""
        for panel in self.panels:
            yield panel.section()

    def _sections(self) -> list[Section | Markup]:
        return [svg.style(), *self.sections()]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes a `.svg` or a `.html` file, as a whole or not at all; returns its path.

        Raises OptionsError for another ending, OSError where nothing can be written."""
        target = Path(path)
        endings = {".svg": lambda: self.svg, ".html": lambda: self.html, ".htm": lambda: self.html}
        if target.suffix.lower() not in endings:
            raise OptionsError(
                f"a picture cannot be written as {target.name!r}",
                next_step="choose a name that ends with .html or .svg",
            )
        write(target, endings[target.suffix.lower()]())
        return target
