"""The order of the ops of a graph, and of what is made of them.

Input: the links of a graph of ops, the values that are its inputs; or what stands before what.
Output: all of them (of a graph, but inputs and the return), operands before users, otherwise by
their places, the oldest first. Invariant: the first of all such orders.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter
from typing import Any, TypeVar

from stagejit.graph.links import Links

T = TypeVar("T")

_place, _maker = attrgetter("place", "id"), attrgetter("op")  # of an op, of a value


def in_order(links: Links, inputs: Sequence[Any]) -> list[Any]:
    """Raises CycleError where the graph has a cycle."""
    order = sorted([op for op in links.nodes if op.definition.is_step], key=_place)
    before = {value.op for value in inputs}
    for op in order:
        if not before.issuperset(map(_maker, op.operands)):
            return _sorted(links)
        before.add(op)
    return order  # as they stand, nobody waits for another


def _sorted(links: Links) -> list[Any]:
    """In a quarter of the time that `first_order` takes."""
    order = []
    waiting = {op: len(before) for op, before in links.before.items()}
    ready = [(op.place, op.id, op) for op, missing in waiting.items() if not missing]
    heapq.heapify(ready)
    while ready:
        _, _, op = heapq.heappop(ready)
        order.append(op)
        for user in links.after[op]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (user.place, user.id, user))
    if len(order) < len(waiting):
        raise CycleError("the graph has a cycle")
    return [op for op in order if op.definition.is_step]


def first_order(before: Mapping[T, Iterable[T]], key: Callable[[T], Any]) -> list[T]:
    """Each item after those `before` it, otherwise by `key`, those of equal keys as they stand.

    Raises CycleError where they wait for each other. networkx has this, too, and takes Python
    0.7 ms to make ready.
    """
    order, done = sorted(before, key=key), set[T]()
    for item in order:
        if not done.issuperset(before[item]):
            return _waiting(order, before)
        done.add(item)
    return order  # as they stand, nobody waits for another


def _waiting(by_key: Sequence[T], before: Mapping[T, Iterable[T]]) -> list[T]:
    order: list[T] = []
    place = {item: number for number, item in enumerate(by_key)}
    sorter, ready = TopologicalSorter(before), list[int]()  # a heap
    sorter.prepare()
    while sorter.is_active():
        for item in sorter.get_ready():
            heapq.heappush(ready, place[item])
        order.append(by_key[heapq.heappop(ready)])
        sorter.done(order[-1])
    return order
