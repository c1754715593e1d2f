"""Every workload runs through stagejit, right and whole. How fast is for `stagejit bench`."""

from __future__ import annotations

import pytest

from stagejit.bench.accuracy import error_against, reference_of
from stagejit.bench.contenders import STAGEJIT, on_device, waiting_call
from stagejit.bench.workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_result_is_right_and_nothing_is_left_to_xla(name: str) -> None:
    workload = WORKLOADS[name]
    args = workload.make_args()
    compiled = STAGEJIT.compile(workload.function, workload.donated)
    result = waiting_call(compiled, on_device(args), workload.donated)()
    assert error_against(reference_of(workload.function, args), result) <= workload.tolerance
    assert STAGEJIT.footprint(workload.function, args, workload.donated).delegated == 0
