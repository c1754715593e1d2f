"""How prompts and notebooks show what lower layers make: by layers above them.

Input: functions that print and draw, which the package registers. Output: text, HTML. Invariant:
nothing is imported before something is shown.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

_draw: Callable[[Any], str] | None = None
_print: Callable[[Any], str] | None = None


def drawn_by(function: Callable[[Any], str]) -> None:
    """From now on `function` makes the HTML of graphs and plans."""
    global _draw
    _draw = function


def printed_by(function: Callable[[Any], str]) -> None:
    """From now on `function` makes the text of graphs."""
    global _print
    _print = function


def text_of(shown: Any) -> str:
    """The text of a graph; as long as nobody prints, what a prompt shows of it."""
    return repr(shown) if _print is None else _print(shown)


class Shown:
    """What is printed and drawn by layers above it."""

    def __str__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        """Its picture, for notebooks."""
        return html_of(self)


def html_of(shown: Any) -> str:
    """The HTML of a graph or a plan; its text as long as nobody draws."""
    return f"<pre>{html.escape(str(shown))}</pre>" if _draw is None else _draw(shown)
