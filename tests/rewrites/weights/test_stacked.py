"""Layers that are slices of one weight, which a scan goes through: what is made of them is made
before any call, in one copy, and their products read it as those of layers in a list do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import stagejit
from stagejit import Options
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.rewrites.driving.driver import GraphStep, run_steps
from stagejit.rewrites.weights.stacked import NAME, stack_weights
from tests.rewrites.weights.test_forms import rounded

LAYERS = 3
CHECKED = Options(verify=True, delegate=False)


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def parameters(size: int = 64) -> Any:
    return {
        "w": array(LAYERS, size, size, seed=1) / size**0.5,
        "v": array(LAYERS, size, size, seed=2) / size**0.5,
        "g": 0.1 * array(LAYERS, size, seed=3),
    }


def layer(c: Array, p: Any) -> Array:
    hidden = jnp.tanh(c @ p["w"])
    return c + (hidden * jnp.exp(p["g"])) @ p["v"].T


def scanned(params: Any, x: Array) -> Any:
    return lax.scan(lambda c, p: (layer(c, p), c.sum()), x, params)


def backwards(params: Any, x: Array) -> Any:
    return lax.scan(lambda c, p: (layer(c, p), c.sum()), x, params, reverse=True)


def again_and_again(params: Any, x: Array) -> Any:
    return lax.fori_loop(0, 2, lambda i, c: scanned(params, c)[0], x)


def steps_of_layers(params: Any, x: Array) -> Any:
    """Each layer hands its slice on to a loop."""

    def deep(c: Array, p: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, c: layer(c, p), c), None

    return lax.scan(deep, x, params)[0]


def twice(params: Any, x: Array) -> Any:
    return backwards(params, scanned(params, x)[0])


PROGRAMS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (scanned, backwards, again_and_again, steps_of_layers, twice)
}
FORMS = (None, "bf16", "int8", "int4")


def stored(params: Any, form: str | None) -> Any:
    """What is read of the layers."""
    if form is None:
        return params
    w = [rounded(w, form, (0,)) for w in params["w"]]
    v = [rounded(v, form, (1,)) for v in params["v"]]
    return {**params, "w": np.stack(w), "v": np.stack(v)}


def assert_close(found: Any, wanted: Any) -> None:
    def check(a: Any, b: Any) -> None:
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * float(np.abs(b).max()))

    jax.tree.map(check, found, wanted)


def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    def loss(x: Array) -> Any:
        return sum((jnp.sin(leaf) ** 2).sum() for leaf in jax.tree.leaves(f(x)))

    return jax.grad(loss)


CASES = [("scanned", form) for form in FORMS] + [(name, "int8") for name in PROGRAMS]
CASES += [("steps_of_layers", None), ("twice", None)]


@pytest.mark.some(3)
@pytest.mark.parametrize(("name", "form"), CASES[1:])
def test_values_gradients_and_batches(name: str, form: Any) -> None:
    f, params, x = PROGRAMS[name], parameters(), jnp.asarray(array(5, 64))
    bound = stagejit.bind(f, params, weights=form, options=CHECKED)
    known = stored(params, form)
    found = bound(x)
    assert_close(found, f(known, x))
    assert_close(gradient(bound)(x), gradient(lambda x: f(known, x))(x))
    both = stagejit.jit(gradient(bound), options=CHECKED)
    assert_close(both(x), gradient(lambda x: f(known, x))(x))
    xs = jnp.asarray(array(2, 5, 64, seed=7))
    assert_close(jax.vmap(bound)(xs), jax.vmap(lambda x: f(known, x))(xs))


@pytest.mark.parametrize("form", FORMS)
def test_an_update_makes_all_layers_anew(form: Any) -> None:
    params, x = parameters(), array(5, 64)
    bound = stagejit.bind(scanned, params, weights=form)
    bound(x)
    other = {name: 2 * leaf[::-1] for name, leaf in params.items()}
    bound.update(other)
    assert_close(bound(x), scanned(stored(other, form), x))


@pytest.mark.parametrize(("form", "bits"), [(None, 32), ("bf16", 16), ("int8", 8), ("int4", 4)])
def test_one_copy_of_the_layers_is_kept(form: Any, bits: int) -> None:
    params, x = parameters(512), array(1, 512)
    bound = stagejit.bind(scanned, jax.tree.map(jnp.asarray, params), weights=form)
    bound(x)
    matrices = params["w"].size + params["v"].size
    small = sum(leaf.nbytes for name, leaf in params.items() if name not in "wv")
    kept = bound.memory_analysis()["kept_nbytes"]
    assert kept <= matrices * bits // 8 + 3 * LAYERS * 512 * 4 + small


def test_errors_of_layers_are_those_of_all_of_them() -> None:
    params = parameters()
    bound = stagejit.bind(scanned, params, weights="int8")
    bound(array(5, 64))
    known = stored(params, "int8")
    for name in "wv":
        wanted = np.linalg.norm(known[name] - params[name]) / np.linalg.norm(params[name])
        np.testing.assert_allclose(bound.weight_error[f"params['{name}']"], wanted, rtol=1e-3)


def test_nothing_of_weights_is_computed_in_a_call() -> None:
    params, x = parameters(), array(5, 64)
    bound = stagejit.bind(scanned, params, weights="int8", options=CHECKED)
    (loop,) = [d for d in bound.plan(x).dispatches if d.bodies]
    inside = [op for d in loop.bodies[0].plan.dispatches for op in d.ops]
    assert not {"round", "abs", "exp"} & set(inside)
    assert all(not read.buffer.startswith("params") for read in loop.reads)


def test_an_inf_in_a_layer_leaves_all_of_them_as_they_are() -> None:
    params, x = parameters(), array(5, 64)
    params["w"][1, 2, 3] = np.inf
    bound = stagejit.bind(scanned, params, weights="int8")
    known = {**stored(parameters(), "int8"), "w": params["w"]}
    np.testing.assert_allclose(bound(x)[1], scanned(known, x)[1], rtol=1e-4)
    assert list(bound.weight_error) == ["params['v']"]


SWITCHES = ["evaluate-weights", "store-weights", "data-tiling", "simplify-loops"]


@pytest.mark.some(2)
@pytest.mark.parametrize("off", SWITCHES)
@pytest.mark.parametrize("name", ["scanned", "steps_of_layers"])
def test_switched_off(name: str, off: str) -> None:
    f, params, x = PROGRAMS[name], parameters(), array(5, 64)
    options = Options(verify=True, delegate=False, disable=(off,))
    bound = stagejit.bind(f, params, weights="int8", options=options)
    known = params if off == "store-weights" else stored(params, "int8")
    assert_close(bound(x), f(known, x))


# -- text -----------------------------------------------------------------------------------------


def stacked(body: str, head: str = "%w: f32[3,64,32] bound") -> str:
    slice = head.split()[1].replace("3,", "", 1)
    graph = parse(f"""graph @f(%x: f32[64], {head}) {{
      %0: f32[64] = loop %x, %w carries=1 reverse=true trip=3 xs=1
        graph @body(%c0: f32[64] donated, %s: {slice}) {{
          {body}
        }}
      return %0
    }}""")
    run_steps(graph, [GraphStep(NAME, stack_weights)], CHECKED)
    return as_text(graph)


SUMS = """%0: f32[64] = reduce max %s axes=(1)
          %1: f32[64] = map add %c0, %0
          return %1"""


def test_what_a_slice_determines_is_made_by_a_loop_before() -> None:
    text = stacked(SUMS)
    before, after = text.split("f32[64] = loop")
    assert "f32[3,64] = loop %w carries=0 reverse=false trip=3 xs=1" in before
    assert "reduce" in before
    assert "reduce" not in after
    assert "carries=1 reverse=true trip=3 xs=1" in after  # the weight itself is read no more


@pytest.mark.parametrize(
    ("body", "head"),
    [
        (SUMS, "%w: f32[3,64,32]"),  # no weight
        (  # what grows
            """%0: f32[64,64] = extract_slice %s at (0, 0)
          %1: f32[64,64,64] = broadcast %0 axes=(0, 1)
          %2: f32[64,64,64] = broadcast %c0 axes=(2)
          %3: f32[64,64,64] = map mul %1, %2
          %4: f32[64] = reduce max %3 axes=(0, 1)
          return %4""",
            "%w: f32[3,64,64] bound",
        ),
        (  # a view
            """%0: f32[64,1] = extract_slice %s at (0, 3)
          %1: f32[64] = reshape %0
          %2: f32[64] = map add %c0, %1
          return %2""",
            "%w: f32[3,64,32] bound",
        ),
    ],
)
def test_dont_make(body: str, head: str) -> None:
    assert stacked(body, head).count(" = loop ") == 1


@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
def test_programs_of_any_batch_read_what_the_first_one_made(form: Any) -> None:
    """Nobody keeps the arrays: what a program of one row made is all that others have."""
    layers = [array(3, 64, 256) / 8, array(3, 256, 64, seed=1) / 16]

    def net(layers: Any, x: Any) -> Any:
        return lax.scan(lambda x, w: (jnp.tanh(x @ w[0]) @ w[1], None), x, layers)[0]

    bound = stagejit.bind(net, [jnp.asarray(w) for w in layers], weights=form)
    x = array(100, 64, seed=2)
    one, made = bound(x[:1]), bound.memory_analysis()["made_nbytes"]
    for rows in (3, 100):
        np.testing.assert_allclose(bound(x[:rows])[:1], one, rtol=1e-4, atol=1e-3)
    assert bound.memory_analysis()["made_nbytes"] == made


GRADIENTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "by JAX": jax.grad,
    "in one program of JAX's": lambda f: jax.jit(jax.grad(f)),
    "in one program": lambda f: stagejit.jit(jax.grad(f)),
    "in two": lambda f: lambda x: jax.vjp(f, x)[1](jnp.ones(()))[0],
    "of a batch": lambda f: jax.vmap(jax.grad(lambda x: f(x[None])), in_axes=0),
}


@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    ("how", "unrolled"), [*((how, False) for how in GRADIENTS), ("in one program", True)]
)
def test_gradients_read_what_the_first_program_made(
    how: str, unrolled: bool, again: bool, form: Any
) -> None:
    """Nobody keeps the arrays. again: layers are computed again backwards."""

    def step(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w[0]) @ w[1], None

    def net(layers: Any, x: Any) -> Any:
        layer = jax.checkpoint(step) if again else step
        if not unrolled:
            return lax.scan(layer, x, layers)[0]
        for at in range(3):
            x, _ = layer(x, [w[at] for w in layers])
        return x

    layers = [array(3, 64, 96) / 8, array(3, 96, 64, seed=1) / 8]
    x = jnp.asarray(array(2, 64, seed=2))
    bound = stagejit.bind(net, [jnp.asarray(w) for w in layers], weights=form)
    bound(x)
    made = bound.memory_analysis()["made_nbytes"]
    read = [np.stack([rounded(w, form, (0,)) for w in each]) for each in layers]
    found = GRADIENTS[how](lambda x: jnp.sum(bound(x) ** 2))(x)
    assert_close(found, jax.grad(lambda x: jnp.sum(net(read, x) ** 2))(x))
    assert bound.memory_analysis()["made_nbytes"] == made
    assert bound.weight_error  # no program reads them as they were
