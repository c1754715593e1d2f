"""Optax: optimizers in a scan."""

from __future__ import annotations

import pytest

from tests.ecosystem.harness import check, require

require("optax")


@pytest.mark.parametrize("name", ["optax AdamW", "optax Lion", "optax Adafactor", "optax L-BFGS"])
def test_descent(name: str) -> None:
    check(name, wide=True)
