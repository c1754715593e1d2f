from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def machine_code_is_that_of_users(as_shipped: None) -> None:
    """What is measured is compiled as for users."""
