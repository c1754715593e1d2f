"""How notebooks show what lower layers make: graphs and plans are drawn by a layer above them.

Input: a function that draws, which the package registers. Output: HTML. Invariant: nothing is
imported before something is shown.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

_draw: Callable[[Any], str] | None = None


def drawn_by(function: Callable[[Any], str]) -> None:
    """From now on `function` makes the HTML of graphs and plans."""
    global _draw
    _draw = function


def html_of(shown: Any) -> str:
    """The HTML of a graph or a plan; its text as long as nobody draws."""
    return f"<pre>{html.escape(str(shown))}</pre>" if _draw is None else _draw(shown)
