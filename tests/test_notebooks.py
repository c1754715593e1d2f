"""Every notebook runs from its first cell to its last, and its stored outputs are those of that.

Compared is what cells print and return as text, but for cells that are tagged `machine`: what these
show depends on the machine, or is a time. To store the outputs anew: `python -m pytest
tests/test_notebooks.py --update-golden`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
NAMES = (
    "00_tour", "01_graph", "02_rewrites", "03_dispatches_and_ranges", "04_barriers_and_memory",
    "05_kernels_and_schedules", "06_cuda_beside_cpu", "07_write_your_own_rewrite",
    "08_declare_your_own_op", "09_write_your_own_schedule", "10_explain_and_profile",
)  # fmt: skip
MOST_NBYTES = 1 << 20  # of a notebook with its outputs: code hosts show no larger ones

# In a process of its own: Jupyter's libraries raise warnings, which are errors in this one.
_EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
where = {"metadata": {"path": sys.argv[2]}}
NotebookClient(
    notebook, timeout=240, kernel_name="python3", resources=where, coalesce_streams=True
).execute()
for cell in notebook.cells:
    cell.metadata.pop("execution", None)
nbformat.write(notebook, sys.argv[3])
"""


def shown(cell: dict[str, Any]) -> str:
    """What a code cell prints and returns, as text."""
    found = []
    for output in cell["outputs"]:
        if output["output_type"] == "display_data" or output.get("name") == "stderr":
            continue  # how far a compilation is, where the machine has much else to do
        text = output.get("text") or output.get("data", {}).get("text/plain") or ""
        found.append("".join(text))
    return "".join(found)


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_is_a_notebook_for_each_stage() -> None:
    assert tuple(path.stem for path in NOTEBOOKS) == NAMES


@pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None,
    reason="needs the `notebooks` extra",
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_prints_what_it_stores(
    path: Path, repository: Path, tmp_path: Path, update_golden: bool
) -> None:
    executed = path if update_golden else tmp_path / path.name
    done = subprocess.run(
        [sys.executable, "-c", _EXECUTE, str(path), str(repository), str(executed)],
        env={
            **os.environ,
            "PYTHONPATH": str(repository),
            "JAX_PLATFORMS": "cpu",
            "STAGEJIT_PROGRESS": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for stored, now in zip(code_cells(path), code_cells(executed), strict=True):
        if "machine" not in stored["metadata"].get("tags", ()):
            assert shown(now) == shown(stored), "".join(stored["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_stored_with_its_outputs(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "error" not in kinds
    assert kinds
    text = path.read_text(encoding="utf-8")
    assert "/tmp/ipykernel" not in text  # lines are those of cells
    assert path.stat().st_size <= MOST_NBYTES
