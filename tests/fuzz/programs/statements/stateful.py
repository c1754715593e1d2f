"""Statements with effects whose order counts: mutable references, and callbacks that hand something
on from one to the next.

Input: a draft. Output: a few lines, and the value that they end with. Invariant: a second call of
the program gives the same, so nothing is kept between calls.
"""

from __future__ import annotations

from tests.fuzz.programs.draft import Draft, Known, Refused

_UPDATES = (
    "{r}[...] = {r}[...] * 2",
    "{r}[...] += {x}",
    "{r}[0] = {r}[-1]",
    "{r}[:1] = {r}[:1] + 3",
    "{r}[{i}] += {r}[0]",
)


def _number(known: Known) -> bool:
    return (known.is_float or known.is_integer) and known.size <= 256


def references(draft: Draft) -> None:
    """A reference that is read and written here, or by the turns of a loop."""
    x, rng = draft.pick(lambda known: _number(known) and known.exact), draft.rng
    reference, body = draft.fresh("r"), draft.fresh("body")
    fitting = _UPDATES[:2] if not x.rank or not x.shape[0] else _UPDATES
    lines = [f"{reference} = jax.new_ref({x.name})"]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(x.shape[0]) if x.rank and x.shape[0] else 0
        update = rng.choice(fitting).format(r=reference, x=x.name, i=at)
        if rng.random() < 0.3:
            lines += [f"def {body}(i, c):", f"    {update}", f"    return c + {reference}[...]"]
            lines += [f"lax.fori_loop(0, {rng.randint(1, 3)}, {body}, {x.name})"]
        else:
            lines.append(update)
    end = rng.choice(("{r}[...]", "jax.freeze({r})", "{r}[...] + 1"))
    draft.let(end.format(r=reference), True, lines)


def ordered(draft: Draft) -> None:
    """A callback that reads what the one before it has stored."""
    rng = draft.rng
    if "effects" not in draft.features or draft.depth:
        raise Refused("derivatives and maps do not take it")
    x = draft.pick(lambda known: known.is_plain and known.size <= 256)
    store, body = draft.fresh("s"), draft.fresh("body")
    struct = f"jax.ShapeDtypeStruct({x.shape}, jnp.{x.dtype})"
    write = f"io_callback(lambda a: {store}.__setitem__(0, np.array(a)), None, {{a}}, ordered=True)"
    read = f"io_callback(lambda: {store}[0], {struct}, ordered=True)"
    if rng.random() < 0.6:
        draft.let(read, x.exact, [f"{store} = {{}}", write.format(a=x.name)])
        return
    change = "~c" if x.is_bool else "c * 2"
    lines = [
        f"{store} = {{}}",
        f"def {body}(i, c):",
        f"    {write.format(a=change)}",
        f"    return {read}",
    ]
    draft.let(f"lax.fori_loop(0, {rng.randint(1, 3)}, {body}, {x.name})", x.exact, lines)
