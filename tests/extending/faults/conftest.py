"""Faults are told as to users, with `verify` and without: none is covered by a fallback to XLA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stagejit
from stagejit.errors import ExtensionError
from tests.extending.faults.programs import X, f


@pytest.fixture(autouse=True)
def _as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAGEJIT_STRICT", raising=False)


@pytest.fixture(params=[False, True], ids=["plain", "verify"])
def fault(request: pytest.FixtureRequest) -> Callable[..., str]:
    """What is said of a call with an extension."""

    def of(extension: Any, function: Any = f, **options: Any) -> str:
        options = {"verify": request.param} | options
        made = stagejit.jit(function, options=stagejit.Options(extensions=extension, **options))
        with pytest.raises(ExtensionError) as caught:
            made(X)
        assert f"extension {extension.name!r}" in caught.value.what
        assert str(caught.value.loc).startswith(str(Path(__file__).parent))
        return caught.value.what

    return of
