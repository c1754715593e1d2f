"""What texts name is there: imports in strings, files, folders, notes, and names in files.

Programs for other processes are strings, and pages, notebooks, docstrings and comments are prose;
neither the type checker nor a move of a module sees them.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORT = re.compile(r"from ((?:stagejit|tests)\b[\w.]*) import \(?\s*([\w, ]+)")
QUOTED = re.compile(r"`([\w./-]*\w\.(?:py|md|ipynb)|[\w./-]+/)`")
WHOLE = re.compile(r"\b(?:stagejit|tests)/[\w/]+\.py\b")
PAGE = re.compile(r"\b[A-Z]{3,}\.md\b")
LINK = re.compile(r"\]\(([\w./-]+)[)#]")
NOTE = re.compile(r"\bNotes? \[([^\]]+)\](:?)")
NAMES = re.compile(r"((?:`[\w.]+`(?:,| and| or)? )+)in `((?:stagejit|tests)/[\w/]+\.py)`")
OF_USERS = {"net.py", "train.py", "model.py", "tests/a.py"}  # examples, as names in capitals are


@functools.cache
def texts() -> dict[str, str]:
    """By the paths of files that git tracks; of a notebook the cells, without what they print."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.ipynb"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = [file for file in listed.stdout.split() if (REPOSITORY / file).exists()]
    found = {file: (REPOSITORY / file).read_text(encoding="utf-8") for file in files}
    for file in found:
        if file.endswith(".ipynb"):
            cells = json.loads(found[file])["cells"]
            found[file] = "\n".join("".join(cell["source"]) for cell in cells)
    return found


@functools.cache
def ends() -> frozenset[str]:
    """The last parts of the paths of all files and folders, however many."""
    files = map(PurePosixPath, texts())
    paths = {path for file in files for path in (file, *file.parents)}
    return frozenset(
        "/".join(path.parts[start:]) for path in paths for start in range(len(path.parts))
    )


def imported() -> dict[tuple[str, str], str]:
    """(module, name) --> a file that imports it."""
    found: dict[tuple[str, str], str] = {}
    for file, text in texts().items():
        for module, names in IMPORT.findall(text):
            for name in filter(None, (each.split()[0:1] for each in names.split(","))):
                found.setdefault((module, name[0]), file)
    return found


def is_there(module: str, name: str) -> bool:
    if module.startswith("tests"):  # which are not imported, as some need libraries
        file = f"{module.replace('.', '/')}.py"
        inside = f"{module.replace('.', '/')}/{name}"
        return is_named(name, file) or not {f"{inside}.py", inside}.isdisjoint(ends())
    try:
        return hasattr(importlib.import_module(module), name) or bool(
            importlib.import_module(f"{module}.{name}")
        )
    except ModuleNotFoundError:
        return False


def is_named(name: str, file: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", texts().get(file, "")) is not None


def is_a_path(path: str, file: str) -> bool:
    """Whether a text in `file` may call something so: from where it is, or by its last parts."""
    beside = (REPOSITORY / file).parent / path
    known = path in OF_USERS or re.search(r"[A-Z]{3}", path.replace("README", "")) is not None
    return known or beside.exists() or path.strip("/") in ends()


def test_every_import_in_a_text_finds_what_it_names() -> None:
    gone = [
        f"{file}: from {module} import {name}"
        for (module, name), file in imported().items()
        if not is_there(module, name)
    ]
    assert not gone


def test_every_path_in_a_text_is_there() -> None:
    def named() -> Iterator[tuple[str, str]]:
        for file, text in texts().items():
            for path in (*QUOTED.findall(text), *WHOLE.findall(text)):
                if not is_a_path(path, file):
                    yield file, path
            for page in PAGE.findall(text):
                if page not in ends():
                    yield file, page
            for link in LINK.findall(text) if file.endswith(".md") else ():
                if not ((REPOSITORY / file).parent / link).exists():
                    yield file, link

    assert list(named()) == []


def test_every_note_that_a_text_refers_to_is_there() -> None:
    there, wanted = set[str](), dict[str, str]()
    for file, text in texts().items():
        for note, is_it in NOTE.findall(re.sub(r"\s+#? ?", " ", text)):
            if is_it:
                there.add(note)
            else:
                wanted[note] = file
    assert {note: file for note, file in wanted.items() if note not in there} == {}


def test_every_name_in_a_file_is_there() -> None:
    found = [
        (file, name, where)
        for file, text in texts().items()
        for names, where in NAMES.findall(text.replace("\n", " "))
        for name in re.findall(r"\w+", names.replace(" and ", " ").replace(" or ", " "))
    ]
    assert len(found) > 8
    assert [each for each in found if not is_named(each[1], each[2])] == []


@pytest.mark.parametrize(
    ("module", "name"),
    [("stagejit", "locks"), ("stagejit.runtime", "embedding"), ("tests.loops", "steps")],
)
def test_what_moved_is_not_there(module: str, name: str) -> None:
    assert not is_there(module, name)


def test_what_is_gone_is_seen() -> None:
    page = "stagejit/graph/README.md"
    assert is_a_path("ops/control.py", page)
    assert is_a_path("stagejit/graph/ops/", page)
    assert not is_a_path("ops/controls.py", page)
    assert not is_a_path("graph/operations/", page)
    assert is_named("OpDef", "stagejit/graph/definition.py")
    assert not is_named("OpDefs", "stagejit/graph/definition.py")
