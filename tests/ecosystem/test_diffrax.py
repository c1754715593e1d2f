"""Diffrax: adaptive steps, and the gradient through them."""

from __future__ import annotations

import pytest

from tests.ecosystem.harness import check, require

require("diffrax")


@pytest.mark.parametrize("name", ["diffrax Lotka-Volterra", "diffrax gradient"])
def test_lotka_volterra(name: str) -> None:
    check(name)
