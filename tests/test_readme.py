"""The README is run: each ```python block prints the ```text block after it.

All blocks share one namespace, in order, as a reader would paste them. To write the printed blocks
and the table of rewrites anew: `python -m pytest tests/test_readme.py --update-golden`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import linecache
import re
from pathlib import Path
from typing import Any

import stagejit
from stagejit.options import SWITCHES, Options
from tests.test_imports import LAYERS

_BLOCKS = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<text>.*?)^```\n)?", re.S | re.M
)
_SWITCHES = re.compile(r"^(\| name \| rewrite \|\n\|---\|---\|\n)(?:\|.*\n)*", re.M)


def printed(code: str, namespace: dict[str, Any], position: int) -> str:
    """What the block prints. Its lines are known to linecache, as those of a user's file are."""
    name = f"README.md[{position}]"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        exec(compile(code, name, "exec"), namespace)
    return stdout.getvalue()


def test_the_tour_prints_what_the_readme_says(repository: Path, update_golden: bool) -> None:
    readme = repository / "README.md"
    namespace: dict[str, Any] = {"__name__": "readme"}
    position = 0

    def rerun(block: re.Match[str]) -> str:
        nonlocal position
        position += 1
        found = printed(block["code"], namespace, position)
        if not found:
            return block[0]
        return f"```python\n{block['code']}```\n\n```text\n{found.rstrip()}\n```\n"

    before = readme.read_text()
    after = _BLOCKS.sub(rerun, before)
    if update_golden:
        readme.write_text(after)
    assert position > 0
    assert after == before or update_golden


def test_the_table_of_rewrites_is_the_one_of_options(repository: Path, update_golden: bool) -> None:
    readme = repository / "README.md"
    rows = "".join(f"| `{name}` | {summary} |\n" for name, summary in SWITCHES.items())
    before = readme.read_text()
    after = _SWITCHES.sub(lambda table: table[1] + rows, before)
    if update_golden:
        readme.write_text(after)
    assert rows in after
    assert after == before or update_golden


def section(repository: Path, title: str) -> str:
    """The text under `## title`."""
    _, _, after = (repository / "README.md").read_text().partition(f"\n## {title}\n")
    assert after
    return after.partition("\n## ")[0]


def test_the_table_of_options_has_all_that_there_are(repository: Path) -> None:
    rows = re.findall(r"^\| `(\w+)=", section(repository, "Options"), re.M)
    assert sorted(rows) == sorted(option.name for option in dataclasses.fields(Options))


def test_the_table_of_folders_has_all_that_there_are(repository: Path) -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", section(repository, "Layout"), re.M)
    named = {Path(name.rstrip("/")).stem for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named == {name for layer in LAYERS for name in layer} - {"__init__"}


def test_paths_that_the_readme_names_exist(repository: Path) -> None:
    text = (repository / "README.md").read_text()
    paths = re.findall(r"(?<![\w/])(?:stagejit|tests|notebooks|\.ci)/[\w./]*\w", text)
    assert len(paths) > 20
    assert [path for path in paths if not (repository / path).exists()] == []


def test_the_table_of_commands_has_all_that_there_are(repository: Path) -> None:
    from stagejit.bench.cli import app

    rows = re.findall(
        r"^\| `python -m stagejit (\w+)", section(repository, "The command line"), re.M
    )
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
    assert sorted(rows) == sorted(commands)


def test_the_readme_names_what_is_called(repository: Path) -> None:
    text = (repository / "README.md").read_text()
    called = [name for name in stagejit.__all__ if name.islower()]
    assert called
    assert [name for name in called if f"stagejit.{name}(" not in text] == []
