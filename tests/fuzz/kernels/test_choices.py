"""Recorded choices: the same again, simpler ones where they end."""

from __future__ import annotations

from tests.fuzz.kernels.choices import Choices


def test_a_replay_gives_the_same_and_then_the_simplest() -> None:
    drawn = Choices.drawn("seed", 3)
    numbers = [drawn.below(bound) for bound in (10, 5, 100)]
    again = Choices.replayed(drawn.made)
    assert [again.below(bound) for bound in (10, 5, 100, 7)] == [*numbers, 0]
    assert again.made == [*numbers, 0]


def test_choices_stay_within_their_bounds() -> None:
    choices = Choices.replayed([9, 9, 9, 9])
    assert choices.below(3) == 2
    assert choices.pick("ab") == "b"
    assert choices.between(4, 6) == 6
    assert choices.chance(2)
    assert choices.order(3) == (0, 1, 2)


def test_a_span_is_what_was_chosen_inside() -> None:
    choices = Choices.replayed([])
    choices.below(2)
    with choices.span():
        choices.some("abc")
    assert choices.spans == [(1, 4)]
