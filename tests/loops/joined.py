"""Loops as one function also where that would not pay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from stagejit.runtime.cpu.loops import joining


@contextlib.contextmanager
def loops_joined() -> Iterator[None]:
    """What is compiled inside has every loop as one function that can be one."""
    limits: dict[str, Any] = {"_LEAST_SECONDS": 0.0, "_LEAST_SHARE": 0.0, "_LINE_SECONDS": 0.0}
    with mock.patch.multiple(joining, **limits):
        yield
