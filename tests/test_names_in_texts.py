"""What strings, pages and notebooks import from the package is there.

Programs for other processes are strings, which neither the type checker nor a move of a module
sees.
"""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
IMPORT = re.compile(r"from (stagejit[\w.]*) import ([\w, ]+)")


def imported() -> dict[tuple[str, str], str]:
    """(module, name) --> a file that imports it."""
    tracked = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.ipynb"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[tuple[str, str], str] = {}
    for file in tracked.stdout.split():
        path = REPOSITORY / file
        for module, names in IMPORT.findall(path.read_text(encoding="utf-8")):
            for name in filter(None, (each.split()[0:1] for each in names.split(","))):
                found.setdefault((module, name[0]), file)
    return found


def is_there(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(
            importlib.import_module(f"{module}.{name}")
        )
    except ModuleNotFoundError:
        return False


def test_every_import_in_a_text_finds_what_it_names() -> None:
    gone = [
        f"{file}: from {module} import {name}"
        for (module, name), file in imported().items()
        if not is_there(module, name)
    ]
    assert not gone


@pytest.mark.parametrize(
    ("module", "name"), [("stagejit", "locks"), ("stagejit.runtime", "embedding")]
)
def test_what_moved_is_not_there(module: str, name: str) -> None:
    assert not is_there(module, name)
