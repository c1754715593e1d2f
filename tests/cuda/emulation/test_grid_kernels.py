"""The kernels of the simulator's tests, as CUDA C++: their tests again, with `checked` in the place
of `simulate`. Those whose results depend on who comes first are in `test_orders.py`."""

from __future__ import annotations

import pytest

from tests.codegen.ir.grid import kernels
from tests.codegen.ir.grid.test_simulated_faults import (  # noqa: F401  collected here once more
    test_barriers_are_where_all_threads_go,
    test_whole_warps_may_go_different_ways,
)
from tests.codegen.ir.grid.test_simulated_ops import (  # noqa: F401  collected here once more
    test_atomics,
    test_exchanges,
    test_threads_go_different_ways,
    test_votes,
    test_who_one_is,
)
from tests.codegen.ir.grid.test_simulator import (  # noqa: F401  collected here once more
    test_a_product_by_tiles,
    test_a_sum,
    test_tf32_has_ten_bits_of_mantissa,
    test_what_is_not_finite_stays_so_in_tf32,
)
from tests.cuda.emulation.checked import checked


@pytest.fixture(autouse=True)
def _three_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "simulate", checked)
