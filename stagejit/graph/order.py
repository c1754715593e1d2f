"""The order of the ops of a graph.

Input: a `networkx` graph of ops, the values that are its inputs. Output: all of them but inputs and
the return, operands before users, otherwise by their places, the oldest first. Invariant: the first
of all such orders.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import networkx as nx

_place, _maker = attrgetter("place", "id"), attrgetter("op")  # of an op, of a value


def in_order(linked: nx.MultiDiGraph[Any], inputs: Sequence[Any]) -> list[Any]:
    """Raises NetworkXUnfeasible where the graph has a cycle."""
    order = sorted([op for op in linked._node if op.definition.is_step], key=_place)
    before = {value.op for value in inputs}
    for op in order:
        if not before.issuperset(map(_maker, op.operands)):
            return _sorted(linked)
        before.add(op)
    return order  # as they stand, nobody waits for another


def _sorted(linked: nx.MultiDiGraph[Any]) -> list[Any]:
    order = []
    waiting = {op: len(before) for op, before in linked._pred.items()}
    ready = [(op.place, op.id, op) for op, missing in waiting.items() if not missing]
    heapq.heapify(ready)
    while ready:
        _, _, op = heapq.heappop(ready)
        order.append(op)
        for user in linked._succ[op]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (user.place, user.id, user))
    if len(order) < len(waiting):
        raise nx.NetworkXUnfeasible("the graph has a cycle")
    return [op for op in order if op.definition.is_step]
