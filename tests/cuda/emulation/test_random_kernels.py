"""Random kernels give what the simulator gives."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.emulation.checked import checked
from tests.cuda.emulation.random_kernels import BLOCKS, RandomKernel
from tests.sampling import examples

# Two compilers run for each, so there are fewer than of other programs, and more time for them.
EXAMPLES = max(examples() // 2, 1)


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
@settings(max_examples=EXAMPLES)
@given(st.integers(0, 1 << 32))
def test_a_random_kernel(seed: int) -> None:
    function, arrays = RandomKernel(Random(seed)).written()
    checked(function, arrays, [seed % 1000], blocks=[BLOCKS])
