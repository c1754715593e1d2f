"""The emulated driver: what it leaves open, what it finds, what it captures."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from stagejit.runtime.cuda.driver import Array, Source, Stream
from stagejit.runtime.cuda.emulation.driver import EmulatedDriver
from stagejit.runtime.cuda.emulation.memory import EmulationError
from stagejit.runtime.objects.object_cache import cache_in

N = 64
ADD = Source(
    "add",
    """extern "C" __global__ void add(const int* x, int* y, long long n) {
  y[threadIdx.x] = x[threadIdx.x] + int(n);
}""",
    (N,),
)


def driver(seed: int = 0) -> EmulatedDriver:
    return EmulatedDriver(seed=seed, cache=cache_in(None))


def put(d: EmulatedDriver, values: Array, stream: Stream | None = None) -> int:
    address = d.allocate(values.nbytes)
    d.copy_in(address, values, stream or d.main)
    return address


def taken(d: EmulatedDriver, address: int, stream: Stream | None = None) -> Array:
    found = np.empty(N, np.int32)
    d.copy_out(found, address, stream or d.main)
    return found


def add(d: EmulatedDriver, x: int, y: int, n: int, stream: Stream | None = None) -> None:
    function = d.load([ADD])["add"]
    words = struct.pack("QQq", x, y, n)
    d.launch(function, (1, 1, 1), (N, 1, 1), 0, stream or d.main, words)


def test_a_stream_is_in_order() -> None:
    d = driver()
    x = put(d, np.arange(N, dtype=np.int32))
    for n in range(5):
        add(d, x, x, n)
    np.testing.assert_array_equal(taken(d, x), np.arange(N) + 10)


def between_streams(seed: int, *, wait: bool) -> bool:
    """Whether one stream sees what another one has written."""
    d = driver(seed)
    x, y = put(d, np.zeros(N, np.int32)), d.allocate(4 * N)
    side, event = d.new_stream(), d.new_event()
    d.synchronize(d.main)
    add(d, x, x, 1)
    d.record(event, d.main)
    if wait:
        d.wait(side, event)
    add(d, x, y, 0, side)
    return bool((taken(d, y, side) == 1).all())


def test_streams_are_in_any_order_that_events_allow() -> None:
    assert all(between_streams(seed, wait=True) for seed in range(20))
    assert {between_streams(seed, wait=False) for seed in range(20)} == {True, False}


def test_an_event_is_what_it_was_when_it_was_waited_for() -> None:
    d = driver()
    side, event = d.new_stream(), d.new_event()
    d.wait(side, event)  # of nothing
    d.synchronize(side)
    d.record(event, d.main)
    d.wait(side, event)
    d.record(event, side)
    d.synchronize(side)


def test_host_memory_may_be_changed_at_once() -> None:
    d, values = driver(), np.arange(N, dtype=np.int32)
    x = put(d, values)
    values[:] = 0
    np.testing.assert_array_equal(taken(d, x), np.arange(N))


def test_memory_comes_back_full_of_nothing() -> None:
    d = driver()
    x = put(d, np.arange(N, dtype=np.int32))
    d.free(x)
    assert d.allocate(4 * N) == x
    assert (taken(d, x) == -1).all()


@pytest.mark.parametrize(("at", "message"), [(4 * N, "outside the arrays"), (-4, "beside")])
def test_accesses_outside_are_found(at: int, message: str) -> None:
    d = driver()
    x = put(d, np.zeros(N, np.int32))
    add(d, x, x + at, 1)
    with pytest.raises(EmulationError, match=message):
        d.synchronize(d.main)


def test_numbers_are_stored() -> None:
    d = driver()
    for nbytes, value in ((1, -3), (2, 5), (4, -7), (8, 1 << 40)):
        x, found = d.allocate(nbytes), np.empty(1, f"i{nbytes}")
        d.store(x, value, nbytes, d.main)
        d.copy_out(found, x, d.main)
        assert found[0] == value


def test_a_graph_is_replayed() -> None:
    d = driver()
    x = put(d, np.zeros(N, np.int32))
    side, fork, join = d.new_stream(), d.new_event(), d.new_event()

    def queue() -> None:
        d.record(fork, d.main)
        d.wait(side, fork)
        add(d, x, x, 3, side)
        d.record(join, side)
        d.wait(d.main, join)
        add(d, x, x, 1)

    graph = d.capture(d.main, queue)
    assert (taken(d, x) == 0).all()
    d.replay(graph, d.main)
    d.replay(graph, d.main)
    assert (taken(d, x) == 8).all()


def test_nothing_is_waited_for_while_a_graph_is_captured() -> None:
    d = driver()
    with pytest.raises(EmulationError, match="while a graph is captured"):
        d.capture(d.main, lambda: d.synchronize(d.main))
    d.synchronize(d.main)
