"""What arrays on a GPU say of themselves; none of this needs one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stagejit.errors import StagejitError
from stagejit.runtime.cuda.arrays.device_arrays import device_array, is_device_array


class Told:
    """Says it."""

    def __init__(self, **told: Any) -> None:
        self.__cuda_array_interface__ = {"version": 3, "typestr": "<f4", "shape": (2, 3),
                                         "data": (4096, False), **told}  # fmt: skip


def test_an_array_without_gaps() -> None:
    found = device_array(value := Told())
    assert (found.address, found.shape, found.dtype) == (4096, (2, 3), np.float32)
    assert (found.strides, found.stream, found.readonly, found.nbytes) == (None, 1, False, 24)
    assert found.owner is value


@pytest.mark.parametrize(
    ("shape", "strides", "wanted"),
    [
        ((2, 3), None, None),
        ((2, 3), (12, 4), None),
        ((2, 3), (4, 8), (4, 8)),
        ((2, 3), (0, 4), (0, 4)),
        ((2, 3), (-12, 4), (-12, 4)),
        ((1, 3), (400, 4), None),  # nobody steps along an axis of one
        ((2, 1), (4, 400), None),
        ((0, 3), (5, 6), None),
        ((), (), None),
    ],
)
def test_strides(shape: tuple[int, ...], strides: Any, wanted: Any) -> None:
    assert device_array(Told(shape=shape, strides=strides)).strides == wanted


@pytest.mark.parametrize("stream", [1, 2, 140000000])
def test_streams(stream: int) -> None:
    assert device_array(Told(stream=stream)).stream == stream


def test_who_names_no_stream_means_the_legacy_one() -> None:
    assert device_array(Told()).stream == device_array(Told(stream=None)).stream == 1


def test_an_array_of_nothing() -> None:
    assert device_array(Told(shape=(0,), data=(0, True))).nbytes == 0


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"typestr": "|V2"}, "a Told on a GPU has elements '|V2'\nNext: convert"),
        ({"typestr": ">f4"}, "has elements '>f4'"),
        ({"typestr": "<M8[s]"}, "has elements"),
        ({"typestr": "?!"}, "has elements"),
        ({"mask": Told()}, "has a mask"),
        ({"stream": 0}, "names the stream 0"),
    ],
)
def test_what_is_no_array_of_ours(told: dict[str, Any], message: str) -> None:
    with pytest.raises(StagejitError) as raised:
        device_array(Told(**told))
    assert message in str(raised.value)
    assert "Next: " in str(raised.value)


def test_what_says_nothing() -> None:
    assert is_device_array(Told())
    assert not is_device_array(np.zeros(3))

    class OfTheHost:
        __cuda_array_interface__ = None

    assert not is_device_array(OfTheHost())
