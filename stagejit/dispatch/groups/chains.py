"""Where chains of pointwise ops that are evaluated in a row end.

Input: the ops of a graph in order, and who reads their results. Output: the ops whose results are
stored because a chain is long enough. Invariant: no chain is longer than `LONGEST_CHAIN`;
everything is linear in the number of ops.

Note [Cuts]: who reads the end of a chain reads it from memory, and whatever else it reads from
before the end is stored, too, or evaluated once more. So a program that has too long a chain is cut
where fewer values are alive than anywhere near, and all chains across a cut end there that are long
at all. Steps that repeat each other are cut at the same place of a step then, and what is between
two cuts needs only one kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stagejit.base.symbolic import at_most
from stagejit.dispatch.groups import cost
from stagejit.graph.ir import Op, Value, is_free

# Kernels take time to compile and registers to run; derived indices are walked recursively.
LONGEST_CHAIN = 240
# The shortest chain for which a program is cut, if it would get too long: of values that stay in a
# cache, and of larger ones, which take as long to be stored and read again as so many ops.
_LONG_ENOUGH = 64
_LONG_ENOUGH_IN_MEMORY = 160
_MANY_SCALARS = 5  # each of them is an operand
# How many ops before and after a cut have no fewer values alive.
_NEAR = 64
# What a reshape counts in a chain of ops: each may double the divisions of an index, so six fill
# `LONGEST_CHAIN`, and four are all that `recompute._MOST_STEPS` lets a reader add.
_RESHAPE_STEPS = 40

Users = Mapping[Value, Sequence[Op]]


def ends_of_chains(order: Sequence[Op], users: Users) -> dict[Op, tuple[Op, ...]]:
    """For each op that ends a chain those that end at the same cut; the last of them comes last."""
    if _RESHAPE_STEPS * len(order) < LONGEST_CHAIN:
        return {}  # no op adds more to a chain
    heights = _heights(order, users)
    if max(heights.values(), default=0) < LONGEST_CHAIN:
        return {}
    last_use = _last_uses(order, users)
    narrow = _narrow_places(order, last_use)
    ends: dict[Op, tuple[Op, ...]] = {}
    depth: dict[Op, int] = {}  # pointwise ops in a row that evaluating one takes
    whole: dict[Op, int] = {}  # as it would be if no chain ended
    behind: list[Op] = []  # half as long as what is cut, or longer, since the last cut
    is_long = False  # enough, an op of a chain that is too long
    spread = 0  # how many computed scalars have been copied into arrays since the last cut
    for at, op in enumerate(order):
        if op.definition.is_pointwise:
            made, own = [value.op for value in op.operands], steps(op)
            depth[op] = own + max([depth.get(each, 0) for each in made], default=0)
            whole[op] = own + max([whole.get(each, 0) for each in made], default=0)
            if 2 * depth[op] >= min(_LONG_ENOUGH, LONGEST_CHAIN):
                behind.append(op)
            spread += op.definition.is_splat and not is_free(op.operands[0])
            if depth[op] >= _enough(op, spread) and whole[op] + heights[op] >= LONGEST_CHAIN:
                is_long = True
        if (is_long and narrow[at]) or depth.get(op, 0) >= LONGEST_CHAIN:
            _cut([each for each in behind if last_use[each] > at], depth, ends)
            behind, is_long, spread = [], False, 0
    return ends


def _enough(op: Op, spread: int) -> int:
    """How long a chain has to be for a cut: what is small is stored in a near cache, and of many
    operands none may be left for more."""
    small = at_most(op.result.type.nbytes, cost.SMALL_SPACE_NBYTES)
    return _LONG_ENOUGH if small or spread >= _MANY_SCALARS else _LONG_ENOUGH_IN_MEMORY


def _cut(behind: Collection[Op], depth: dict[Op, int], ends: dict[Op, tuple[Op, ...]]) -> None:
    """What is stored is no view, as long as its index is no long chain itself; parts never are, for
    only who sums over them knows which elements there are."""
    source = {op: _source(op) for op in behind}
    since = {op: depth[op] - depth.get(source[op], 0) for op in behind}
    cut = tuple(
        op
        for op in behind
        if (source[op] is op or since[op] >= LONGEST_CHAIN) and not op.definition.splits
    )
    ends.update(dict.fromkeys(cut, cut))
    depth.update((op, since[op]) for op in behind if source[op] in ends)
    depth.update(dict.fromkeys(cut, 0))


def _source(op: Op) -> Op:
    """What an op is a view of, or a copy of."""
    while op.definition.is_view or op.definition.is_splat:
        op = op.operands[0].op
    return op


def steps(op: Op) -> int:
    """A reshape that merges or splits axes may divide indices, by what divides them further on."""
    if not op.definition.keeps_order:
        return 1
    before, after = ([n for n in v.shape if n != 1] for v in (op.operands[0], op.result))
    return 1 if before == after else _RESHAPE_STEPS


def _heights(order: Sequence[Op], users: Users) -> dict[Op, int]:
    """For each pointwise op how many others follow it in a row, by the longest way."""
    heights: dict[Op, int] = {}
    with_own: dict[Op, int] = {}
    for op in reversed(order):
        if op.definition.is_pointwise:
            heights[op] = max([with_own.get(user, 0) for user in users[op.result]], default=0)
            with_own[op] = heights[op] + steps(op)
    return heights


def _last_uses(order: Sequence[Op], users: Users) -> dict[Op, int]:
    """The position of the last op that evaluates something with a result of an op, behind views."""
    position = {op: at for at, op in enumerate(order)}
    last: dict[Op, int] = {}
    for op in reversed(order):
        reading = (user for value in op.results for user in users[value])
        last[op] = max(
            (
                last[user] if user.definition.is_view else position.get(user, len(order))
                for user in reading
            ),
            default=0,
        )
    return last


def _narrow_places(order: Sequence[Op], last_use: Mapping[Op, int]) -> Sequence[bool]:
    """Whether fewer values are alive after an op than near it. Those that are read far behind it do
    not count: they have to be stored, wherever it is cut."""
    changes = np.zeros(len(order) + 1, np.int64)
    for at, op in enumerate(order):
        costs = not (op.definition.is_splat or any(map(is_free, op.results)))
        if costs and at < last_use[op] <= at + 2 * _NEAR:
            changes[at] += 1
            changes[last_use[op]] -= 1
    alive = np.cumsum(changes[:-1])
    near = sliding_window_view(np.pad(alive, _NEAR, mode="edge"), 2 * _NEAR + 1)
    narrow: list[bool] = ((alive == near.min(axis=1)) & (alive < near.max(axis=1))).tolist()
    return narrow
