"""Compile time in a fresh process: cold, and again with the object cache that the first one filled.

Input: the name of a workload (and the user's file where it is from one). Output: seconds.
Invariant: a process measures one program, after both compilers have compiled something trivial, so
neither the import of JAX nor the start of LLVM counts, and no kernel is shared with an earlier
program.

The time is that of the first call less that of the second: tracing, compiling and loading, in the
path that a user takes. Run as `python -m stagejit.bench.compile_time NAME [--file FILE]`, it prints
one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp

from stagejit.bench.contenders import JAX, STAGEJIT, Contender, on_device, waiting_call
from stagejit.bench.programs import Workload, load_file
from stagejit.bench.workloads.catalogue import WORKLOADS

_CHILD_TIMEOUT = 600  # seconds


@dataclass(frozen=True)
class CompileTimes:
    """Seconds. warm: with the object cache on disk; None where a child process failed."""

    cold: float | None = None
    warm: float | None = None
    jax: float | None = None


def measure(workload: Workload, file: Path | None = None) -> CompileTimes:
    """Compiles the workload in two fresh processes that share one new cache folder."""
    with tempfile.TemporaryDirectory(prefix="stagejit-bench-") as cache_dir:
        first = _in_fresh_process(workload.name, file, cache_dir)
        second = _in_fresh_process(workload.name, file, cache_dir)
    return CompileTimes(first.get("stagejit"), second.get("stagejit"), first.get("jax"))


def _in_fresh_process(name: str, file: Path | None, cache_dir: str) -> dict[str, float]:
    command = [sys.executable, "-m", "stagejit.bench.compile_time", name]
    command += ["--file", str(file)] if file else []
    environment = os.environ | {"STAGEJIT_CACHE_DIR": cache_dir}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=_CHILD_TIMEOUT,
    )
    if done.returncode != 0:
        return {}
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _first_call_seconds(contender: Contender, workload: Workload) -> float:
    args = on_device(workload.make_args())
    started = time.perf_counter()
    compiled = contender.compile(workload.function, workload.donated)
    call = waiting_call(compiled, args, workload.donated)
    call()
    first = time.perf_counter() - started
    started = time.perf_counter()
    call()
    return max(0.0, first - (time.perf_counter() - started))


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--file", type=Path)
    request = parser.parse_args()
    workload = (load_file(request.file) if request.file else WORKLOADS)[request.name]
    for contender in (JAX, STAGEJIT):
        contender.compile(lambda x: x * 3 - 1)(jnp.ones(7))
    seconds = {c.name: _first_call_seconds(c, workload) for c in (JAX, STAGEJIT)}
    print(json.dumps(seconds))


if __name__ == "__main__":
    _main()
