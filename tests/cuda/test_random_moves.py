"""Random sorts, scatters, gathers and windows on a GPU, some on one of small blocks, so that work
is in many pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.emulation.emulated import ORDERS
from tests.cuda.products.random_regions import faults_in
from tests.cuda.rows.test_sort import DEVICES
from tests.fuzz.kernels.case import Step, draw_case
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.steps import elementwise, indexing, placing, sorting, windows
from tests.sampling import examples

# Two compilers run for each, so there are fewer than of other programs, and more time for them.
EXAMPLES = max(examples() // 4, 1)
MOST_NBYTES = 1 << 17
_BESIDE: tuple[Step, ...] = (
    elementwise.transpose, elementwise.slices, elementwise.scaled, elementwise.elsewhere,
    elementwise.reshape,
)  # fmt: skip
# By kinds of regions: the steps of their cases.
KINDS: dict[str, tuple[Step, ...]] = {
    "sort": (*[sorting.sorted_rows] * 5, *_BESIDE),
    "scatter": (*[indexing.scatter] * 3, placing.scatter, *_BESIDE),
    "map": (windows.window, windows.windows_of_windows, indexing.gather, placing.gather,
            placing.dynamic_update, elementwise.dynamic_slice, *_BESIDE),
}  # fmt: skip


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=EXAMPLES)
@given(number=st.integers(0, 1 << 40))
def test_random_moves(kind: str, number: int) -> None:
    case = draw_case(Choices.drawn(f"cuda {kind}", number), [KINDS[kind]])
    device = "H200" if kind == "map" else tuple(DEVICES)[number % len(DEVICES)]
    order = ORDERS[number % len(ORDERS)]
    for job, what in faults_in(case, [kind], DEVICES[device], order, MOST_NBYTES):
        assert not what, f"{job and job.region}: {what}"
