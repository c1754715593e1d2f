"""Acceptance B1: a hint and a requirement are two types, and no pass makes a requirement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import stagejit
from stagejit.index.layout import ROW_MAJOR, Layout
from stagejit.index.wanted import LayoutHint, LayoutRequirement

PACKAGE = Path(stagejit.__file__).parent
TURNED = Layout((1, 0))
SNIPPET = """
from stagejit.index.layout import Layout
from stagejit.index.wanted import LayoutHint, LayoutRequirement

def hold(wanted: LayoutRequirement) -> None: ...
def like(wanted: LayoutHint) -> None: ...

hint = LayoutHint(Layout((1, 0)), "a pass")
requirement = LayoutRequirement(Layout((1, 0)), "argument x")
hold(requirement)
like(hint)
hold(hint)
like(requirement)
"""


def test_mypy_takes_no_hint_for_a_requirement(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    config, cache = tmp_path / "none.ini", tmp_path / "cache"
    config.write_text(f"[mypy]\nmypy_path = {PACKAGE.parent}\nfollow_imports = silent\n")
    arguments = ["--config-file", str(config), "--cache-dir", str(cache), str(path)]
    text, _, status = api.run([*arguments, "--no-error-summary", "--python-version", "3.11"])
    assert status == 1, text
    lines = [line for line in text.splitlines() if "error:" in line]
    assert [line.split(":")[1] for line in lines] == ["12", "13"]
    assert 'has incompatible type "LayoutHint"; expected "LayoutRequirement"' in lines[0]


def uses(path: Path) -> Iterator[str]:
    """Where a file makes a `LayoutRequirement`, or gets at the class other than in a type."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            named = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
            names = (part.id if isinstance(part, ast.Name) else getattr(part, "attr", "")
                     for part in named)  # fmt: skip
            if "LayoutRequirement" in names:
                yield f"{path}:{node.lineno}"


def test_only_who_reads_the_callers_program_makes_requirements() -> None:
    makers = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if list(uses(path))}
    assert makers == {Path("runtime/lowering/formats.py")}


def test_they_say_where_they_come_from() -> None:
    assert str(LayoutHint(TURNED, "infer-layouts")) == "{1,0}, a hint of infer-layouts"
    required = LayoutRequirement(ROW_MAJOR, "result 0")
    assert str(required) == "row-major, which result 0 requires"
    assert not isinstance(required, LayoutHint)
