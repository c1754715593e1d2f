"""One browser for the tests of HTML outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.inspect.browser import Browser, missing, started


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Headless Chromium; skips where there is none, with what to do about it."""
    if reason := missing():
        pytest.skip(reason)
    with started(tmp_path_factory.mktemp("profile")) as found:
        yield found
