"""Random attentions on a GPU give what NumPy gives in float64, by one kernel."""

from __future__ import annotations

import pytest

from tests.cuda.attention.programs import close, exact, kinds
from tests.cuda.attention.random_programs import attention
from tests.cuda.machine import run


@pytest.mark.parametrize("seed", range(8))
def test_random_attention(seed: int) -> None:
    function, args = attention(seed)
    close(run(function, *args), exact(function, args))
    assert "attend" in kinds(function, args)
