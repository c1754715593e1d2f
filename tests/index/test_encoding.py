"""What an encoding says, and how it is written."""

from __future__ import annotations

import pytest

from stagejit.index.encoding import Encoding

F32 = ("f32", "f32", "f32")


@pytest.mark.parametrize(
    "text",
    ["{rhs:kn:f32:f32:f32:n}", "{lhs:bmk:bf16:bf16:f32:n}", "{result:nm:i8:i8:i32:m}"],
)
def test_the_text_is_read_back(text: str) -> None:
    assert str(Encoding.of_text(text)) == text


@pytest.mark.parametrize(
    "text",
    ["{rhs:kn:f32:f32:f32}", "{rhs:km:f32:f32:f32:n}", "{other:kn:f32:f32:f32:n}", "rhs:kn"],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no encoding"):
        Encoding.of_text(text)


def test_a_permutation_moves_its_axes() -> None:
    assert Encoding("rhs", "bkn", F32).moved((2, 0, 1)).axes == "nbk"


def test_a_result_becomes_an_operand() -> None:
    result = Encoding("result", "mn", F32)
    assert result.becomes(Encoding("lhs", "mk", F32))
    assert result.becomes(Encoding("rhs", "kn", F32))


@pytest.mark.parametrize(
    "other",
    [
        Encoding("lhs", "km", F32),
        Encoding("rhs", "nk", F32),
        Encoding("lhs", "bmk", F32),
        Encoding("result", "mn", F32),
        Encoding("lhs", "mk", ("bf16", "bf16", "f32")),
    ],
)
def test_which_it_does_not_become(other: Encoding) -> None:
    assert not Encoding("result", "mn", F32).becomes(other)


def test_a_stack_of_slices() -> None:
    one = Encoding("rhs", "kn", F32)
    assert one.stacked.axes == "bkn"
    assert one.stacked.of_slice == one
