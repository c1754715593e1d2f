"""The README and the pages of the stages are run: each ```python block prints the ```text block
after it.

The blocks of a page share one namespace, in order, as a reader would paste them. To write the
printed blocks and the table of rewrites anew: `python -m pytest tests/test_readme.py
--update-golden`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import linecache
import re
from pathlib import Path
from typing import Any

import pytest

import stagejit
from stagejit.options import SWITCHES, Options
from tests.test_imports import LAYERS

pytestmark = pytest.mark.usefixtures("as_shipped")

_BLOCKS = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<text>.*?)^```\n)?", re.S | re.M
)
_SWITCHES = re.compile(r"^(\| name \| rewrite \|\n\|---\|---\|\n)(?:\|.*\n)*", re.M)


ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for folder in ("stagejit", "tests", ".github")
    for page in (ROOT / folder).rglob("*.md")
)
REWRITES, OPTIONS, COMMANDS = (
    "stagejit/rewrites/README.md",
    "stagejit/docs/options.md",
    "stagejit/docs/commands.md",
)


def printed(code: str, namespace: dict[str, Any], name: str) -> str:
    """What the block prints. Its lines are known to linecache, as those of a user's file are."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        exec(compile(code, name, "exec"), namespace)
    return stdout.getvalue()


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_blocks_print_what_the_page_says(page: str, update_golden: bool) -> None:
    namespace: dict[str, Any] = {"__name__": "readme"}
    position = 0

    def rerun(block: re.Match[str]) -> str:
        nonlocal position
        position += 1
        found = printed(block["code"], namespace, f"{Path(page).name}[{position}]")
        if not found:
            return f"```python\n{block['code']}```\n"
        return f"```python\n{block['code']}```\n\n```text\n{found.rstrip()}\n```\n"

    before = (ROOT / page).read_text()
    after = _BLOCKS.sub(rerun, before)
    if update_golden:
        (ROOT / page).write_text(after)
    assert after == before or update_golden


def test_the_table_of_rewrites_is_the_one_of_options(update_golden: bool) -> None:
    rows = "".join(f"| `{name}` | {summary} |\n" for name, summary in SWITCHES.items())
    before = (ROOT / REWRITES).read_text()
    after = _SWITCHES.sub(lambda table: table[1] + rows, before)
    if update_golden:
        (ROOT / REWRITES).write_text(after)
    assert rows in after
    assert after == before or update_golden


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def test_the_table_of_options_has_all_that_there_are() -> None:
    rows = re.findall(r"^\| `(\w+)=", text_of(OPTIONS), re.M)
    assert sorted(rows) == sorted(option.name for option in dataclasses.fields(Options))


def test_the_table_of_folders_has_all_that_there_are() -> None:
    layout = text_of("README.md").partition("\n## Layout\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", layout, re.M)
    named = {Path(name.rstrip("/")).stem for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named == {name for layer in LAYERS for name in layer} - {"__init__"}


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_what_a_page_names_exists(page: str) -> None:
    text, folder = text_of(page), (ROOT / page).parent
    paths = re.findall(r"(?<![\w/.])(?:stagejit|tests|notebooks|\.ci)/[\w./]*\w", text)
    links = [link for link in re.findall(r"\]\(([^)#]+)[)#]", text) if "://" not in link]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [link for link in links if not (folder / link).exists()] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, left = set[Path](), [ROOT / "README.md"]
    while left:
        page = left.pop()
        links = re.findall(r"\]\(([^)#]+\.md)[)#]", page.read_text())
        left += {(page.parent / link).resolve() for link in links} - reached
        reached |= {(page.parent / link).resolve() for link in links}
    assert {ROOT / page for page in PAGES} <= reached


def test_the_table_of_commands_has_all_that_there_are() -> None:
    from stagejit.bench.cli import app

    rows = re.findall(r"^\| `python -m stagejit (\w+)", text_of(COMMANDS), re.M)
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
    assert sorted(rows) == sorted(commands)


def test_the_pages_name_what_is_called() -> None:
    text = "".join(text_of(page) for page in ("README.md", *PAGES))
    called = [name for name in stagejit.__all__ if name.islower()]
    assert called
    assert [name for name in called if f"stagejit.{name}(" not in text] == []
