"""Kernels whose results depend on who comes first: their tests hold in every order of threads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.codegen.ir.grid import kernels
from tests.codegen.ir.grid.test_simulated_ops import (  # noqa: F401  collected here once more
    test_one_thread_wins_each_swap,
)
from tests.codegen.ir.grid.test_simulator import (  # noqa: F401  collected here once more
    test_a_histogram,
)
from tests.cuda.emulation.emulated import ORDERS, emulate


@pytest.fixture(autouse=True, params=ORDERS)
def _in_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    in_order = partial(emulate, threads=request.param)

    def simulate(*args: Any, order: Any = None, **how: Any) -> None:
        in_order(*args, **how)

    monkeypatch.setattr(kernels, "simulate", simulate)
