"""Random kernels give what the simulator gives."""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cuda.checked import checked
from tests.cuda.random_kernels import BLOCKS, RandomKernel

EXAMPLES = int(os.environ.get("STAGEJIT_FUZZ_EXAMPLES", "12"))


@pytest.mark.fuzz
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(st.integers(0, 1 << 32))
def test_a_random_kernel(seed: int) -> None:
    function, arrays = RandomKernel(Random(seed)).written()
    checked(function, arrays, [seed % 1000], blocks=[BLOCKS])
