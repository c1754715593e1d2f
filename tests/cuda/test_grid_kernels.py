"""The kernels of the simulator's tests, as CUDA C++: their tests again, with `checked` in the place
of `simulate`. Those whose results depend on who comes first are in `test_orders.py`."""

from __future__ import annotations

import pytest

from tests.codegen.ir.grid import test_simulator
from tests.codegen.ir.grid.test_simulator import (  # noqa: F401  collected here once more
    test_a_product_by_tiles,
    test_a_sum,
    test_atomics,
    test_barriers_are_where_all_threads_go,
    test_exchanges,
    test_tf32_has_ten_bits_of_mantissa,
    test_threads_go_different_ways,
    test_votes,
    test_what_is_not_finite_stays_so_in_tf32,
    test_who_one_is,
    test_whole_warps_may_go_different_ways,
)
from tests.cuda.checked import checked


@pytest.fixture(autouse=True)
def _three_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_simulator, "simulate", checked)
