"""An entry of the object cache, whom files belong to, and fresh processes."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
from pathlib import Path

from stagejit.runtime.objects.object_cache import digest

REPOSITORY = Path(__file__).resolve().parents[3]
KEY, OTHER = digest("one"), digest("another")
BODY = b"object code" * 50


def entry(folder: Path, key: str = KEY) -> Path:
    return folder / key[:2] / f"{key}.sjo"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def call(loaded: dict[str, int], name: str) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(loaded[name])())


def run_python(program: str, *args: str, **environment: str | None) -> tuple[str, str]:
    """What a fresh process prints and what it warns."""
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr
