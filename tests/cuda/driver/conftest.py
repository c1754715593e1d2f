"""The emulated driver for a test: nothing of it is left over when the test is done."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.cuda.driver import build
from tests.cuda.driver.client import Client


@pytest.fixture(scope="session")
def client() -> Client:
    """Calls of the driver; no context is current."""
    if shutil.which("g++") is None:
        pytest.skip("the emulated driver needs g++")
    if build.has_other_driver():
        pytest.skip("this machine has a driver of its own: `-m gpu` tests that one")
    return Client(build.load())


@pytest.fixture
def device(client: Client) -> Iterator[Client]:
    """Calls of the driver in the primary context, which is taken back afterwards."""
    with client.context():
        yield client
    assert client.library.emulated_context_depth() == 0
    assert client.library.emulated_used_nbytes() == 0
    assert client.library.emulated_pending() == 0
