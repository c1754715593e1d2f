"""JAX's own tests, through stagejit: which of them pass with `jax.jit` and not with us?

    git clone --branch jax-v0.10.2 https://github.com/jax-ml/jax /somewhere
    python tests/jax_suite/run.py /somewhere [nn lax api ...] [--jobs 2]

Input: a checkout of JAX at the tag of the installed version; none of it is part of this
repository. Output: for each test file how many tests pass, and each test that passes plainly and
differs with every `jax.jit` staged (`stagejit.enable()`, errors of ours not caught) that
`expected.toml` does not list with its reason. Exit status 0: no such test, and none in the list
that agrees by now.
Invariant: a test that ends its process counts as a failure, and those after it still run.

Plain JAX runs only the tests that do not pass staged: those that do count whatever it does. Both
runs of a file leave a log in `--logs`; the plain one is used again, as JAX does not change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Sequence
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


@dataclass(frozen=True)
class FileResult:
    """What the two runs of one test file say, by test.

    passed: how many pass staged.
    different: passes plainly, does not pass staged; the value is the error's text.
    """

    name: str
    passed: int
    different: dict[str, str] = field(default_factory=dict)


def run_file(checkout: Path, name: str, logs: Path, again: bool) -> FileResult:
    """Run `tests/NAME_test.py` staged, and plainly what did not pass and the log does not know."""
    staged_log = logs / f"{name}.staged.{jax.__version__}.jsonl"
    staged_log.unlink(missing_ok=True)
    unfinished = staged_log.with_suffix(".part")  # a staged log that is there is whole
    unfinished.unlink(missing_ok=True)
    _run(checkout, name, "staged", unfinished, None)
    unfinished.rename(staged_log)
    staged = read_log(staged_log)

    plain_log = logs / f"{name}.plain.{jax.__version__}.jsonl"
    if again:
        plain_log.unlink(missing_ok=True)
    doubtful = {test for test, (outcome, _) in staged.items() if outcome != "passed"}
    if doubtful - _ran(plain_log):
        _run(checkout, name, "plain", plain_log, doubtful - _ran(plain_log))
    return compare(name, read_log(plain_log) if plain_log.exists() else {}, staged)


def compare(
    name: str, plain: dict[str, tuple[str, str]], staged: dict[str, tuple[str, str]]
) -> FileResult:
    """plain, staged: (outcome, error) by test; a test is in one of them at least."""
    passed = sum(outcome == "passed" for outcome, _ in staged.values())
    different = {}
    for test, (outcome, _) in plain.items():
        after, error = staged.get(test, ("missing", "the test was not collected"))
        if outcome == "passed" and after != "passed":
            different[test] = error or after
    return FileResult(name, passed, different)


def read_log(path: Path) -> dict[str, tuple[str, str]]:
    """(outcome, error) of each test in a log; a test that started and never ended crashed.

    A test that was collected and never started is "missing".
    """
    found: dict[str, tuple[str, str]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        outcome = entry["outcome"]
        if outcome == "collected":
            found[entry["test"]] = ("missing", "the test did not run")
        elif outcome == "started":
            found[entry["test"]] = ("crashed", "the process ended in this test")
        elif found.get(entry["test"], ("",))[0] != "failed":
            found[entry["test"]] = (outcome, entry["error"])
    return found


def _run(checkout: Path, name: str, mode: str, log: Path, only: Collection[str] | None) -> None:
    """pytest on one file, started again behind a test that ended the process.

    only: tests that are run, None for all; others are in the log already, or not wanted in it.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(HERE), str(REPOSITORY))),
        "STAGEJIT_SUITE_MODE": mode,
        "STAGEJIT_SUITE_LOG": str(log),
        "STAGEJIT_STRICT": "1",  # otherwise XLA would cover our faults
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as folder:
        skipped, wanted = Path(folder, "skipped.txt"), Path(folder, "wanted.txt")
        command += [f"tests/{name}_test.py", "--suite-skip", str(skipped)]
        if only is not None:
            wanted.write_text("\n".join(only))
            command += ["--suite-only", str(wanted)]
        before = _ran(log)
        while True:
            skipped.write_text("\n".join(before))
            with open(log.with_suffix(".out"), "w") as output:
                done = subprocess.run(
                    command, cwd=checkout, env=environment, stdout=output, stderr=output
                )
            after = _ran(log)
            if done.returncode in (2, 3, 4):  # pytest itself failed
                raise RuntimeError(f"pytest failed: {log.with_suffix('.out')} says why")
            if done.returncode >= 0 or after == before:
                return
            before = after


def _ran(log: Path) -> set[str]:
    known = read_log(log) if log.exists() else {}
    return {test for test, (outcome, _) in known.items() if outcome != "missing"}


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
    table = Table("file", "pass", "differ", "of these expected")
    for r in results:
        listed = sum(test in expected for test in r.different)
        table.add_row(r.name, str(r.passed), str(len(r.different)), str(listed))
    console.print(table)
    for test, error in surprises.items():
        console.print(f"differs: {test}\n    {_last_line(error)}", markup=False, highlight=False)
    for test in stale:
        console.print(f"agrees by now, but is in expected.toml: {test}", markup=False)
    passed = sum(r.passed for r in results)
    console.print(f"{passed} pass, {len(surprises)} differ unexpectedly, {len(stale)} stale")
    raise typer.Exit(1 if surprises or stale else 0)


def _last_line(error: str) -> str:
    lines = [line for line in error.splitlines() if line.startswith("E ")] or error.splitlines()
    return lines[0][:200] if lines else ""


if __name__ == "__main__":
    typer.run(main)
