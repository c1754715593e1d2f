"""Every workload runs through stagejit, right and whole. How fast is for `stagejit bench`."""

from __future__ import annotations

import pytest

from stagejit.bench.accuracy import error_against, reference_of
from stagejit.bench.contenders import STAGEJIT, on_device, waiting_call
from stagejit.bench.harness import ours
from stagejit.bench.workloads.catalogue import WORKLOADS


@pytest.mark.some(8)
@pytest.mark.parametrize("name", WORKLOADS)
def test_result_is_right_and_nothing_is_left_to_xla(name: str) -> None:
    workload = WORKLOADS[name]
    args = workload.make_args()
    placed = on_device(args)
    who = ours(workload, placed, STAGEJIT)
    compiled = who.compile(workload.function, workload.donated)
    result = waiting_call(compiled, placed, workload.donated)()
    assert error_against(reference_of(workload.function, args), result) <= workload.tolerance
    footprint = who.footprint(workload.function, placed, workload.donated)
    assert footprint.delegated == 0
    assert (footprint.weight_nbytes is None) == (workload.weights is None)
