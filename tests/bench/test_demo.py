"""The demonstration's parts that need no compiler: photographs, sizes, features."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from stagejit.bench import demo
from stagejit.bench.programs import CommandError


def test_the_photograph_ships_with_a_package_and_needs_no_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the demo must not use the network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    pixels = demo.photograph(None)
    assert pixels.shape == (512, 512, 3)
    assert pixels.std() > 20  # a picture, not a blank


def test_a_users_photograph(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "photo.png"
    Image.fromarray(np.full((4, 6), 7, np.uint8)).save(path)  # grey becomes three channels
    assert demo.photograph(path).shape == (4, 6, 3)


def test_a_file_that_is_no_photograph(tmp_path: Path) -> None:
    path = tmp_path / "text.png"
    path.write_text("no image")
    with pytest.raises(CommandError, match="cannot read a photograph"):
        demo.photograph(path)


def test_without_scikit_image_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(CommandError, match=r"needs skimage\n.*stagejit\[demo\]"):
        demo.photograph(None)


@pytest.mark.parametrize("text", ["", "12", "x12", "12x", "0x5", "-3x4", "3x4x5", "axb"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(CommandError, match="is not a size"):
        demo.parse_size(text)


def test_crop_keeps_the_middle_and_never_grows() -> None:
    pixels = np.arange(6 * 8).reshape(6, 8)
    np.testing.assert_array_equal(demo.cropped(pixels, (2, 4)), pixels[2:4, 2:6])
    assert demo.cropped(pixels, demo.parse_size("100x4")).shape == (6, 4)


def test_features_are_deterministic_and_of_unit_scale() -> None:
    pixels = demo.cropped(demo.photograph(None), (32, 48))
    first, second = (demo.features_of(pixels, np.random.default_rng(0)) for _ in range(2))
    assert first.shape == (1, 64, 32, 48)
    assert first.dtype == np.float32
    assert 0.1 < first.std() < 10
    np.testing.assert_array_equal(first, second)
