"""Optimistix: least squares, roots, minima."""

from __future__ import annotations

import pytest

from tests.ecosystem.harness import check, require

require("optimistix")


@pytest.mark.parametrize(
    "name",
    ["optimistix Levenberg-Marquardt", "optimistix Newton", "optimistix BFGS"],
)
def test_solver(name: str) -> None:
    check(name)
