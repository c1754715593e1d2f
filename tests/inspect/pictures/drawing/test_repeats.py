"""Repeated parts of sequences."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagejit.inspect.pictures.drawing.repeats import Part, parts_of, single


def covered(parts: Sequence[Part]) -> list[int]:
    return sorted(at for part in parts for column in part.columns for at in column)


def test_a_layer_that_comes_again_is_one_part() -> None:
    parts = parts_of([*"xabcde", *"abcde" * 3, "y"])
    assert [(part.starts[0], part.copies, len(part.columns)) for part in parts] == [
        (0, 1, 1),
        (1, 4, 5),
        (21, 1, 1),
    ]
    assert parts[1].columns[0] == (1, 6, 11, 16)


def test_layers_that_differ_a_little_are_one_part_with_a_column_for_each_difference() -> None:
    (part,) = parts_of([*"abcdefgh", *"abXdefgh", *"abcdefgh"])
    assert part.starts == (0, 8, 16)
    assert len(part.columns) == 9
    assert (10,) in part.columns  # X, which one of three copies has
    assert (2, 18) in part.columns


def test_layers_of_which_most_differs_are_no_copies() -> None:
    assert [part.copies for part in parts_of([*"abcdef", *"auvwxy", *"amnopq"])] == [1]


def test_two_small_things_of_a_kind_stay_two() -> None:
    assert parts_of(list("abab")) == [single(0, 4)]


def test_many_of_a_kind_are_one() -> None:
    (part,) = parts_of(["a"] * 300)
    assert part.columns == (tuple(range(300)),)


def test_nothing_has_no_parts() -> None:
    assert parts_of([]) == []


@given(st.lists(st.sampled_from("abcd"), max_size=40))
@settings(max_examples=200, deadline=None)
def test_every_position_is_in_one_column_of_equal_labels(labels: list[str]) -> None:
    parts = parts_of(labels)
    assert covered(parts) == list(range(len(labels)))
    for part in parts:
        assert all(len({labels[at] for at in column}) == 1 for column in part.columns)
        bounds = [*part.starts, part.stop]
        for column in part.columns:  # at most one of each copy
            copies = [sum(at >= start for start in bounds[:-1]) for at in column]
            assert len(set(copies)) == len(column)


@pytest.mark.parametrize("count", [4000, 8000])
def test_thousands_of_labels_do_not_hang(count: int) -> None:
    labels = [(at * at) % 257 for at in range(count)]
    assert covered(parts_of(labels)) == list(range(count))
