"""Random data of a test is a function of the test alone.

Input: the node id of the test that runs (tests/conftest.py says it), and STAGEJIT_TEST_SEED.
Output: `RNG`, the generator that tests draw from. Invariant: it starts anew with every test, and
with every example of hypothesis, so that a red test is red again, alone and in any order. A module
that draws constants while it is imported has a generator of its own for that.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import register_random


class Draws:
    """A generator of NumPy, by who draws; hypothesis resets it like a `random.Random`."""

    def __init__(self) -> None:
        self._test = ""
        self._generator: np.random.Generator | None = None
        self._constants: dict[str, np.random.Generator] = {}

    @contextmanager
    def inside(self, test: str) -> Iterator[None]:
        """Draw for this test from now on."""
        self._test = test
        self.seed(0)
        try:
            yield
        finally:
            self._generator = None

    def seed(self, number: int) -> None:
        self._generator = _seeded(self._test, number)

    def getstate(self) -> Any:
        return None if self._generator is None else self._generator.bit_generator.state

    def setstate(self, state: Any) -> None:
        if state is None:
            self._generator = None
        elif self._generator is not None:
            self._generator.bit_generator.state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator or self._of_module(), name)

    def _of_module(self) -> np.random.Generator:
        """The generator for the constants of the test module that is imported now."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        module = "" if frame is None else frame.f_globals["__name__"]
        if module.partition(".")[0] != "tests":
            raise RuntimeError("RNG is for tests and for constants of their modules")
        return self._constants.setdefault(module, _seeded(module, 0))


def _seeded(name: str, number: int) -> np.random.Generator:
    run = int(os.environ.get("STAGEJIT_TEST_SEED", "0"))
    return np.random.default_rng([zlib.crc32(name.encode()), run, number])


RNG = Draws()
register_random(RNG)
