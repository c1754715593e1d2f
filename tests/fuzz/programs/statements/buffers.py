"""Statements about one buffer: many updates, fills and reads of it, one after the other; buffers
that become parts of larger ones; and large ones that loops carry.

Input: a draft. Output: a few lines, whose last values are the buffer and what was read of it.
Invariant: what is written is a small number, a part of an earlier state of the buffer, or another
value in scope: as exact as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.programs.draft import Draft, Known

_MOST_ADDITIONS = 6  # of a buffer to itself: more would outgrow what is exact
_MOST_JOINED = 300  # elements of what becomes larger
_LARGE = ((33, 40), (1100,), (2, 520), (5, 17, 13), (1025,), (64, 17), (2048,))


def updates(draft: Draft) -> None:
    """A chain of updates of a buffer, between which parts of its states are read."""
    rng = draft.rng
    x = draft.pick(lambda known: known.is_plain and known.rank > 0 and known.size > 0)
    names = [draft.scope[name] for name in _start(draft, x)]
    additions = 0
    for _ in range(rng.randint(3, rng.choice((6, 12, 25)))):
        buffer = names[-1]
        kind = rng.random()
        if kind < 0.2:
            _read(draft, rng.choice(names[-3:]))
        elif kind < 0.28:
            _barrier(draft, names)
        elif kind < 0.4:
            _fill(draft, buffer)
            names.append(_latest(draft))
        elif kind < 0.6:
            _placed(draft, buffer, rng.choice(names[-3:]))
            names.append(_latest(draft))
        else:
            adds = additions < _MOST_ADDITIONS and not buffer.is_bool and rng.random() < 0.4
            additions += adds
            _update(draft, buffer, rng.choice(names[-3:]), "add" if adds else "set")
            names.append(_latest(draft))


def assembled(draft: Draft) -> None:
    """An updated buffer is padded or joined with others, and what that gives is updated, too, with
    parts of its states that lie elsewhere. Hardly anybody reads what the buffer was before."""
    rng = draft.rng
    states = [
        draft.pick(
            lambda known: known.is_plain and known.rank > 0 and 2 < known.size <= _MOST_JOINED
        )
    ]
    unknown = rng.choice((0.0, 0.0, 0.3, 0.7))  # how often a part lies where a scalar says
    for _ in range(rng.randint(1, 2)):
        for step in (_change, rng.choice((_padded, _padded, _joined)), _change):
            for _ in range(rng.randint(1, 3) if step is _change else 1):
                step(draft, states, unknown)
                states.append(_latest(draft))
                if not states[-1].size or states[-1].size > _MOST_JOINED:
                    return
            if step is not _change and rng.random() < 0.8:
                del states[:-1]


def large(draft: Draft) -> None:
    """An array of more than 4096 bytes of most types."""
    x = draft.pick(lambda known: known.is_plain and known.size > 0)
    draft.let(f"jnp.resize({x.name}, {draft.rng.choice(_LARGE)})", x.exact)


def _latest(draft: Draft) -> Known:
    return draft.scope[next(reversed(draft.scope))]


def _start(draft: Draft, x: Known) -> list[str]:
    """The buffer: a value in scope, a new one, or one with a border around the value."""
    how = draft.rng.random()
    if how < 0.4:
        return [x.name]
    widths = tuple((draft.rng.randint(0, 2), draft.rng.randint(0, 3)) for _ in x.shape)
    if how < 0.7:
        draft.let(f"jnp.pad({x.name}, {widths})", x.exact)
    else:
        draft.let(f"jnp.full({x.shape}, {draft.rng.randint(0, 1)}, jnp.{x.dtype})", True)
    return [_latest(draft).name]


def _box(draft: Draft, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """A part of an array as a subscript, and its shape; it has elements."""
    parts, sizes = [], []
    for size in shape:
        kind, low = draft.rng.random(), draft.rng.randrange(size)
        high = draft.rng.randint(low + 1, size)
        if kind < 0.35:
            parts.append(":")
            sizes.append(size)
        elif kind < 0.6:
            parts.append(str(draft.rng.choice((low, low - size))))
        elif kind < 0.85:
            parts.append(f"{low}:{high}")
            sizes.append(high - low)
        elif kind < 0.93:
            parts.append(f"{low}::2")
            sizes.append(-(-(size - low) // 2))
        else:
            parts.append("::-1")
            sizes.append(size)
    return ", ".join(parts), tuple(sizes)


def _number(draft: Draft, known: Known) -> str:
    return "True" if known.is_bool else str(draft.rng.randint(0, 3))


def _read(draft: Draft, state: Known) -> None:
    box, _ = _box(draft, state.shape)
    texts = ["{x}[{box}]"] * 3
    if not state.is_bool:
        texts += ["{x}[{box}] + 1", "{x}[{box}] * 2", "jnp.max({x}[{box}])"]
    draft.let(draft.rng.choice(texts).format(x=state.name, box=box), state.exact)


def _barrier(draft: Draft, names: list[Known]) -> None:
    """The buffer and another value go through a barrier together."""
    buffer, other = names[-1], draft.pick()
    first, second = draft.fresh(), draft.fresh()
    line = f"{first}, {second} = lax.optimization_barrier(({buffer.name}, {other.name}))"
    for name, known in ((second, other), (first, buffer)):
        draft.scope[name] = Known(name, known.shape, known.dtype, known.exact)
    draft.lines.append(line)
    names.append(draft.scope[first])


def _fill(draft: Draft, buffer: Known) -> None:
    box, _ = _box(draft, buffer.shape)
    draft.let(f"{buffer.name}.at[{box}].set({_number(draft, buffer)})", buffer.exact)


def _update(draft: Draft, buffer: Known, state: Known, fn: str) -> None:
    """What is written is a part of a state of the buffer, or something else that fits."""
    box, sizes = _box(draft, buffer.shape)
    fitting = [
        known
        for known in draft.scope.values()
        if (known.shape, known.dtype) == (sizes, buffer.dtype) and (known.exact or not buffer.exact)
    ]
    if fitting and draft.rng.random() < 0.5:
        piece = draft.rng.choice(fitting).name
    elif state.shape == buffer.shape and draft.rng.random() < 0.7:
        piece = f"{state.name}[{box}]"
        for axis in range(len(sizes)):
            if draft.rng.random() < 0.3:
                piece = f"jnp.flip({piece}, {axis})"
    else:
        piece = f"jnp.resize({state.name}, {sizes})"
    more = "" if buffer.is_bool or draft.rng.random() < 0.6 else " * 2"
    if more and fn == "add":
        more = " + 1"
    draft.let(f"{buffer.name}.at[{box}].{fn}({piece}{more})", buffer.exact and state.exact)


def _placed(draft: Draft, buffer: Known, state: Known) -> None:
    """dynamic_update_slice, at numbers or at places that the program computes."""
    rng = draft.rng
    sizes = tuple(rng.randint(1, size) for size in buffer.shape)
    scalars = [k for k in draft.scope.values() if k.shape == () and k.dtype == "int32"]
    starts = [
        rng.choice(scalars).name if scalars and rng.random() < 0.4 else str(rng.randint(-1, size))
        for size in buffer.shape
    ]
    starts = [f"jnp.int32({start})" for start in starts]
    if rng.random() < 0.5 and state.shape == buffer.shape:
        piece = f"lax.dynamic_slice({state.name}, ({', '.join(starts[::-1])},), {sizes})"
        exact = state.exact
    else:
        piece, exact = f"jnp.resize({state.name}, {sizes})", state.exact
    text = f"lax.dynamic_update_slice({buffer.name}, {piece}, ({', '.join(starts)},))"
    draft.let(text, buffer.exact and exact)


# ---------------------------------------------------------------------- parts of larger buffers


def _change(draft: Draft, states: Sequence[Known], unknown: float) -> None:
    if draft.rng.random() < 0.4:
        _fill(draft, states[-1])
    else:
        _shifted(draft, states[-1], draft.rng.choice((states[0], *states[-2:])), unknown)


def _padded(draft: Draft, states: Sequence[Known], _: float) -> None:
    """At its edges, between its elements, or by negative widths."""
    rng, buffer = draft.rng, states[-1]
    widths = tuple(
        (rng.randint(-1, 2), rng.randint(-1, 2), rng.choice((0, 0, 1, 2))) for _ in buffer.shape
    )
    number = f"jnp.{buffer.dtype}({rng.choice((0, 1))})"
    draft.let(f"lax.pad({buffer.name}, {number}, {widths})", buffer.exact)


def _joined(draft: Draft, states: Sequence[Known], _: float) -> None:
    """With other states, as far as they fit, or with its own first elements."""
    rng, buffer = draft.rng, states[-1]
    axis = rng.randrange(buffer.rank)
    others = [state for state in states[:-1] if state.shape == buffer.shape][-2:]
    names = [buffer.name, *(other.name for other in others if rng.random() < 0.4)]
    if len(names) < 2:
        names.append(f"{buffer.name}[{':, ' * axis}:{rng.randint(1, 3)}]")
    rng.shuffle(names)
    exact = all(known.exact for known in (buffer, *others))
    draft.let(f"jnp.concatenate([{', '.join(names)}], {axis})", exact)


def _shifted(draft: Draft, buffer: Known, state: Known, unknown: float) -> None:
    """A part of a state is written into the buffer, or added there, a little beside its place."""
    rng = draft.rng
    strides, sizes, places, starts = [], [], [], []
    for extent, other in zip(buffer.shape, state.shape, strict=True):
        room = min(extent, other)
        shift = rng.choice((0, 0, 1, -1, rng.randint(-5, 5)))
        shift = max(min(shift, room - 1), 1 - room)
        stride = rng.choice((1, 1, 1, 1, 1, 2))
        most = -(-(room - abs(shift)) // stride)
        sizes.append(rng.choice((rng.randint(1, most), most)))
        first = rng.randint(0, room - abs(shift) - 1 - (sizes[-1] - 1) * stride)
        places.append(first + max(-shift, 0))
        starts.append(first + max(shift, 0))
        strides.append(stride)
    box = _subscript(places, sizes, strides)
    piece = f"{state.name}[{_subscript(starts, sizes, strides)}]"
    scalars = [k.name for k in draft.scope.values() if k.shape == () and k.dtype == "int32"]
    if scalars and set(strides) == {1} and rng.random() < unknown:
        offsets = [f"{rng.choice(scalars)} + {rng.randint(-2, 2)}", *map(str, starts[1:])]
        piece = f"lax.dynamic_slice({state.name}, ({', '.join(offsets)},), {tuple(sizes)})"
    exact = buffer.exact and state.exact
    if not buffer.is_bool:
        piece += rng.choice(("", " * 2", " + 1", ".max(-1, keepdims=True)"))
    fn = "set" if buffer.is_bool or rng.random() < 0.5 else "add"
    draft.let(f"{buffer.name}.at[{box}].{fn}({piece})", exact)


def _subscript(starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> str:
    ends = (start + (n - 1) * by + 1 for start, n, by in zip(starts, sizes, strides, strict=True))
    parts = zip(starts, ends, strides, strict=True)
    return ", ".join(f"{a}:{b}" + (f":{by}" if by != 1 else "") for a, b, by in parts)
