"""Which dispatch runs on which stream, and what waits for what."""

from __future__ import annotations

from random import Random

import pytest

from stagejit.runtime.cuda.programs.streams import MOST_STREAMS, Lanes, lanes


def order_of(made: Lanes, without: tuple[int, int] | None = None) -> list[set[int]]:
    """For each position what is over when it starts, by streams and waits alone."""
    tails: dict[int, set[int]] = {}
    found: list[set[int]] = []
    for position, stream in enumerate(made.streams):
        over = set(tails.get(stream, set()))
        for source in made.waits[position]:
            if (source, position) != without:
                over |= found[source] | {source}
        found.append(over)
        tails[stream] = over | {position}
    return found


def equal(before: list[list[int]]) -> Lanes:
    return lanes(before, [1.0] * len(before))


def test_a_chain_is_on_one_stream() -> None:
    made = equal([[], [0], [1], [0, 2]])
    assert made.count == 1
    assert not any(made.waits)


def test_a_fork_and_its_join_cross_twice() -> None:
    made = equal([[], [0], [0], [1, 2]])
    assert made.count == 2
    assert made.waits == ((), (), (), (1,), (3,), ())


def test_a_second_chain_waits_for_the_start_and_is_waited_for() -> None:
    made = equal([[], [], [0], [1]])
    assert made.streams == (0, 0, 1, 0, 1, 0)
    assert made.waits == ((), (), (0,), (), (), (4,))


def test_the_longest_chain_has_the_first_stream() -> None:
    made = lanes([[], [], [0, 1], [2]], [1.0, 5.0, 1.0, 1.0])
    assert made.streams == (0, 1, 0, 0, 0, 0)
    assert sum(map(len, made.waits)) == 2  # the copy waits for the start, and is waited for


def test_what_is_implied_needs_no_event() -> None:
    made = equal([[], [0], [0], [0, 1, 2], [0, 3]])
    assert made.waits[4] == (3,)
    assert made.waits[5] == ()


def test_streams_are_few() -> None:
    made = equal([[] for _ in range(100)])
    assert made.count == MOST_STREAMS
    assert sum(map(len, made.waits)) == 2 * (MOST_STREAMS - 1)


def test_what_the_host_does_is_alone() -> None:
    made = lanes([[], [], [], []], [1.0] * 4, alone=[2])
    found = order_of(made)
    assert {1, 2} <= found[3]
    assert 3 in found[4]
    assert made.streams[3] == 0


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs(seed: int) -> None:
    """All that has to is ordered; of the waits none can be left out."""
    choose = Random(seed)
    count = choose.randint(1, 24)
    density = choose.choice([0.05, 0.2, 0.5])
    before = [[s for s in range(n) if choose.random() < density] for n in range(count)]
    alone = [n for n in range(count) if choose.random() < 0.1] if seed % 3 == 0 else []
    made = lanes(before, [choose.random() for _ in range(count)], alone, choose.randint(1, 5))
    wanted = [{0, *(s + 1 for s in sources)} for sources in before]
    for n in alone:
        wanted[n] = set(range(n + 1))
        for later in range(n + 1, count):
            wanted[later].add(n + 1)
    wanted = [set(), *wanted, set(range(count + 1))]

    def holds(found: list[set[int]]) -> bool:
        return all(need <= over for need, over in zip(wanted, found, strict=True))

    assert holds(order_of(made))
    for position, waits in enumerate(made.waits):
        for source in waits:
            assert not holds(order_of(made, (source, position)))
