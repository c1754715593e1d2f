"""The package's promises outside its code: README commands, CI, licence, metadata, py.typed."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

import stagejit

TOP_LEVEL = {
    ".ci",
    ".github",
    ".gitignore",
    "LICENSE",
    "README.md",
    "notebooks",
    "pyproject.toml",
    "stagejit",
    "tests",
}


@pytest.fixture
def project(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text())


def readme_command(readme: str, name: str) -> str:
    found = re.findall(rf"^<!-- command: {name} -->\n```bash\n(.*?)```$", readme, re.S | re.M)
    assert len(found) == 1, f"README.md must have exactly one command named {name}"
    return str(found[0]).strip()


@pytest.mark.parametrize("name", ["demo", "tests"])
def test_readme_command_is_one_line_from_nothing(name: str, repository: Path) -> None:
    command = readme_command((repository / "README.md").read_text(), name)
    assert "\n" not in command
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_readme_commands_name_extras_that_exist(repository: Path, project: dict[str, Any]) -> None:
    readme = (repository / "README.md").read_text()
    extras = {name for found in re.findall(r"\.\[([\w,]+)\]", readme) for name in found.split(",")}
    assert extras <= project["project"]["optional-dependencies"].keys()


def test_ci_takes_its_commands_from_the_readme(repository: Path) -> None:
    script = (repository / ".ci" / "run").read_text()
    assert os.access(repository / ".ci" / "run", os.X_OK)
    assert "run_readme_command tests" in script
    assert "run_readme_command demo" in script


def test_ci_rejects_an_unknown_leg(repository: Path) -> None:
    if not (repository / ".git").exists():
        pytest.skip("needs a git checkout: .ci/run copies the tracked files")
    done = subprocess.run(
        [repository / ".ci" / "run", "no-such-leg"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "unknown leg 'no-such-leg'" in done.stderr


def test_extras_and_supported_versions(project: dict[str, Any]) -> None:
    metadata = project["project"]
    assert metadata["requires-python"] == ">=3.11,<3.14"
    assert any(dep.startswith("jax>=0.10,<0.13") for dep in metadata["dependencies"])
    assert {"cuda", "test", "notebooks", "dev"} <= metadata["optional-dependencies"].keys()


def test_warnings_are_errors(project: dict[str, Any]) -> None:
    assert project["tool"]["pytest"]["ini_options"]["filterwarnings"][0] == "error"


def test_licence_is_the_one_declared(repository: Path, project: dict[str, Any]) -> None:
    assert project["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (repository / "LICENSE").read_text()[:200]


def test_annotations_are_published(repository: Path) -> None:
    assert (repository / "stagejit" / "py.typed").exists()


def test_top_level_holds_what_the_design_lists(repository: Path) -> None:
    if not (repository / ".git").exists():
        pytest.skip("needs a git checkout: only tracked files count")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} <= TOP_LEVEL


def test_the_version_is_that_of_the_metadata(project: dict[str, Any]) -> None:
    assert stagejit.__version__ == project["project"]["version"]
    assert "__version__" in dir(stagejit)


def test_what_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.delattr(stagejit, "__version__", raising=False)
    assert not hasattr(stagejit, "__version__")
