"""Records: values by their fields, as frozen dataclasses are."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from stagejit.base.records import record, replace


@record
class Point:
    x: int
    y: int = 0
    note: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Frozen:
    x: int
    y: int = 0
    note: str = field(default="", compare=False, repr=False)


@record
class Place(Point):
    name: str = "here"


@record
class Nothing:
    pass


@record
class One:
    x: Any


@record(eq=False)
class Itself:
    x: int


@record(repr=False, kw_only=True)
class Shown:
    x: int

    def __repr__(self) -> str:
        return "shown"


@record
class Own:
    x: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and abs(self.x) == abs(other.x)

    def __hash__(self) -> int:
        return abs(self.x)


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 2), (1, 2)), ((1, 2), (2, 1)), ((1,), (1, 0)), ((1, 2, "a"), (1, 2, "b"))],
)
def test_equality_is_that_of_dataclasses(one: Any, other: Any) -> None:
    expected = Frozen(*one) == Frozen(*other)
    assert (Point(*one) == Point(*other)) is expected
    assert (len({Point(*one), Point(*other)}) == 1) is expected


def test_records_of_other_classes_are_others() -> None:
    assert Point(1) != Place(1)
    assert Place(1) != Point(1)
    assert Place(1) == Place(1, name="here") != Place(1, name="there")
    assert Point(1).__eq__(1) is NotImplemented
    assert Nothing() == Nothing() != One(1)
    assert One(1) == One(1) != One(2)
    assert len({Nothing(), Nothing(), One((1, 2)), One((1, 2)), Point(1), Place(1)}) == 4


def test_some_are_equal_only_to_themselves() -> None:
    one = Itself(1)
    assert one == one != Itself(1)
    assert len({one, Itself(1)}) == 2


def test_the_text_is_that_of_dataclasses() -> None:
    assert repr(Point(1, 2, "a")) == repr(Frozen(1, 2, "a")).replace("Frozen", "Point")
    assert repr(Place(1)) == "Place(x=1, y=0, name='here')"
    assert repr(Nothing()) == "Nothing()"
    assert repr(One(Itself(1))) == "One(x=Itself(x=1))"


def test_a_record_in_itself_has_a_text() -> None:
    held = One([])
    held.x.append(held)
    assert repr(held) == "One(x=[...])"


def test_methods_of_the_class_stay() -> None:
    assert repr(Shown(x=1)) == "shown"
    assert Own(1) == Own(-1)
    assert len({Own(1), Own(-1)}) == 1
    with pytest.raises(TypeError):
        Shown(1)  # type: ignore[misc]


def test_records_are_dataclasses() -> None:
    assert [each.name for each in dataclasses.fields(Place)] == ["x", "y", "note", "name"]
    assert replace(Place(1), name="there") == dataclasses.replace(Place(1), name="there")
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
