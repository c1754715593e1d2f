"""BlackJAX: NUTS and HMC, driven by a scan."""

from __future__ import annotations

import pytest

from tests.ecosystem.harness import check, require

require("blackjax")


@pytest.mark.parametrize("name", ["blackjax NUTS", "blackjax HMC"])
def test_chain(name: str) -> None:
    check(name, wide=True)
