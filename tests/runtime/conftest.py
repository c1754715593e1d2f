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


@pytest.fixture(autouse=True)
def machine_code_is_that_of_users(as_shipped: None) -> None:
    """These tests are about who compiles what when, and whose code it is."""
