"""A weight is one, as is what is computed of it, whichever loops, branches and layers read it, and
in whichever order: one copy is kept, in the form that was asked for, or a decision says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array, lax

import stagejit
from stagejit.rewrites.weights import evaluate
from tests.randomness import RNG
from tests.rewrites.weights.test_forms import array

Step = Callable[[Array, Array], Array]
SIZE = 64
FORMS = {None: (1.0, 2e-5), "bf16": (0.5, 0.06), "int8": (0.25, 0.2), "int4": (0.125, 2.0)}


def parameters(*layers: int) -> tuple[Array, Array]:
    w = RNG.normal(size=(*layers, SIZE, SIZE)).astype("f") / SIZE**0.5
    return jnp.asarray(w), jnp.asarray(1 + RNG.random(SIZE, dtype="f"))


READ: dict[str, Step] = {
    "as it is": lambda c, w: jnp.tanh(c @ w),
    "turned": lambda c, w: jnp.tanh(c @ w.T),
    "both": lambda c, w: jnp.tanh(jnp.tanh(c @ w) @ w.T),
}
AROUND: dict[str, Callable[[Step, Array, Array], Array]] = {
    "branch": lambda f, c, w: lax.cond(c[0, 0] > -9, lambda c: f(c, w), lambda c: c, c),
    "both branches": lambda f, c, w: lax.cond(
        c[0, 0] > -9, lambda c: f(c, w), lambda c: jnp.sin(f(c, w)), c
    ),
    "loop": lambda f, c, w: lax.fori_loop(0, 2, lambda i, c: f(c, w), c),
    "while": lambda f, c, w: lax.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1], w)), (0, c)
    )[1],
    "map": lambda f, c, w: lax.map(lambda row: f(row[None], w)[0], c),
}
NESTS = [
    *((name,) for name in AROUND),
    ("loop", "branch"),
    ("branch", "map"),
    ("branch", "loop", "branch"),
]


def nested(nest: tuple[str, ...], f: Step) -> Step:
    if not nest:
        return f
    inner = nested(nest[1:], f)
    return lambda c, w: AROUND[nest[0]](inner, c, w)


def whole(p: Any, x: Array, step: Step) -> Array:
    return step(x, p[0])


def turned_outside(p: Any, x: Array, step: Step) -> Array:
    return step(x, p[0].T)


def layers(p: Any, x: Array, step: Step) -> Array:
    return lax.scan(lambda c, w: (step(c, w), None), x, p[0])[0]


def turned_layers(p: Any, x: Array, step: Step) -> Array:
    return lax.scan(lambda c, w: (step(c, w.T), None), x, p[0])[0]


def layers_of_layers(p: Any, x: Array, step: Step) -> Array:
    return lax.scan(lambda c, v: (layers((v,), c, step), None), x, p[0])[0]


WEIGHTS: dict[str, tuple[Callable[..., Array], tuple[int, ...]]] = {
    f.__name__: (f, shape)
    for f, shape in (
        (whole, ()), (turned_outside, ()), (layers, (3,)), (turned_layers, (3,)),
        (layers_of_layers, (2, 2)),
    )
}  # fmt: skip


@pytest.mark.some(24)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_computed", [False, True], ids=["read", "computed"])
@pytest.mark.parametrize("of", WEIGHTS)
@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("nest", NESTS, ids="+".join)
def test_one_copy_in_the_form(
    nest: tuple[str, ...], read: str, of: str, is_computed: bool, form: Any
) -> None:
    """Where bodies compute of the weight what they read, that is computed in each."""
    around, shape = WEIGHTS[of]

    def f(p: Any, x: Array) -> Array:
        step = READ[read]
        if is_computed:
            return around(p, x, nested(nest, lambda c, w: step(c, w * jnp.tanh(p[1]))))
        return around(p, x, nested(nest, step))

    p, x = parameters(*shape), jnp.asarray(array(5, SIZE))
    bound = stagejit.bind(f, p, weights=form, options=stagejit.Options(verify=True))
    part, tolerance = FORMS[form]
    plan = bound.plan(x)
    assert float(jnp.abs(bound(x) - f(p, x)).max()) < tolerance
    nbytes, scales = p[0].nbytes, 4 * p[0].size // SIZE
    assert bound.memory_analysis()["kept_nbytes"] <= part * nbytes + 2 * scales + p[1].nbytes
    assert form is not None or not plan.packs
    assert (form is None) == (bound.weight_error == {})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("nest", NESTS, ids="+".join)
def test_what_is_computed_outside_of_bodies_is_made_once(nest: tuple[str, ...], form: Any) -> None:
    def f(p: Any, x: Array) -> Array:
        return nested(nest, READ["both"])(x, p[0] * jnp.tanh(p[1]))

    p, x = parameters(), jnp.asarray(array(5, SIZE))
    bound = stagejit.bind(f, p, weights=form)
    plan = bound.plan(x)
    assert float(jnp.abs(bound(x) - f(p, x)).max()) < FORMS[form][1]
    assert bound.memory_analysis()["made_nbytes"] == p[0].nbytes
    assert not plan.packs
    reasons = {d.op: d.reason for d in plan.decisions if d.rewrite == "store-weights"}
    why = "a loop or branch is given what is computed of it outside, which bodies read as it is"
    found = {"params[0]: float32[64,64]": why, "params[1]: float32[64]": why}
    assert reasons == ({} if form is None else found)


def test_a_form_that_no_product_uses_is_told_with_the_reason() -> None:
    params = {"w": jnp.asarray(array(SIZE, SIZE)), "b": jnp.asarray(array(SIZE))}
    bound = stagejit.bind(lambda p, x: x @ p["w"] + p["b"], params, weights="int8")
    plan = bound.plan(jnp.asarray(array(5, SIZE)))
    declined = [d for d in plan.decisions if d.rewrite == "store-weights" and not d.applied]
    assert [(d.op, d.reason) for d in declined] == [
        ("params['b']: float32[64]", "no product reads it")
    ]


def test_a_view_that_is_scanned_leaves_the_weight_as_it_is() -> None:
    """Its slices would be those of a copy, which other programs do not read."""

    def f(w: Array, x: Array) -> Array:
        return lax.scan(lambda c, v: (jnp.tanh(c @ v), None), x, jnp.swapaxes(w, 1, 2))[0]

    (w, _), x = parameters(3), jnp.asarray(array(5, SIZE))
    bound = stagejit.bind(f, w, weights="int8")
    assert float(jnp.abs(bound(x) - f(w, x)).max()) < 2e-5
    assert bound.weight_error == {}


def test_dont_turn_inside_what_arguments_determine() -> None:
    def f(w: Array, x: Array) -> Array:
        turned = (w * x[0, 0]).T
        return lax.fori_loop(0, 2, lambda i, c: jnp.tanh(c @ turned), x)

    (w, _), x = parameters(), jnp.asarray(array(5, SIZE))
    bound = stagejit.bind(f, w, options=stagejit.Options(verify=True))
    assert float(jnp.abs(bound(x) - f(w, x)).max()) < 2e-5
    assert not [d for d in bound.plan(x).decisions if "turned where" in d.reason]


@pytest.mark.parametrize("off", ["evaluate-weights", "simplify-loops", "data-tiling"])
@pytest.mark.parametrize("of", WEIGHTS)
def test_switched_off(of: str, off: str) -> None:
    around, shape = WEIGHTS[of]
    options = stagejit.Options(verify=True, disable=(off,))
    p, x = parameters(*shape), jnp.asarray(array(5, SIZE))

    def f(p: Any, x: Array) -> Array:
        step = lambda c, w: READ["both"](c, w * jnp.tanh(p[1]))  # noqa: E731
        return around(p, x, nested(("branch", "loop"), step))

    bound = stagejit.bind(f, p, options=options)
    assert float(jnp.abs(bound(x) - f(p, x)).max()) < 2e-5
    turned = [d for d in bound.plan(x).decisions if "turned where" in d.reason]
    assert bool(turned) == (of.startswith("turned") and off != "evaluate-weights")


def test_what_is_given_up_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain, each value of which is read, only what is kept: else time would be quadratic."""
    built = list[Any]()
    cloned_out = evaluate.cloned_out

    def counted(*args: Any) -> Any:
        built.append(args)
        return cloned_out(*args)

    monkeypatch.setattr(evaluate, "cloned_out", counted)

    def f(w: Array, x: Array) -> Array:
        for _ in range(100):
            w = jnp.sin(w)
            x = x * w
        return x

    w, x = jnp.asarray(array(SIZE)), jnp.asarray(array(SIZE, seed=1))
    bound = stagejit.bind(f, w)
    assert float(jnp.abs(bound(x) - f(w, x)).max()) < 2e-5
    made = bound.memory_analysis()["made_nbytes"] // w.nbytes
    assert 0 < made < 10
    assert len(built) <= 2 * made
