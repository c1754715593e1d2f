"""Statements with functions in them: control flow, and transformations of functions.

Input: a draft. Output: a definition or several, and the statement that uses them. Invariant: a body
may read everything in scope around it; much of what it computes is not used in the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.fuzz.programs.draft import Draft, Known, Refused
from tests.fuzz.programs.statements import buffers

MOST_DEPTH = 3
_EMPTY = 0.08  # how often something without elements is carried along
_LARGE = 0.12  # how often a carry is of more than 4096 bytes


def _body_size(draft: Draft) -> int:
    return draft.rng.randint(1, 4 if draft.depth == 0 else 2)


def _nest(draft: Draft) -> None:
    if draft.depth >= MOST_DEPTH:
        raise Refused("too deep")


def _carried(draft: Draft, known: Known) -> bool:
    storable = known.is_plain or "exotic" in draft.features
    return storable and known.size <= 256


def _inits(draft: Draft, most: int = 3) -> list[Known]:
    found = {
        draft.pick(lambda known: _carried(draft, known)).name
        for _ in range(draft.rng.randint(1, most))
    }
    if not draft.depth and draft.rng.random() < _LARGE:
        buffers.large(draft)
        found.add(next(reversed(draft.scope)))
    if draft.rng.random() < _EMPTY:
        found.add(draft.without_elements().name)
    return [draft.scope[name] for name in sorted(found)]


def _params(draft: Draft, values: Sequence[Known]) -> list[Known]:
    return [Known(draft.fresh("a"), value.shape, value.dtype, value.exact) for value in values]


def _results(draft: Draft, like: Sequence[Known]) -> list[str]:
    """Names of values of these types at the end of a body."""
    return [draft.cast(known.shape, known.dtype, known.exact) for known in like]


def _define(draft: Draft, name: str, params: Sequence[Known], like: Sequence[Known]) -> list[str]:
    """A function of `params` that gives a tuple of the types of `like`."""
    with draft.function(name, params) as lines:
        for _ in range(_body_size(draft)):
            draft.step()
        draft.returns(_tuple(_results(draft, like)))
    return lines


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _let_all(draft: Draft, expression: str, lines: Sequence[str], like: Sequence[Known]) -> None:
    """Binds the results, a tuple, to names that are as exact as `like`."""
    names = [draft.fresh() for _ in like]
    line = f"{', '.join(names)}{',' if len(names) == 1 else ''} = {expression}"
    found = draft.infer([*lines, line], names)
    for name, aval, known in zip(names, found, like, strict=True):
        draft.scope[name] = Known(name, tuple(aval.shape), str(aval.dtype), known.exact)
    draft.lines += [*lines, line]


# ---------------------------------------------------------------------- loops


def fori(draft: Draft) -> None:
    _nest(draft)
    inits, body = _inits(draft), draft.fresh("body")
    params = _params(draft, inits)
    i, carry = Known(draft.fresh("i"), (), "int32", True), draft.fresh("c")
    with draft.function(body, [i, *params]) as lines:
        draft.lines.append(f"{_tuple([param.name for param in params])} = {carry}")
        for _ in range(_body_size(draft)):
            draft.step()
        draft.returns(_tuple(_results(draft, params)))
    low, high = 0, draft.rng.randint(0, 4)
    end = str(high)
    if draft.rng.random() < 0.3:  # a count that only the program knows: a while loop
        counts = [k for k in draft.scope.values() if k.shape == () and k.dtype == "int32"]
        if counts:
            end = f"jnp.clip({draft.rng.choice(counts).name}, 0, 4)"
    lines[0] = f"def {body}({i.name}, {carry}):"
    start = _tuple([known.name for known in inits])
    _let_all(draft, f"lax.fori_loop({low}, {end}, {body}, {start})", lines, inits)


def while_(draft: Draft) -> None:
    _nest(draft)
    inits, body, condition = _inits(draft), draft.fresh("body"), draft.fresh("cond")
    counter = Known(draft.fresh("i"), (), "int32", True)
    params = _params(draft, inits)
    carry = draft.fresh("c")
    with draft.function(body, [counter, *params]) as lines:
        draft.lines.append(f"{_tuple([counter.name, *(param.name for param in params)])} = {carry}")
        for _ in range(_body_size(draft)):
            draft.step()
        draft.returns(_tuple([f"{counter.name} + 1", *_results(draft, params)]))
    lines[0] = f"def {body}({carry}):"
    limit = str(draft.rng.randint(0, 4))
    scalars = [k for k in draft.scope.values() if k.shape == () and k.dtype == "int32"]
    if scalars and draft.rng.random() < 0.4:
        limit = f"jnp.clip({draft.rng.choice(scalars).name}, 0, 4)"
    extra = ""
    if draft.rng.random() < 0.3 and any(
        param.exact and param.is_float and param.size for param in params
    ):
        at = next(
            n for n, param in enumerate(params) if param.exact and param.is_float and param.size
        )
        extra = f" & (jnp.max({carry}[{at + 1}]) < 50)"
    lines += [f"def {condition}({carry}):", f"    return ({carry}[0] < {limit}){extra}"]
    start = _tuple(["0" if not draft.x64 else "jnp.int32(0)", *(known.name for known in inits)])
    _let_all(draft, f"lax.while_loop({condition}, {body}, {start})[1:]", lines, inits)


def scan(draft: Draft) -> None:
    _nest(draft)
    inits, body, rng = _inits(draft, 2), draft.fresh("body"), draft.rng
    xs: list[Known] = []
    if rng.random() < 0.7:
        xs = [draft.pick(lambda k: k.is_plain and k.rank > 0 and k.shape[0] <= 8)]
        length = xs[0].shape[0]
        if rng.random() < 0.4:
            xs.append(draft.pick(lambda k: k.is_plain and k.rank > 0 and k.shape[0] == length))
    else:
        length = rng.randint(1, 4)
    carry, sliced = draft.fresh("c"), draft.fresh("x")
    params = _params(draft, inits)
    slices = [Known(draft.fresh("s"), x.shape[1:], x.dtype, x.exact) for x in xs]
    with draft.function(body, [*params, *slices]) as lines:
        draft.lines.append(f"{_tuple([param.name for param in params])} = {carry}")
        if slices:
            draft.lines.append(f"{_tuple([known.name for known in slices])} = {sliced}")
        for _ in range(_body_size(draft)):
            draft.step()
        ys = [
            draft.pick(lambda k: _carried(draft, k) and k.size <= 64)
            for _ in range(rng.randint(0, 2))
        ]
        results = _tuple(_results(draft, params))
        stacked = _tuple([y.name for y in ys]) if ys else "()"
        draft.returns(f"({results}, {stacked})")
    lines[0] = f"def {body}({carry}, {sliced}):"
    start = _tuple([known.name for known in inits])
    given = _tuple([x.name for x in xs]) if xs else f"None, length={length}"
    more = rng.choice(("", "", ", reverse=True", ", unroll=2"))
    text = f"sum(lax.scan({body}, {start}, {given}{more}), ())"
    _let_all(draft, text, lines, [*inits, *ys])


def mapped(draft: Draft) -> None:
    """lax.map and vmap: a function of a slice."""
    _nest(draft)
    x = draft.pick(lambda known: known.is_plain and known.rank > 0 and known.shape[0] <= 8)
    body = draft.fresh("body")
    param = Known(draft.fresh("s"), x.shape[1:], x.dtype, x.exact)
    with draft.function(body, [param]) as lines:
        for _ in range(_body_size(draft)):
            draft.step()
        out = draft.pick(lambda known: known.is_plain and known.size <= 64)
        draft.returns(out.name)
    if draft.rng.random() < 0.4:
        _let_all(draft, f"(lax.map({body}, {x.name}),)", lines, [out])
    else:
        axis = draft.rng.choice(("0", "0", "-1")) if out.rank else "0"
        _let_all(draft, f"(jax.vmap({body}, out_axes={axis})({x.name}),)", lines, [out])


def associative(draft: Draft) -> None:
    x = draft.pick(
        lambda known: (
            known.is_plain and known.rank > 0 and 0 < known.shape[0] <= 17 and not known.is_bool
        )
    )
    fn = draft.rng.choice(
        ("jnp.add", "jnp.maximum", "lambda a, b: a * 0.5 + b" if x.is_float else "jnp.minimum")
    )
    more = draft.rng.choice(("", ", reverse=True"))
    exact = x.exact and (x.is_integer or fn == "jnp.maximum")
    draft.let(f"lax.associative_scan({fn}, {x.name}{more})", exact)


# ---------------------------------------------------------------------- branches


def cond(draft: Draft) -> None:
    _nest(draft)
    rng = draft.rng
    operands = _inits(draft)
    count = rng.choice((2, 2, 3))
    predicate: Known
    if count == 2 and rng.random() < 0.7:
        predicate = draft.pick(lambda known: known.shape == () and known.is_bool)
    else:
        predicate = draft.pick(lambda known: known.shape == () and known.dtype == "int32")
    names = [draft.fresh("branch") for _ in range(count)]
    lines: list[str] = []
    like: list[Known] = []
    for number, name in enumerate(names):
        params = _params(draft, operands)
        with draft.function(name, params) as made:
            for _ in range(rng.randint(0, _body_size(draft))):
                draft.step()
            if not number:
                like = [
                    draft.pick(lambda known: _carried(draft, known))
                    for _ in range(rng.randint(1, 3))
                ]
                if rng.random() < _EMPTY:
                    like.append(draft.without_elements())
                draft.returns(_tuple([known.name for known in like]))
            else:
                draft.returns(_tuple(_results(draft, like)))
        lines += made
    passed = ", ".join(known.name for known in operands)
    if predicate.is_bool:
        text = f"lax.cond({predicate.name}, {', '.join(names)}, {passed})"
    else:
        text = f"lax.switch({predicate.name}, [{', '.join(names)}], {passed})"
    _let_all(draft, text, lines, like)


# ---------------------------------------------------------------------- transformations


def called(draft: Draft) -> None:
    """A function that is called through jit, checkpoint, custom derivatives, or as it is."""
    _nest(draft)
    operands, name, rng = _inits(draft), draft.fresh("fun"), draft.rng
    params = _params(draft, operands)
    with draft.function(name, params) as lines:
        for _ in range(_body_size(draft)):
            draft.step()
        like = [draft.pick(lambda known: _carried(draft, known)) for _ in range(rng.randint(1, 2))]
        draft.returns(_tuple([known.name for known in like]))
    passed = ", ".join(known.name for known in operands)
    wrapper = rng.choice(("jax.jit", "jax.checkpoint", "jax.custom_jvp", "jax.named_call", ""))
    if wrapper == "jax.jit" and rng.random() < 0.3:
        wrapper = "jax.jit(jax.checkpoint"
    closing = ")" if wrapper.count("(") else ""
    function = f"{wrapper}({name}){closing}" if wrapper else name
    if wrapper == "jax.custom_jvp":
        lines += [
            f"{name} = jax.custom_jvp({name})",
            f"{name}.defjvps({', '.join(['None'] * len(params))})",
        ]
        function = name
    _let_all(draft, f"{function}({passed})", lines, like)


def derivative(draft: Draft) -> None:
    """Gradients and tangents of a function of floats."""
    _nest(draft)
    rng = draft.rng
    x = draft.pick(lambda known: known.is_float and known.size <= 256)
    name = draft.fresh("fun")
    param = Known(draft.fresh("a"), x.shape, x.dtype, False)
    with draft.function(name, [param]) as lines:
        draft.let(
            rng.choice(("jnp.sin({x})", "{x} * {x} * 0.5", "jnp.tanh({x}) + {x}")).format(
                x=param.name
            ),
            False,
        )
        for _ in range(_body_size(draft)):
            draft.step()
        out = draft.pick(lambda known: known.is_float)
        mode = rng.choice(("grad", "grad", "jvp", "vjp", "value_and_grad", "linearize", "hvp"))
        total = f"jnp.sum({out.name} * 0.1)"
        draft.returns(out.name if mode in ("jvp", "vjp", "linearize") else total)
    if math.prod(x.shape) == 0 and mode == "hvp":
        raise Refused("nothing to differentiate")
    one = f"jnp.ones_like({x.name})"
    fun = f"jax.checkpoint({name})" if rng.random() < 0.2 else name
    texts = {
        "grad": f"(jax.grad({fun})({x.name}),)",
        "value_and_grad": f"jax.value_and_grad({fun})({x.name})",
        "jvp": f"jax.jvp({fun}, ({x.name},), ({one},))",
        "vjp": f"(jax.vjp({fun}, {x.name})[1](jnp.ones({out.shape}, jnp.{out.dtype}))[0],)",
        "linearize": f"(jax.linearize({fun}, {x.name})[1]({one}),)",
        "hvp": f"jax.jvp(jax.grad({fun}), ({x.name},), ({one},))",
    }
    count = 2 if mode in ("value_and_grad", "jvp", "hvp") else 1
    _let_all(draft, texts[mode], lines, [Known("", (), "", False)] * count)
