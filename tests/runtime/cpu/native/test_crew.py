"""Helpers of parallel loops: from loop to loop of a call, and from call to call."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable

import pytest

from stagejit.runtime.cpu.native import crew, support
from tests.runtime.cpu.native.pools import Crew, Pool, run, run_all


def test_a_crew_goes_from_loop_to_loop() -> None:
    threads = list[threading.Thread]()

    def start(task: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=task))
        threads[-1].start()

    for _ in range(20):
        pool, crew = Pool(4, start=start), Crew()
        for turn in range(200):  # other jobs each time: who is late must not run old ones
            sizes = [(turn % 7 + 1, 1), (300 - turn, 3)][turn % 2 :]
            counts, owners = run(pool, sizes, 4, crew.at)
            assert all((count == 1).all() for count in counts)
            assert {owner for each in owners for owner in each} <= {-1, 0, 128, 256, 384}
        crew.dismiss()
        for thread in threads:
            thread.join()
        threads.clear()


def test_a_helper_that_was_asked_for_is_not_asked_again() -> None:
    pool, crew = Pool(4), Crew()
    for _ in range(10):
        counts, _ = run(pool, [(64, 4)], 4, crew.at)
        assert (counts[0] == 1).all()
    assert len(pool.pending) == 3
    pool.pending.pop()()  # finds nothing, and goes
    run(pool, [(64, 4)], 4, crew.at)
    assert len(pool.pending) == 3
    crew.dismiss()
    run_all(pool.pending)


def test_helpers_that_a_small_loop_does_not_want_are_asked_for_later() -> None:
    pool, crew = Pool(4), Crew()
    for chunks, asked in ((1, 0), (2, 1), (3, 2), (2, 2), (50, 3)):
        run(pool, [(chunks, 1)], 4, crew.at)
        assert len(pool.pending) == asked
    crew.dismiss()
    run_all(pool.pending)


@pytest.fixture
def lingering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has helpers linger, and sit where that pays, for so many nanoseconds."""

    def stay(nanoseconds: int, sitting: int | None = None, away: int = 10**12) -> None:
        monkeypatch.setattr(crew, "_LINGERING", nanoseconds)
        monkeypatch.setattr(crew, "_SITTING", nanoseconds if sitting is None else sitting)
        monkeypatch.setattr(crew, "_AWAY", away)
        text = support.support_ir.__wrapped__()
        monkeypatch.setattr(support, "support_ir", lambda: text)

    return stay


@pytest.mark.parametrize("linger", [1_000, 1_000_000_000])
def test_a_helper_whose_call_has_ended_is_there_for_the_next_one(
    lingering: Callable[..., None], linger: int
) -> None:
    """At once, or after one that came too late for a helper that did not sit for long."""
    lingering(linger, 1_000_000_000)
    threads = list[threading.Thread]()

    def start(task: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=task))
        threads[-1].start()

    pool, deadline = Pool(2, start=start), time.monotonic() + 60
    asked = -1
    while asked != len(threads):  # until somebody sits, the pool is asked
        assert time.monotonic() < deadline
        asked = len(threads)
        counts, _ = run(pool, [(64, 4)], 2)
        assert (counts[0] == 1).all()
    for thread in threads:  # who waits in vain goes
        thread.join(60)
        assert not thread.is_alive()
    run(pool, [(64, 4)], 2)
    assert len(threads) == asked + 1


def test_a_helper_goes_back_to_the_pool_between_calls(lingering: Callable[..., None]) -> None:
    """However soon these follow each other."""
    lingering(1_000, 100_000_000_000, away=0)
    pool, threads = Pool(2), list[threading.Thread]()
    for asked in range(1, 6):
        run(pool, [(64, 4)], 2)
        assert len(pool.pending) == 1
        threads.append(threading.Thread(target=pool.pending.pop()))
        threads[-1].start()
        threads[-1].join(60)
        assert not threads[-1].is_alive()
        assert len(threads) == asked


def test_a_child_does_not_take_its_parents_helpers(lingering: Callable[..., None]) -> None:
    lingering(1_000_000_000)
    threads = list[threading.Thread]()

    def start(task: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=task))
        threads[-1].start()

    pool, asked = Pool(2, start=start), -1
    while asked != len(threads):
        asked = len(threads)
        run(pool, [(64, 4)], 2)
    time.sleep(0.01)  # the helper sits again
    with warnings.catch_warnings():  # JAX's, of threads that a child has not
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        alone = Pool(2)
        counts, _ = run(alone, [(64, 4)], 2)
        os._exit(0 if len(alone.pending) == 1 and (counts[0] == 1).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("nanoseconds", [500, 5_000, 1_000_000])
def test_helpers_go_from_call_to_call(lingering: Callable[..., None], nanoseconds: int) -> None:
    """Several callers, who take helpers from the same seats while these rise."""
    lingering(nanoseconds)
    helpers, wrong = list[threading.Thread](), list[int]()

    def start(task: Callable[[], None]) -> None:
        thread = threading.Thread(target=task)
        thread.start()
        helpers.append(thread)

    def calls(seed: int) -> None:
        pool = Pool(3, start=start)
        for turn in range(150):
            counts, owners = run(pool, [((turn * seed) % 50 + 2, 1)], 3)
            known = {owner for each in owners for owner in each} <= {-1, 0, 128, 256}
            if not known or not all((count == 1).all() for count in counts):
                wrong.append(turn)

    callers = [threading.Thread(target=calls, args=(seed,)) for seed in (3, 5, 7)]
    for caller in callers:
        caller.start()
    for thread in callers:
        thread.join(120)
        assert not thread.is_alive()
    for thread in helpers:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_a_crew_that_nobody_joins() -> None:
    pool, crew = Pool(4, refuse=True), Crew()
    for _ in range(3):
        counts, _ = run(pool, [(64, 4)], 4, crew.at)
        assert (counts[0] == 1).all()
    assert pool.errors_destroyed == 9
    crew.dismiss()
