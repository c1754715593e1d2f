"""Every notebook runs from its first cell to its last, and is stored without outputs.

Stored outputs would go stale; those that a newcomer should see are in the README, where a test
keeps them true.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))

# In a process of its own: Jupyter's libraries raise warnings, which are errors in this one.
_EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
where = {"metadata": {"path": sys.argv[2]}}
NotebookClient(notebook, timeout=240, kernel_name="python3", resources=where).execute()
"""


def test_there_is_a_notebook() -> None:
    assert [path.name for path in NOTEBOOKS] == ["tour.ipynb"]


@pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None,
    reason="needs the `notebooks` extra",
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path: Path, repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EXECUTE, str(path), str(repository)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
