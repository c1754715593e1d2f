"""Random attentions on a GPU give what NumPy gives in float64, by one kernel."""

from __future__ import annotations

import pytest

from tests.cuda.machine import run
from tests.cuda.random_attention import attention
from tests.cuda.test_attention import close, exact, kinds


@pytest.mark.parametrize("seed", range(8))
def test_random_attention(seed: int) -> None:
    function, args = attention(seed)
    close(run(function, *args), exact(function, args))
    assert "attend" in kinds(function, args)
