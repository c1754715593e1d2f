"""JAX's own tests, through stagejit: which of them pass with `jax.jit` and not with us?

    git clone --branch jax-v0.10.2 https://github.com/jax-ml/jax /somewhere
    python tests/jax_suite/run.py /somewhere [nn lax api ...] [--jobs 2]

Input: a checkout of JAX at the tag of the installed version; none of it is part of this
repository. Output: for each test file how many tests agree, and each test that passes plainly and
differs with every `jax.jit` staged (`stagejit.enable()`, errors of ours not caught) that
`expected.toml` does not list with its reason. Exit status 0: no such test, and none in the list
that agrees by now.
Invariant: a test that ends its process counts as a failure, and those after it still run.

Both runs of a file leave a log in `--logs`; a plain log is used again, as JAX does not change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent

# The files of issue and README: what concerns a compiler behind `jax.jit`.
DEFAULT_FILES = (
    "aot", "api", "array", "batching", "checkify", "dtypes", "export", "ffi", "jet",
    "lax", "lax_autodiff", "lax_control_flow", "lax_numpy", "lax_numpy_einsum",
    "lax_numpy_indexing", "lax_numpy_operators", "lax_numpy_reducers", "lax_vmap", "linalg",
    "mutable_array", "nn", "pjit", "pmap", "random_lax", "shape_poly", "shard_map",
)  # fmt: skip

MODES = ("plain", "staged")


@dataclass(frozen=True)
class FileResult:
    """What the two runs of one test file say, by test.

    different: passes plainly, does not pass staged; the value is the error's text.
    """

    name: str
    agreed: int
    different: dict[str, str] = field(default_factory=dict)


def run_file(checkout: Path, name: str, logs: Path, again: bool) -> FileResult:
    """Run `tests/NAME_test.py` of a checkout in both modes, as far as the logs do not know it."""
    outcomes = {}
    for mode in MODES:
        log = logs / f"{name}.{mode}.{jax.__version__}.jsonl"
        if mode == "staged" or again:
            log.unlink(missing_ok=True)
        if not log.exists():
            unfinished = log.with_suffix(".part")  # a log that is there is whole
            unfinished.unlink(missing_ok=True)
            _run(checkout, name, mode, unfinished)
            unfinished.rename(log)
        outcomes[mode] = read_log(log)
    return compare(name, outcomes["plain"], outcomes["staged"])


def compare(
    name: str, plain: dict[str, tuple[str, str]], staged: dict[str, tuple[str, str]]
) -> FileResult:
    """plain, staged: (outcome, error) by test."""
    passed = [test for test, (outcome, _) in plain.items() if outcome == "passed"]
    different = {}
    for test in passed:
        outcome, error = staged.get(test, ("missing", "the test did not run"))
        if outcome != "passed":
            different[test] = error or outcome
    return FileResult(name, len(passed) - len(different), different)


def read_log(path: Path) -> dict[str, tuple[str, str]]:
    """(outcome, error) of each test in a log; a test that started and never ended crashed."""
    found: dict[str, tuple[str, str]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        outcome = entry["outcome"]
        if outcome == "started":
            found[entry["test"]] = ("crashed", "the process ended in this test")
        elif found.get(entry["test"], ("",))[0] != "failed":
            found[entry["test"]] = (outcome, entry["error"])
    return found


def _run(checkout: Path, name: str, mode: str, log: Path) -> None:
    """pytest on one file, started again behind a test that ended the process."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(HERE), str(REPOSITORY))),
        "STAGEJIT_SUITE_MODE": mode,
        "STAGEJIT_SUITE_LOG": str(log),
        "STAGEJIT_STRICT": "1",  # otherwise XLA would cover our faults
    }
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as skipped:
        while True:
            before = len(read_log(log)) if log.exists() else 0
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "plugin",
                "-p",
                "no:cacheprovider",
            ]
            command += [f"tests/{name}_test.py", "--suite-skip", skipped.name]
            with open(log.with_suffix(".out"), "w") as output:
                done = subprocess.run(
                    command, cwd=checkout, env=environment, stdout=output, stderr=output
                )
            known = read_log(log) if log.exists() else {}
            if done.returncode >= 0 or len(known) == before:
                return
            Path(skipped.name).write_text("\n".join(known))


def read_expected(path: Path = HERE / "expected.toml") -> dict[str, str]:
    """Reason by test, of the tests that may differ with the installed version of JAX."""
    version = ".".join(jax.__version__.split(".")[:2])
    groups = tomllib.loads(path.read_text())["expected"]
    return {
        test: group["reason"]
        for group in groups
        if version in group.get("jax", [version])
        for test in group["tests"]
    }


def unexpected(
    results: Sequence[FileResult], expected: dict[str, str]
) -> tuple[dict[str, str], list[str]]:
    """(tests that differ and are not listed, listed tests of these files that agree by now)."""
    different = {test: error for r in results for test, error in r.different.items()}
    surprises = {test: error for test, error in different.items() if test not in expected}
    files = {f"{r.name}_test.py" for r in results}
    stale = [t for t in expected if t.partition("::")[0] in files and t not in different]
    return surprises, stale


def main(
    checkout: Annotated[Path, typer.Argument(help="a checkout of JAX, at the installed version")],
    names: Annotated[list[str] | None, typer.Argument(help="test files, without _test.py")] = None,
    logs: Annotated[Path, typer.Option(help="folder of the logs of both runs")] = Path(
        "/tmp/stagejit-jax-suite"
    ),
    jobs: Annotated[int, typer.Option(help="files that run at once")] = os.cpu_count() or 1,
    again: Annotated[bool, typer.Option(help="run plain JAX again, too")] = False,
) -> None:
    """Run JAX's test files through stagejit and report what differs from plain JAX."""
    logs.mkdir(parents=True, exist_ok=True)
    chosen = names or list(DEFAULT_FILES)
    for name in chosen:
        if not (checkout / "tests" / f"{name}_test.py").exists():
            raise typer.BadParameter(f"{checkout} has no tests/{name}_test.py")
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda name: run_file(checkout, name, logs, again), chosen))
    expected = read_expected()
    surprises, stale = unexpected(results, expected)
    console = Console()
    table = Table("file", "agree", "differ", "of these expected")
    for r in results:
        listed = sum(test in expected for test in r.different)
        table.add_row(r.name, str(r.agreed), str(len(r.different)), str(listed))
    console.print(table)
    for test, error in surprises.items():
        console.print(f"differs: {test}\n    {_last_line(error)}", markup=False, highlight=False)
    for test in stale:
        console.print(f"agrees by now, but is in expected.toml: {test}", markup=False)
    agreed = sum(r.agreed for r in results)
    console.print(f"{agreed} agree, {len(surprises)} differ unexpectedly, {len(stale)} stale")
    raise typer.Exit(1 if surprises or stale else 0)


def _last_line(error: str) -> str:
    lines = [line for line in error.splitlines() if line.startswith("E ")] or error.splitlines()
    return lines[0][:200] if lines else ""


if __name__ == "__main__":
    typer.run(main)
