"""The pictures of stagejit/inspect/README.md are those of its function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.test_readme import _BLOCKS, ROOT, printed

PAGE = ROOT / "stagejit" / "inspect" / "README.md"


@pytest.mark.parametrize("what", ["dispatches", "memory"])
def test_a_picture_of_the_page_is_what_is_drawn_today(what: str, update_golden: bool) -> None:
    text = PAGE.read_text(encoding="utf-8")
    target = PAGE.parent / "pictures" / f"layer_{what}.svg"
    assert f"pictures/{target.name}" in text
    names: dict[str, Any] = {"__name__": "readme"}
    first = _BLOCKS.search(text)
    assert first is not None
    printed(first["code"], names, f"{Path(PAGE).name}[1]")
    drawn = names["layer"].lower(*(names[name] for name in "xwv")).picture(what)
    if update_golden:
        drawn.save(target)
    assert target.read_text(encoding="utf-8") == drawn.svg
