"""Every delegated primitive has a reason in the user's terms."""

from __future__ import annotations

import pytest

from stagejit.trace.delegation import why_not_native
from stagejit.trace.translate import TRANSLATIONS


@pytest.mark.parametrize(
    ("primitive", "reason"),
    [
        ("scan", "native control flow is disabled"),
        ("cholesky", "a matrix decomposition is a library call"),
        ("io_callback", "it calls Python"),
        ("psum", "devices communicate"),
        ("unheard_of", "no kernels for this primitive yet"),
    ],
)
def test_reasons(primitive: str, reason: str) -> None:
    assert why_not_native(primitive) == reason
    assert primitive not in TRANSLATIONS
