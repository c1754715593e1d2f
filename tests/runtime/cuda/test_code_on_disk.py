"""Where machine code of kernels is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stagejit
from stagejit.options import Options
from stagejit.runtime.cuda.drivers import using
from stagejit.runtime.cuda.emulation import compiling
from stagejit.runtime.cuda.emulation.driver import EmulatedDriver
from stagejit.runtime.objects.object_cache import cache_in

X = np.arange(5, dtype=np.float32)


def files(folder: Path) -> int:
    return len(list(folder.glob("*/*.sjo")))


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_launchers", {})


@pytest.mark.parametrize(
    ("chosen", "own", "other"), [(None, 2, 0), ("", 0, 0), ("other", 0, 2)], ids=str
)
def test_the_folder_that_options_say(
    tmp_path: Path, chosen: str | None, own: int, other: int
) -> None:
    """None: that of the driver; nothing: none."""
    cache_dir = str(tmp_path / chosen) if chosen else chosen
    driver = EmulatedDriver(cache=cache_in(str(tmp_path / "own")))
    options = Options(cache_dir=cache_dir)
    with using(driver):
        f = stagejit.jit(lambda x: x * 3 + 1, backend="cuda-emulated", options=options)
        np.testing.assert_array_equal(f(X), X * 3 + 1)
    assert (files(tmp_path / "own"), files(tmp_path / "other")) == (own, other)
