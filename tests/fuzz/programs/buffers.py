"""Statements about one buffer: many updates, fills and reads of it, one after the other, and large
ones that loops carry.

Input: a draft. Output: a few lines, whose last values are the buffer and what was read of it.
Invariant: what is written is a small number, a part of an earlier state of the buffer, or another
value in scope: as exact as they are.
"""

from __future__ import annotations

from tests.fuzz.programs.draft import Draft, Known

_MOST_ADDITIONS = 6  # of a buffer to itself: more would outgrow what is exact
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
