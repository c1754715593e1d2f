"""Haiku: a recurrent network with dropout."""

from __future__ import annotations

from tests.ecosystem.harness import check, require

require("haiku", "optax")


def test_recurrent_training() -> None:
    check("haiku LSTM")
