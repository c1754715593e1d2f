"""A folder with one entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagejit.runtime.objects.object_cache import ObjectCache
from tests.runtime.objects.folders import BODY, KEY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one entry."""
    path = tmp_path / "cache"
    ObjectCache(path).put(KEY, BODY)
    return path
