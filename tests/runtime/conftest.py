"""Fixtures of the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

from stagejit.runtime.lowering import embedding
from tests.runtime.toy_compiler import ToyCompiler


@pytest.fixture
def toy() -> Iterator[ToyCompiler]:
    """Marked functions go to the toy compiler while the test runs."""
    before = embedding._installed
    compiler = ToyCompiler()
    embedding.install(compiler)
    yield compiler
    jax.clear_caches()
    if before is not None:
        embedding.install(before)
